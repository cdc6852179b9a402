// Optimizers. A thread takes four neighbours at a time, whatever the arrays' types, which are the same for
// all threads of a block. The operations are those of reference/weight_update.cc, each rounded as there.
#include "kernels/cuda/flat_lists.h"
#include "kernels/optimizer/step_judge.h"
#include "kernels/optimizer/weight_update_problem.h"

namespace switchyard::gpu {
namespace {

// Stores new weights and returns the sum of their squares.
GPU_FUNCTION double store_weights(const Elements& weight, std::int64_t i, int count, float* w) {
  weight.store(i, count, w);
  for (int k = 0; k < kQuad; ++k) w[k] = weight.stored(w[k]);
  return squares_of(w, count);
}

// Of an item with the arrays weight, grad, mu, nu; its factor is the decay of weights.
GPU_FUNCTION double adam_quad(const AdamTerms& t, const ListItem& item, std::int64_t i, int count) {
  const auto& [weight, grad, mu, nu] = item.arrays;
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
    const float update = fmaf(item.factor, w[k], mean / (root + t.eps));
    w[k] = fmaf(-t.learning_rate, update, w[k]);
  }
  mu.store(i, count, m);
  nu.store(i, count, v);
  return store_weights(weight, i, count, w);
}

struct Adam {
  AdamTerms terms;
  GPU_FUNCTION double operator()(const ListItem& item, std::int64_t i, int count) const {
    return adam_quad(terms, item, i, count);
  }
};

struct AdamByNumbers {
  const UpdateNumbers* numbers;
  GPU_FUNCTION double operator()(const ListItem& item, std::int64_t i, int count) const {
    const AdamTerms terms = numbers->adam;
    return adam_quad(terms, item, i, count);
  }
};

// Of an item with the arrays weight, grad.
GPU_FUNCTION double descent_quad(float rate, float grad_scale, const ListItem& item, std::int64_t i,
                                 int count) {
  float w[kQuad], g[kQuad];
  item.arrays[0].load(i, count, w);
  item.arrays[1].load(i, count, g);
  for (int k = 0; k < kQuad; ++k) w[k] = fmaf(-rate, g[k] * grad_scale, w[k]);
  return store_weights(item.arrays[0], i, count, w);
}

struct Descent {
  float rate, grad_scale;
  GPU_FUNCTION double operator()(const ListItem& item, std::int64_t i, int count) const {
    return descent_quad(rate, grad_scale, item, i, count);
  }
};

struct DescentByNumbers {
  const UpdateNumbers* numbers;
  GPU_FUNCTION double operator()(const ListItem& item, std::int64_t i, int count) const {
    return descent_quad(numbers->adam.learning_rate, numbers->adam.grad_scale, item, i, count);
  }
};

// Of an item with the arrays weight, direction.
GPU_FUNCTION double direction_quad(float rate, float shrink, const ListItem& item, std::int64_t i,
                                   int count) {
  float w[kQuad], d[kQuad];
  item.arrays[0].load(i, count, w);
  item.arrays[1].load(i, count, d);
  for (int k = 0; k < kQuad; ++k) w[k] -= fmaf(rate, d[k], shrink * w[k]);
  return store_weights(item.arrays[0], i, count, w);
}

struct Direction {
  float rate, shrink;
  GPU_FUNCTION double operator()(const ListItem& item, std::int64_t i, int count) const {
    return direction_quad(rate, shrink, item, i, count);
  }
};

struct DirectionByNumbers {
  const UpdateNumbers* numbers;
  double scale, decay;
  GPU_FUNCTION double operator()(const ListItem& item, std::int64_t i, int count) const {
    const double rate = numbers->learning_rate;
    return direction_quad(static_cast<float>(rate * scale), static_cast<float>(rate * decay), item, i, count);
  }
};

const UpdateNumbers* numbers_of(const TensorView& x) {
  return x.defined() ? reinterpret_cast<const UpdateNumbers*>(x.device_data<float>()) : nullptr;
}

GPU_KERNEL gain_momentum(MomentumTerms t, const UpdateNumbers* numbers, Elements grad, Elements momentum,
                         Elements direction, std::int64_t n) {
  const std::int64_t i = thread_of_grid() * kQuad;
  if (i >= n) return;
  if (numbers != nullptr) {
    if (numbers->goes == 0) return;
    t.grad_scale = numbers->adam.grad_scale;
    t.of_momentum = numbers->of_momentum;
    t.of_gradient = numbers->of_gradient;
  }
  const int count = n - i < kQuad ? static_cast<int>(n - i) : kQuad;
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
}

}  // namespace

void adam_update(const AdamArgs& args) {
  const std::span<const AdamArrays> updates = args.updates;
  const auto item_of = [&](const AdamArrays& a) {
    return ListItem{
        .arrays = {Elements::of(a.weight), Elements::of(a.grad), Elements::of(a.mu), Elements::of(a.nu)},
        .size = a.weight.size(),
        .squares = a.squares.device_data<double>(),
        .factor = a.decays ? args.terms.weight_decay : 0.0f};
  };
  const TensorView& like = updates[0].weight;
  const UpdateNumbers* const numbers = numbers_of(args.numbers);
  if (numbers == nullptr) return run_list(updates, like, Adam{args.terms}, item_of);
  run_list(updates, like, AdamByNumbers{numbers}, item_of, &numbers->goes);
}

void descent_update(const DescentArgs& args) {
  const auto item_of = [](const DescentArrays& a) {
    return ListItem{.arrays = {Elements::of(a.weight), Elements::of(a.grad)},
                    .size = a.weight.size(),
                    .squares = a.squares.device_data<double>()};
  };
  const TensorView& like = args.updates[0].weight;
  const UpdateNumbers* const numbers = numbers_of(args.numbers);
  if (numbers == nullptr) return run_list(args.updates, like, Descent{args.rate, args.grad_scale}, item_of);
  run_list(args.updates, like, DescentByNumbers{numbers}, item_of, &numbers->goes);
}

void momentum_update(const MomentumArgs& args) {
  const std::int64_t count = args.momentum.size();
  launch(threads_for(divide_up(count, kQuad)), gain_momentum, args.terms, numbers_of(args.numbers),
         Elements::of(args.grad), Elements::of(args.momentum), Elements::of(args.direction), count);
}

void direction_update(const DirectionArgs& args) {
  const auto item_of = [](const DirectionArrays& a) {
    return ListItem{.arrays = {Elements::of(a.weight), Elements::of(a.direction)},
                    .size = a.weight.size(),
                    .squares = a.squares.device_data<double>()};
  };
  const TensorView& like = args.updates[0].weight;
  const UpdateNumbers* const numbers = numbers_of(args.numbers);
  if (numbers == nullptr) return run_list(args.updates, like, Direction{args.rate, args.shrink}, item_of);
  run_list(args.updates, like, DirectionByNumbers{numbers, args.scale, args.decay}, item_of, &numbers->goes);
}

}  // namespace switchyard::gpu
