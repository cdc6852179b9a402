// Rows of several adapters (kernels/moe/row_adapters.h). None has a gradient: texts are made with several
// adapters at once, and none is trained so.
#pragma once

#include <cstdint>

#include "autograd/op.h"

namespace switchyard {

// low [B,S,...,n·rank], a product with the A of n adapters; `adapters` i32 [B,S], the number of each token's,
// 0: none. Returns low with 0 in the columns of adapters that are not the token's. The last dim must be
// whole; low may be a partial sum.
Array keep_adapter(Context& context, const Array& low, const Array& adapters, std::int64_t rank);

// ids i32 [B,S,K], local, of experts, which become `numbers` parts each: one for every number in `adapters`.
Array part_experts(Context& context, const Array& ids, const Array& adapters, std::int64_t numbers);

// The sizes i32 [E·numbers] of such parts on this rank -> [E] of the experts.
Array join_experts(Context& context, const Array& sizes, std::int64_t numbers);

}  // namespace switchyard
