#include "kernels/product/grouped_matmul.h"

#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "core/testing.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

using kernel_test::Array;
using kernel_test::every_isa;
using kernel_test::same;

// The sizes as kernels read them.
class GroupSizes {
 public:
  explicit GroupSizes(const std::vector<std::int64_t>& sizes)
      : groups_(static_cast<std::int64_t>(sizes.size())), sizes_(sizes.begin(), sizes.end()) {
    sizes_.push_back(-1);  // is not read
  }
  TensorView view() const { return TensorView::of_host(sizes_.data(), {groups_}); }

 private:
  std::int64_t groups_;
  std::vector<std::int32_t> sizes_;
};

struct Results {
  Array out, dlhs, drhs;
};

Results run(DType dtype, DType drhs_dtype, const std::vector<std::int64_t>& sizes, std::int64_t k,
            std::int64_t n, bool with_bias, int threads, bool fractions = false) {
  ThreadPool pool(threads);
  const auto groups = static_cast<std::int64_t>(sizes.size());
  const std::int64_t rows = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  const auto make = [&](std::int64_t count, std::uint32_t seed) {
    return fractions ? Array::normal(dtype, count, seed) : Array::integers(dtype, count, seed);
  };
  const Array lhs = make(rows * k, 1), rhs = make(groups * k * n, 2), bias = make(groups * n, 3),
              dy = make(rows * n, 4);
  Results r{Array(dtype, rows * n), Array(dtype, rows * k), Array(drhs_dtype, groups * k * n)};
  const GroupSizes group_sizes(sizes);
  const TensorView of_groups = group_sizes.view();
  gmm(pool, {.lhs = lhs.view({rows, k}),
             .rhs = rhs.view({groups, k, n}),
             .bias = with_bias ? bias.view({groups, n}) : TensorView(),
             .group_sizes = of_groups,
             .out = r.out.view({rows, n})});
  gmm_dlhs(pool, {dy.view({rows, n}), rhs.view({groups, k, n}), of_groups, r.dlhs.view({rows, k})});
  gmm_drhs(pool, {lhs.view({rows, k}), dy.view({rows, n}), of_groups, r.drhs.view({groups, k, n})});
  return r;
}

void expect_ref(DType dtype, const std::vector<std::int64_t>& sizes, std::int64_t k, std::int64_t n,
                bool bias) {
  for (const DType drhs_dtype : {DType::f32, DType::bf16}) {
    std::optional<ScopedIsa> cap(Isa::ref);
    const Results expected = run(dtype, drhs_dtype, sizes, k, n, bias, 1);
    for (const Isa isa : every_isa()) {
      cap.reset();
      cap.emplace(isa);
      const Results found = run(dtype, drhs_dtype, sizes, k, n, bias, 1);
      const std::string what =
          fmt::format("{} {} groups {} k {} n {}", name_of(isa), name_of(dtype), sizes.size(), k, n);
      EXPECT_TRUE(same(found.out, expected.out)) << what;
      EXPECT_TRUE(same(found.dlhs, expected.dlhs)) << what;
      EXPECT_TRUE(same(found.drhs, expected.drhs)) << what;
    }
  }
}

TEST(GroupedMatmul, EveryIsaEqualsRefForAnyGroups) {
  const std::vector<std::int64_t> groupings[] = {
      {}, {0}, {7}, {0, 0, 41, 0}, {1, 2, 3, 4, 5}, {33, 0, 1, 31, 65}};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& sizes : groupings) {
      for (const auto& [k, n] :
           {std::pair<std::int64_t, std::int64_t>{1, 1}, {16, 32}, {35, 37}, {64, 0}, {0, 5}}) {
        expect_ref(dtype, sizes, k, n, false);
        expect_ref(dtype, sizes, k, n, true);
      }
    }
  }
}

TEST(GroupedMatmul, ManyRowsInOneGroup) {
  for (const DType dtype : {DType::f32, DType::bf16}) expect_ref(dtype, {3, 700, 0, 2}, 40, 24, true);
}

TEST(GroupedMatmul, EmptyGroupsGetZeroGradients) {
  const Results r = run(DType::f32, DType::f32, {2, 0, 3}, 4, 5, false, 1);
  for (std::int64_t i = 20; i < 40; ++i) EXPECT_EQ(r.drhs.at(i), 0);
}

// <gmm(lhs, rhs), dy> is linear in lhs and in rhs, so it equals <lhs, dlhs> and <rhs, drhs>.
TEST(GroupedMatmul, GradientsAreAdjoint) {
  const std::vector<std::int64_t> sizes = {5, 0, 20, 8};
  const std::int64_t k = 19, n = 23, rows = 33;
  const Array lhs = Array::integers(DType::f32, rows * k, 1), rhs = Array::integers(DType::f32, 4 * k * n, 2);
  const Array dy = Array::integers(DType::f32, rows * n, 4);
  const Results r = run(DType::f32, DType::f32, sizes, k, n, false, 1);
  const auto dot = [](const Array& x, const Array& y) {
    double sum = 0;
    for (std::int64_t i = 0; i < x.size(); ++i)
      sum += static_cast<double>(x.at(i)) * static_cast<double>(y.at(i));
    return sum;
  };
  EXPECT_EQ(dot(r.out, dy), dot(lhs, r.dlhs));
  EXPECT_EQ(dot(r.out, dy), dot(rhs, r.drhs));
}

TEST(GroupedMatmul, BitIdenticalForAnyNumberOfThreads) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Results one = run(dtype, DType::f32, {130, 0, 700, 9}, 90, 70, true, 1, true);
    for (const int threads : {2, 5}) {
      const Results many = run(dtype, DType::f32, {130, 0, 700, 9}, 90, 70, true, threads, true);
      EXPECT_TRUE(many.out == one.out && many.dlhs == one.dlhs && many.drhs == one.drhs)
          << threads << " threads";
    }
  }
}

struct PairResults {
  Array out_0, out_1, hidden, dlhs, drhs_0, drhs_1;
  bool operator==(const PairResults&) const = default;
};

// Of rows that repeat and are in no order.
PairResults run_pair(DType dtype, const std::vector<std::int64_t>& sizes, std::int64_t k, std::int64_t n,
                     int threads, bool gathered, bool fractions = false) {
  ThreadPool pool(threads);
  const auto groups = static_cast<std::int64_t>(sizes.size());
  const std::int64_t rows = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}),
                     stored = rows / 2 + 1;
  const auto make = [&](std::int64_t count, std::uint32_t seed) {
    return fractions ? Array::normal(dtype, count, seed) : Array::integers(dtype, count, seed);
  };
  std::vector<std::int32_t> index;
  index.reserve(static_cast<std::size_t>(rows) + 1);  // somewhere, also without rows
  for (std::int64_t r = 0; gathered && r < rows; ++r)
    index.push_back(static_cast<std::int32_t>(r * 7 % stored));
  const Array x = make((gathered ? stored : rows) * k, 1), rhs_0 = make(groups * k * n, 2),
              rhs_1 = make(groups * k * n, 3), dy_0 = make(rows * n, 4), dy_1 = make(rows * n, 5);
  std::vector<float> weights;
  for (std::int64_t r = 0; r < rows; ++r) weights.push_back(0.25f * static_cast<float>(r % 7));
  PairResults r{Array(dtype, rows * n),
                Array(dtype, rows * n),
                Array(dtype, rows * n),
                Array(dtype, rows * k),
                Array(DType::f32, groups * k * n),
                Array(DType::f32, groups * k * n)};
  const GroupSizes group_sizes(sizes);
  const TensorView of_groups = group_sizes.view();
  const Shape shape{rows, n}, of_weights{groups, k, n}, of_x{gathered ? stored : rows, k};
  const TensorView index_view = gathered ? TensorView::of_host(index.data(), {rows}) : TensorView();
  gmm_pair(pool, {.x = x.view(of_x),
                  .index = index_view,
                  .rhs_0 = rhs_0.view(of_weights),
                  .rhs_1 = rhs_1.view(of_weights),
                  .group_sizes = of_groups,
                  .out_0 = r.out_0.view(shape),
                  .out_1 = r.out_1.view(shape),
                  .row_weights = TensorView::of_host(weights.data(), {rows}),
                  .hidden = r.hidden.view(shape)});
  Array separate(dtype, rows * n);
  swiglu(pool, {r.out_0.view(shape), r.out_1.view(shape), TensorView::of_host(weights.data(), {rows}),
                separate.view(shape)});
  EXPECT_TRUE(same(r.hidden, separate)) << "the activation made with gate and up is not swiglu's";
  gmm_dlhs_pair(pool, {dy_0.view(shape), dy_1.view(shape), rhs_0.view(of_weights), rhs_1.view(of_weights),
                       of_groups, r.dlhs.view({rows, k})});
  gmm_drhs_pair(pool, {.x = x.view(of_x),
                       .index = index_view,
                       .dy_0 = dy_0.view(shape),
                       .dy_1 = dy_1.view(shape),
                       .group_sizes = of_groups,
                       .drhs_0 = r.drhs_0.view(of_weights),
                       .drhs_1 = r.drhs_1.view(of_weights)});
  if (fractions) return r;
  // Sums of integers are exact: each product of a pair is the one alone.
  Array alone(dtype, rows * n), drhs(DType::f32, groups * k * n);
  gmm(pool, {.lhs = x.view(of_x),
             .rhs = rhs_0.view(of_weights),
             .bias = {},
             .group_sizes = of_groups,
             .out = alone.view(shape),
             .index = index_view});
  gmm_drhs(pool, {x.view(of_x), dy_0.view(shape), of_groups, drhs.view(of_weights), index_view});
  EXPECT_TRUE(same(alone, r.out_0) && same(drhs, r.drhs_0));
  if (dtype != DType::f32) return r;
  Array dlhs(dtype, rows * k);
  gmm_dlhs(pool, {dy_0.view(shape),
                  rhs_0.view(of_weights),
                  of_groups,
                  dlhs.view({rows, k}),
                  {dy_1.view(shape), rhs_1.view(of_weights)}});
  EXPECT_TRUE(same(dlhs, r.dlhs));
  return r;
}

// Depths of one section and of two, one chunk and many, rows of one panel and of many.
TEST(GroupedMatmul, PairsOfEveryIsaEqualRef) {
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{1, 1}, {35, 37}, {64, 64}, {700, 40}, {40, 1200}};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& sizes : {std::vector<std::int64_t>{0, 7, 0, 33, 1}, {70}, {}}) {
      for (const auto& [k, n] : shapes) {
        for (const bool gathered : {false, true}) {
          std::optional<ScopedIsa> cap(Isa::ref);
          const PairResults expected = run_pair(dtype, sizes, k, n, 1, gathered);
          for (const Isa isa : every_isa()) {
            cap.reset();
            cap.emplace(isa);
            const PairResults found = run_pair(dtype, sizes, k, n, 1, gathered);
            const std::string what = fmt::format("{} {} k {} n {}", name_of(isa), name_of(dtype), k, n);
            EXPECT_TRUE(same(found.out_0, expected.out_0) && same(found.out_1, expected.out_1)) << what;
            EXPECT_TRUE(same(found.dlhs, expected.dlhs)) << what;
            EXPECT_TRUE(same(found.drhs_0, expected.drhs_0) && same(found.drhs_1, expected.drhs_1)) << what;
          }
        }
      }
    }
  }
}

TEST(GroupedMatmul, PairsAreBitIdenticalForAnyNumberOfThreads) {
  const std::vector<std::int64_t> sizes{130, 0, 1100, 9};
  const PairResults one = run_pair(DType::bf16, sizes, 90, 70, 1, true, true);
  for (const int threads : {2, 5})
    EXPECT_TRUE(run_pair(DType::bf16, sizes, 90, 70, threads, true, true) == one);
}

// The left operand is more than kernels of tiles pack at once; one group has all rows.
TEST(GroupedMatmul, DepthsOfManyPasses) {
  std::optional<ScopedIsa> cap(std::min(Isa::avx512, machine_isa()));
  const Results expected = run(DType::bf16, DType::bf16, {0, 6100, 30}, 4090, 70, false, 2);
  for (const Isa isa : every_isa()) {
    if (isa < Isa::avx512_bf16) continue;
    cap.reset();
    cap.emplace(isa);
    for (const int threads : {1, 2}) {
      const Results found = run(DType::bf16, DType::bf16, {0, 6100, 30}, 4090, 70, false, threads);
      EXPECT_TRUE(same(found.out, expected.out) && same(found.dlhs, expected.dlhs)) << name_of(isa);
      EXPECT_TRUE(same(found.drhs, expected.drhs)) << name_of(isa);
    }
  }
}

TEST(GroupedMatmul, AddsToWhatIsThere) {
  const std::vector<std::int64_t> sizes = {5, 0, 20, 8};
  const std::int64_t k = 19, n = 23, rows = 33;
  const GroupSizes group_sizes(sizes);
  ThreadPool pool(1);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Array lhs = Array::integers(dtype, rows * k, 1), rhs = Array::integers(dtype, 4 * k * n, 2),
                before = Array::integers(DType::f32, rows * n, 3);
    Array product(DType::f32, rows * n), sum = before;
    GmmArgs args{.lhs = lhs.view({rows, k}),
                 .rhs = rhs.view({4, k, n}),
                 .bias = {},
                 .group_sizes = group_sizes.view(),
                 .out = product.view({rows, n})};
    gmm(pool, args);
    args.out = sum.view({rows, n});
    args.accumulate = true;
    gmm(pool, args);
    for (std::int64_t i = 0; i < rows * n; ++i) ASSERT_EQ(sum.at(i), before.at(i) + product.at(i)) << i;
  }
}

TEST(GroupedMatmul, RefusesGroupsThatAreNotItsRows) {
  ThreadPool pool(1);
  const Array lhs = Array::integers(DType::f32, 5 * 2, 1), rhs = Array::integers(DType::f32, 2 * 2 * 3, 2),
              out(DType::f32, 5 * 3);
  for (const auto& sizes : {std::vector<std::int64_t>{2, 2}, {3, 3}, {-1, 6}}) {
    const GroupSizes group_sizes(sizes);
    const GmmArgs args{.lhs = lhs.view({5, 2}),
                       .rhs = rhs.view({2, 2, 3}),
                       .bias = {},
                       .group_sizes = group_sizes.view(),
                       .out = out.view({5, 3})};
    expect_broken_check([&] { gmm(pool, args); }, "[gmm] group");
  }
}

TEST(GroupedMatmul, ManyRanksAtOnce) {
  const Results one = run(DType::bf16, DType::f32, {30, 0, 70}, 50, 60, true, 1, true);
  std::vector<std::optional<Results>> found(8);
  std::vector<std::thread> ranks;
  for (auto& result : found) {
    ranks.emplace_back([&result] {
      result = run(DType::bf16, DType::f32, {30, 0, 70}, 50, 60, true, 1, true);
    });
  }
  for (auto& rank : ranks) rank.join();
  for (const auto& result : found) {
    EXPECT_TRUE(result->out == one.out && result->dlhs == one.dlhs && result->drhs == one.drhs);
  }
}

}  // namespace
}  // namespace switchyard
