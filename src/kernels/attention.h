// Softmax attention that never holds the whole S x T score matrix (FlashAttention, Dao et al. 2022): tiles of
// queries x keys with a running maximum and sum; the backward pass recomputes the tiles from lse.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/thread_pool.h"

namespace switchyard {

// Shapes: q [B,S,N,D], k [B,T,Nkv,D], v [B,T,Nkv,Dv], out [B,S,N,Dv], all in `dtype` (f32 or bf16); lse
// [B,N,S] f32. N is a multiple of Nkv and query head n reads kv head n / (N/Nkv). D and Dv may differ and be
// any size.
//
// Query i may attend to key j iff their segments are equal and (not causal or kv_index[j] <= q_index[i]).
// Null segments: all one segment (give both or neither). Null q_index: 0..S-1; null kv_index: 0..T-1.
struct AttentionArgs {
  std::int64_t batch = 0;
  std::int64_t q_length = 0;
  std::int64_t kv_length = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t qk_dim = 0;
  std::int64_t v_dim = 0;
  float scale = 1;  // multiplies q.k before the softmax
  bool causal = true;
  DType dtype = DType::f32;
  const std::int32_t* q_index = nullptr;     // [B,S]
  const std::int32_t* kv_index = nullptr;    // [B,T]
  const std::int32_t* q_segment = nullptr;   // [B,S]
  const std::int32_t* kv_segment = nullptr;  // [B,T]
};

// out = softmax(scale * q.k over the allowed keys) . v, lse = log of the softmax denominator. A query with no
// allowed key gives zeros and lse = -inf. Scores, softmax and sums are fp32. out must not overlap q, k or v.
void attention(ThreadPool& pool, const AttentionArgs& args, const void* q, const void* k, const void* v,
               void* out, float* lse);

// Gradients dq, dk, dv (shapes and dtype of q, k, v; overwritten) from dout [B,S,N,Dv] and the forward's out
// and lse. Summation order is fixed: results do not depend on the number of threads.
void attention_backward(ThreadPool& pool, const AttentionArgs& args, const void* q, const void* k,
                        const void* v, const void* out, const float* lse, const void* dout, void* dq,
                        void* dk, void* dv);

}  // namespace switchyard
