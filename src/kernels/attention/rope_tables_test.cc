#include "kernels/attention/rope_tables.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

TEST(RopeTables, HoldCosinesAndSinesOfPositionTimesFrequency) {
  const std::vector<double> frequencies{1.0, 0.25, 1e-3};
  const std::vector<std::int32_t> positions{0, 1, 131'071, 7, 7, 1000};
  const auto tokens = static_cast<std::int64_t>(positions.size()),
             pairs = static_cast<std::int64_t>(frequencies.size());
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    kernel_test::Array cos(DType::f32, tokens * pairs), sin = cos;
    rope_tables(pool, {TensorView::of_host(positions.data(), {2, 3}), frequencies, 1.5,
                       cos.view({2, 3, pairs}), sin.view({2, 3, pairs})});
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t i = 0; i < pairs; ++i) {
        const double angle =
            positions[static_cast<std::size_t>(t)] * frequencies[static_cast<std::size_t>(i)];
        EXPECT_EQ(cos.at(t * pairs + i), static_cast<float>(std::cos(angle) * 1.5)) << t << " " << i;
        EXPECT_EQ(sin.at(t * pairs + i), static_cast<float>(std::sin(angle) * 1.5)) << t << " " << i;
      }
    }
    EXPECT_TRUE(cos.guards_intact() && sin.guards_intact());
  }
}

// Values of 1 + 0.1 ln(1 + floor((p + 1) / 8)), worked out by hand for where the floor steps.
TEST(RopeTables, GrowWithThePosition) {
  ThreadPool pool(1);
  const std::vector<double> frequencies{0.0};
  const std::vector<std::int32_t> positions{0, 6, 7, 15, 63};
  const std::vector<double> factors{1, 1, 1 + 0.1 * std::log(2.0), 1 + 0.1 * std::log(3.0),
                                    1 + 0.1 * std::log(9.0)};
  kernel_test::Array cos(DType::f32, 5), sin = cos;
  rope_tables(pool, {TensorView::of_host(positions.data(), {5}),
                     frequencies,
                     2.0,
                     cos.view({5, 1}),
                     sin.view({5, 1}),
                     {0.1, 8}});
  for (std::int64_t t = 0; t < 5; ++t) {
    EXPECT_FLOAT_EQ(cos.at(t), static_cast<float>(2 * factors[static_cast<std::size_t>(t)])) << t;
    EXPECT_EQ(sin.at(t), 0.0f) << t;
  }
}

TEST(RopeTables, OfNoTokensAreEmpty) {
  ThreadPool pool(1);
  const std::vector<double> frequencies{1.0};
  kernel_test::Array cos(DType::f32, 0), sin(DType::f32, 0), positions(DType::i32, 0);
  rope_tables(pool, {positions.view(), frequencies, 1, cos.view({0, 1}), sin.view({0, 1})});
  EXPECT_TRUE(cos.guards_intact() && sin.guards_intact());
}

}  // namespace
}  // namespace switchyard
