// Kernels that are one loop each, against their definitions.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/loss/last_tokens.h"
#include "kernels/optimizer/newton_schulz.h"
#include "kernels/pointwise/soft_cap.h"
#include "kernels/pointwise/sum_over_dim.h"
#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

using kernel_test::Array;

constexpr DType kDTypes[] = {DType::f32, DType::bf16};

TEST(LastTokens, AreThoseBeforeThePadding) {
  const std::vector<std::int32_t> segments{1, 1, 1, 0, 0, 0, 2, 0, 1, 1, 2, 2};  // [4,3]
  const std::vector<std::int64_t> last{2, 0, 0, 2};
  for (const DType dtype : kDTypes) {
    const Array x = Array::normal(dtype, 4 * 3 * 5, 1);
    Array out(dtype, 4 * 5);
    ThreadPool pool(2);
    last_tokens(pool, {x.view({4, 3, 5}), TensorView::of_host(segments.data(), {4, 3}), out.view({4, 1, 5})});
    for (std::int64_t row = 0; row < 4; ++row) {
      for (std::int64_t i = 0; i < 5; ++i)
        EXPECT_EQ(out.at(row * 5 + i), x.at((row * 3 + last[static_cast<std::size_t>(row)]) * 5 + i));
    }
    EXPECT_TRUE(out.guards_intact());
  }
}

TEST(SumOverDim, AddsInOrderAndRoundsOnce) {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t terms : {0, 1, 7}) {
      const Array x = Array::normal(dtype, 3 * terms * 10, 1);
      Array out(dtype, 3 * 4), expected(dtype, 3 * 4);
      ThreadPool pool(2);
      sum_over_dim(pool, x.view({3, terms, 10}).slice(2, 6, 4), 1, out.view({3, 4}));
      for (std::int64_t i = 0; i < 12; ++i) {
        float sum = 0;
        for (std::int64_t t = 0; t < terms; ++t) sum += x.at((i / 4 * terms + t) * 10 + 6 + i % 4);
        expected.set(i, sum);
      }
      EXPECT_EQ(out, expected) << terms;
    }
  }
}

TEST(SoftCap, FollowsItsDefinition) {
  const float cap = 3;
  const Array x = Array::normal(DType::f32, 5000, 1, 4.0f), dy = Array::normal(DType::f32, 5000, 2);
  Array y(DType::f32, 5000), dx(DType::f32, 5000);
  ThreadPool pool(2);
  soft_cap(pool, cap, x.view(), y.view());
  soft_cap_backward(pool, cap, y.view(), dy.view(), dx.view());
  for (std::int64_t i = 0; i < 5000; ++i) {
    const double tanh = std::tanh(static_cast<double>(x.at(i)) / 3);
    EXPECT_NEAR(static_cast<double>(y.at(i)), 3 * tanh, 1e-6);
    EXPECT_NEAR(static_cast<double>(dx.at(i)), static_cast<double>(dy.at(i)) * (1 - tanh * tanh), 2e-6);
  }
}

TEST(NewtonSchulz, NormalizesAndAppliesItsPolynomial) {
  ThreadPool pool(2);
  Array x = Array::normal(DType::f32, 3 * 4 * 5, 1);
  for (std::int64_t i = 20; i < 40; ++i) x.set(i, 0);  // a matrix of zeros stays one
  const Array before = x;
  normalize_matrices(pool, 0, x.view({3, 4, 5}));
  for (std::int64_t m = 0; m < 3; ++m) {
    double squares = 0;
    for (std::int64_t i = 20 * m; i < 20 * m + 20; ++i)
      squares += std::pow(static_cast<double>(before.at(i)), 2);
    for (std::int64_t i = 20 * m; i < 20 * m + 20; ++i) {
      const double want = squares > 0 ? static_cast<double>(before.at(i)) / std::sqrt(squares) : 0;
      EXPECT_NEAR(static_cast<double>(x.at(i)), want, 1e-6);
    }
  }
  const Array square = Array::normal(DType::f32, 2 * 3 * 3, 2);
  Array gram = Array::normal(DType::f32, 2 * 3 * 3, 3);
  const Array start = gram;
  newton_schulz_polynomial(pool, square.view({2, 3, 3}), gram.view({2, 3, 3}));
  for (std::int64_t i = 0; i < 18; ++i) {
    const double want = (i % 9 % 4 == 0 ? 3.4445 : 0) - 4.775 * static_cast<double>(start.at(i)) +
                        2.0315 * static_cast<double>(square.at(i));
    EXPECT_NEAR(static_cast<double>(gram.at(i)), want, 1e-5);
  }
}

}  // namespace
}  // namespace switchyard
