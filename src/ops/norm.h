#pragma once

#include "autograd/op.h"

namespace switchyard {

// RMSNorm over the last dim (Zhang and Sennrich 2019): x /
// sqrt(mean(x²) + eps) * (scale + scale_offset). x [..., M];
// scale [M] is resharded to the layout of x's last dim. When that
// dim is split, ranks exchange one sum per row, never the tensor.
Array rms_norm(Context& context, const Array& x, const Array& scale, float epsilon, float scale_offset = 0);
// RMSNorm without a scale; the last dim must be whole.
Array rms_norm_without_scale(Context& context, const Array& x, float epsilon);
// RMSNorm over the last two dims, across all heads: x [B,S,N,D], scale [N,D]. Heads may be split.
Array rms_norm_of_heads(Context& context, const Array& x, const Array& scale, float epsilon);

}  // namespace switchyard
