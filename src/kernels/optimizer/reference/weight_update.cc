// The scalar truth of the optimizers' elementwise parts.
#include <cmath>

#include "kernels/optimizer/weight_update_problem.h"
#include "kernels/pointwise/reference/elementwise_access.h"

namespace switchyard::ref {
namespace {

float get(const FlatArray& x, std::int64_t i) {
  return at(x.data, x.dtype, i);
}
float get(const ConstFlatArray& x, std::int64_t i) {
  return at(x.data, x.dtype, i);
}

// Stores a weight and counts its square; i is its place in the piece.
void store_weight(const FlatArray& weight, std::int64_t begin, std::int64_t i, float value,
                  SquareSums& squares) {
  put(weight.data, weight.dtype, begin + i, value);
  const auto stored = static_cast<double>(get(weight, begin + i));
  squares.sums[i % SquareSums::kCount] += stored * stored;
}

}  // namespace

void adam(const AdamProblem& p, std::int64_t begin, std::int64_t end, SquareSums& squares) {
  const AdamTerms& t = p.terms;
  for (std::int64_t i = begin; i < end; ++i) {
    const float w = get(p.weight, i), g = get(p.grad, i) * t.grad_scale;
    const float m = std::fma(t.mu_decay, get(p.mu, i), t.mu_gain * g);
    const float v = std::fma(t.nu_decay, get(p.nu, i), t.nu_gain * (g * g));
    const float root = std::sqrt(std::fma(v, t.nu_correction, t.eps_root));
    const float mean = std::fma(t.grad_share, g, m * t.mu_correction);
    const float update = std::fma(t.weight_decay, w, mean / (root + t.eps));
    store_weight(p.weight, begin, i - begin, std::fma(-t.learning_rate, update, w), squares);
    put(p.mu.data, p.mu.dtype, i, m);
    put(p.nu.data, p.nu.dtype, i, v);
  }
}

void descent(const DescentProblem& p, std::int64_t begin, std::int64_t end, SquareSums& squares) {
  for (std::int64_t i = begin; i < end; ++i) {
    const float w = std::fma(-p.rate, get(p.grad, i) * p.grad_scale, get(p.weight, i));
    store_weight(p.weight, begin, i - begin, w, squares);
  }
}

void momentum(const MomentumProblem& p, std::int64_t begin, std::int64_t end, SquareSums&) {
  const MomentumTerms& t = p.terms;
  for (std::int64_t i = begin; i < end; ++i) {
    const float g = get(p.grad, i) * p.grad_scale;
    const float m = std::fma(t.decay, get(p.momentum, i), t.gain * g);
    p.direction[i] = std::fma(t.of_gradient, g, t.of_momentum * m);
    put(p.momentum.data, p.momentum.dtype, i, m);
  }
}

void direction(const DirectionProblem& p, std::int64_t begin, std::int64_t end, SquareSums& squares) {
  for (std::int64_t i = begin; i < end; ++i) {
    const float w = get(p.weight, i);
    const float change = std::fma(p.rate, p.direction[i], p.shrink * w);
    store_weight(p.weight, begin, i - begin, w - change, squares);
  }
}

}  // namespace switchyard::ref
