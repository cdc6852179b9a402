#include "optim/muon.h"

#include <cmath>

#include "core/error.h"
#include "kernels/optimizer/newton_schulz.h"
#include "kernels/optimizer/weight_update.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/product/gemm.h"

namespace switchyard {
namespace {

constexpr int kSteps = 5;

// Takes five Newton-Schulz steps on x [matrices, in, out] of norm at most 1, by the smaller of XX', X'X.
void newton_schulz(ThreadPool& pool, const Memory& memory, const TensorView& x) {
  const std::int64_t matrices = x.dim(0), in = x.dim(1), out = x.dim(2), side = std::min(in, out);
  const bool wide = in <= out;
  const Tensor gram = memory.empty(DType::f32, {matrices, side, side}),
               square = memory.empty(DType::f32, {matrices, side, side}),
               other = memory.empty(DType::f32, {matrices, in, out});
  const TensorView g = gram.view();
  TensorView from = x, to = other.view();
  for (int step = 0; step < kSteps; ++step) {
    gemm(pool, {.a = from, .b = from, .c = g, .transpose_a = !wide, .transpose_b = wide});
    gemm(pool, {.a = g, .b = g, .c = square.view()});
    newton_schulz_polynomial(pool, square.view(), g);
    gemm(pool, {.a = wide ? g : from, .b = wide ? from : g, .c = to});
    std::swap(from, to);
  }
  if (kSteps % 2 == 1) convert(pool, other.view(), x);  // the last step wrote to `other`
}

}  // namespace

void check(const MuonConfig& config) {
  if (!(config.beta >= 0 && config.beta < 1))
    fail_usage("[optim] expected muon_beta at least 0 and below 1, got {}", config.beta);
  if (!(config.eps >= 0)) fail_usage("[optim] expected adam_eps to be at least 0, got {}", config.eps);
}

MomentumTerms muon_terms(const MuonConfig& config, std::int64_t step) {
  CHECK(step >= 0, "step {}", step);
  const double t = static_cast<double>(step) + 1;
  const auto f = [](double value) { return static_cast<float>(value); };
  return {.decay = f(config.beta),
          .gain = f(1 - config.beta),
          .of_momentum = f(config.beta / (1 - std::pow(config.beta, t + 1))),
          .of_gradient = f((1 - config.beta) / (1 - std::pow(config.beta, t)))};
}

Tensor muon_direction(ThreadPool& pool, const TensorView& numbers, const Tensor& grad,
                      const Tensor& momentum) {
  const std::int64_t count = grad.size();
  CHECK(momentum.size() == count, "{} of momentum for {} of gradient", momentum.size(), count);
  const Tensor direction = grad.memory().empty(DType::f32, {count});
  momentum_update(pool, numbers, {grad.view(), momentum.view(), direction.view()});
  return direction;
}

void orthogonalize(ThreadPool& pool, double eps, const Tensor& matrices) {
  CHECK(matrices.rank() == 3 && matrices.dtype() == DType::f32, "{}", to_string(matrices.shape()));
  const std::int64_t count = matrices.dim(0), in = matrices.dim(1), out = matrices.dim(2), size = in * out;
  if (matrices.size() == 0) return;
  // Small matrices go in batches, large ones alone: the steps need four times the memory of a batch.
  const std::int64_t batch = std::max<std::int64_t>(1, (std::int64_t{1} << 20) / size);
  for (std::int64_t begin = 0; begin < count; begin += batch) {
    const std::int64_t n = std::min(batch, count - begin);
    const TensorView some = matrices.view().rows(begin, begin + n);
    normalize_matrices(pool, eps, some);
    newton_schulz(pool, matrices.memory(), some);
  }
}

double muon_scale(const MuonConfig& config, std::int64_t in, std::int64_t out) {
  const auto rows = static_cast<double>(in), columns = static_cast<double>(out);
  if (config.consistent_rms) return *config.consistent_rms * std::sqrt(std::max(rows, columns));
  return std::sqrt(std::max(1.0, columns / rows));
}

}  // namespace switchyard
