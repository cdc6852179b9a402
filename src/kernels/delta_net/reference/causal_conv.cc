// The scalar truth of the causal convolution, in double.
#include <cmath>

#include "kernels/delta_net/causal_conv_problem.h"
#include "kernels/pointwise/reference/elementwise_access.h"

namespace switchyard::ref {
namespace {

// The sum before silu.
template <typename T>
double filtered(const CausalConvProblem& p, std::int64_t b, std::int64_t s, std::int64_t channel) {
  double sum = 0;
  for (std::int64_t j = 0; j < p.taps; ++j) {
    const T* const x = p.before<T>(b, s, p.taps - 1 - j);
    if (x != nullptr)
      sum += static_cast<double>(p.w[channel * p.taps + j]) *
             static_cast<double>(static_cast<float>(x[channel]));
  }
  return sum;
}

template <typename T>
void forward(const CausalConvProblem& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = 0; i < p.batch * p.length; ++i) {
    for (std::int64_t channel = begin; channel < end; ++channel) {
      const double z = filtered<T>(p, i / p.length, i % p.length, channel);
      put(p.y, p.dtype, i * p.channels + channel, static_cast<float>(z / (1 + std::exp(-z))));
    }
  }
}

// The gradient of the sum before silu.
template <typename T>
double filtered_gradient(const CausalConvProblem& p, std::int64_t b, std::int64_t s, std::int64_t channel) {
  const double z = filtered<T>(p, b, s, channel), sigmoid = 1 / (1 + std::exp(-z));
  return static_cast<double>(at(p.dy, p.dtype, (b * p.length + s) * p.channels + channel)) * sigmoid *
         (1 + z * (1 - sigmoid));
}

template <typename T>
void backward(const CausalConvProblem& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t channel = begin; channel < end; ++channel) {
    double dw[kMostConvTaps] = {};
    for (std::int64_t i = 0; i < p.batch * p.length; ++i) {
      const std::int64_t b = i / p.length, s = i % p.length;
      const double dz = filtered_gradient<T>(p, b, s, channel);
      double dx = 0;
      for (std::int64_t j = 0; j < p.taps; ++j) {
        const std::int64_t later = s + p.taps - 1 - j;  // the token that saw this one by tap j
        const T* const x = p.before<T>(b, s, p.taps - 1 - j);
        if (x != nullptr) dw[j] += dz * static_cast<double>(static_cast<float>(x[channel]));
        if (later < p.length && p.same_segment(b, s, later))
          dx += static_cast<double>(p.w[channel * p.taps + j]) * filtered_gradient<T>(p, b, later, channel);
      }
      put(p.dx, p.dtype, i * p.channels + channel, static_cast<float>(dx));
    }
    for (std::int64_t j = 0; j < p.taps; ++j) p.dw[channel * p.taps + j] = static_cast<float>(dw[j]);
  }
}

}  // namespace

void causal_conv(const CausalConvProblem& p, std::int64_t begin, std::int64_t end) {
  p.dtype == DType::f32 ? forward<float>(p, begin, end) : forward<bfloat16>(p, begin, end);
}

void causal_conv_backward(const CausalConvProblem& p, std::int64_t begin, std::int64_t end) {
  p.dtype == DType::f32 ? backward<float>(p, begin, end) : backward<bfloat16>(p, begin, end);
}

}  // namespace switchyard::ref
