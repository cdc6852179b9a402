#include "kernels/loss/embedding.h"

#include <gtest/gtest.h>

#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

using kernel_test::Array;

constexpr std::int64_t kRows = 9, kFirst = 20;

// Some before the table's rows, some behind them, and many repeated.
std::vector<std::int32_t> ids_around(std::int64_t tokens) {
  std::vector<std::int32_t> ids;
  for (std::int64_t t = 0; t < tokens; ++t)
    ids.push_back(static_cast<std::int32_t>(kFirst - 2 + t * 7 % (kRows + 4)));
  return ids;
}

bool in_table(std::int32_t id) {
  return id >= kFirst && id < kFirst + kRows;
}

TEST(Embedding, LooksUpTheRowsOfItsTable) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t tokens : {0, 1, 100}) {
      for (const std::int64_t width : {1, 33}) {
        const auto ids = ids_around(tokens);
        const Array table = Array::normal(dtype, kRows * width, 5);
        Array twin(dtype, tokens * width), out = twin;
        for (std::int64_t i = 0; i < twin.size(); ++i) {
          const std::int32_t id = ids[static_cast<std::size_t>(i / width)];
          twin.set(i, in_table(id) ? table.at((id - kFirst) * width + i % width) : 0);
        }
        ThreadPool pool(3);
        embedding_lookup(pool, {table.view({kRows, width}), TensorView::of_host(ids.data(), {tokens}),
                                out.view({tokens, width}), kFirst});
        EXPECT_EQ(out, twin);
      }
    }
  }
}

// In fp32 and in the order of the tokens: the twin has the same bits.
TEST(Embedding, AddsGradientsInTheOrderOfTheTokens) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t tokens : {0, 1, 100}) {
      for (const std::int64_t width : {1, 33}) {
        const auto ids = ids_around(tokens);
        const Array dout = Array::normal(dtype, tokens * width, 6);
        Array twin = Array::normal(DType::f32, kRows * width, 7), found = twin;
        for (std::int64_t i = 0; i < dout.size(); ++i) {
          const std::int32_t id = ids[static_cast<std::size_t>(i / width)];
          if (!in_table(id)) continue;
          const std::int64_t at = (id - kFirst) * width + i % width;
          twin.set(at, twin.at(at) + dout.at(i));
        }
        ThreadPool pool(3);
        embedding_backward(pool, {dout.view({tokens, width}), TensorView::of_host(ids.data(), {tokens}),
                                  found.view({kRows, width}), kFirst});
        EXPECT_EQ(found, twin);
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
