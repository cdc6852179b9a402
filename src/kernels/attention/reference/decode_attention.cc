#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/attention/decode_attention_problem.h"

namespace switchyard::ref {
namespace {

// `Stored`: T, or int8, whose scales multiply it.
template <typename T, typename Stored>
void decode_typed(const DecodeAttentionPiece& p) {
  const DecodeAttentionSpec& a = *p.args;
  std::vector<double> scores(static_cast<std::size_t>(p.keys)), values(static_cast<std::size_t>(a.v_dim));
  for (std::int64_t query = 0; query < a.kv_heads * a.group; ++query) {
    const std::int64_t head = query / a.group;
    const T* const q = static_cast<const T*>(p.q) + query * a.qk_dim;
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (std::int64_t j = 0; j < p.keys; ++j) {
      const std::int64_t vector = j * a.kv_heads + head;
      const Stored* const k = static_cast<const Stored*>(p.k) + vector * a.qk_dim;
      double score = 0;
      for (std::int64_t d = 0; d < a.qk_dim; ++d) {
        const std::int64_t part = d < a.first_key_part ? 0 : 1;
        const double scale = a.int8 ? static_cast<double>(p.k_scales[vector * a.key_scales + part]) : 1.0;
        score += static_cast<double>(static_cast<float>(q[d])) *
                 (scale * static_cast<double>(static_cast<float>(k[d])));
      }
      scores[static_cast<std::size_t>(j)] = score * static_cast<double>(a.scale);
      largest = std::max(largest, scores[static_cast<std::size_t>(j)]);
    }
    largest = static_cast<double>(static_cast<float>(largest));  // as it is kept
    std::fill(values.begin(), values.end(), 0.0);
    for (std::int64_t j = 0; j < p.keys; ++j) {
      const double weight = std::exp(scores[static_cast<std::size_t>(j)] - largest);
      const std::int64_t vector = j * a.kv_heads + head;
      const double scale = a.int8 ? static_cast<double>(p.v_scales[vector * a.v_scale_row]) : 1.0;
      const Stored* const v = static_cast<const Stored*>(p.v) + vector * a.v_row;
      for (std::int64_t d = 0; d < a.v_dim; ++d)
        values[static_cast<std::size_t>(d)] +=
            weight * (scale * static_cast<double>(static_cast<float>(v[d])));
      sum += weight;
    }
    float* const out = p.sums + query * p.width();
    out[0] = static_cast<float>(largest);
    out[1] = static_cast<float>(sum);
    for (std::int64_t d = 0; d < a.v_dim; ++d)
      out[2 + d] = static_cast<float>(values[static_cast<std::size_t>(d)]);
  }
}

}  // namespace

void decode_attention(const DecodeAttentionPiece& p) {
  const bool single = p.args->dtype == DType::f32;
  if (p.args->int8)
    single ? decode_typed<float, std::int8_t>(p) : decode_typed<bfloat16, std::int8_t>(p);
  else
    single ? decode_typed<float, float>(p) : decode_typed<bfloat16, bfloat16>(p);
}

}  // namespace switchyard::ref
