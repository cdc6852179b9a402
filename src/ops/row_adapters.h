// Experts with several adapters (kernels/moe/row_adapters.h). No op has a gradient: texts are made with
// several adapters at once, and none is trained so.
#pragma once

#include <cstdint>

#include "autograd/op.h"

namespace switchyard {

// ids i32 [B,S,K], local, of experts, which become `numbers` parts each: one for every number in `adapters`.
Array part_experts(Context& context, const Array& ids, const Array& adapters, std::int64_t numbers);

// The sizes i32 [E·numbers] of such parts on this rank -> [E] of the experts.
Array join_experts(Context& context, const Array& sizes, std::int64_t numbers);

}  // namespace switchyard
