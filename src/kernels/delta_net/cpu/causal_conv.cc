// The causal convolution for AVX2 and AVX-512: some channels of all tokens, a vector of channels at a time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/delta_net/cpu/causal_conv.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <algorithm>

#include "hwy/highway.h"
#include "kernels/cpu/elementwise_lanes-inl.h"
#include "kernels/cpu/sigmoid_lanes-inl.h"
#include "kernels/delta_net/causal_conv_problem.h"
#include "kernels/registry/simd_rows.h"

#if HWY_TARGET != HWY_SCALAR  // of which nothing is called
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using lanes::D;
using lanes::kStep;
using lanes::load_part;
using lanes::store_part;
using lanes::V;

// Taps of a vector of channels.
struct Taps {
  V w[kMostConvTaps];

  Taps() = default;
  Taps(const CausalConvProblem& p, std::int64_t channel, std::int64_t left) {
    HWY_ALIGN float columns[kMostConvTaps][lanes::kLanes] = {};
    for (std::int64_t i = 0; i < std::min(left, kStep); ++i) {
      for (std::int64_t j = 0; j < p.taps; ++j) columns[j][i] = p.w[(channel + i) * p.taps + j];
    }
    for (std::int64_t j = 0; j < p.taps; ++j) w[j] = hn::Load(D(), columns[j]);
  }
};

// x of a token and of those before it, the last tap first; null where there is none.
template <typename T>
struct Sources {
  const T* x[kMostConvTaps];

  Sources(const CausalConvProblem& p, std::int64_t batch, std::int64_t token) {
    for (std::int64_t j = 0; j < p.taps; ++j) x[j] = p.before<T>(batch, token, p.taps - 1 - j);
  }
  HWY_INLINE V filtered(const Taps& taps, std::int64_t count, std::int64_t channel, std::int64_t left) const {
    V sum = hn::Zero(D());
    for (std::int64_t j = 0; j < count; ++j) {
      if (x[j] != nullptr) sum = hn::MulAdd(taps.w[j], load_part(x[j] + channel, left), sum);
    }
    return sum;
  }
};

template <typename T>
void forward(const CausalConvProblem& p, std::int64_t begin, std::int64_t end) {
  T* const y = static_cast<T*>(p.y);
  for (std::int64_t first = begin; first < end; first += kConvChannels) {
    const std::int64_t last = std::min(end, first + kConvChannels);
    Taps taps[kConvChannels / kStep];
    for (std::int64_t channel = first; channel < last; channel += kStep)
      taps[(channel - first) / kStep] = Taps(p, channel, last - channel);
    for (std::int64_t i = 0; i < p.batch * p.length; ++i) {
      const Sources<T> sources(p, i / p.length, i % p.length);
      for (std::int64_t channel = first; channel < last; channel += kStep) {
        const std::int64_t left = last - channel;
        const V z = sources.filtered(taps[(channel - first) / kStep], p.taps, channel, left);
        store_part(hn::Mul(z, lanes::sigmoid(z, T())), y + i * p.channels + channel, left);
      }
    }
  }
}

// The numbers that a vector of channels carries from token to token, backwards.
struct Gradients {
  Taps taps;
  V dw[kMostConvTaps];
  // Gradients of the sums before silu of a token and those after it; the last tap's is pending[taps - 1].
  V pending[kMostConvTaps];

  void read(const CausalConvProblem& p, std::int64_t channel, std::int64_t left) {
    taps = Taps(p, channel, left);
    std::fill(dw, dw + p.taps, hn::Zero(D()));
  }
  void forget(std::int64_t count) { std::fill(pending, pending + count, hn::Zero(D())); }
  void write(const CausalConvProblem& p, std::int64_t channel, std::int64_t left) const {
    for (std::int64_t j = 0; j < p.taps; ++j) {
      HWY_ALIGN float column[lanes::kLanes];
      hn::Store(dw[j], D(), column);
      for (std::int64_t i = 0; i < std::min(left, kStep); ++i) p.dw[(channel + i) * p.taps + j] = column[i];
    }
  }
};

// dx of the token whose sources these are, and what it adds to dw.
template <typename T>
HWY_INLINE void add_token(const CausalConvProblem& p, const Sources<T>& sources, const T* dy,
                          std::int64_t channel, std::int64_t left, T* dx, Gradients& g) {
  const V one = hn::Set(D(), 1.0f);
  const V z = sources.filtered(g.taps, p.taps, channel, left), sigmoid = lanes::sigmoid(z, T());
  const V slope = hn::Mul(sigmoid, hn::MulAdd(z, hn::Sub(one, sigmoid), one));
  const V dz = hn::Mul(load_part(dy, left), slope);
  for (std::int64_t j = 0; j + 1 < p.taps; ++j) g.pending[j] = g.pending[j + 1];
  g.pending[p.taps - 1] = dz;
  V sum = hn::Zero(D());
  // The token `taps - 1 - j` after this one saw it by tap j.
  for (std::int64_t j = 0; j < p.taps; ++j) sum = hn::MulAdd(g.taps.w[j], g.pending[j], sum);
  store_part(sum, dx, left);
  for (std::int64_t j = 0; j < p.taps; ++j) {
    if (sources.x[j] != nullptr) g.dw[j] = hn::MulAdd(dz, load_part(sources.x[j] + channel, left), g.dw[j]);
  }
}

template <typename T>
void backward(const CausalConvProblem& p, std::int64_t begin, std::int64_t end) {
  Gradients gradients[kConvChannels / kStep];
  for (std::int64_t first = begin; first < end; first += kConvChannels) {
    const std::int64_t last = std::min(end, first + kConvChannels);
    const auto for_vectors = [&](const auto& visit) {
      for (std::int64_t channel = first; channel < last; channel += kStep)
        visit(gradients[(channel - first) / kStep], channel, last - channel);
    };
    for_vectors([&](Gradients& g, std::int64_t channel, std::int64_t left) { g.read(p, channel, left); });
    for (std::int64_t i = p.batch * p.length - 1; i >= 0; --i) {
      const std::int64_t b = i / p.length, s = i % p.length;
      if (s + 1 == p.length || !p.same_segment(b, s, s + 1))
        for_vectors([&](Gradients& g, std::int64_t, std::int64_t) { g.forget(p.taps); });
      const Sources<T> sources(p, b, s);
      for_vectors([&](Gradients& g, std::int64_t channel, std::int64_t left) {
        const std::int64_t at = i * p.channels + channel;
        add_token(p, sources, static_cast<const T*>(p.dy) + at, channel, left, static_cast<T*>(p.dx) + at, g);
      });
    }
    for_vectors([&](Gradients& g, std::int64_t channel, std::int64_t left) { g.write(p, channel, left); });
  }
}

}  // namespace

void causal_conv_simd(const CausalConvProblem& p, std::int64_t begin, std::int64_t end) {
  p.dtype == DType::f32 ? forward<float>(p, begin, end) : forward<bfloat16>(p, begin, end);
}
void causal_conv_backward_simd(const CausalConvProblem& p, std::int64_t begin, std::int64_t end) {
  p.dtype == DType::f32 ? backward<float>(p, begin, end) : backward<bfloat16>(p, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

SWITCHYARD_SIMD_EXPORT(causal_conv, (const CausalConvProblem& p, std::int64_t begin, std::int64_t end),
                       (p, begin, end))
SWITCHYARD_SIMD_EXPORT(causal_conv_backward,
                       (const CausalConvProblem& p, std::int64_t begin, std::int64_t end), (p, begin, end))

}  // namespace switchyard::cpu
#endif
