// Attention of one token a sequence: a block takes some keys of a query head, each of its warps some of
// those, and the sums of all are joined in a second pass. Lengths are read on the device.
#include "kernels/attention/decode_attention_problem.h"
#include "kernels/attention/visible_keys.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/workspace.h"

namespace switchyard::gpu {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr std::int64_t kKeysOfWarp = 64, kKeysOfBlock = kWarps * kKeysOfWarp;

struct Decode {
  const std::int32_t *lengths, *rows;
  const float *k_scales, *v_scales, *sinks;
  std::int64_t batch, capacity, kv_heads, group, qk_dim, v_dim, key_scales, first_key_part, v_row,
      v_scale_row, pieces;
  float scale;
  KeyWindow seen;

  GPU_HOST_FUNCTION std::int64_t heads() const { return kv_heads * group; }
};

GPU_FUNCTION float number_of(float x) {
  return x;
}
GPU_FUNCTION float number_of(bfloat16 x) {
  return to_float(x);
}
GPU_FUNCTION float number_of(std::int8_t x) {
  return static_cast<float>(x);
}

// sums[b, head, piece, warp]: the largest score, the sum of weights, and the weighted values.
template <typename T, typename Stored>
GPU_KERNEL decode_pieces(Decode p, const T* q, const Stored* k, const Stored* v, float* sums) {
  const int warp = thread_index() / kWarp, lane = thread_index() % kWarp;
  const std::int64_t piece = block_index(), head = block_index_y(), b = block_index_z();
  float* const own_q = dynamic_shared<float>() + warp * (p.qk_dim + kWarp);
  float* const weights = own_q + p.qk_dim;
  float* const out = sums + (((b * p.heads() + head) * p.pieces + piece) * kWarps + warp) * (p.v_dim + 2);
  const std::int64_t length = p.lengths[b];
  std::int64_t first = length == 0 ? 0 : p.seen.first_visible(static_cast<std::int32_t>(length - 1));
  first = first < 0 ? 0 : first;
  const std::int64_t begin = first + piece * kKeysOfBlock + warp * kKeysOfWarp;
  const std::int64_t end = begin + kKeysOfWarp < length ? begin + kKeysOfWarp : length;
  float largest = -INFINITY, total = 0;
  for (std::int64_t d = lane; d < p.v_dim; d += kWarp) out[2 + d] = 0;
  for (std::int64_t d = lane; d < p.qk_dim; d += kWarp)
    own_q[d] = to_float(q[(b * p.heads() + head) * p.qk_dim + d]);
  warp_barrier();
  const std::int64_t first_vector = length == 0 ? 0 : p.rows[b] * p.capacity * p.kv_heads + head / p.group;
  for (std::int64_t at = begin; at < end; at += kWarp) {
    const std::int64_t key = at + lane, vector = first_vector + key * p.kv_heads;
    float score = -INFINITY;
    if (key < end) {
      score = 0;
      const float* const scales = p.k_scales == nullptr ? nullptr : p.k_scales + vector * p.key_scales;
      for (std::int64_t d = 0; d < p.qk_dim; ++d) {
        const float scale = scales == nullptr ? 1.0f : scales[d < p.first_key_part ? 0 : 1];
        score += own_q[d] * (scale * number_of(k[vector * p.qk_dim + d]));
      }
      score *= p.scale;
    }
    const float before = largest, now = warp_max(score);
    largest = now > largest ? now : largest;
    const float weight = key < end ? expf(score - largest) : 0.0f;
    const float shrink = before == -INFINITY ? 0.0f : expf(before - largest);
    total = total * shrink + warp_sum(weight);
    weights[lane] = key < end && p.v_scales != nullptr ? weight * p.v_scales[vector * p.v_scale_row] : weight;
    warp_barrier();
    const std::int64_t count = end - at < kWarp ? end - at : kWarp;
    for (std::int64_t d = lane; d < p.v_dim; d += kWarp) {
      float value = out[2 + d] * shrink;
      for (std::int64_t j = 0; j < count; ++j)
        value += weights[j] * number_of(v[(first_vector + (at + j) * p.kv_heads) * p.v_row + d]);
      out[2 + d] = value;
    }
    warp_barrier();
  }
  if (lane == 0) {
    out[0] = largest;
    out[1] = total;
  }
}

// A block takes a query head.
template <typename T>
GPU_KERNEL join_decoded(Decode p, const float* sums, T* out) {
  const std::int64_t query = block_index(), head = query % p.heads(), parts = p.pieces * kWarps,
                     width = p.v_dim + 2;
  const float* const from = sums + query * parts * width;
  float largest = -INFINITY, total = 0;
  for (std::int64_t i = 0; i < parts; ++i) largest = from[i * width] > largest ? from[i * width] : largest;
  const bool has_keys = largest != -INFINITY;
  if (p.sinks != nullptr && p.sinks[head] > largest) largest = p.sinks[head];
  for (std::int64_t i = 0; i < parts && has_keys; ++i)
    total += from[i * width] == -INFINITY ? 0.0f : expf(from[i * width] - largest) * from[i * width + 1];
  if (p.sinks != nullptr) total += expf(p.sinks[head] - largest);
  for (std::int64_t d = thread_index(); d < p.v_dim; d += kThreads) {
    float value = 0;
    for (std::int64_t i = 0; i < parts && has_keys; ++i) {
      if (from[i * width] != -INFINITY) value += expf(from[i * width] - largest) * from[i * width + 2 + d];
    }
    out[query * p.v_dim + d] = from_float<T>(has_keys ? value / total : 0.0f);
  }
}

}  // namespace

void decode_attention(const DecodeAttentionArgs& a) {
  const DecodeAttentionSpec spec = decode_attention_spec(a);
  const bool int8 = spec.int8;
  Decode p{.lengths = a.lengths.device_data<std::int32_t>(),
           .rows = a.rows.device_data<std::int32_t>(),
           .k_scales = a.k_scales.device_data<float>(),
           .v_scales = a.v_scales.device_data<float>(),
           .sinks = a.sinks.device_data<float>(),
           .batch = a.q.dim(0),
           .capacity = a.k.dim(1),
           .kv_heads = a.q.dim(1),
           .group = a.q.dim(2),
           .qk_dim = a.q.dim(3),
           .v_dim = a.v.dim(3),
           .key_scales = int8 ? a.k_scales.dim(3) : 1,
           .first_key_part = int8 ? a.first_key_part : a.q.dim(3),
           .v_row = spec.v_row,
           .v_scale_row = spec.v_scale_row,
           .pieces = 0,
           .scale = a.scale,
           .seen = {a.window, a.chunk}};
  if (p.batch == 0) return;
  // As many as the longest sequence may have: the lengths are the device's.
  const std::int64_t most = a.window > 0 && a.window < p.capacity ? a.window : p.capacity;
  p.pieces = divide_up(most, kKeysOfBlock);
  const Workspace sums(
      a.q, static_cast<std::size_t>(p.batch * p.heads() * p.pieces * kWarps * (p.v_dim + 2)) * sizeof(float));
  const Launch how{.blocks = p.pieces,
                   .threads = kThreads,
                   .shared_bytes = static_cast<std::size_t>(kWarps * (p.qk_dim + kWarp)) * sizeof(float),
                   .blocks_y = static_cast<int>(p.heads()),
                   .blocks_z = static_cast<int>(p.batch)};
  with_float_type(a.q.dtype(), [&]<typename T>(T) {
    const T* const q = a.q.device_data<T>();
    if (int8)
      launch(how, decode_pieces<T, std::int8_t>, p, q, a.k.device_data<std::int8_t>(),
             a.v.device_data<std::int8_t>(), sums.data<float>());
    else
      launch(how, decode_pieces<T, T>, p, q, a.k.device_data<T>(), a.v.device_data<T>(), sums.data<float>());
    launch({.blocks = p.batch * p.heads(), .threads = kThreads}, join_decoded<T>, p, sums.data<float>(),
           a.out.device_data<T>());
  });
}

}  // namespace switchyard::gpu
