// What a verification found: one row a tensor or number, how far it is off, and how that is shown.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace switchyard {

// Relative to the tensor's largest magnitude; `switchyard verify --help` states it.
constexpr double kDefaultTolerance = 2e-5;

// max_abs = max|got - want|; max_rel = max_abs / max(max|want|, 1e-6). A NaN on either side makes both NaN.
struct MaxError {
  double max_abs = 0;
  double max_rel = 0;
};
// Both f32 or both i32, of the same number of elements (CHECK).
MaxError difference(const Tensor& got, const Tensor& want);
MaxError difference(double got, double want);

struct Row {
  std::string name;
  std::string place;  // "embedding", "layer 3", or empty
  std::string group;  // rows of one group are summarised in the table; empty: always printed
  MaxError error;
  double tolerance = 0;      // 0: must be equal
  bool judged = true;        // false: reported, no verdict
  std::string failure = {};  // why it fails, where that is no matter of the tolerance
  bool pass() const { return !judged || (failure.empty() && error.max_rel <= tolerance); }
};

// How the arithmetic of `generate` on weights as they are stored does against given logits.
struct NativeLogits {
  std::string dtype, weight_format;  // as the keys say
  std::vector<std::string> notes;    // on how the weights are held
  std::int64_t tokens = 0;
  double mean_kl = 0;         // nats a token: KL(given || ours)
  std::int64_t same_top = 0;  // tokens for which both find the same next token most probable
};

struct CaseReport {
  std::string path;
  std::string kind;
  std::string mesh;
  std::vector<Row> rows;             // in model order: the first that fails is where it went wrong
  std::vector<std::string> notices;  // what the overrides do not do
  std::string error;                 // why the case could not be run; empty otherwise
  std::optional<NativeLogits> native = {};

  bool pass() const;
  const Row* first_failure() const;  // null without one

  // Adds a row. Shapes must hold the same number of elements: Error(usage) naming case and tensor otherwise.
  void compare(Row row, const Tensor& got, const Tensor& want);
  void compare(Row row, double got, double want);
};

// The table of one case on standard output; `all` prints every row of every group.
void print_report(const CaseReport& report, bool all);

// The file of --json.
nlohmann::json report_json(const std::vector<CaseReport>& reports);

}  // namespace switchyard
