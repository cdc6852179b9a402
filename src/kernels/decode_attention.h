// Attention of one new token a sequence over the keys before it, as in generation: bound by reading keys and
// values, each of which is read once for all query heads that share it.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// out = softmax(scale * q.k) . v. Row b of q and out sees the first lengths[b] keys of row rows[b] of k and
// v; the others are not read. Without keys out is zero. q, k, v and out have one dtype, f32 or bf16. Views
// have no gaps. Scores, softmax and sums are fp32 (FlashDecoding, Dao et al. 2023: keys are cut into pieces
// that threads share; the pieces follow from the lengths alone, and so do the bits).
struct DecodeAttentionArgs {
  TensorView q;        // [B,Nkv,G,D]: G query heads a key head
  TensorView k;        // [R,C,Nkv,D]
  TensorView v;        // [R,C,Nkv,Dv]
  TensorView lengths;  // [B] i32, 0 to C
  TensorView rows;     // [B] i32; not read where a length is 0
  float scale = 1;     // multiplies q.k before the softmax
  TensorView out;      // [B,Nkv,G,Dv]
};
void decode_attention(ThreadPool& pool, const DecodeAttentionArgs& args);

}  // namespace switchyard
