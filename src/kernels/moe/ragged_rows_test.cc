#include "kernels/moe/ragged_rows.h"

#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <string>

#include "kernels/testing/elementwise_test_data.h"

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

// Rows sorted by expert: the row at each position, and the position of each row.
struct SortedRows {
  explicit SortedRows(const std::vector<std::int32_t>& ids) : order(ids.size()), position(ids.size()) {
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t x, std::int32_t y) {
      return ids[static_cast<std::size_t>(x)] < ids[static_cast<std::size_t>(y)];
    });
    for (std::size_t i = 0; i < order.size(); ++i)
      position[static_cast<std::size_t>(order[i])] = static_cast<std::int32_t>(i);
  }
  std::vector<std::int32_t> order, position;
};

struct Results {
  Array gathered, plain, reduced, dw;
};

// Tokens through gather and back. Of the sorted positions those in [start, end) have rows; the others are
// below 0 or too large.
Results run(DType dtype, std::int64_t tokens, std::int64_t slots, std::int64_t m, std::int64_t start,
            std::int64_t end, int threads, bool fractions = false) {
  ThreadPool pool(threads);
  const SortedRows sorted(random_ids(tokens * slots, 5, 9));
  std::vector<std::int32_t> token_of, position = sorted.position;
  token_of.reserve(sorted.order.size() + 1);  // somewhere, also without rows
  for (std::int64_t i = start; i < end; ++i)
    token_of.push_back(sorted.order[static_cast<std::size_t>(i)] / static_cast<std::int32_t>(slots));
  for (std::int32_t& at : position) at -= static_cast<std::int32_t>(start);
  const auto make = [&](DType d, std::int64_t count, std::uint32_t seed) {
    return fractions ? Array::normal(d, count, seed) : Array::integers(d, count, seed);
  };
  const std::int64_t rows = end - start;
  const Array x = make(dtype, tokens * m, 1), y = make(dtype, rows * m, 2), dy = make(dtype, tokens * m, 3),
              w = make(DType::f32, tokens * slots, 4);
  Results r{Array(dtype, rows * m), Array(dtype, rows * m), Array(DType::f32, tokens * m),
            Array(DType::f32, tokens * slots)};
  const TensorView index = TensorView::of_host(token_of.data(), {rows}),
                   positions = TensorView::of_host(position.data(), {tokens, slots});
  ragged_gather(pool, {x.view({tokens, m}), index, w.view().rows(start, end), r.gathered.view({rows, m})});
  ragged_gather(pool, {x.view({tokens, m}), index, {}, r.plain.view({rows, m})});
  ragged_gather_reduce(pool,
                       {y.view({rows, m}), positions, w.view({tokens, slots}), r.reduced.view({tokens, m})});
  ragged_row_dot(pool, {dy.view({tokens, m}), y.view({rows, m}), positions, r.dw.view({tokens, slots})});
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
  const float y[] = {1, 2, 10, 20};               // two rows, two columns
  const std::int32_t position[] = {1, -1, 2, 0};  // two tokens, two slots
  const float w[] = {2, 3, 5, 7};
  float out[4], dw[4];
  const Shape two_by_two{2, 2};
  const auto view = [&](const auto* data) { return TensorView::of_host(data, two_by_two); };
  ragged_gather_reduce(pool, {view(y), view(position), view(w), view(out)});
  EXPECT_EQ(std::vector<float>(out, out + 4), (std::vector<float>{20, 40, 7, 14}));
  const float dy[] = {1, 1, 1, 3};
  ragged_row_dot(pool, {view(dy), view(y), view(position), view(dw)});
  EXPECT_EQ(std::vector<float>(dw, dw + 4), (std::vector<float>{30, 0, 0, 7}));
}

TEST(RaggedRows, ReducesIntoBfloat16RoundedOnce) {
  const float y[] = {256, 1, 1};  // 257 is no bf16 number: rounding after each slot would lose both ones
  const std::int32_t position[] = {0, 1, 2};
  for (const Isa isa : every_isa()) {
    const ScopedIsa cap(isa);
    ThreadPool pool(1);
    Array out(DType::bf16, 1);
    ragged_gather_reduce(pool, {.x = TensorView::of_host(y, {3, 1}),
                                .position = TensorView::of_host(position, {1, 3}),
                                .w = {},
                                .out = out.view({1, 1})});
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
