#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "core/buffer_pool.h"
#include "core/tensor.h"
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

TEST(BufferPool, RecyclesWithinThePeak) {
  BufferPool pool;
  const std::size_t big = 1 << 20;
  std::byte* a = pool.take(big);
  std::byte* b = pool.take(big);
  pool.give(a, big);
  pool.give(b, big);
  EXPECT_EQ(pool.in_use(), 0u);
  EXPECT_EQ(pool.peak(), 2 * big);
  std::byte* c = pool.take(big - 100);  // of the same size class
#ifndef __SANITIZE_ADDRESS__
  EXPECT_TRUE(c == a || c == b);
#endif
  std::byte* d = pool.take(3 * big);  // kept blocks must make room
  EXPECT_EQ(pool.peak(), 4 * big - 100);
  pool.give(c, big - 100);
  pool.give(d, 3 * big);
  for (std::size_t bytes : {0, 1, 63, 64, 65, 4096, 70000}) {
    std::byte* block = pool.take(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 64, 0u);
    pool.give(block, bytes);
  }
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
