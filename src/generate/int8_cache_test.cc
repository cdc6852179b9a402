// Keys and values remembered in 8 bits: near those that are not, on any layout, in half the memory.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "generate/generator_testing.h"

namespace switchyard {
namespace {

using namespace generator_test;

float largest_difference(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  float largest = 0;
  for (std::size_t r = 0; r < a.size(); ++r) {
    EXPECT_EQ(a[r].size(), b[r].size());
    for (std::size_t v = 0; v < std::min(a[r].size(), b[r].size()); ++v)
      largest = std::max(largest, std::abs(a[r][v] - b[r][v]));
  }
  return largest;
}

std::size_t most_probable(const std::vector<float>& logits) {
  return static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Logits with keys and values in 8 bits are near those without, the same on every layout, whatever pieces a
// prompt comes in, and a clear winner wins.
TEST(Generator, CacheIn8Bits) {
  const Rows rows = random_rows({8, 5, 7});
  const std::vector<std::vector<std::size_t>> in_pieces{{4, 1, 3}, {1, 1, 1}, {2, 2, 1}, {1, 1, 2}};
  for (Keys keys : {grouped_queries(), latent()}) {
    const auto dense = logits_at_once(keys, rows);
    keys["quantize_kvcache"] = true;
    const auto want = logits_in_pieces(keys, "", rows, {{8, 5, 7}});
    const float difference = largest_difference(want, dense);
    float largest = 0;
    for (const auto& row : dense) {
      for (const float x : row) largest = std::max(largest, std::abs(x));
    }
    EXPECT_LT(difference, 0.02f * largest);
    EXPECT_GT(difference, 1e-4f);  // else the cache was not in 8 bits
    std::size_t clear = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      std::vector<float> sorted = dense[r];
      std::sort(sorted.begin(), sorted.end(), std::greater<>());
      if (sorted[0] - sorted[1] < 2 * difference) continue;
      ++clear;
      EXPECT_EQ(most_probable(want[r]), most_probable(dense[r]));
    }
    EXPECT_GT(clear, 0u);
    for (const char* layout : kLayouts) {
      SCOPED_TRACE(layout);
      EXPECT_LT(largest_difference(logits_in_pieces(keys, layout, rows, {{8, 5, 7}}), want), 2e-5f);
      EXPECT_LT(largest_difference(logits_in_pieces(keys, layout, rows, in_pieces), want), 2e-5f);
    }
  }
}

std::int64_t bytes_in_bfloat16(Keys keys, bool int8, std::int64_t capacity) {
  keys["dtype"] = "bfloat16";
  keys["quantize_kvcache"] = int8;
  return bytes_remembered(keys, capacity, {{{0, {1, 2, 3}}, {1, {4}}}});
}

TEST(Generator, CacheIn8BitsTakesHalfTheMemory) {
  constexpr std::int64_t kCapacity = 5000, kRows = 2;
  Keys grouped = grouped_queries(), mla = latent();
  grouped["head_dim"] = 64;
  mla["kv_lora_rank"] = 120;
  mla["qk_rope_head_dim"] = 40;
  const auto expect_bytes = [&](const Keys& keys, std::int64_t numbers, std::int64_t scales) {
    const std::int64_t tokens = kRows * kCapacity;
    const std::int64_t dense = bytes_in_bfloat16(keys, false, kCapacity),
                       int8 = bytes_in_bfloat16(keys, true, kCapacity);
    EXPECT_NEAR(static_cast<double>(dense), static_cast<double>(tokens * numbers * 2), 4096);
    EXPECT_NEAR(static_cast<double>(int8), static_cast<double>(tokens * (numbers + scales * 4)), 4096);
    EXPECT_LT(static_cast<double>(int8), 0.56 * static_cast<double>(dense));
  };
  expect_bytes(grouped, 2 * 2 * (64 + 64), 2 * 2 * 2);  // layers, heads
  expect_bytes(mla, 3 * (120 + 40), 3 * 2);  // the latent, which is the value too, and what is turned
}

}  // namespace
}  // namespace switchyard
