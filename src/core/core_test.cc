#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/buffer_pool.h"
#include "core/inline_vector.h"
#include "core/tensor.h"
#include "core/testing.h"
#include "core/thread_pool.h"

namespace switchyard {
namespace {

TEST(BFloat16, RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(bfloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(bfloat16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // tie goes to even
  EXPECT_EQ(bfloat16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);
  EXPECT_TRUE(std::isnan(static_cast<float>(bfloat16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isinf(static_cast<float>(bfloat16(std::numeric_limits<float>::max()))));
}

// Applies the same random changes to an InlineVector and a std::vector and compares the two.
TEST(InlineVector, IsAVectorOfAFewElements) {
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) { return random() % n; };
  InlineVector<int, 6> x;
  std::vector<int> y;
  for (int round = 0; round < 5000; ++round) {
    const std::size_t at = below(y.size() + 1), room = 6 - y.size();
    const auto offset = static_cast<std::ptrdiff_t>(at);
    switch (below(6)) {
      case 0:
        if (room > 0) x.push_back(round), y.push_back(round);
        break;
      case 1:
        if (room > 0) x.insert(x.begin() + offset, round), y.insert(y.begin() + offset, round);
        break;
      case 2: {
        const std::vector<int> more(below(room + 1), round);
        x.insert(x.begin() + offset, more.begin(), more.end());
        y.insert(y.begin() + offset, more.begin(), more.end());
        break;
      }
      case 3: {
        const auto end = offset + static_cast<std::ptrdiff_t>(below(y.size() - at + 1));
        x.erase(x.begin() + offset, x.begin() + end), y.erase(y.begin() + offset, y.begin() + end);
        break;
      }
      case 4: {
        const std::size_t size = below(7);
        x.resize(size, round), y.resize(size, round);
        break;
      }
      default:
        const auto is_even = [](int i) { return i % 2 == 0; };
        if (round % 5 == 0) erase_if(x, is_even), std::erase_if(y, is_even);
    }
    ASSERT_EQ(std::vector<int>(x.begin(), x.end()), y);
    ASSERT_EQ((x == InlineVector<int, 6>(y.begin(), y.end())), true);
    ASSERT_EQ(x.contains(round), std::find(y.begin(), y.end(), round) != y.end());
  }
  InlineVector<int, 2> full{1, 2};
  expect_broken_check([&] { full.push_back(full.front()); }, "3 elements where there may be 2");
}

TEST(Tensor, SlicesShareTheBufferAndMemoryIsCounted) {
  const auto before = memory_in_use();
  {
    Tensor t = Tensor::zeros(DType::f32, {4, 3});
    EXPECT_EQ(memory_in_use(), before + 48);
    Tensor rows = t.slice_rows(1, 3);
    rows.data<float>()[0] = 7;
    EXPECT_EQ(t.data<float>()[3], 7);
    EXPECT_EQ(t.slice_rows(2, 2).size(), 0);
  }
  EXPECT_EQ(memory_in_use(), before);
}

TEST(BufferPool, AlignsBlocksOfAnySize) {
  BufferPool pool;
  for (std::size_t bytes : {0, 1, 63, 64, 65, 4096, 70000, 5000000}) {
    std::byte* block = pool.take(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 64, 0u);
    if (bytes > 0) block[bytes - 1] = std::byte{1};
    pool.give(block, bytes);
  }
  EXPECT_EQ(pool.in_use(), 0u);
  EXPECT_EQ(pool.peak(), 5000000u);
}

// Blocks of other sizes fit where larger ones were, and neighbours become one again.
TEST(BufferPool, RecyclesPiecesOfOtherSizes) {
  BufferPool pool;
  constexpr std::size_t kMiB = 1 << 20;
  std::byte* a = pool.take(3 * kMiB);
  std::byte* b = pool.take(kMiB);
  const std::size_t most = pool.extent();
  pool.give(a, 3 * kMiB);
  if (most == 0) {
    pool.give(b, kMiB);
    GTEST_SKIP() << "no range of addresses here (a sanitizer's build)";
  }
  std::byte* c = pool.take(kMiB);
  std::byte* d = pool.take(2 * kMiB - 5);
  pool.give(c, kMiB);
  pool.give(b, kMiB);
  pool.give(d, 2 * kMiB - 5);
  std::byte* e = pool.take(4 * kMiB);
  EXPECT_EQ(e, a);
  EXPECT_EQ(pool.extent(), most);
  pool.give(e, 4 * kMiB);
  std::byte* f = pool.take(5 * kMiB);  // grows the piece at the end
  EXPECT_EQ(f, a);
  pool.give(f, 5 * kMiB);
}

TEST(BufferPool, RecyclesSmallBlocksOfAboutTheSize) {
  BufferPool pool;
  std::byte* const a = pool.take(1000);
  pool.give(a, 1000);
  if (pool.extent() == 0) GTEST_SKIP() << "no range of addresses here (a sanitizer's build)";
  std::byte* const b = pool.take(900);
  EXPECT_EQ(a, b);
  pool.give(b, 900);
  const std::size_t most = pool.extent();
  for (std::size_t bytes = 0; bytes < 64 * 1024; bytes += 77) {
    std::byte* const first = pool.take(bytes);
    std::byte* const second = pool.take(bytes);
    EXPECT_GE(static_cast<std::size_t>(std::abs(second - first)), std::max<std::size_t>(bytes, 64));
    pool.give(second, bytes);
    pool.give(first, bytes);
    EXPECT_EQ(pool.take(bytes), first);
    pool.give(first, bytes);
  }
  EXPECT_LT(pool.extent(), most + (4 << 20));
  EXPECT_EQ(pool.in_use(), 0u);
}

// What is written to a block stays while others come and go.
TEST(BufferPool, BlocksDoNotOverlap) {
  BufferPool pool;
  std::mt19937 random(3);
  struct Held {
    std::byte* block;
    std::size_t bytes;
    std::byte mark;
  };
  std::vector<Held> held;
  std::size_t in_use = 0;
  for (int round = 0; round < 3000; ++round) {
    if (held.size() > 20 || (!held.empty() && random() % 2 == 0)) {
      std::swap(held[random() % held.size()], held.back());
      const Held last = held.back();
      held.pop_back();
      EXPECT_TRUE(last.block[0] == last.mark && last.block[last.bytes - 1] == last.mark);
      pool.give(last.block, last.bytes);
      in_use -= last.bytes;
    } else {
      const std::size_t bytes = 1 + random() % 400000;
      const auto mark = static_cast<std::byte>(round);
      held.push_back({pool.take(bytes), bytes, mark});
      held.back().block[0] = held.back().block[bytes - 1] = mark;
      in_use += bytes;
    }
    EXPECT_EQ(pool.in_use(), in_use);
  }
  for (const Held& h : held) pool.give(h.block, h.bytes);
}

TEST(ThreadPool, EveryIndexOnceForAnyCountAndGrain) {
  for (int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    for (std::int64_t count : {0, 1, 7, 1000}) {
      for (std::int64_t grain : {1, 3, 1000}) {
        std::vector<std::atomic<int>> hits(static_cast<std::size_t>(count));
        pool.for_range(count, grain, [&](std::int64_t b, std::int64_t e) {
          for (auto i = b; i < e; ++i) hits[static_cast<std::size_t>(i)]++;
        });
        for (auto& h : hits) EXPECT_EQ(h.load(), 1);
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
