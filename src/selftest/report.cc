#include "selftest/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/machine/machine.h"

namespace switchyard::selftest {
namespace {

constexpr const char* kTableFormat = "  {:<30} {:<18} {:<9} {:>6} {:>9} {:>9}  {}";

std::string error_text(double error) {
  return error == 0 ? "0" : fmt::format("{:.1e}", error);
}

}  // namespace

std::string table_header() {
  return fmt::format(kTableFormat, "kernel", "implementation", "dtype", "cases", "max abs", "max rel",
                     "verdict");
}

std::string table_row(const Result& r) {
  const std::string line =
      fmt::format(kTableFormat, r.kernel, r.implementation, r.dtype, r.cases, error_text(r.max_abs),
                  error_text(r.max_rel), r.pass() ? "ok" : "FAIL");
  return r.pass() ? line : fmt::format("{}\n    {}", line, r.failure);
}

std::string verdict(const std::vector<Result>& results) {
  const auto failing =
      std::count_if(results.begin(), results.end(), [](const Result& r) { return !r.pass(); });
  if (failing > 0) return fmt::format("{} of {} differ from the reference", failing, results.size());
  if (results.empty()) return "nothing to compare: the references are all that runs here";
  return fmt::format("all {} agree with the reference", results.size());
}

nlohmann::ordered_json results_json(const std::vector<Result>& results) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Result& r : results) {
    nlohmann::ordered_json item{{"kernel", r.kernel},    {"implementation", r.implementation},
                                {"isa", name_of(r.isa)}, {"dtype", r.dtype},
                                {"cases", r.cases},      {"max_abs", r.max_abs},
                                {"max_rel", r.max_rel},  {"pass", r.pass()}};
    if (!r.pass()) item["failure"] = r.failure;
    list.push_back(std::move(item));
  }
  return {{"version", SWITCHYARD_VERSION}, {"machine", machine_name()}, {"results", list}};
}

}  // namespace switchyard::selftest
