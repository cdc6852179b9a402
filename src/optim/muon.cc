#include "optim/muon.h"

#include <cmath>

#include "core/error.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/weight_update.h"

namespace switchyard {
namespace {

// Coefficients of X, (XX')X and (XX')^2 X: five steps bring singular values of (0, 1] near 1.
constexpr float kLinear = 3.4445f, kCubic = -4.775f, kQuintic = 2.0315f;
constexpr int kSteps = 5;

// c[b] = a[b]·b[b] of row-major matrices without gaps, a optionally times its own transpose.
struct Product {
  std::int64_t batch, m, n, k;
};

void multiply(ThreadPool& pool, const Product& p, const float* a, bool transpose_a, const float* b,
              bool transpose_b, float* c) {
  const auto matrices = [&](const float* x, std::int64_t rows, std::int64_t columns) {
    return TensorView::of_host(x, {p.batch, rows, columns});
  };
  gemm(pool, {.a = transpose_a ? matrices(a, p.k, p.m) : matrices(a, p.m, p.k),
              .b = transpose_b ? matrices(b, p.n, p.k) : matrices(b, p.k, p.n),
              .c = matrices(c, p.m, p.n),
              .transpose_a = transpose_a,
              .transpose_b = transpose_b});
}

// gram = 3.4445 I + kCubic gram + kQuintic gram², for each [side, side].
void polynomial(ThreadPool& pool, float* gram, const float* square, std::int64_t matrices,
                std::int64_t side) {
  pool.for_range(matrices * side, std::max<std::int64_t>(1, 16384 / side),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) {
                     float* g = gram + row * side;
                     const float* s = square + row * side;
                     for (std::int64_t i = 0; i < side; ++i) g[i] = kCubic * g[i] + kQuintic * s[i];
                     g[row % side] += kLinear;
                   }
                 });
}

// The steps on a few matrices x [matrices, in, out] of norm at most 1, through the smaller of XX' and X'X.
void newton_schulz(ThreadPool& pool, float* x, std::int64_t matrices, std::int64_t in, std::int64_t out) {
  const std::int64_t side = std::min(in, out), size = matrices * in * out;
  const bool wide = in <= out;
  const Tensor gram(DType::f32, {matrices, side, side}), square(DType::f32, {matrices, side, side}),
      next(DType::f32, {matrices, in, out});
  float *g = gram.data<float>(), *from = x, *to = next.data<float>();
  for (int step = 0; step < kSteps; ++step) {
    multiply(pool, {matrices, side, side, wide ? out : in}, from, !wide, from, wide, g);
    multiply(pool, {matrices, side, side, side}, g, false, g, false, square.data<float>());
    polynomial(pool, g, square.data<float>(), matrices, side);
    if (wide)
      multiply(pool, {matrices, in, out, in}, g, false, from, false, to);
    else
      multiply(pool, {matrices, in, out, out}, from, false, g, false, to);
    std::swap(from, to);
  }
  if (from != x) convert(pool, TensorView::of_host(from, {size}), TensorView::of_host(x, {size}));
}

}  // namespace

void check(const MuonConfig& config) {
  if (!(config.beta >= 0 && config.beta < 1))
    fail_usage("[optim] expected muon_beta at least 0 and below 1, got {}", config.beta);
  if (!(config.eps >= 0)) fail_usage("[optim] expected adam_eps to be at least 0, got {}", config.eps);
}

Tensor muon_direction(ThreadPool& pool, const MuonConfig& config, std::int64_t step, double grad_scale,
                      const Tensor& grad, const Tensor& momentum) {
  const std::int64_t count = grad.size();
  CHECK(momentum.size() == count && step >= 0, "{} of momentum for {} of gradient, step {}", momentum.size(),
        count, step);
  const double t = static_cast<double>(step) + 1;
  const auto f = [](double value) { return static_cast<float>(value); };
  const MomentumTerms terms{.grad_scale = f(grad_scale),
                            .decay = f(config.beta),
                            .gain = f(1 - config.beta),
                            .of_momentum = f(config.beta / (1 - std::pow(config.beta, t + 1))),
                            .of_gradient = f((1 - config.beta) / (1 - std::pow(config.beta, t)))};
  Tensor direction(DType::f32, {count});
  momentum_update(pool, terms, {grad.dtype(), grad.raw()}, {momentum.dtype(), momentum.raw()},
                  direction.data<float>(), count);
  return direction;
}

void orthogonalize(ThreadPool& pool, double eps, const Tensor& matrices) {
  CHECK(matrices.rank() == 3 && matrices.dtype() == DType::f32, "{}", to_string(matrices.shape()));
  const std::int64_t count = matrices.dim(0), in = matrices.dim(1), out = matrices.dim(2), size = in * out;
  if (matrices.size() == 0) return;
  // Small matrices go in batches, large ones alone: four times a batch is what the steps need of memory.
  const std::int64_t batch = std::max<std::int64_t>(1, (std::int64_t{1} << 20) / size);
  for (std::int64_t begin = 0; begin < count; begin += batch) {
    const std::int64_t n = std::min(batch, count - begin);
    float* x = matrices.data<float>() + begin * size;
    for (std::int64_t i = 0; i < n; ++i) {
      const TensorView matrix = TensorView::of_host(x + i * size, {size});
      const double norm = std::sqrt(sum_of_squares(pool, matrix)) + eps;
      if (norm > 0) scale(pool, matrix, static_cast<float>(1 / norm), matrix);
    }
    newton_schulz(pool, x, n, in, out);
  }
}

double muon_scale(const MuonConfig& config, std::int64_t in, std::int64_t out) {
  const auto rows = static_cast<double>(in), columns = static_cast<double>(out);
  if (config.consistent_rms) return *config.consistent_rms * std::sqrt(std::max(rows, columns));
  return std::sqrt(std::max(1.0, columns / rows));
}

double muon_apply(ThreadPool& pool, double learning_rate, double scale, double decay, const Tensor& update,
                  void* weight, DType weight_dtype) {
  return direction_update(pool, static_cast<float>(learning_rate * scale),
                          static_cast<float>(learning_rate * decay), update.data<float>(),
                          {weight_dtype, weight}, update.size());
}

}  // namespace switchyard
