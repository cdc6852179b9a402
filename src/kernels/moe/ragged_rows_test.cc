#include "kernels/moe/ragged_rows.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

using kernel_test::Array;
using kernel_test::every_isa;

TEST(RaggedRows, ByHand) {
  const float y[] = {1, 2, 10, 20};               // two rows, two columns
  const std::int32_t position[] = {1, -1, 2, 0};  // two tokens, two assignments
  const float w[] = {2, 3, 5, 7}, dy[] = {1, 1, 1, 3};
  const Shape two_by_two{2, 2};
  const auto view = [&](const auto* data) { return TensorView::of_host(data, two_by_two); };
  ThreadPool pool(1);
  float out[4], dw[4];
  ragged_gather_reduce(pool, {view(y), view(position), view(w), view(out)});
  EXPECT_EQ(std::vector<float>(out, out + 4), (std::vector<float>{20, 40, 7, 14}));
  ragged_row_dot(pool, {view(dy), view(y), view(position), view(dw)});
  EXPECT_EQ(std::vector<float>(dw, dw + 4), (std::vector<float>{30, 0, 0, 7}));
}

TEST(RaggedRows, ReducesIntoBfloat16RoundedOnce) {
  const float y[] = {256, 1, 1};  // 257 is no bf16 number: rounding after each would lose both ones
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

// The cases of `selftest` have sums that are exact in any order; these are rounded.
TEST(RaggedRows, RoundedSumsHaveTheSameBitsForAnyNumberOfThreads) {
  constexpr std::int64_t kTokens = 700, kPerToken = 3, kRows = 1850, kWidth = 130;
  std::mt19937 generator(9);
  std::vector<std::int32_t> position;
  for (std::int64_t i = 0; i < kTokens * kPerToken; ++i)
    position.push_back(static_cast<std::int32_t>(generator() % (kRows + 200)) - 100);
  const TensorView positions = TensorView::of_host(position.data(), {kTokens, kPerToken});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Array x = Array::normal(dtype, kRows * kWidth, 1), dy = Array::normal(dtype, kTokens * kWidth, 2),
                w = Array::normal(DType::f32, kTokens * kPerToken, 3);
    std::vector<Array> reduced, dw;
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      reduced.emplace_back(DType::f32, kTokens * kWidth);
      dw.emplace_back(DType::f32, kTokens * kPerToken);
      ragged_gather_reduce(pool, {x.view({kRows, kWidth}), positions, w.view({kTokens, kPerToken}),
                                  reduced.back().view({kTokens, kWidth})});
      ragged_row_dot(pool, {dy.view({kTokens, kWidth}), x.view({kRows, kWidth}), positions,
                            dw.back().view({kTokens, kPerToken})});
    }
    EXPECT_EQ(reduced[0], reduced[1]);
    EXPECT_EQ(dw[0], dw[1]);
  }
}

}  // namespace
}  // namespace switchyard
