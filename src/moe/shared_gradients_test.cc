// Gradients of experts that ranks share are summed as they are made, where nothing else is added to them.
#include "autograd/testing.h"
#include "kernels/grouped_matmul.h"
#include "moe/expert_mlp.h"
#include "ops/basic.h"

namespace switchyard {
namespace {

using namespace autograd_test;

struct Case {
  DType weights = DType::bf16;
  int uses = 1;  // of the weights, in as many MLPs
  bool one_pass = true;
};

struct Gradients {
  std::vector<Tensor> of_weights;  // wi_0, wi_1, wo
  bool summed = false;
};

// Of every rank. Ranks have tokens of their own, rank 1 none.
std::vector<Gradients> run(const Mesh& mesh, const Case& test) {
  const std::int64_t experts = 3, width = 40, hidden = 24, slots = 2;
  std::vector<Gradients> all(static_cast<std::size_t>(mesh.size()));
  on_mesh(mesh, [&](Context& c) {
    c.one_pass = test.one_pass;
    const auto seed = static_cast<std::uint32_t>(10 * c.rank);
    const std::int64_t tokens = c.rank == 1 ? 0 : 30 + c.rank;
    const auto data = [&](const Tensor& x) { return make_leaf(x, x.shape(), replicated(x.rank()), true); };
    const Array ids = data(random_integers({tokens, slots}, seed, 0, experts - 1));
    const RowPlan plan = plan_rows(c, ids, 0, experts, experts, -1, DropPolicy::fair);
    std::vector<Array> weights;
    for (const Shape& shape :
         {Shape{experts, width, hidden}, Shape{experts, width, hidden}, Shape{experts, hidden, width}}) {
      const auto number = static_cast<std::uint32_t>(weights.size());
      weights.push_back(leaf(c, random_tensor(shape, 1 + number), replicated(3), true, test.weights));
      weights.back().value()->weight = true;
      weights.back().value()->info.shared = {"data"};
    }
    std::vector<Array> results;
    std::vector<Tensor> seeds;
    for (int use = 0; use < test.uses; ++use) {
      const Array x = data(random_tensor({tokens, width}, seed + 1).cast(DType::bf16));
      const auto cast_of = [&](std::size_t i) { return cast(c, weights[i], DType::bf16); };
      results.push_back(expert_mlp(
          c, [&](std::int64_t) { return x; }, 1, plan, data(random_tensor({tokens * slots}, seed + 2)),
          cast_of(0), cast_of(1), cast_of(2)));
      seeds.push_back(random_tensor(results.back().tensor().shape(), seed + 3).cast(DType::bf16));
    }
    backward(c, results, seeds);
    Gradients& mine = all[static_cast<std::size_t>(c.rank)];
    for (const Array& w : weights) {
      mine.of_weights.push_back(w.grad());
      mine.summed = w.value()->summed;
    }
  });
  return all;
}

TEST(SharedGradients, AreTheSumOfEachRanksOwn) {
  const Mesh mesh({{"data", 4}});
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const auto own = run(mesh, {.weights = dtype, .one_pass = false}), made = run(mesh, {.weights = dtype});
    for (std::size_t w = 0; w < 3; ++w) {
      Tensor sum = Tensor::zeros(DType::f32, own[0].of_weights[w].shape());
      for (const Gradients& rank : own) {
        EXPECT_FALSE(rank.summed);
        EXPECT_EQ(rank.of_weights[w].dtype(), DType::bf16);  // also of float32 weights: one gradient of casts
        const Tensor term = rank.of_weights[w].cast(DType::f32);
        for (std::int64_t i = 0; i < sum.size(); ++i) sum.data<float>()[i] += term.data<float>()[i];
      }
      for (const Gradients& rank : made) {
        EXPECT_EQ(rank.summed, takes_partners(DType::bf16));
        if (!rank.summed) continue;
        EXPECT_TRUE(identical(rank.of_weights[w], sum)) << "weight " << w;
        EXPECT_EQ(rank.of_weights[w].raw(), made[0].of_weights[w].raw());
      }
    }
  }
}

TEST(SharedGradients, OfWeightsUsedTwiceAreEachRanksOwn) {
  const Mesh mesh({{"data", 2}});
  const auto once = run(mesh, {.weights = DType::f32, .one_pass = false}),
             twice = run(mesh, {.weights = DType::f32, .uses = 2});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_FALSE(twice[rank].summed);
    for (std::size_t w = 0; w < 3; ++w) {
      Tensor sum = once[rank].of_weights[w].cast(DType::f32);
      for (float& v : sum.span<float>()) v *= 2;
      EXPECT_TRUE(identical(twice[rank].of_weights[w], sum)) << "weight " << w;
    }
  }
}

}  // namespace
}  // namespace switchyard
