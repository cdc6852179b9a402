// 8-bit gradients that the ring of experts sends back (moe_quantize_combine_bwd_method).
#pragma once

#include <optional>
#include <string>

#include "autograd/array.h"
#include "autograd/context.h"

namespace switchyard {

// Returns y [B,S,M]; its gradient is rounded to float8_e5m2 on its way to the experts. `bound` = 0: each
// token has its own scale; else `bound` gives one scale for all (kernels/pointwise/round_to_e5m2.h). The
// numbers equal those of an 8-bit all-gather, but the all-gather itself moves y's type.
Array round_gradient(Context& context, const Array& y, float bound);

// The bound that "rowwise" or "fixed,B" means; none for "". Error(usage) for any other text.
std::optional<float> combine_gradient_bound(const std::string& method);

}  // namespace switchyard
