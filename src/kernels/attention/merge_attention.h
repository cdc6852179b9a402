// Joins attention over two parts of the keys.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// `out` and `lse` of some keys, and `other_out` and `other_lse` of others, become those of all keys, in
// place: lse = log(e^lse + e^other), out = out * e^(lse before - lse) + other_out * e^(other_lse - lse).
// Parts without keys, whose lse is -infinity and whose out is 0, change nothing. In f32, out rounded once
// more. So attention over pieces of a sequence, in any order of joining up to rounding, is that of the whole
// (Dao et al. 2022, FlashAttention, section 3.1). Views have no gaps.
struct MergeAttentionArgs {
  TensorView out, other_out;  // [B,S,N,Dv], both f32 or both bf16
  TensorView lse, other_lse;  // [B,N,S] f32
};
void merge_attention(ThreadPool& pool, const MergeAttentionArgs& args);

}  // namespace switchyard
