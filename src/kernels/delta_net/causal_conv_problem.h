// The CPU implementations behind causal_conv.h, and what they are given. Internal to kernels/delta_net.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace switchyard {

// The arguments of causal_conv.h under their names there.
struct CausalConvProblem {
  DType dtype = DType::f32;
  std::int64_t batch = 0, length = 0, channels = 0, taps = 0;
  const void* x = nullptr;
  const float* w = nullptr;
  const std::int32_t* segments = nullptr;
  const void* tail = nullptr;
  void* y = nullptr;
  const void* dy = nullptr;
  void* dx = nullptr;
  float* dw = nullptr;

  // x of the token `back` before `token`, where that is in sight; else null.
  template <typename T>
  const T* before(std::int64_t b, std::int64_t token, std::int64_t back) const {
    const std::int64_t s = token - back;
    if (s < 0) {
      if (tail == nullptr) return nullptr;
      return static_cast<const T*>(tail) + (b * (taps - 1) + taps - 1 + s) * channels;
    }
    if (!same_segment(b, s, token)) return nullptr;
    return static_cast<const T*>(x) + (b * length + s) * channels;
  }
  // True where the segment goes on from `from` to `to`, which is not before it.
  bool same_segment(std::int64_t b, std::int64_t from, std::int64_t to) const {
    for (std::int64_t s = from; segments != nullptr && s < to; ++s) {
      if (segments[b * length + s] != segments[b * length + s + 1]) return false;
    }
    return true;
  }
};

// Computes channels [begin, end), whose number is a multiple of kConvChannels but at the end of all.
using CausalConvKernel = void(const CausalConvProblem& problem, std::int64_t begin, std::int64_t end);
constexpr std::int64_t kConvChannels = 64;
constexpr std::int64_t kMostConvTaps = 8;

namespace ref {
CausalConvKernel causal_conv, causal_conv_backward;
}  // namespace ref
namespace cpu {
CausalConvKernel causal_conv_avx2, causal_conv_backward_avx2;
CausalConvKernel causal_conv_avx512, causal_conv_backward_avx512;
}  // namespace cpu

}  // namespace switchyard
