// Compares layouts of one model: same weights, batches and choices of experts, tensor by tensor.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "verify/layout_run.h"
#include "verify/report.h"

namespace switchyard {

// Tolerances relative to a tensor's largest magnitude, for tensors of the first step. Numbers (losses, norms)
// must meet a tenth of it; later steps and the parameters after them (l2 norm of their difference) ten times
// it. Gated delta nets amplify rounding.
constexpr double kLayoutTolerance = 1e-5, kDeltaLayoutTolerance = 1e-4;

struct LayoutRequest {
  std::vector<std::string> layouts;    // each is `key=value …`, separated by spaces; at least one
  std::vector<std::string> arguments;  // [CONFIG.yml] key=value … for all layouts; a layout's own keys win
  std::optional<double> tolerance = {};  // none: a constant above
  std::optional<GradientFault> fault;    // applied to the last layout
};

// Compares each layout with the dense evaluation (one rank, every expert on every token), and each except the
// first with the first, whose choices of experts all others replay. If a layout drops rows, as its config
// allows, its differences from the dense evaluation are reported without a verdict. Defaults: float32, 3
// steps, rows of 32 tokens, and as many rows as the largest layout has ranks; the arguments may change them.
// Throws Error(usage) for configs that are wrong or do not describe one model.
std::vector<CaseReport> compare_layouts(const LayoutRequest& request);

}  // namespace switchyard
