#include "cli/report.h"

#include <cstdio>

namespace switchyard {

int print_report(const Report& report) {
  fmt::print("{}", report.text);
  return report.status;
}

void print_note(const std::string& line) {
  fmt::print("{}\n", line);
}

void print_warning(const std::string& line) {
  fmt::print(stderr, "{}\n", line);
}

}  // namespace switchyard
