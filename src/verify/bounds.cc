#include "verify/bounds.h"

#include <fmt/ranges.h>

#include <cmath>
#include <map>
#include <vector>

#include "core/error.h"
#include "core/json_file.h"
#include "verify/report.h"

namespace switchyard {
namespace {

// Gradient norms after the first update may be off by this many tolerances. AdamW divides a gradient by its
// own size: one element of 2e-8 (of layers.0.attention.wq_a in deepseek3-tiny) that float32 rounds to the
// other sign moves its weight by a whole learning rate, and the norms that follow by up to 3e-5. The README
// of the cases measured 1.1e-5 for transformers itself in float32 and allows ten times that.
constexpr double kNormTolerances = 5;

// A router or an indexer may choose otherwise only where rounding decides.
constexpr double kTie = 1e-5;

// The kinds of bounds.json are the columns of the table that the cases' README has.
const std::map<std::string, double Bounds::*> kKinds{
    {"logits", &Bounds::logits},
    {"hidden", &Bounds::hidden},
    {"router weights", &Bounds::router_weights},
    {"loss", &Bounds::loss},
    {"gradients", &Bounds::gradients},
    {"loss in training", &Bounds::training_losses},
    {"gradient norm in training", &Bounds::training_norms},
    {"choices", &Bounds::choices},
};

Bounds of_one_tolerance(double tolerance) {
  return {tolerance, tolerance, tolerance, tolerance, tolerance, tolerance, tolerance * kNormTolerances,
          kTie};
}

Bounds default_bounds(const ModelConfig& model) {
  if (!model.has_delta()) return of_one_tolerance(kDefaultTolerance);
  // A gated delta net amplifies rounding: ten times what transformers itself is off in float32, by the README
  // of the cases.
  Bounds bounds = of_one_tolerance(2.4e-4);
  bounds.training_losses = 3.3e-4;
  bounds.training_norms = 5.5e-3;
  return bounds;
}

void read_bounds(const std::string& path, Bounds& bounds) {
  const nlohmann::json file = read_json_file(path);
  if (!file.is_object())
    fail_usage("[verify] {}: expected an object from kinds of values to bounds, got {}", path,
               file.type_name());
  for (const auto& [kind, bound] : file.items()) {
    const auto known = kKinds.find(kind);
    if (known == kKinds.end()) {
      std::vector<std::string> kinds;
      for (const auto& item : kKinds) kinds.push_back(item.first);
      fail_usage("[verify] {}: {} is no kind of value; the kinds are {}", path, in_quotes(kind),
                 fmt::join(kinds, ", "));
    }
    if (!bound.is_number() || !std::isfinite(bound.get<double>()) || bound.get<double>() <= 0)
      fail_usage("[verify] {}: {}: expected a positive number, got {}", path, kind, bound.dump());
    bounds.*(known->second) = bound.get<double>();
  }
  bounds.of_file = true;
}

}  // namespace

Bounds case_bounds(const std::filesystem::path& folder, const ModelConfig& model,
                   std::optional<double> tolerance) {
  Bounds bounds = default_bounds(model);
  if (const auto path = folder / "bounds.json"; std::filesystem::exists(path)) read_bounds(path, bounds);
  if (!tolerance) return bounds;
  Bounds given = of_one_tolerance(*tolerance);
  given.choices = bounds.choices;
  return given;
}

}  // namespace switchyard
