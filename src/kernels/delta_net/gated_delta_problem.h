// The CPU implementations behind gated_delta.h, and what they are given. Internal to kernels/delta_net.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/dtype.h"

namespace switchyard {

constexpr float kUnitEpsilon = 1e-6f;

// The arguments of gated_delta.h under their names there.
struct GatedDeltaProblem {
  DType dtype = DType::f32;  // of q, k, v, out and their gradients
  std::int64_t length = 0, key_heads = 0, value_heads = 0, key_width = 0, value_width = 0, chunk = 64;
  bool unit_vectors = true;
  float scale = 1;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  const float *g = nullptr, *beta = nullptr;
  const std::int32_t* segments = nullptr;
  float* state = nullptr;
  void* out = nullptr;
  const void* dout = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  float *dg = nullptr, *dbeta = nullptr;

  std::int64_t group() const { return value_heads / key_heads; }
  // Elements before a token's vector of a head.
  std::int64_t key_at(std::int64_t batch, std::int64_t token, std::int64_t head) const {
    return ((batch * length + token) * key_heads + head) * key_width;
  }
  std::int64_t value_at(std::int64_t batch, std::int64_t token, std::int64_t head) const {
    return ((batch * length + token) * value_heads + head) * value_width;
  }
  // A token's number of a value head.
  std::int64_t number_at(std::int64_t batch, std::int64_t token, std::int64_t head) const {
    return (batch * length + token) * value_heads + head;
  }
  // True where the token's state is its own only.
  bool begins(std::int64_t batch, std::int64_t token) const {
    if (token == 0) return state == nullptr;
    const std::int32_t* const s = segments + batch * length;
    return segments != nullptr && s[token] != s[token - 1];
  }
  // The end of the chunk that begins at `token`, which is of one segment.
  std::int64_t chunk_end(std::int64_t batch, std::int64_t token) const {
    const std::int64_t most = std::min(length, token + chunk);
    std::int64_t end = token + 1;
    while (end < most && !begins(batch, end)) ++end;
    return end;
  }
};

// Computes pairs [begin, end) of a sequence and a key head:
// pair i is sequence i / key_heads, head i % key_heads.
using GatedDeltaKernel = void(const GatedDeltaProblem& problem, std::int64_t begin, std::int64_t end);

namespace ref {
GatedDeltaKernel gated_delta, gated_delta_backward;
}  // namespace ref
namespace cpu {
GatedDeltaKernel gated_delta_avx2, gated_delta_backward_avx2;
GatedDeltaKernel gated_delta_avx512, gated_delta_backward_avx512;
}  // namespace cpu

}  // namespace switchyard
