// What the kernels of sparse attention share (internal to kernels/).
#pragma once

#include <cstdint>

#include "core/tensor_view.h"

namespace switchyard {

struct IndexSizes {
  std::int64_t batch = 0, queries = 0, keys = 0, heads = 0, width = 0;
};

// Which keys, at places 0..T-1, a query sees.
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

// Checked views; queries [B,S], keys [B,T].
SeenKeys seen_keys(const char* op, const Shape& queries, const Shape& keys, const TensorView& q_index,
                   const TensorView& q_segment, const TensorView& kv_segment);

// Whether bit `key` of a query's words is set; every key is chosen where there are none.
constexpr bool is_chosen(const std::int32_t* words, std::int64_t key) {
  return words == nullptr || (static_cast<std::uint32_t>(words[key / 32]) >> (key % 32) & 1u) != 0;
}

inline constexpr float kIndexLossEpsilon = 1e-8f;

}  // namespace switchyard
