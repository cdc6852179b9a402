#include "moe/assumed_load.h"

#include <gtest/gtest.h>

#include <numeric>

namespace switchyard {
namespace {

using Rows = std::vector<std::int64_t>;

Rows rows(double imbalance, std::int64_t tokens, std::int64_t slots, std::int64_t experts, std::int64_t first,
          std::int64_t count) {
  const Assumptions assumed{imbalance};
  Context context;
  context.assumed = &assumed;
  const Rows result = assumed_rows(context, tokens, slots, experts, first, count);
  EXPECT_EQ(std::accumulate(result.begin(), result.end(), std::int64_t{0}), tokens * slots);
  return result;
}

TEST(AssumedRows, BalancedIsAsEvenAsItCanBe) {
  EXPECT_EQ(rows(1, 8, 2, 4, 0, 1), (Rows{4, 4, 4, 4}));
  EXPECT_EQ(rows(1, 5, 2, 4, 2, 2), (Rows{3, 3, 2, 2}));
  EXPECT_EQ(rows(1, 0, 2, 4, 0, 2), (Rows{0, 0, 0, 0}));
}

TEST(AssumedRows, TheseExpertsGetMoreAndTheOthersTheRest) {
  EXPECT_EQ(rows(2, 8, 2, 8, 2, 2), (Rows{2, 2, 4, 4, 1, 1, 1, 1}));
  EXPECT_EQ(rows(3, 8, 2, 4, 0, 4), (Rows{4, 4, 4, 4})) << "all of them are here";
}

TEST(AssumedRows, ATokenChoosesAnExpertOnce) {
  EXPECT_EQ(rows(100, 8, 2, 8, 0, 1)[0], 8);
  EXPECT_EQ(rows(100, 8, 2, 8, 4, 4), (Rows{0, 0, 0, 0, 4, 4, 4, 4}));
}

}  // namespace
}  // namespace switchyard
