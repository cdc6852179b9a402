// Attention of one new token a sequence over the keys before it, as in generation: bound by reading keys and
// values, each of which is read once for all query heads that share it.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/thread_pool.h"

namespace switchyard {

// Shapes: q [B,Nkv,G,D] (G query heads a key head), k [R,C,Nkv,D], v [R,C,Nkv,Dv], out [B,Nkv,G,Dv], all in
// `dtype` (f32 or bf16). Row b of q and out sees the first lengths[b] keys of C of row rows[b] of k and v;
// the others are not read. Without keys out is zero.
struct DecodeAttentionArgs {
  std::int64_t batch = 0;
  std::int64_t capacity = 0;  // C
  std::int64_t kv_heads = 0;
  std::int64_t group = 0;  // G
  std::int64_t qk_dim = 0;
  std::int64_t v_dim = 0;
  float scale = 1;  // multiplies q.k before the softmax
  DType dtype = DType::f32;
  const std::int64_t* lengths = nullptr;  // [B]
  const std::int64_t* rows = nullptr;     // [B]; not read where a length is 0
};

// out = softmax(scale * q.k) . v with scores, softmax and sums in fp32 (FlashDecoding, Dao et al. 2023: keys
// are cut into pieces that threads share; the pieces follow from the lengths alone, and so do the bits).
void decode_attention(ThreadPool& pool, const DecodeAttentionArgs& args, const void* q, const void* k,
                      const void* v, void* out);

}  // namespace switchyard
