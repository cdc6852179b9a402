// Our generator against vectors recorded from JAX (tests/golden/jax), and against itself.
#include "core/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>

#include "checkpoint/safetensors.h"
#include "core/testing.h"

namespace switchyard {
namespace {

class JaxVectors : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  JaxVectors()
      : file_(SafetensorsFile::open(std::string(kSourceFolder) + "/tests/golden/jax/vectors.safetensors")),
        prefix_("seed" + std::to_string(GetParam()) + "/"),
        key_(rng_key(GetParam())) {}

  // Raw elements: the reader refuses unsigned values over 2^31, which are the point here.
  template <typename T>
  std::vector<T> golden(const std::string& name) const {
    const auto& bytes = file_.entries().at(prefix_ + name).bytes;
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  template <typename T, typename Draw>
  void expect_draws(const std::string& what, Draw draw, double tolerance = 0) const {
    for (const char* shape : {"scalar", "1", "5", "3x7", "2x4x8"}) {
      const auto expected = golden<T>(what + "/" + shape);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(static_cast<double>(draw(i)), static_cast<double>(expected[i]), tolerance)
            << what << "/" << shape << "[" << i << "]";
      }
    }
  }

  SafetensorsFile file_;
  std::string prefix_;
  RngKey key_;
};

TEST_P(JaxVectors, Keys) {
  EXPECT_EQ(golden<std::uint32_t>("key"), (std::vector<std::uint32_t>{key_.hi, key_.lo}));
  for (std::uint64_t n : {2u, 3u, 8u}) {
    const auto expected = golden<std::uint32_t>("split" + std::to_string(n));
    ASSERT_EQ(expected.size(), 2 * n);
    for (std::uint64_t i = 0; i < n; ++i) {
      EXPECT_EQ(rng_split(key_, i), (RngKey{expected[2 * i], expected[2 * i + 1]}));
    }
  }
  for (std::uint32_t data : {0u, 1u, 7u, 1000u, 4294967295u}) {
    const auto expected = golden<std::uint32_t>("fold_in" + std::to_string(data));
    EXPECT_EQ(rng_fold_in(key_, data), (RngKey{expected[0], expected[1]}));
  }
}

TEST_P(JaxVectors, IntegersAndUniformsAreEqual) {
  expect_draws<std::uint32_t>("bits32", [&](std::size_t i) { return rng_bits(key_, i); });
  expect_draws<float>("uniform", [&](std::size_t i) { return rng_uniform(key_, i); });
  expect_draws<float>("uniform_m3_p5", [&](std::size_t i) { return rng_uniform(key_, i, -3, 5); });
  for (std::int32_t v : {7, 256, 129280}) {
    expect_draws<std::int32_t>("randint" + std::to_string(v),
                               [&](std::size_t i) { return rng_randint(key_, i, 0, v); });
  }
  for (const auto& [name, p] : std::map<std::string, float>{{"0.1", 0.1f}, {"0.5", 0.5f}, {"0.9", 0.9f}}) {
    expect_draws<std::uint8_t>("bernoulli" + name,
                               [&](std::size_t i) { return rng_bernoulli(key_, i, p) ? 1 : 0; });
  }
  for (std::int64_t n : {5, 10, 1000}) {
    EXPECT_EQ(golden<std::int32_t>("permutation" + std::to_string(n)), rng_permutation(key_, n));
  }
}

TEST_P(JaxVectors, NormalsAreWithinOneMillionth) {
  expect_draws<float>(
      "normal", [&](std::size_t i) { return rng_normal(key_, i); }, 1e-6);
  expect_draws<float>(
      "truncated_normal_m2_p2", [&](std::size_t i) { return rng_truncated_normal(key_, i, -2, 2); }, 1e-6);
  std::vector<float> all(100003);
  rng_fill_normal(key_, 0, all);
  const auto ends = golden<float>("normal_100003_head_tail");
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(all[i], ends[i], 1e-6);
    EXPECT_NEAR(all[all.size() - 8 + i], ends[8 + i], 1e-6);
  }
  double sum = 0, squares = 0;
  for (float x : all) sum += x, squares += static_cast<double>(x) * x;
  const auto sums = golden<double>("normal_100003_sum_f64");
  EXPECT_NEAR(sum, sums[0], 0.01);
  EXPECT_NEAR(squares, sums[1], 0.05);
}

INSTANTIATE_TEST_SUITE_P(Seeds, JaxVectors, ::testing::Values(0u, 1u, 42u, 2147483647u));

TEST(Rng, FillsEqualSingleDraws) {
  const RngKey key = rng_fold_in(rng_key(3), "layers.0.mlp.wi_0");
  for (std::uint64_t first : {std::uint64_t{0}, std::uint64_t{4294967296} - 300, std::uint64_t{1} << 40}) {
    for (std::size_t n : {0u, 1u, 255u, 256u, 257u, 1000u}) {
      std::vector<float> normal(n), truncated(n);
      rng_fill_normal(key, first, normal);
      rng_fill_truncated_normal(key, first, truncated, -2, 1);
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_EQ(normal[i], rng_normal(key, first + i)) << first << "+" << i;
        ASSERT_EQ(truncated[i], rng_truncated_normal(key, first + i, -2, 1)) << first << "+" << i;
        ASSERT_TRUE(truncated[i] > -2 && truncated[i] < 1);
      }
    }
  }
}

TEST(Rng, NamesGiveDifferentKeys) {
  EXPECT_NE(rng_fold_in(rng_key(0), "a"), rng_fold_in(rng_key(0), "b"));
  EXPECT_EQ(rng_fold_in(rng_key(0), "a"), rng_fold_in(rng_key(0), std::string("a")));
}

TEST(Rng, RandintSpansTheWholeRange) {
  const RngKey key = rng_key(9);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const std::int32_t wide = rng_randint(key, i, INT32_MIN, INT32_MAX);
    EXPECT_LT(wide, INT32_MAX);
    const std::int32_t small = rng_randint(key, i, -3, -1);
    EXPECT_TRUE(small == -3 || small == -2);
  }
}

TEST(Rng, PermutationHoldsEveryIndexOnce) {
  for (std::int64_t n : {0, 1, 2, 777}) {
    auto order = rng_permutation(rng_key(5), n);
    std::sort(order.begin(), order.end());
    for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], static_cast<std::int32_t>(i));
  }
}

}  // namespace
}  // namespace switchyard
