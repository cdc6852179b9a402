#include "core/error.h"

#include <cstdio>
#include <cstdlib>

namespace switchyard {

void check_failed(const char* file, int line, const char* condition, const std::string& detail) {
  fmt::print(stderr, "{}:{}: CHECK failed: {} {}\n", file, line, condition, detail);
  std::fflush(stderr);
  std::abort();
}

}  // namespace switchyard
