#include "kernels/attention/rope_tables.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

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

}  // namespace
}  // namespace switchyard
