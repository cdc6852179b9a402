// Softmax attention that never holds the whole S x T score matrix (FlashAttention, Dao et al. 2022): tiles of
// queries x keys with a running maximum and sum; the backward pass recomputes the tiles from lse.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// out = softmax(scale * q.k over the allowed keys) . v, lse = log of the softmax denominator. q, k, v and out
// have one dtype, f32 or bf16. N is a multiple of Nkv and query head n reads kv head n / (N/Nkv). D and Dv
// may differ and be any size. Views have no gaps.
//
// Query i may attend to key j iff their segments are equal and (not causal or kv_index[j] <= q_index[i]).
// With a window also kv_index[j] > q_index[i] - window, and with a chunk both places divided by it, rounded
// down, are equal: tiles without a visible key cost nothing. With `chosen` also key j's bit of query i is set
// (choose_keys), for all heads alike. A query with no allowed key gives zeros and lse = -inf. Scores, softmax
// and sums are fp32. out must not overlap q, k or v.
//
// v may be the first elements of k's vectors, with k's address and strides. With `slots` and `lengths`, k and
// v are those of a cache, [slots,T,Nkv,.]: sequence b sees the first lengths[b] keys of slot slots[b], whose
// kv_index are 0..T-1, and none where its length is 0. Neither form has gradients, and
// slots have no segments.
struct AttentionArgs {
  TensorView q;                // [B,S,N,D]
  TensorView k;                // [B,T,Nkv,D]
  TensorView v;                // [B,T,Nkv,Dv]
  TensorView q_index = {};     // [B,S] i32; undefined: 0..S-1
  TensorView kv_index = {};    // [B,T] i32; undefined: 0..T-1
  TensorView q_segment = {};   // [B,S] i32; undefined, as kv_segment then is too: all one segment
  TensorView kv_segment = {};  // [B,T] i32
  float scale = 1;             // multiplies q.k before the softmax
  bool causal = true;
  std::int64_t window = 0;  // keys that a query sees, its own among them; 0: all; else causal only
  std::int64_t chunk = 0;   // places of a chunk; 0: none; else causal only
  TensorView chosen = {};   // [B,S,words_of_keys(T)] i32; undefined: all
  TensorView slots = {};    // [B] i32; undefined, as lengths then are too: sequence b's keys are k[b]
  TensorView lengths = {};  // [B] i32, 0..T
  TensorView out;           // [B,S,N,Dv]
  TensorView lse;           // [B,N,S] f32
  // [B,N,S] f32: each query's largest score, times scale, of its allowed keys; -inf without one. Undefined:
  // not asked for.
  TensorView top = {};
};
void attention(ThreadPool& pool, const AttentionArgs& args);

// Gradients of attention, overwritten. Summation order is fixed: results do not depend
// on the number of threads.
struct AttentionBackwardArgs {
  AttentionArgs forward;  // the forward's arguments; out and lse are read
  TensorView dout;        // as out
  TensorView dq, dk, dv;  // as q, k and v
};
void attention_backward(ThreadPool& pool, const AttentionBackwardArgs& args);

}  // namespace switchyard
