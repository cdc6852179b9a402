#include "core/free_blocks.h"

#include <gtest/gtest.h>

#include <set>

namespace switchyard {
namespace {

std::byte* block(std::uintptr_t at) {
  return reinterpret_cast<std::byte*>(at);
}

TEST(FreeBlocks, SizesAreRoundedUpByAnEighthOrTwoMebibytesAtMost) {
  constexpr std::size_t kLeast = 512, kMiB = std::size_t{1} << 20;
  EXPECT_EQ(FreeBlocks::rounded(0, kLeast), kLeast);
  EXPECT_EQ(FreeBlocks::rounded(512, kLeast), 512u);
  EXPECT_EQ(FreeBlocks::rounded(513, kLeast), 576u);
  EXPECT_EQ(FreeBlocks::rounded(16 * kMiB + 1, kLeast), 18 * kMiB);
  EXPECT_EQ(FreeBlocks::rounded(1000 * kMiB - 1, kLeast), 1000 * kMiB);
  std::set<std::size_t> sizes;
  for (std::size_t bytes = 1; bytes < 64 * kMiB; bytes += 1 + bytes / 50) {
    const std::size_t rounded = FreeBlocks::rounded(bytes, kLeast);
    ASSERT_GE(rounded, bytes);
    ASSERT_LE(rounded, std::max(kLeast, bytes + std::min(bytes / 8, 2 * kMiB))) << bytes;
    ASSERT_EQ(FreeBlocks::rounded(rounded, kLeast), rounded) << bytes;
    ASSERT_EQ(rounded % 64, 0u) << bytes;
    sizes.insert(rounded);
  }
  EXPECT_LT(sizes.size(), 160u);
}

TEST(FreeBlocks, ABlockIsTakenOnceAndForItsSizeAlone) {
  FreeBlocks free;
  EXPECT_EQ(free.take(512), nullptr);
  free.give(block(1), 512);
  free.give(block(2), 1024);
  free.give(block(3), 512);
  EXPECT_EQ(free.take(576), nullptr);
  EXPECT_EQ(free.take(512), block(3));
  EXPECT_EQ(free.take(1024), block(2));
  EXPECT_EQ(free.take(1024), nullptr);
  free.give(block(2), 1024);
  EXPECT_EQ(free.take_all(), (std::vector{block(1), block(2)}));
  EXPECT_TRUE(free.take_all().empty());
  EXPECT_EQ(free.take(512), nullptr);
}

}  // namespace
}  // namespace switchyard
