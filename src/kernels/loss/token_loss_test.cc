#include "kernels/loss/token_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

using kernel_test::Array;

std::vector<std::int32_t> some_padding(std::int64_t rows) {
  std::vector<std::int32_t> segments;
  for (std::int64_t r = 0; r < rows; ++r) segments.push_back(static_cast<std::int32_t>(r % 4));
  return segments;
}

TEST(TokenLoss, CombinesThePartsOfAVocabulary) {
  for (const std::int64_t rows : {0, 1, 700}) {
    for (const std::int64_t count : {1, 2, 5}) {
      Array parts = Array::normal(DType::f32, count * rows, 3, 20);
      if (rows > 1 && count > 1) parts.set(1, -std::numeric_limits<float>::infinity());  // no columns
      for (const int threads : {1, 3}) {
        ThreadPool pool(threads);
        Array lse(DType::f32, rows);
        combine_log_sums(pool, parts.view({count, rows}), lse.view());
        for (std::int64_t r = 0; r < rows; ++r) {
          double sum = 0;
          for (std::int64_t p = 0; p < count; ++p)
            sum += std::exp(static_cast<double>(parts.at(p * rows + r)));
          ASSERT_NEAR(lse.at(r), std::log(sum), 1e-6 * (1 + std::abs(std::log(sum)))) << r;
        }
        EXPECT_TRUE(lse.guards_intact());
      }
    }
  }
}

TEST(TokenLoss, CoefficientsAreTheGradientOfTheSum) {
  constexpr double kCount = 5, kZ = 0.25;
  const float g = 0.5f;
  for (const std::int64_t rows : {0, 1, 1100}) {
    const auto segments = some_padding(rows);
    const Array lse = Array::normal(DType::f32, rows, 7, 4);
    for (const bool given : {false, true}) {
      ThreadPool pool(2);
      Array softmax(DType::f32, rows), target(DType::f32, rows);
      loss_coefficients(pool, {.lse = lse.view(),
                               .segments = TensorView::of_host(segments.data(), {rows}),
                               .gradient = given ? TensorView::of_host(&g, {}) : TensorView(),
                               .softmax_coefficient = softmax.view(),
                               .target_coefficient = target.view(),
                               .count = kCount,
                               .z_loss_multiplier = kZ});
      for (std::int64_t r = 0; r < rows; ++r) {
        const double w = r % 4 == 0 ? 0 : (given ? 0.5 : 1.0) / kCount;
        ASSERT_EQ(target.at(r), static_cast<float>(w)) << r;
        ASSERT_EQ(softmax.at(r), static_cast<float>(w * (1 + 2 * kZ * static_cast<double>(lse.at(r))))) << r;
      }
      EXPECT_TRUE(softmax.guards_intact() && target.guards_intact());
    }
  }
}

TEST(TokenLoss, SumsTheTokensThatCount) {
  for (const std::int64_t rows : {0, 1, 901}) {
    const auto segments = some_padding(rows);
    const Array lse = Array::normal(DType::f32, rows, 8), target = Array::normal(DType::f32, rows, 9);
    double entropy = 0, squares = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      if (r % 4 == 0) continue;
      entropy += static_cast<double>(lse.at(r)) - static_cast<double>(target.at(r));
      squares += static_cast<double>(lse.at(r)) * static_cast<double>(lse.at(r));
    }
    Array loss(DType::f32, 1), z_loss(DType::f32, 1);
    ThreadPool pool(3);
    sum_token_loss(pool, {.lse = lse.view(),
                          .target_logit = target.view(),
                          .segments = TensorView::of_host(segments.data(), {rows}),
                          .loss = loss.view({}),
                          .z_loss = z_loss.view({}),
                          .count = 8,
                          .z_loss_multiplier = 0.125});
    EXPECT_EQ(z_loss.at(0), static_cast<float>(squares / 64));
    EXPECT_NEAR(loss.at(0), (entropy + squares / 8) / 8, 1e-6 * (1 + std::abs(entropy + squares)));
  }
}

TEST(TokenLoss, ScalesByANumberOfTheDevice) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const float factor : {1.0f, 0.0f, 0.3f}) {
      const Array x = Array::normal(dtype, 70'001, 4);
      Array scaled = x, twin(dtype, x.size());
      for (std::int64_t i = 0; i < x.size(); ++i) twin.set(i, x.at(i) * factor);
      ThreadPool pool(2);
      scale_in_place(pool, scaled.view(), TensorView::of_host(&factor, {}));
      EXPECT_TRUE(kernel_test::same(scaled, twin)) << factor;
    }
  }
}

}  // namespace
}  // namespace switchyard
