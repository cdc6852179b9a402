// The results of a verification: one row for each tensor or number, with its error, and how to show them.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace switchyard {

// Relative to a tensor's largest magnitude; `switchyard verify --help` states it.
constexpr double kDefaultTolerance = 2e-5;

// max_abs = max|got - want|; max_rel = max_abs / max(max|want|, 1e-6). A NaN on either side makes both NaN.
struct MaxError {
  double max_abs = 0;
  double max_rel = 0;
};
// Both tensors are f32 or both i32, with the same number of elements (CHECK).
MaxError difference(const Tensor& got, const Tensor& want);
MaxError difference(double got, double want);

struct Row {
  std::string name;
  std::string place;  // "embedding", "layer 3", or empty
  std::string group;  // the table summarises rows of one group; empty: always printed
  MaxError error;
  double tolerance = 0;      // 0: must be equal
  bool judged = true;        // false: reported without a verdict
  std::string failure = {};  // why it fails, when not by its tolerance
  std::string note = {};     // shown behind the verdict
  bool pass() const { return !judged || (failure.empty() && error.max_rel <= tolerance); }
};

// How well `generate`'s arithmetic on weights as they are stored matches given logits.
struct NativeLogits {
  std::string dtype, weight_format;  // values of the keys
  std::vector<std::string> notes;    // about how weights are held
  std::int64_t tokens = 0;
  double mean_kl = 0;         // nats per token: KL(given || ours)
  std::int64_t same_top = 0;  // tokens for which both rank the same next token first
};

struct CaseReport {
  std::string path;
  std::string kind;
  std::string mesh;
  std::vector<Row> rows;                  // in model order: the first failure shows where it went wrong
  std::vector<std::string> notices;       // overrides without effect
  std::string error;                      // why the case could not run; empty otherwise
  std::vector<std::string> remarks = {};  // about what was compared; lines of the table
  std::optional<NativeLogits> native = {};

  bool pass() const;
  const Row* first_failure() const;  // null without one

  // Adds a row. Error(usage) that names case and tensor when the numbers of elements differ.
  void compare(Row row, const Tensor& got, const Tensor& want);
  void compare(Row row, double got, double want);
};

// Prints the table of one case to standard output; `all` prints every row of every group.
void print_report(const CaseReport& report, bool all);

// The content of the --json file.
nlohmann::json report_json(const std::vector<CaseReport>& reports);

}  // namespace switchyard
