// Sparse attention (DeepSeek-V3.2): scores of a light indexer, and the keys that each query attends to.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// scores[b,s,t] = factor * sum over h of weights[b,s,h] * relu(q[b,s,h] . k[b,t]), in fp32, of the keys that
// query s sees: those of its segment at places up to its own. Others are -infinity. Views have no gaps.
struct IndexScoresArgs {
  TensorView q;                // [B,S,H,D], f32 or bf16
  TensorView k;                // [B,T,D] as q
  TensorView weights;          // [B,S,H] f32
  TensorView q_index = {};     // [B,S] i32: places of the queries; undefined: 0..S-1
  TensorView q_segment = {};   // [B,S] i32; undefined, as kv_segment then is too: all one segment
  TensorView kv_segment = {};  // [B,T] i32; the keys stand at places 0..T-1
  float factor = 1;
  TensorView scores;  // [B,S,T] f32
};
void index_scores(ThreadPool& pool, const IndexScoresArgs& args);

// Gradients of index_scores, overwritten. dscores is read at keys that the query sees, and must be 0 at
// others. A product of 0 or less passes nothing on. Bit-identical for any number of threads.
struct IndexScoresBackwardArgs {
  TensorView q, k, weights;  // as in IndexScoresArgs
  float factor = 1;
  TensorView dscores;   // [B,S,T] f32
  TensorView dq, dk;    // as q and k
  TensorView dweights;  // as weights
};
void index_scores_backward(ThreadPool& pool, const IndexScoresBackwardArgs& args);

// Words of 32 keys, a bit each: key t is bit t % 32 of word t / 32.
constexpr std::int64_t words_of_keys(std::int64_t keys) {
  return (keys + 31) / 32;
}

// The `count` keys of the largest scores that each query sees (those above -infinity), or all of them where
// there are fewer. Of equal scores the lower key is chosen; a NaN is never chosen. Exact:
// the same on any device.
struct ChooseKeysArgs {
  TensorView scores;  // [rows,T] f32, or more dims before T
  std::int64_t count = 0;
  // [rows, words_of_keys(T)] i32; undefined: not asked for. Bits beyond T are 0.
  TensorView bits = {};
  // [rows, count] i32: first_id + the chosen keys, ascending, and first_id where there are fewer; undefined:
  // not asked for.
  TensorView ids = {};
  std::int32_t first_id = 0;
};
void choose_keys(ThreadPool& pool, const ChooseKeysArgs& args);

// y = x less the mean of its row, in fp32, rounded once. It is its own gradient. Views have no gaps.
void subtract_mean(ThreadPool& pool, const TensorView& x, const TensorView& y);  // [.., dim] f32 or bf16

}  // namespace switchyard
