// Gathers that are started early give the same bits, are counted alike,
// and tolerate a step with another sequence.
#include "autograd/ahead.h"

#include "autograd/testing.h"
#include "core/current_memory.h"
#include "ops/basic.h"
#include "ops/einsum.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

using namespace autograd_test;

const Mesh kMesh({{"fsdp", 4}});
constexpr std::int64_t kLayers = 4;

// A stack of products whose weights are split over fsdp, forward and backward; the weights
// of `layers`, in their order.
std::vector<Tensor> step(Context& c, const std::vector<Array>& weights,
                         const std::vector<std::size_t>& layers) {
  const Tensor input = random_tensor({8, 8}, 7);
  Array x = leaf(c, input, Sharding{{{"fsdp"}, {}}, {}}, true, DType::bf16);
  for (const std::size_t i : layers) {
    c.comm->position().layer = static_cast<std::int64_t>(i);
    x = einsum(c, "BM,MN->BN", x, cast(c, weights[i], DType::bf16));
  }
  const Tensor seed =
      block_of(kMesh, c.rank, random_tensor({8, 8}, 8), dual(kMesh, x.sharding())).cast(DType::bf16);
  backward(c, std::span(&x, 1), std::span(&seed, 1));
  std::vector<Tensor> results{x.tensor().clone()};
  for (const std::size_t i : layers) results.push_back(std::exchange(weights[i].value()->grad, Tensor()));
  return results;
}

struct Outcome {
  std::vector<Tensor> results;
  std::int64_t gathers = 0, peak = 0;
};

// Steps through these layers, each from rank 0's view.
std::vector<Outcome> run(bool ahead, const std::vector<std::vector<std::size_t>>& steps) {
  std::vector<Outcome> outcomes;
  on_mesh(kMesh, [&](Context& c) {
    c.memory = Memory(Device::cpu(), std::make_shared<MemoryAccount>());
    const MemoryScope scope(c.memory);
    GathersAhead gathers;
    if (ahead) {
      c.comm->start_progress_thread();
      c.ahead = &gathers;
    }
    std::vector<Array> weights;
    for (std::uint32_t i = 0; i < kLayers; ++i) {
      weights.push_back(never_save(leaf(c, random_tensor({8, 8}, i), Sharding{{{"fsdp"}, {}}, {}})));
      weights.back().value()->weight = true;
    }
    for (const auto& layers : steps) {
      c.comm->reset_counts();
      c.memory.account()->reset_peak();
      gathers.begin_step();
      Outcome outcome;
      outcome.results = step(c, weights, layers);
      gathers.end_step(c);
      for (const CollectiveCount& count : c.comm->counts())
        outcome.gathers += count.kind == "all_gather" ? count.calls : 0;
      outcome.peak = c.memory.account()->peak();
      if (c.rank == 0) outcomes.push_back(std::move(outcome));
    }
  });
  return outcomes;
}

void expect_same(const std::vector<Outcome>& got, const std::vector<Outcome>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t s = 0; s < want.size(); ++s) {
    EXPECT_EQ(got[s].gathers, want[s].gathers) << "step " << s;
    for (std::size_t i = 0; i < want[s].results.size(); ++i)
      EXPECT_TRUE(identical(got[s].results[i], want[s].results[i])) << "step " << s << ", result " << i;
  }
}

TEST(GathersAhead, GiveTheSameBitsAndCounts) {
  const std::vector<std::vector<std::size_t>> steps(3, {0, 1, 2, 3});
  const auto want = run(false, steps), got = run(true, steps);
  expect_same(got, want);
  EXPECT_EQ(want[0].gathers, 8) << "four weights, forward and backward";
  // The first step only writes down; the others hold a weight more, cast and gathered.
  EXPECT_EQ(got[0].peak, want[0].peak);
  EXPECT_GT(got[1].peak, want[1].peak);
  EXPECT_LE(got[1].peak, want[1].peak + 2 * (64 + 16) * 2);
}

TEST(GathersAhead, AnotherSequenceIsNoError) {
  const std::vector<std::vector<std::size_t>> steps{{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1, 3, 2}, {0, 1, 3, 2},
                                                    {0, 1, 3, 2}, {0, 1},       {0, 1},       {0, 1, 2},
                                                    {2},          {0, 1, 2, 3}, {0, 1, 2, 3}};
  const auto want = run(false, steps), got = run(true, steps);
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t s = 0; s < want.size(); ++s) {
    for (std::size_t i = 0; i < want[s].results.size(); ++i)
      EXPECT_TRUE(identical(got[s].results[i], want[s].results[i])) << "step " << s << ", result " << i;
  }
}

TEST(GathersAhead, AGatherAskedForIsTakenByItsReshard) {
  on_mesh(kMesh, [](Context& c) {
    GathersAhead gathers;
    c.comm->start_progress_thread();
    c.ahead = &gathers;
    const Tensor global = random_tensor({8, 12, 3}, 5);
    const Array first = leaf(c, global, Sharding{{{}, {"fsdp"}, {}}, {}});
    const Array second = leaf(c, random_tensor({8, 12, 3}, 6), Sharding{{{"fsdp"}, {}, {}}, {}});
    start_reshard(c, first, replicated(3));
    start_reshard(c, second, replicated(3));
    start_reshard(c, first, first.sharding());  // nothing to do
    EXPECT_TRUE(c.comm->counts().empty());
    EXPECT_TRUE(identical(replicate(c, second).tensor(), random_tensor({8, 12, 3}, 6)));
    EXPECT_TRUE(identical(replicate(c, first).tensor(), global));
    EXPECT_TRUE(identical(replicate(c, first).tensor(), global)) << "again, without a start";
    EXPECT_EQ(c.comm->counts()[0].calls, 3);
  });
}

}  // namespace
}  // namespace switchyard
