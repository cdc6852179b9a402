// Optimizers. A thread takes four neighbours at a time, whatever the arrays' types, which are the same for
// all threads. The operations are those of ref/weight_update.cc, each rounded as there.
#include "kernels/gpu/code.h"
#include "kernels/gpu/kernels.h"
#include "kernels/gpu/square_sums.h"
#include "kernels/gpu/wide.h"
#include "kernels/weight_update.h"

namespace switchyard::gpu {
namespace {

constexpr int kQuad = 4;

struct Elements {
  void* data;
  bool is_bf16;
  bool is_wide;  // its address is a multiple of a quad

  GPU_FUNCTION float get(std::int64_t i) const {
    return is_bf16 ? to_float(static_cast<const bfloat16*>(data)[i]) : static_cast<const float*>(data)[i];
  }
  // Returns the number as it is stored.
  GPU_FUNCTION float put(std::int64_t i, float x) const {
    if (!is_bf16) return static_cast<float*>(data)[i] = x;
    const auto rounded = from_float<bfloat16>(x);
    static_cast<bfloat16*>(data)[i] = rounded;
    return to_float(rounded);
  }
  // `count` of the quad that begins at i.
  GPU_FUNCTION void load(std::int64_t i, int count, float* to) const {
    if (count == kQuad && is_wide) {
      if (is_bf16)
        load_floats<kQuad>(static_cast<const bfloat16*>(data) + i, to);
      else
        load_floats<kQuad>(static_cast<const float*>(data) + i, to);
    } else {
      for (int k = 0; k < kQuad; ++k) to[k] = k < count ? get(i + k) : 0;
    }
  }
  GPU_FUNCTION void store(std::int64_t i, int count, const float* from) const {
    if (count == kQuad && is_wide) {
      if (is_bf16)
        store_floats<kQuad>(from, static_cast<bfloat16*>(data) + i);
      else
        store_floats<kQuad>(from, static_cast<float*>(data) + i);
    } else {
      for (int k = 0; k < kQuad; ++k) {
        if (k < count) put(i + k, from[k]);
      }
    }
  }
  // A number as `store` stores it.
  GPU_FUNCTION float stored(float x) const { return is_bf16 ? to_float(from_float<bfloat16>(x)) : x; }
};

Elements elements_of(const TensorView& x) {
  CHECK(is_float(x.dtype()), "elements of {}", name_of(x.dtype()));
  void* const data = x.device_address();
  return {data, x.dtype() == DType::bf16,
          reinterpret_cast<std::uintptr_t>(data) % (kQuad * size_of(x.dtype())) == 0};
}

// Calls body(i, count) for the block's quads.
template <typename Body>
GPU_FUNCTION void for_quads(std::int64_t n, const Body& body) {
  const std::int64_t begin = block_index() * kSquaresOfBlock,
                     end = begin + kSquaresOfBlock < n ? begin + kSquaresOfBlock : n;
  for (std::int64_t i = begin + static_cast<std::int64_t>(thread_index()) * kQuad; i < end;
       i += static_cast<std::int64_t>(kSquareThreads) * kQuad)
    body(i, end - i < kQuad ? static_cast<int>(end - i) : kQuad);
}

GPU_FUNCTION void add_squares(const Elements& weights, const float* values, int count, double& squares) {
  for (int k = 0; k < kQuad; ++k) {
    const auto stored = static_cast<double>(weights.stored(values[k]));
    if (k < count) squares += stored * stored;
  }
}

GPU_KERNEL adam_elements(AdamTerms t, Elements weight, Elements grad, Elements mu, Elements nu,
                         std::int64_t n, double* sums) {
  double squares = 0;
  for_quads(n, [&](std::int64_t i, int count) {
    float w[kQuad], g[kQuad], m[kQuad], v[kQuad];
    weight.load(i, count, w);
    grad.load(i, count, g);
    mu.load(i, count, m);
    nu.load(i, count, v);
    for (int k = 0; k < kQuad; ++k) {
      const float scaled = g[k] * t.grad_scale;
      m[k] = fmaf(t.mu_decay, m[k], t.mu_gain * scaled);
      v[k] = fmaf(t.nu_decay, v[k], t.nu_gain * (scaled * scaled));
      const float root = sqrtf(fmaf(v[k], t.nu_correction, t.eps_root));
      const float mean = fmaf(t.grad_share, scaled, m[k] * t.mu_correction);
      const float update = fmaf(t.weight_decay, w[k], mean / (root + t.eps));
      w[k] = fmaf(-t.learning_rate, update, w[k]);
    }
    weight.store(i, count, w);
    mu.store(i, count, m);
    nu.store(i, count, v);
    add_squares(weight, w, count, squares);
  });
  put_block_sum(squares, sums);
}

GPU_KERNEL descend(float rate, float grad_scale, Elements weight, Elements grad, std::int64_t n,
                   double* sums) {
  double squares = 0;
  for_quads(n, [&](std::int64_t i, int count) {
    float w[kQuad], g[kQuad];
    weight.load(i, count, w);
    grad.load(i, count, g);
    for (int k = 0; k < kQuad; ++k) w[k] = fmaf(-rate, g[k] * grad_scale, w[k]);
    weight.store(i, count, w);
    add_squares(weight, w, count, squares);
  });
  put_block_sum(squares, sums);
}

GPU_KERNEL gain_momentum(MomentumTerms t, Elements grad, Elements momentum, Elements direction,
                         std::int64_t n) {
  for_quads(n, [&](std::int64_t i, int count) {
    float g[kQuad], m[kQuad], d[kQuad];
    grad.load(i, count, g);
    momentum.load(i, count, m);
    for (int k = 0; k < kQuad; ++k) {
      const float scaled = g[k] * t.grad_scale;
      m[k] = fmaf(t.decay, m[k], t.gain * scaled);
      d[k] = fmaf(t.of_gradient, scaled, t.of_momentum * m[k]);
    }
    direction.store(i, count, d);
    momentum.store(i, count, m);
  });
}

GPU_KERNEL go_in_direction(float rate, float shrink, Elements direction, Elements weight, std::int64_t n,
                           double* sums) {
  double squares = 0;
  for_quads(n, [&](std::int64_t i, int count) {
    float w[kQuad], d[kQuad];
    weight.load(i, count, w);
    direction.load(i, count, d);
    for (int k = 0; k < kQuad; ++k) w[k] -= fmaf(rate, d[k], shrink * w[k]);
    weight.store(i, count, w);
    add_squares(weight, w, count, squares);
  });
  put_block_sum(squares, sums);
}

}  // namespace

double adam_update(const AdamTerms& terms, const AdamArrays& arrays) {
  const auto& [weight, grad, mu, nu] = arrays;
  const BlockSums sums(weight, weight.size());
  launch(sums.blocks(), adam_elements, terms, elements_of(weight), elements_of(grad), elements_of(mu),
         elements_of(nu), weight.size(), sums.data());
  return sums.total();
}

double descent_update(float rate, float grad_scale, const TensorView& weight, const TensorView& grad) {
  const BlockSums sums(weight, weight.size());
  launch(sums.blocks(), descend, rate, grad_scale, elements_of(weight), elements_of(grad), weight.size(),
         sums.data());
  return sums.total();
}

void momentum_update(const MomentumTerms& terms, const TensorView& grad, const TensorView& momentum,
                     const TensorView& direction) {
  launch({.blocks = divide_up(momentum.size(), kSquaresOfBlock), .threads = kSquareThreads}, gain_momentum,
         terms, elements_of(grad), elements_of(momentum), elements_of(direction), momentum.size());
}

double direction_update(float rate, float shrink, const TensorView& direction, const TensorView& weight) {
  const BlockSums sums(weight, weight.size());
  launch(sums.blocks(), go_in_direction, rate, shrink, elements_of(direction), elements_of(weight),
         weight.size(), sums.data());
  return sums.total();
}

}  // namespace switchyard::gpu
