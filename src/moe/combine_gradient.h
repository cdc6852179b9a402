// What the ring of experts sends back in 8 bits (moe_quantize_combine_bwd_method).
#pragma once

#include <optional>
#include <string>

#include "autograd/array.h"
#include "autograd/context.h"

namespace switchyard {

// y [B,S,M], whose gradient is rounded to float8_e5m2 on its way to the experts: with `bound` = 0 each token
// with a scale of its own, else all with that of `bound` (kernels/pointwise/round_to_e5m2.h). The numbers are
// those of a narrow all-gather; the all-gather itself moves y's type.
Array round_gradient(Context& context, const Array& y, float bound);

// The bound that "rowwise" and "fixed,B" say; none for "". Error(usage) for anything else.
std::optional<float> combine_gradient_bound(const std::string& method);

}  // namespace switchyard
