#include "kernels/ragged_rows.h"

#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <string>

#include "kernels/elementwise_test_data.h"

namespace switchyard {
namespace {

using kernel_test::Array;
using kernel_test::every_isa;
using kernel_test::same;

std::vector<std::int32_t> random_ids(std::int64_t count, std::int32_t experts, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (auto& id : ids) id = static_cast<std::int32_t>(generator() % static_cast<std::uint32_t>(experts));
  return ids;
}

TEST(CountingSort, EqualsAStableSort) {
  for (const std::int64_t count : {0, 1, 100}) {
    for (const std::int32_t experts : {1, 3, 200}) {
      const auto ids = random_ids(count, experts, 5);
      std::vector<std::int32_t> expected(ids.size());
      std::iota(expected.begin(), expected.end(), 0);
      std::stable_sort(expected.begin(), expected.end(), [&](std::int32_t x, std::int32_t y) {
        return ids[static_cast<std::size_t>(x)] < ids[static_cast<std::size_t>(y)];
      });
      const SortedRows sorted = counting_sort(ids, experts);
      EXPECT_EQ(sorted.order, expected);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        EXPECT_EQ(sorted.revert[static_cast<std::size_t>(sorted.order[i])], static_cast<std::int32_t>(i));
      }
      for (std::int32_t e = 0; e < experts; ++e) {
        EXPECT_EQ(sorted.group_sizes[static_cast<std::size_t>(e)], std::count(ids.begin(), ids.end(), e));
      }
    }
  }
}

struct Results {
  Array gathered, plain, reduced, dw;
};

// Tokens through gather and back, keeping sorted positions [start, end).
Results run(DType dtype, std::int64_t tokens, std::int64_t slots, std::int64_t m, std::int64_t start,
            std::int64_t end, int threads, bool fractions = false) {
  ThreadPool pool(threads);
  const SortedRows sorted = counting_sort(random_ids(tokens * slots, 5, 9), 5);
  std::vector<std::int32_t> token_of(sorted.order.size());
  for (std::size_t i = 0; i < token_of.size(); ++i)
    token_of[i] = sorted.order[i] / static_cast<std::int32_t>(slots);
  const auto make = [&](DType d, std::int64_t count, std::uint32_t seed) {
    return fractions ? Array::normal(d, count, seed) : Array::integers(d, count, seed);
  };
  const Array x = make(dtype, tokens * m, 1), y = make(dtype, (end - start) * m, 2),
              dy = make(dtype, tokens * m, 3);
  Array w = make(DType::f32, tokens * slots, 4);
  Results r{Array(dtype, (end - start) * m), Array(dtype, (end - start) * m), Array(DType::f32, tokens * m),
            Array(DType::f32, tokens * slots)};
  ragged_gather(pool, dtype, x.data(), m, token_of, start, end, w.floats(), r.gathered.data());
  ragged_gather(pool, dtype, x.data(), m, token_of, start, end, nullptr, r.plain.data());
  ragged_gather_reduce(pool, dtype, y.data(), m, sorted.revert, slots, start, end, w.floats(),
                       r.reduced.data(), DType::f32);
  ragged_row_dot(pool, dtype, dy.data(), y.data(), m, sorted.revert, slots, start, end, r.dw.floats());
  return r;
}

TEST(RaggedRows, EveryIsaEqualsRefForAnyWidthAndRange) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t m : {0, 1, 7, 16, 33, 100}) {
      for (const std::int64_t slots : {1, 3}) {
        const std::int64_t rows = 11 * slots;
        for (const auto& [start, end] :
             {std::pair<std::int64_t, std::int64_t>{0, rows}, {2, 9}, {4, 4}, {rows, rows}}) {
          std::optional<ScopedIsa> cap(Isa::ref);
          const Results expected = run(dtype, 11, slots, m, start, end, 1);
          for (const Isa isa : every_isa()) {
            cap.reset();
            cap.emplace(isa);
            const Results found = run(dtype, 11, slots, m, start, end, 1);
            const std::string what =
                fmt::format("{} {} m {} [{}, {})", name_of(isa), name_of(dtype), m, start, end);
            EXPECT_TRUE(same(found.gathered, expected.gathered)) << what;
            EXPECT_TRUE(same(found.plain, expected.plain)) << what;
            EXPECT_TRUE(same(found.reduced, expected.reduced)) << what;
            EXPECT_TRUE(same(found.dw, expected.dw)) << what;
          }
        }
      }
    }
  }
}

TEST(RaggedRows, RefByHand) {
  const ScopedIsa cap(Isa::ref);
  ThreadPool pool(1);
  const float y[] = {1, 2, 10, 20};              // sorted positions 1 and 2, two columns
  const std::int32_t position[] = {2, 0, 3, 1};  // two tokens, two slots
  const float w[] = {2, 3, 5, 7};
  float out[4], dw[4];
  ragged_gather_reduce(pool, DType::f32, y, 2, position, 2, 1, 3, w, out, DType::f32);
  EXPECT_EQ(std::vector<float>(out, out + 4), (std::vector<float>{20, 40, 7, 14}));
  const float dy[] = {1, 1, 1, 3};
  ragged_row_dot(pool, DType::f32, dy, y, 2, position, 2, 1, 3, dw);
  EXPECT_EQ(std::vector<float>(dw, dw + 4), (std::vector<float>{30, 0, 0, 7}));
}

TEST(RaggedRows, ReducesIntoBfloat16RoundedOnce) {
  const float y[] = {256, 1, 1};  // 257 is no bf16 number: rounding after each slot would lose both ones
  const std::int32_t position[] = {0, 1, 2};
  for (const Isa isa : every_isa()) {
    const ScopedIsa cap(isa);
    ThreadPool pool(1);
    Array out(DType::bf16, 1);
    ragged_gather_reduce(pool, DType::f32, y, 1, position, 3, 0, 3, nullptr, out.data(), DType::bf16);
    EXPECT_EQ(out.at(0), 258) << name_of(isa);
  }
}

TEST(RaggedRows, BitIdenticalForAnyNumberOfThreads) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Results one = run(dtype, 700, 3, 130, 50, 1900, 1, true),
                  many = run(dtype, 700, 3, 130, 50, 1900, 3, true);
    EXPECT_TRUE(one.gathered == many.gathered && one.reduced == many.reduced && one.dw == many.dw);
  }
}

}  // namespace
}  // namespace switchyard
