#include "kernels/pointwise/strided_copy.h"

#include <gtest/gtest.h>

#include <numeric>

namespace switchyard {
namespace {

using Ints = std::vector<std::int32_t>;

Ints numbers(std::int64_t count) {
  Ints x(static_cast<std::size_t>(count));
  std::iota(x.begin(), x.end(), 0);
  return x;
}

TEST(StridedCopy, SwapsDimsOfAnyShape) {
  for (const auto& dims :
       {std::array<std::int64_t, 4>{2, 3, 4, 5}, {1, 1, 1, 1}, {3, 1, 7, 2}, {0, 2, 2, 2}, {2, 40, 30, 16}}) {
    const auto [a, b, c, d] = dims;
    const Ints x = numbers(a * b * c * d);
    for (const int threads : {1, 2}) {
      Ints out(x.size(), -1);
      ThreadPool pool(threads);
      strided_copy(pool, TensorView::of_host(x.data(), {a, b, c, d}).permuted({3, 1, 0, 2}),
                   TensorView::of_host(out.data(), {d, b, a, c}));
      for (std::int64_t i = 0; i < std::ssize(out); ++i) {
        const std::int64_t ic = i % c, ia = i / c % a, ib = i / (c * a) % b, id = i / (c * a * b);
        ASSERT_EQ(out[static_cast<std::size_t>(i)], ((ia * b + ib) * c + ic) * d + id);
      }
    }
  }
}

TEST(StridedCopy, LeavesWhatIsBetweenTheRows) {
  const Ints x = numbers(6);
  Ints out(12, -1);
  ThreadPool pool(1);
  strided_copy(pool, TensorView::of_host(x.data(), {3, 2}),
               TensorView::of_host(DType::i32, out.data(), {3, 2}, {4, 1}));
  EXPECT_EQ(out, (Ints{0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1}));
}

TEST(StridedCopy, TurnsElementsOfEightBytes) {
  const double x[] = {0.5, 1e300, -2, 3};
  double out[4];
  ThreadPool pool(1);
  strided_copy(pool, TensorView::of_host(x, {2, 2}).permuted({1, 0}), TensorView::of_host(out, {2, 2}));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(out[i], x[i % 2 * 2 + i / 2]);
}

TEST(StridedCopy, RepeatsWhereTheStrideIsZero) {
  const Ints x = numbers(2);
  Ints out(6, -1);
  ThreadPool pool(1);
  strided_copy(pool, TensorView::of_host(DType::i32, x.data(), {3, 2}, {0, 1}),
               TensorView::of_host(out.data(), {3, 2}));
  EXPECT_EQ(out, (Ints{0, 1, 0, 1, 0, 1}));
}

TEST(StridedCopy, CutsALongRun) {
  const Ints x = numbers(200'003);
  Ints out(x.size(), -1);
  ThreadPool pool(2);
  strided_copy(pool, TensorView::of_host(x.data(), {200'003}), TensorView::of_host(out.data(), {200'003}));
  EXPECT_EQ(out, x);
}

}  // namespace
}  // namespace switchyard
