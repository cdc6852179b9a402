// Optimizers. A thread takes four neighbours at a time, whatever the arrays' types, which are the same for
// all threads of a block. The operations are those of reference/weight_update.cc, each rounded as there.
#include "kernels/cuda/flat_lists.h"
#include "kernels/optimizer/weight_update_problem.h"

namespace switchyard::gpu {
namespace {

// Stores new weights and returns the sum of their squares.
GPU_FUNCTION double store_weights(const Elements& weight, std::int64_t i, int count, float* w) {
  weight.store(i, count, w);
  for (int k = 0; k < kQuad; ++k) w[k] = weight.stored(w[k]);
  return squares_of(w, count);
}

// Updates an item with the arrays weight, grad, mu, nu, whose factor is 0 where weights do not decay.
struct Adam {
  const UpdateNumbers* numbers;
  GPU_FUNCTION double operator()(const ListItem& item, std::int64_t i, int count) const {
    const AdamTerms t = numbers->adam;
    const auto& [weight, grad, mu, nu] = item.arrays;
    const float decay = item.factor == 0 ? 0 : t.weight_decay;
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
      const float update = fmaf(decay, w[k], mean / (root + t.eps));
      w[k] = fmaf(-t.learning_rate, update, w[k]);
    }
    mu.store(i, count, m);
    nu.store(i, count, v);
    return store_weights(weight, i, count, w);
  }
};

// Of an item with the arrays weight, grad.
struct Descent {
  const UpdateNumbers* numbers;
  GPU_FUNCTION double operator()(const ListItem& item, std::int64_t i, int count) const {
    const float rate = numbers->adam.learning_rate, grad_scale = numbers->adam.grad_scale;
    float w[kQuad], g[kQuad];
    item.arrays[0].load(i, count, w);
    item.arrays[1].load(i, count, g);
    for (int k = 0; k < kQuad; ++k) w[k] = fmaf(-rate, g[k] * grad_scale, w[k]);
    return store_weights(item.arrays[0], i, count, w);
  }
};

// Of an item with the arrays weight, direction.
struct Direction {
  const UpdateNumbers* numbers;
  double scale, decay;
  GPU_FUNCTION double operator()(const ListItem& item, std::int64_t i, int count) const {
    const auto rate = static_cast<float>(numbers->learning_rate * scale),
               shrink = static_cast<float>(numbers->learning_rate * decay);
    float w[kQuad], d[kQuad];
    item.arrays[0].load(i, count, w);
    item.arrays[1].load(i, count, d);
    for (int k = 0; k < kQuad; ++k) w[k] -= fmaf(rate, d[k], shrink * w[k]);
    return store_weights(item.arrays[0], i, count, w);
  }
};

const UpdateNumbers* device_numbers(const TensorView& x) {
  return reinterpret_cast<const UpdateNumbers*>(x.device_data<float>());
}

GPU_KERNEL gain_momentum(const UpdateNumbers* numbers, Elements grad, Elements momentum, Elements direction,
                         std::int64_t n) {
  const std::int64_t i = thread_of_grid() * kQuad;
  if (i >= n) return;
  const int count = n - i < kQuad ? static_cast<int>(n - i) : kQuad;
  float g[kQuad], m[kQuad], d[kQuad] = {};
  if (numbers->is_good == 0) {
    direction.store(i, count, d);
    return;
  }
  const MomentumTerms t = numbers->momentum;
  const float grad_scale = numbers->adam.grad_scale;
  grad.load(i, count, g);
  momentum.load(i, count, m);
  for (int k = 0; k < kQuad; ++k) {
    const float scaled = g[k] * grad_scale;
    m[k] = fmaf(t.decay, m[k], t.gain * scaled);
    d[k] = fmaf(t.of_gradient, scaled, t.of_momentum * m[k]);
  }
  direction.store(i, count, d);
  momentum.store(i, count, m);
}

}  // namespace

void adam_update(const AdamArgs& args) {
  const auto item_of = [](const AdamArrays& a) {
    return ListItem{
        .arrays = {Elements::of(a.weight), Elements::of(a.grad), Elements::of(a.mu), Elements::of(a.nu)},
        .size = a.weight.size(),
        .squares = a.squares.device_data<double>(),
        .factor = a.decays ? 1.0f : 0.0f};
  };
  const UpdateNumbers* const numbers = device_numbers(args.numbers);
  run_list(args.updates, args.updates[0].weight, Adam{numbers}, item_of, &numbers->is_good);
}

void descent_update(const DescentArgs& args) {
  const auto item_of = [](const DescentArrays& a) {
    return ListItem{.arrays = {Elements::of(a.weight), Elements::of(a.grad)},
                    .size = a.weight.size(),
                    .squares = a.squares.device_data<double>()};
  };
  const UpdateNumbers* const numbers = device_numbers(args.numbers);
  run_list(args.updates, args.updates[0].weight, Descent{numbers}, item_of, &numbers->is_good);
}

void momentum_update(const MomentumArgs& args) {
  const std::int64_t count = args.momentum.size();
  launch(threads_for(divide_up(count, kQuad)), gain_momentum, device_numbers(args.numbers),
         Elements::of(args.grad), Elements::of(args.momentum), Elements::of(args.direction), count);
}

void direction_update(const DirectionArgs& args) {
  const auto item_of = [](const DirectionArrays& a) {
    return ListItem{.arrays = {Elements::of(a.weight), Elements::of(a.direction)},
                    .size = a.weight.size(),
                    .squares = a.squares.device_data<double>()};
  };
  const UpdateNumbers* const numbers = device_numbers(args.numbers);
  run_list(args.updates, args.updates[0].weight, Direction{numbers, args.factors.scale, args.factors.decay},
           item_of, &numbers->is_good);
}

}  // namespace switchyard::gpu
