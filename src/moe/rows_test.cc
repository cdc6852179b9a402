// Row moves and grouped products: gradients, adjointness; which rows a ragged buffer keeps.
#include <numeric>

#include "moe/expert_mlp.h"
#include "ops/basic.h"
#include "ops/gradient_testing.h"

namespace switchyard {
namespace {

using namespace autograd_test;
using Counts = std::vector<std::vector<std::int64_t>>;

MoeWeights weights_of(const Array& wi_0, const Array& wi_1, const Array& wo) {
  MoeWeights weights;
  weights.wi_0.weight = wi_0;
  weights.wi_1.weight = wi_1;
  weights.wo.weight = wo;
  return weights;
}

TEST(KeepRows, DroplessKeepsAll) {
  const Counts counts{{3, 0, 5}, {1, 2, 0}};
  EXPECT_EQ(keep_rows(counts, -1, DropPolicy::fair), counts);
  EXPECT_EQ(keep_rows(counts, 11, DropPolicy::fair), counts);
  EXPECT_EQ(keep_rows(counts, 11, DropPolicy::prefix), counts);
}

TEST(KeepRows, PrefixFillsSourceByExpert) {
  EXPECT_EQ(keep_rows({{3, 0, 5}, {1, 2, 0}}, 9, DropPolicy::prefix), (Counts{{3, 0, 5}, {1, 0, 0}}));
  EXPECT_EQ(keep_rows({{3, 0, 5}, {1, 2, 0}}, 4, DropPolicy::prefix), (Counts{{3, 0, 1}, {0, 0, 0}}));
  EXPECT_EQ(keep_rows({{3, 0, 5}}, 0, DropPolicy::prefix), (Counts{{0, 0, 0}}));
}

TEST(KeepRows, FairKeepsTheSameFractionOfEveryExpert) {
  Chooser choose(61);
  for (int trial = 0; trial < 200; ++trial) {
    const auto sources = static_cast<std::size_t>(1 + choose.below(4)),
               experts = static_cast<std::size_t>(1 + choose.below(6));
    Counts counts(sources, std::vector<std::int64_t>(experts));
    std::vector<std::int64_t> per_expert(experts, 0), kept_per_expert(experts, 0);
    std::int64_t total = 0;
    for (auto& source : counts) {
      for (std::size_t e = 0; e < experts; ++e)
        per_expert[e] += source[e] = choose.below(3) == 0 ? 0 : choose.below(20);
    }
    for (auto n : per_expert) total += n;
    const std::int64_t capacity = choose.below(total + 3);
    const Counts kept = keep_rows(counts, capacity, DropPolicy::fair);
    std::int64_t all = 0;
    for (std::size_t i = 0; i < sources; ++i) {
      for (std::size_t e = 0; e < experts; ++e) {
        EXPECT_LE(kept[i][e], counts[i][e]);
        EXPECT_GE(kept[i][e], 0);
        kept_per_expert[e] += kept[i][e];
        all += kept[i][e];
        // Earlier sources first: a source that lost rows is followed by none that kept any.
        EXPECT_TRUE(i == 0 || kept[i][e] == 0 || kept[i - 1][e] == counts[i - 1][e]);
      }
    }
    EXPECT_EQ(all, std::min(capacity, total));
    for (std::size_t e = 0; e < experts && capacity < total; ++e) {
      EXPECT_LT(std::abs(static_cast<double>(kept_per_expert[e]) -
                         static_cast<double>(per_expert[e] * capacity) / static_cast<double>(total)),
                1);
    }
    // It depends on the sums over sources only.
    EXPECT_EQ(keep_rows({per_expert}, capacity, DropPolicy::fair)[0], kept_per_expert);
  }
}

TEST(KeepRows, BufferIsTheFactorTimesTheBalancedShare) {
  EXPECT_EQ(buffer_rows(-1, 200, 4), -1);
  EXPECT_EQ(buffer_rows(0, 200, 4), -1);
  EXPECT_EQ(buffer_rows(1.0, 200, 4), 50);
  EXPECT_EQ(buffer_rows(1.25, 30, 4), 9);
}

struct Moves {
  std::int64_t first, count;
  double buffer_factor;
};

TEST(Rows, GatherAndCombineAreAdjointAndHaveTheirGradients) {
  const Tensor ids = random_integers({3, 5, 2}, 62, -1, 6);  // -1: no expert
  for (const Moves& m : {Moves{0, 6, -1}, Moves{2, 3, -1}, Moves{0, 6, 0.37}, Moves{4, 2, 0.05}}) {
    on_mesh(Mesh(), [&](Context& c) {
      const RowPlan plan =
          plan_rows(c, leaf(c, ids, replicated(3)), m.first, m.count, 6, m.buffer_factor, DropPolicy::fair);
      const std::int64_t rows = plan.rows.tensor().size();
      EXPECT_EQ(std::accumulate(plan.sizes.tensor().data<std::int32_t>(),
                                plan.sizes.tensor().data<std::int32_t>() + m.count, std::int64_t{0}),
                rows);
      const Array x = leaf(c, random_tensor({3, 5, 7}, 63), replicated(3));
      const Array gathered = gather_rows(c, x, plan);
      ASSERT_EQ(gathered.tensor().shape(), (Shape{rows, 7}));
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int32_t row = plan.rows.tensor().data<std::int32_t>()[r];
        EXPECT_EQ(plan.position.tensor().data<std::int32_t>()[row], r);
        EXPECT_EQ(gathered.tensor().data<float>()[r * 7 + 3], x.tensor().data<float>()[row / 2 * 7 + 3]);
        const std::int32_t expert = ids.data<std::int32_t>()[row];
        EXPECT_TRUE(expert >= m.first && expert < m.first + m.count);
      }
      const Tensor v = random_tensor({rows, 7}, 64);
      backward(c, std::span(&gathered, 1), std::span(&v, 1));
      EXPECT_NEAR(dot(gathered.tensor(), v), dot(x.tensor(), x.grad()), 1e-4);
      const Array back_in = make_leaf(v, v.shape(), replicated(2), true);
      const Array combined = combine_rows(c, back_in, plan, x.info(), replicated(3));
      EXPECT_TRUE(close(combined.tensor(), x.grad(), 1e-6)) << "combine is gather's transpose";
      const Tensor u = random_tensor({3, 5, 7}, 65);
      backward(c, std::span(&combined, 1), std::span(&u, 1));
      EXPECT_NEAR(dot(combined.tensor(), u), dot(v, back_in.grad()), 1e-4);
    });
  }
}

TEST(Rows, PlanOfNoTokens) {
  on_mesh(Mesh(), [&](Context& c) {
    const RowPlan plan =
        plan_rows(c, leaf(c, Tensor(DType::i32, {0, 5, 2}), replicated(3)), 0, 4, 4, -1, DropPolicy::fair);
    EXPECT_EQ(plan.rows.tensor().size(), 0);
    const Array x = leaf(c, Tensor(DType::f32, {0, 5, 7}), replicated(3));
    const Array y = combine_rows(c, gather_rows(c, x, plan), plan, x.info(), replicated(3));
    EXPECT_EQ(y.tensor().shape(), (Shape{0, 5, 7}));
  });
}

TEST(Rows, ExpertMlpGradients) {
  const std::vector<std::vector<std::int32_t>> group_sizes{
      {3, 0, 4, 2}, {0, 9, 0, 0}, {9, 0, 0, 0}, {2, 2, 2, 3}};
  for (const auto& sizes : group_sizes) {
    for (const std::int64_t chunks : {1, 3}) {
      check_gradients(
          {.function =
               [=](Context& c, std::span<const Array> in) {
                 RowPlan sorted;
                 sorted.sizes = in[5];
                 const auto parts = chunk_last(c, in[0], chunks);
                 const auto x = [&](std::int64_t i) { return parts[static_cast<std::size_t>(i)]; };
                 return expert_mlp(c, {}, x, chunks, sorted, in[1], weights_of(in[2], in[3], in[4]));
               },
           .inputs = {{random_tensor({9, 6}, 1)},
                      {random_tensor({9}, 2)},
                      {random_tensor({4, 6, 5}, 3)},
                      {random_tensor({4, 6, 5}, 4)},
                      {random_tensor({4, 5, 6}, 5)},
                      {Tensor::of<std::int32_t>({4}, sizes)}}});
    }
  }
}

// Weights of what experts take reach the result through the activation.
TEST(Rows, ExpertMlpOfWeightedInputsGradients) {
  MoeConfig config;
  config.weights_on_inputs = true;
  const std::vector<std::int32_t> sizes{3, 0, 4, 2};
  for (const std::int64_t chunks : {1, 3}) {
    check_gradients({.function =
                         [=](Context& c, std::span<const Array> in) {
                           RowPlan sorted;
                           sorted.sizes = in[5];
                           const auto parts = chunk_last(c, in[0], chunks);
                           const auto x = [&](std::int64_t i) { return parts[static_cast<std::size_t>(i)]; };
                           return expert_mlp(c, config, x, chunks, sorted, in[1],
                                             weights_of(in[2], in[3], in[4]));
                         },
                     .inputs = {{random_tensor({9, 6}, 1)},
                                {random_tensor({9}, 2)},
                                {random_tensor({4, 6, 5}, 3)},
                                {random_tensor({4, 6, 5}, 4)},
                                {random_tensor({4, 5, 6}, 5)},
                                {Tensor::of<std::int32_t>({4}, sizes)}}});
  }
}

TEST(Rows, ExpertMlpOfTokensGradients) {
  const Tensor ids = random_integers({2, 4, 2}, 68, 0, 4);
  check_gradients({.function =
                       [](Context& c, std::span<const Array> in) {
                         const RowPlan plan =
                             plan_rows(c, in[5], 0, 3, 4, -1, DropPolicy::fair);  // of 3 experts of 4
                         const auto x = [&](std::int64_t) { return in[0]; };
                         return expert_mlp(c, {}, x, 1, plan, gather_row_weights(c, in[1], plan),
                                           weights_of(in[2], in[3], in[4]));
                       },
                   .inputs = {{random_tensor({2, 4, 6}, 1)},
                              {random_tensor({2, 4, 2}, 2)},
                              {random_tensor({3, 6, 5}, 3)},
                              {random_tensor({3, 6, 5}, 4)},
                              {random_tensor({3, 5, 6}, 5)},
                              {ids}}});
}

TEST(Rows, WeightsOfRows) {
  const Tensor ids = random_integers({2, 4, 3}, 66, 0, 5);
  check_gradients({.function =
                       [](Context& c, std::span<const Array> in) {
                         return gather_row_weights(c, in[0],
                                                   plan_rows(c, in[1], 1, 3, 4, -1, DropPolicy::fair));
                       },
                   .inputs = {{random_tensor({2, 4, 3}, 67)}, {ids}}});
}

}  // namespace
}  // namespace switchyard
