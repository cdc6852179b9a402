// Layouts of one model compared: the same weights, batches and choices of experts, tensor by tensor.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "verify/layout_run.h"
#include "verify/report.h"

namespace switchyard {

// Relative to a tensor's largest magnitude, for tensors of the first step. Numbers (losses, norms) are held
// to a tenth of it, later steps and the parameters after them (by the l2 norm of their difference) to ten
// times it. Gated delta nets amplify rounding.
constexpr double kLayoutTolerance = 1e-5, kDeltaLayoutTolerance = 1e-4;

struct LayoutRequest {
  std::vector<std::string> layouts;      // each `key=value …`, separated by spaces; at least one
  std::vector<std::string> arguments;    // [CONFIG.yml] key=value … of all layouts; a layout's own keys win
  std::optional<double> tolerance = {};  // none: one of those
  std::optional<GradientFault> fault;    // in the last layout
};

// Compares each layout with the dense evaluation (one rank, every expert on every token), and each but the
// first with the first, whose choices of experts are replayed in all others. Where a layout dropped rows, as
// its config allows, its differences from the dense evaluation are reported without a verdict. float32, 3
// steps, 32 tokens a row and as many rows as the largest layout has ranks, unless the arguments say
// otherwise. Throws Error(usage) for configs that are wrong or do not describe one model.
std::vector<CaseReport> compare_layouts(const LayoutRequest& request);

}  // namespace switchyard
