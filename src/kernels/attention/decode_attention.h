// Attention of one new token a sequence over the keys before it, as in generation: bound by reading keys and
// values, each of which is read once for all query heads that share it.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// out = softmax(scale * q.k) . v. Row b of q and out sees the first lengths[b] keys of row rows[b] of k and
// v; the others are not read. Without keys out is zero. q, k, v and out have one dtype, f32 or bf16; or k and
// v are int8, each vector with scales of its own (int8_vectors.h), whose numbers are not rounded to q's
// dtype. A key in int8 may be several vectors side by side, two at most, with a scale each. Views have no
// gaps, but values may be the first Dv numbers of the keys, then v is a part of k, and v_scales of k_scales.
// Scores, softmax and sums are fp32 (FlashDecoding, Dao et al. 2023: keys are cut into pieces that
// threads share; the pieces follow from the lengths alone, and so do the bits). The token of row b stands at
// place lengths[b]-1: keys before its window or its chunk (attention.h) are not read. A sink is one more
// score of every query of its head, with a value of zero.
struct DecodeAttentionArgs {
  TensorView q;                        // [B,Nkv,G,D]: G query heads a key head
  TensorView k;                        // [R,C,Nkv,D]
  TensorView v;                        // [R,C,Nkv,Dv]
  TensorView lengths;                  // [B] i32, 0 to C
  TensorView rows;                     // [B] i32; not read where a length is 0
  float scale = 1;                     // multiplies q.k before the softmax
  TensorView out;                      // [B,Nkv,G,Dv]
  std::int64_t window = 0, chunk = 0;  // 0: none
  TensorView sinks = {};               // [Nkv*G] f32; undefined: none
  // The scales of int8 k and v; undefined for other dtypes.
  TensorView k_scales = {};         // [R,C,Nkv,1 or 2] f32
  TensorView v_scales = {};         // [R,C,Nkv,1] f32
  std::int64_t first_key_part = 0;  // numbers of a key that its first scale is of; the second is of the rest
};
void decode_attention(ThreadPool& pool, const DecodeAttentionArgs& args);

}  // namespace switchyard
