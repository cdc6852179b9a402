#include "optim/muon.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/error.h"
#include "optim/optimizer.h"

namespace switchyard {
namespace {

Tensor random_tensor(const Shape& shape, unsigned seed, DType dtype = DType::f32) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Tensor tensor(DType::f32, shape);
  for (float& value : tensor.span<float>()) value = normal(random);
  return tensor.cast(dtype).clone();
}

std::vector<double> doubles_of(const Tensor& tensor) {
  const Tensor floats = tensor.cast(DType::f32);
  return {floats.span<float>().begin(), floats.span<float>().end()};
}

// The reference implementation in double precision, with XX' for any shape.
struct Matrix {
  std::size_t rows, columns;
  std::vector<double> x;

  double at(std::size_t i, std::size_t j) const { return x[i * columns + j]; }
};

Matrix product(const Matrix& a, const Matrix& b, bool transpose_b) {
  Matrix c{a.rows, transpose_b ? b.rows : b.columns, {}};
  for (std::size_t i = 0; i < c.rows; ++i) {
    for (std::size_t j = 0; j < c.columns; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < a.columns; ++k) sum += a.at(i, k) * (transpose_b ? b.at(j, k) : b.at(k, j));
      c.x.push_back(sum);
    }
  }
  return c;
}

std::vector<double> orthogonalized(Matrix x, double eps) {
  double norm = 0;
  for (double v : x.x) norm += v * v;
  for (double& v : x.x) v /= std::sqrt(norm) + eps;
  for (int step = 0; step < 5; ++step) {
    const Matrix gram = product(x, x, true), cubic = product(gram, x, false),
                 quintic = product(gram, cubic, false);
    for (std::size_t i = 0; i < x.x.size(); ++i)
      x.x[i] = 3.4445 * x.x[i] - 4.7750 * cubic.x[i] + 2.0315 * quintic.x[i];
  }
  return x.x;
}

// Root mean square of the difference, over that of b.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = a.size() == b.size() ? 0 : INFINITY, size = 1e-30;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(difference / size);
}

TEST(Muon, DistanceSeesWrongMissingAndNanValues) {
  EXPECT_EQ(distance({1, 2}, {1, 2}), 0);
  EXPECT_GT(distance({1, 2.01}, {1, 2}), 1e-3);
  EXPECT_GT(distance({-1, -2}, {1, 2}), 1);
  EXPECT_FALSE(distance({1, NAN}, {1, 2}) < 1e9);
  EXPECT_FALSE(distance({1}, {1, 2}) < 1e9);
}

TEST(Muon, OrthogonalizesEachMatrixByItself) {
  ThreadPool pool(2);
  const std::vector<Shape> shapes = {{1, 1, 1}, {1, 1, 7},   {1, 7, 1},     {3, 5, 3},
                                     {3, 3, 5}, {2, 64, 24}, {2, 24, 64},   {5, 33, 33},
                                     {0, 4, 4}, {2, 130, 9}, {300, 20, 13}, {1, 96, 130}};
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(to_string(shape));
    const Tensor matrices = random_tensor(shape, 3), before = matrices.clone();
    orthogonalize(pool, 1e-8, matrices);
    for (std::int64_t m = 0; m < std::min<std::int64_t>(shape[0], 5); ++m) {
      const std::vector<double> want =
          orthogonalized({static_cast<std::size_t>(shape[1]), static_cast<std::size_t>(shape[2]),
                          doubles_of(before.slice_rows(m, m + 1))},
                         1e-8);
      EXPECT_LT(distance(doubles_of(matrices.slice_rows(m, m + 1)), want), 2e-6) << m;
    }
  }
}

TEST(Muon, TheResultIsNearlyOrthogonalAndKeepsDirections) {
  ThreadPool pool(1);
  const Tensor x = random_tensor({1, 8, 40}, 5), before = x.clone();
  orthogonalize(pool, 1e-8, x);
  const Matrix u{8, 40, doubles_of(x)}, gram = product(u, u, true);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(gram.at(i, i), 1, 0.6) << i;  // the steps bring singular values into 0.7 to 1.2
    for (std::size_t j = 0; j < i; ++j) EXPECT_NEAR(gram.at(i, j), 0, 0.4) << i << " " << j;
  }
  const std::vector<double> given = doubles_of(before);
  double along = 0;
  for (std::size_t i = 0; i < u.x.size(); ++i) along += u.x[i] * given[i];
  EXPECT_GT(along, 0);
}

TEST(Muon, AZeroMatrixStaysZeroBesideOthers) {
  ThreadPool pool(2);
  const Tensor x = random_tensor({3, 6, 4}, 7);
  const Tensor zero = x.slice_rows(1, 2);
  for (float& v : zero.span<float>()) v = 0;
  const Tensor alone = x.slice_rows(2, 3).clone();
  orthogonalize(pool, 0, x);
  for (float v : zero.span<float>()) EXPECT_EQ(v, 0);
  orthogonalize(pool, 0, alone);
  EXPECT_EQ(doubles_of(alone), doubles_of(x.slice_rows(2, 3)));
}

TEST(Muon, DoesNotDependOnTheThreadCount) {
  const Tensor one = random_tensor({40, 65, 48}, 9), three = one.clone();
  ThreadPool single(1), several(3);
  orthogonalize(single, 1e-8, one);
  orthogonalize(several, 1e-8, three);
  EXPECT_EQ(doubles_of(one), doubles_of(three));
}

// Each step from the momentum that the last one left: d is made of the momentum before it is rounded.
TEST(Muon, MomentumFollowsTheDefinition) {
  ThreadPool pool(2);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t count : {0, 1, 1023, 1024, 3000}) {
      const MuonConfig config{.beta = 0.9, .consistent_rms = {}, .mu_dtype = dtype};
      const Tensor momentum = Tensor::zeros(dtype, {count});
      for (int step = 0; step < 4; ++step) {
        SCOPED_TRACE(fmt::format("{} {} step {}", name_of(dtype), count, step));
        const Tensor grad = random_tensor({count}, 20u + static_cast<unsigned>(step), dtype);
        const std::vector<double> before = doubles_of(momentum), g = doubles_of(grad);
        AdamTerms half{};
        half.grad_scale = 0.5f;
        const Tensor numbers = numbers_in(Memory(), {.adam = half, .momentum = muon_terms(config, step)});
        const Tensor direction = muon_direction(pool, numbers.view(), grad, momentum);
        std::vector<double> m, d;
        for (std::size_t i = 0; i < g.size(); ++i) {
          m.push_back(0.9 * before[i] + 0.1 * 0.5 * g[i]);
          d.push_back(0.9 * m[i] / (1 - std::pow(0.9, step + 2)) +
                      0.1 * 0.5 * g[i] / (1 - std::pow(0.9, step + 1)));
        }
        EXPECT_LT(distance(doubles_of(direction), d), 1e-6);
        EXPECT_LT(distance(doubles_of(momentum), m), dtype == DType::f32 ? 1e-6 : 1.0 / 256);
      }
    }
  }
}

TEST(Muon, AppliesScaleAndDecay) {
  ThreadPool pool(2);
  const Tensor numbers = numbers_in(Memory(), {.adam = {}, .learning_rate = 0.01});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor weight = random_tensor({2500}, 31, dtype), update = random_tensor({2500}, 32);
    std::vector<double> want = doubles_of(weight);
    const std::vector<double> u = doubles_of(update);
    for (std::size_t i = 0; i < want.size(); ++i) want[i] -= 0.01 * (1.5 * u[i] + 0.2 * want[i]);
    direction_update(pool, numbers.view(), {.scale = 1.5, .decay = 0.2},
                     {update.view(), weight.view(), Tensor(DType::f64, {1}).view()});
    EXPECT_LT(distance(doubles_of(weight), want), dtype == DType::f32 ? 1e-7 : 4e-3);
  }
}

TEST(Muon, ScalesByShapeOrToOneSize) {
  EXPECT_EQ(muon_scale({.consistent_rms = {}}, 64, 16), 1);
  EXPECT_EQ(muon_scale({.consistent_rms = {}}, 16, 64), 2);
  EXPECT_EQ(muon_scale({.consistent_rms = 0.25}, 16, 64), 2);
  EXPECT_EQ(muon_scale({.consistent_rms = 0.25}, 64, 16), 2);
}

TEST(Muon, RefusesWhatNoOptimizerTakes) {
  EXPECT_NO_THROW(check(MuonConfig{.beta = 0, .eps = 0, .consistent_rms = {}}));
  for (const double beta : {-0.1, 1.0, std::nan("")})
    EXPECT_THROW(check(MuonConfig{.beta = beta, .consistent_rms = {}}), Error);
  EXPECT_THROW(check(MuonConfig{.eps = -1, .consistent_rms = {}}), Error);
}

}  // namespace
}  // namespace switchyard
