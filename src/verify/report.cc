#include "verify/report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "core/error.h"
#include "kernels/machine/machine.h"

namespace switchyard {
namespace {

constexpr double kSmallest = 1e-6;  // magnitudes below count as this one
constexpr std::size_t kFailuresShown = 20;

template <typename T>
MaxError difference_of(std::span<T> got, std::span<T> want) {
  double worst = 0, largest = kSmallest;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double g = static_cast<double>(got[i]), w = static_cast<double>(want[i]);
    if (std::isnan(g) || std::isnan(w) || std::isinf(g) || std::isinf(w)) {
      const double nan = std::numeric_limits<double>::quiet_NaN();
      return {nan, nan};
    }
    worst = std::max(worst, std::abs(g - w));
    largest = std::max(largest, std::abs(w));
  }
  return {worst, worst / largest};
}

std::string number(double value) {
  return value == 0 ? "0" : fmt::format("{:.1e}", value);
}

double share_of_top(const NativeLogits& native) {
  return static_cast<double>(native.same_top) / static_cast<double>(native.tokens);
}

std::string judgement(const Row& row) {
  if (!row.judged) return "reported";
  if (row.pass()) return "ok";
  if (!row.failure.empty()) return "FAIL, " + row.failure;
  return row.tolerance == 0 ? "FAIL, must be equal" : fmt::format("FAIL, over {}", number(row.tolerance));
}

std::string verdict(const Row& row) {
  return row.note.empty() ? judgement(row) : judgement(row) + "; " + row.note;
}

void print_line(std::size_t width, const std::string& name, const MaxError& error, const std::string& text) {
  fmt::print("  {:<{}}  {:>8}  {:>8}  {}\n", name, width, number(error.max_abs), number(error.max_rel), text);
}

// Prints one line for all passing rows of a group, and each failing row by name.
void print_group(const std::vector<const Row*>& rows, std::size_t width) {
  MaxError worst;
  const Row* worst_row = nullptr;
  std::size_t passing = 0, failing = 0;
  for (const Row* row : rows) {
    if (!row->judged) continue;
    if (row->pass()) {
      ++passing;
      worst.max_abs = std::max(worst.max_abs, row->error.max_abs);
      if (worst_row == nullptr || row->error.max_rel > worst.max_rel) worst_row = row;
      worst.max_rel = std::max(worst.max_rel, row->error.max_rel);
    } else if (++failing <= kFailuresShown) {
      print_line(width, row->name, row->error, verdict(*row));
    }
  }
  if (failing > kFailuresShown)
    fmt::print("  and {} more that fail (--all shows them)\n", failing - kFailuresShown);
  if (passing == 0) return;
  print_line(width, fmt::format("{}: {}{}", rows[0]->group, passing, failing > 0 ? " others" : ""), worst,
             worst.max_rel > 0 ? fmt::format("ok; worst {}", worst_row->name) : "ok");
}

}  // namespace

MaxError difference(const Tensor& got, const Tensor& want) {
  CHECK(got.size() == want.size() && got.dtype() == want.dtype(), "{} {}, {} {}", name_of(got.dtype()),
        to_string(got.shape()), name_of(want.dtype()), to_string(want.shape()));
  return want.dtype() == DType::i32 ? difference_of(got.span<std::int32_t>(), want.span<std::int32_t>())
                                    : difference_of(got.span<float>(), want.span<float>());
}

MaxError difference(double got, double want) {
  return difference_of(std::span<double>(&got, 1), std::span<double>(&want, 1));
}

bool CaseReport::pass() const {
  return error.empty() && first_failure() == nullptr;
}

const Row* CaseReport::first_failure() const {
  const auto at = std::find_if(rows.begin(), rows.end(), [](const Row& row) { return !row.pass(); });
  return at == rows.end() ? nullptr : &*at;
}

void CaseReport::compare(Row row, const Tensor& got, const Tensor& want) {
  if (got.size() != want.size() || got.dtype() != want.dtype()) {
    fail_usage("[verify] {}: expected {} of {} {} for this model, got {} {}", path, row.name,
               name_of(got.dtype()), to_string(got.shape()), name_of(want.dtype()), to_string(want.shape()));
  }
  row.error = difference(got, want);
  rows.push_back(std::move(row));
}

void CaseReport::compare(Row row, double got, double want) {
  row.error = difference(got, want);
  rows.push_back(std::move(row));
}

void print_report(const CaseReport& report, bool all) {
  fmt::print("{} ({}) on {}\n", report.path, report.kind, report.mesh);
  auto shown_alone = [&](const Row& row) { return all || row.group.empty(); };
  std::size_t width = 24;
  for (const Row& row : report.rows) {
    if (shown_alone(row) || !row.pass()) width = std::max(width, row.name.size());
  }
  fmt::print("  {:<{}}  {:>8}  {:>8}  verdict\n", "tensor", width, "max abs", "max rel");
  std::set<std::string> printed;
  for (const Row& row : report.rows) {
    if (shown_alone(row)) {
      print_line(width, row.name, row.error, verdict(row));
    } else if (printed.insert(row.group).second) {
      std::vector<const Row*> members;
      for (const Row& other : report.rows) {
        if (other.group == row.group) members.push_back(&other);
      }
      print_group(members, width);
    }
  }
  if (const auto& native = report.native) {
    fmt::print(
        "  as generate computes (dtype={}, weight_format={}): mean KL {:.2e} nats, equal top token "
        "for {} of {} ({:.1f} %)\n",
        native->dtype, native->weight_format, native->mean_kl, native->same_top, native->tokens,
        100 * share_of_top(*native));
    for (const std::string& note : native->notes) fmt::print("    {}\n", note);
  }
  for (const std::string& remark : report.remarks) fmt::print("  {}\n", remark);
  if (const Row* first = report.first_failure()) {
    fmt::print("  FAIL: first difference in {}{}\n", first->place.empty() ? "" : first->place + ", ",
               first->name);
  } else {
    fmt::print("  pass\n");
  }
}

nlohmann::json report_json(const std::vector<CaseReport>& reports) {
  nlohmann::json cases = nlohmann::json::array();
  for (const CaseReport& report : reports) {
    nlohmann::json tensors = nlohmann::json::array();
    for (const Row& row : report.rows) {
      tensors.push_back({{"name", row.name},
                         {"max_abs", row.error.max_abs},
                         {"max_rel", row.error.max_rel},
                         {"tolerance", row.tolerance},
                         {"judged", row.judged},
                         {"pass", row.pass()}});
      if (!row.failure.empty()) tensors.back()["failure"] = row.failure;
      if (!row.note.empty()) tensors.back()["note"] = row.note;
    }
    nlohmann::json item = {
        {"case", report.path}, {"mesh", report.mesh}, {"pass", report.pass()}, {"tensors", tensors}};
    if (!report.error.empty()) item["error"] = report.error;
    if (!report.remarks.empty()) item["remarks"] = report.remarks;
    if (const Row* first = report.first_failure()) item["first_difference"] = first->name;
    if (const auto& native = report.native) {
      item["native"] = {{"dtype", native->dtype},
                        {"weight_format", native->weight_format},
                        {"tokens", native->tokens},
                        {"mean_kl", native->mean_kl},
                        {"same_top", share_of_top(*native)}};
    }
    cases.push_back(std::move(item));
  }
  return {{"version", SWITCHYARD_VERSION}, {"machine", machine_name()}, {"cases", cases}};
}

}  // namespace switchyard
