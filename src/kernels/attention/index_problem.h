// The arguments that the kernels of sparse attention share, and the GPU's implementations.
// Internal to kernels/attention.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/index_keys.h"
#include "kernels/attention/index_loss.h"

namespace switchyard {

struct IndexSizes {
  std::int64_t batch = 0, queries = 0, keys = 0, heads = 0, width = 0;
};

// Tells which keys, at places 0..T-1, a query sees.
struct SeenKeys {
  std::int64_t queries = 0, keys = 0;
  const std::int32_t* q_index = nullptr;     // [B,S]; null: 0..S-1
  const std::int32_t* q_segment = nullptr;   // [B,S]; null: one segment
  const std::int32_t* kv_segment = nullptr;  // [B,T]

  constexpr bool sees(std::int64_t batch, std::int64_t query, std::int64_t key) const {
    const std::int64_t i = batch * queries + query;
    if (q_segment != nullptr && q_segment[i] != kv_segment[batch * keys + key]) return false;
    return key <= (q_index != nullptr ? q_index[i] : query);
  }
};

// The sizes of an op whose arguments are checked.
template <typename Args>
IndexSizes index_sizes(const Args& args) {
  return {args.q.dim(0), args.q.dim(1), args.k.dim(1), args.q.dim(2), args.q.dim(3)};
}

template <typename Args>
SeenKeys seen_keys(const Args& args) {
  return {args.q.dim(1), args.k.dim(1), args.q_index.template device_data<std::int32_t>(),
          args.q_segment.template device_data<std::int32_t>(),
          args.kv_segment.template device_data<std::int32_t>()};
}

// Queries whose products with keys, of all heads, wait for their sum at once: 4 bytes each, so they stay in a
// core's second cache or near it, and are many against handing out a piece.
inline std::int64_t queries_at_once(const IndexSizes& s) {
  constexpr std::int64_t kProductsAtOnce = std::int64_t{1} << 20;
  return std::clamp<std::int64_t>(kProductsAtOnce / std::max<std::int64_t>(1, s.heads * s.keys), 1,
                                  std::max<std::int64_t>(1, s.queries));
}

// Bytes of those products, of `bytes` each.
inline std::size_t products_bytes(const IndexSizes& s, std::size_t bytes) {
  return static_cast<std::size_t>(queries_at_once(s) * s.heads * s.keys) * bytes;
}

// Tells whether bit `key` of a query's words is set; every key is chosen where there are none.
constexpr bool is_chosen(const std::int32_t* words, std::int64_t key) {
  return words == nullptr || (static_cast<std::uint32_t>(words[key / 32]) >> (key % 32) & 1u) != 0;
}

inline constexpr float kIndexLossEpsilon = 1e-8f;

struct SubtractMeanArgs {
  TensorView x, y;
};

namespace gpu {
void index_scores(const IndexScoresArgs& args);
void index_scores_backward(const IndexScoresBackwardArgs& args);
void choose_keys(const ChooseKeysArgs& args);
void subtract_mean(const SubtractMeanArgs& args);
void head_shares(const HeadSharesArgs& args);
void index_loss(const IndexLossArgs& args);
void index_loss_backward(const IndexLossBackwardArgs& args);
}  // namespace gpu

}  // namespace switchyard
