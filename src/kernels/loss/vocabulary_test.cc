#include "kernels/loss/vocabulary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity();

std::vector<float> some_logits(std::size_t n, unsigned seed) {
  const auto array = kernel_test::Array::normal(DType::f32, static_cast<std::int64_t>(n), seed);
  std::vector<float> logits;
  for (std::size_t i = 0; i < n; ++i) logits.push_back(7 * array.at(static_cast<std::int64_t>(i)));
  for (std::size_t i = 5; i < n; i += 13) logits[i] = -kInfinite;
  for (std::size_t i = 3; i < n; i += 17) logits[i] = std::numeric_limits<float>::quiet_NaN();
  return logits;
}

float largest(const std::vector<float>& logits) {
  float most = -kInfinite;
  for (const float x : logits) most = x > most ? x : most;
  return most;
}

constexpr std::size_t kSizes[] = {0, 1, 3, 15, 16, 17, 63, 64, 65, 127, 128, 1000, 5003};

TEST(Vocabulary, MaximaOfBlocks) {
  for (const std::size_t n : kSizes) {
    const std::vector<float> logits = some_logits(n, 1);
    for (const Isa isa : kernel_test::every_isa()) {
      const ScopedIsa cap(isa);
      std::vector<float> found((n + kLogitBlock - 1) / kLogitBlock, 99);
      logit_block_maxima(logits, found);
      for (std::size_t b = 0; b < found.size(); ++b) {
        const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(b * kLogitBlock);
        const auto size = static_cast<std::ptrdiff_t>(std::min(kLogitBlock, n - b * kLogitBlock));
        EXPECT_EQ(found[b], largest({begin, begin + size})) << name_of(isa) << " " << n << " " << b;
      }
    }
  }
}

// The reference is within 1e-13 of the true exponential, and its bits are everyone's.
TEST(Vocabulary, WeightsAreExponentials) {
  double most = 0;
  for (const std::size_t n : kSizes) {
    std::vector<float> logits = some_logits(n, 2);
    for (const int scale : {0, 44, kMostWeightBits}) {
      for (const double factor : {1.0, 1 / 0.7, 1e-300, 1e300}) {
        const float top = largest(logits);
        std::vector<std::uint64_t> want(n);
        const std::uint64_t sum = [&] {
          const ScopedIsa cap(Isa::ref);
          return logit_weights(logits, top, factor, scale, want);
        }();
        std::uint64_t added = 0;
        for (std::size_t i = 0; i < n; ++i) {
          added += want[i];
          double exact = std::exp((static_cast<double>(logits[i]) - static_cast<double>(top)) * factor);
          if (logits[i] == top) exact = 1;
          if (std::isnan(logits[i])) exact = 0;
          const double scaled = std::ldexp(exact, scale);
          ASSERT_NEAR(static_cast<double>(want[i]), scaled, 0.5 + scaled * 1e-13) << logits[i];
          most = std::max(most, scaled);
        }
        EXPECT_EQ(added, sum);
        for (const Isa isa : kernel_test::every_isa()) {
          const ScopedIsa cap(isa);
          std::vector<std::uint64_t> found(n, 7);
          EXPECT_EQ(logit_weights(logits, top, factor, scale, found), sum) << name_of(isa) << " " << n;
          EXPECT_EQ(found, want) << name_of(isa) << " " << n << " " << scale << " " << factor;
          EXPECT_EQ(logit_weights(logits, top, factor, scale, {}), sum) << name_of(isa) << " " << n;
        }
      }
    }
  }
  EXPECT_EQ(most, 0x1p50);
  const float infinite[] = {-kInfinite, 3, kInfinite, kInfinite};
  for (const Isa isa : kernel_test::every_isa()) {
    const ScopedIsa cap(isa);
    EXPECT_EQ(logit_weights(infinite, kInfinite, 1, 10, {}), 2048u);
    EXPECT_EQ(logit_weights(std::vector<float>(9, -kInfinite), -kInfinite, 1, 10, {}), 9 * 1024u);
  }
}

TEST(Vocabulary, LogitsFromALeast) {
  for (const std::size_t n : kSizes) {
    const std::vector<float> logits = some_logits(n, 3);
    for (const float least : {-kInfinite, -3.0f, 0.0f, 12.0f, kInfinite}) {
      std::vector<std::uint32_t> want;
      for (std::size_t i = 0; i < n; ++i) {
        if (logits[i] >= least) want.push_back(static_cast<std::uint32_t>(i));
      }
      for (const Isa isa : kernel_test::every_isa()) {
        const ScopedIsa cap(isa);
        std::vector<std::uint32_t> found(n + kIdsRoom);
        found.resize(logits_from(logits, least, found));
        EXPECT_EQ(found, want) << name_of(isa) << " " << n << " from " << least;
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
