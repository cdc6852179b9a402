// The comparators and helpers of testing.h must themselves fail where they should.
#include "autograd/testing.h"

#include <gtest/gtest-spi.h>

#include <limits>

namespace switchyard {
namespace {

using namespace autograd_test;

TEST(Testing, CloseFailsOnWrongNegatedZeroAndNan) {
  const Tensor want = random_tensor({7, 5}, 1);
  EXPECT_TRUE(close(want.clone(), want, 0));
  Tensor wrong = want.clone();
  wrong.data<float>()[3] += 0.01f;
  EXPECT_FALSE(close(wrong, want, 1e-3));
  EXPECT_TRUE(close(wrong, want, 0.1));
  Tensor negated = want.clone();
  for (float& v : negated.span<float>()) v = -v;
  EXPECT_FALSE(close(negated, want, 0.5));
  EXPECT_FALSE(close(Tensor::zeros(DType::f32, want.shape()), want, 0.5));
  for (std::int64_t at : {std::int64_t{0}, std::int64_t{17}, want.size() - 1}) {
    Tensor nan = want.clone();
    nan.data<float>()[at] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(close(nan, want, 1e9));
    Tensor infinite = want.clone();
    infinite.data<float>()[at] = std::numeric_limits<float>::infinity();
    EXPECT_FALSE(close(infinite, want, 1e9));
  }
  EXPECT_FALSE(close(random_tensor({5, 7}, 1), want, 1e9));
  EXPECT_FALSE(identical(wrong, want));
}

TEST(Testing, BlocksAndGatheredAreInverse) {
  const Mesh mesh({{"data", 2}, {"tensor", 3}, {"expert", 2}});
  const Tensor global = random_tensor({4, 6, 5}, 2);
  const Sharding shardings[] = {replicated(3),
                                {{{"data"}, {"tensor"}, {}}, {}},
                                {{{"data", "expert"}, {}, {}}, {"tensor"}},
                                {{{"expert", "data"}, {"tensor"}, {}}, {}},
                                {{{}, {}, {}}, {"tensor", "data", "expert"}}};
  for (const Sharding& s : shardings) {
    Gathered gathered(mesh);
    on_mesh(mesh, [&](Context& c) { gathered.put(c, "x", leaf(c, global, s)); });
    EXPECT_TRUE(close(gathered.get("x"), global, 1e-6)) << to_string(s);
  }
}

TEST(Testing, GatheredNoticesRanksThatDiffer) {
  static const Mesh mesh({{"data", 2}});
  static Gathered gathered(mesh);
  on_mesh(mesh, [&](Context& c) {
    gathered.put(c, "x", random_tensor({3}, static_cast<std::uint32_t>(c.rank)), {3}, replicated(1));
  });
  EXPECT_NONFATAL_FAILURE(gathered.get("x"), "hold different values");
}

}  // namespace
}  // namespace switchyard
