// Reshard: every pair of layouts keeps the value, is adjoint to its gradient, and moves the expected bytes.
#include "ops/reshard.h"

#include "autograd/testing.h"

namespace switchyard {
namespace {

using namespace autograd_test;
using Kind = ReshardStep::Kind;

const std::vector<Mesh>& meshes() {
  static const std::vector<Mesh> all{
      Mesh({{"data", 1}}),
      Mesh({{"data", 2}}),
      Mesh({{"fsdp", 2}, {"tensor", 2}}),
      Mesh({{"data", 3}, {"expert", 2}}),
      Mesh({{"data", 2}, {"tensor", 2}, {"expert", 2}}),
      Mesh({{"data", 2}, {"fsdp", 2}, {"tensor", 2}, {"expert", 2}}),
  };
  return all;
}

TEST(Reshard, KeepsValuesAndIsAdjoint) {
  Chooser choose(5);
  for (const Mesh& mesh : meshes()) {
    for (int trial = 0; trial < trials(40); ++trial) {
      const Shape shape{48, trial % 3 == 0 ? 1 : 24, trial % 2 == 0 ? 5 : 16};
      const Sharding from = choose.sharding(mesh, shape, true);
      Sharding to = choose.sharding(mesh, shape, false);
      for (const auto& axis : from.partial) {  // some partial sums may stay
        bool split = false;
        for (const auto& dim : to.dims) split = split || std::find(dim.begin(), dim.end(), axis) != dim.end();
        if (!split && choose.below(3) == 0) to.partial.push_back(axis);
      }
      const Tensor x = random_tensor(shape, 11), dy = random_tensor(shape, 12);
      Gathered gathered(mesh);
      on_mesh(mesh, [&](Context& c) {
        const Array in = leaf(c, x, from);
        const Array out = reshard(c, in, to);
        EXPECT_EQ(out.sharding(), to);
        gathered.put(c, "y", out);
        const Tensor seed = block_of(mesh, c.rank, dy, dual(mesh, to));
        backward(c, std::span(&out, 1), std::span(&seed, 1));
        gathered.put_grad(c, "dx", in);
      });
      const std::string what = mesh.to_string() + ": " + to_string(from) + " to " + to_string(to);
      EXPECT_TRUE(close(gathered.get("y"), x, 1e-5)) << what;
      EXPECT_TRUE(close(gathered.get("dx"), dy, 1e-5)) << what;  // <R x, dy> = <x, dy>: the value is the same
    }
  }
}

TEST(Reshard, ExactForIntegersAndBfloat16) {
  const Mesh mesh({{"data", 2}, {"tensor", 2}});
  const Tensor ids = random_integers({8, 4}, 3, 0, 100), x = random_integers({8, 4}, 4, -100, 100);
  Tensor floats(DType::f32, {8, 4});
  std::copy_n(x.data<std::int32_t>(), x.size(), floats.data<float>());
  const Sharding from{{{"data"}, {"tensor"}}, {}}, to{{{"tensor"}, {"data"}}, {}};
  Gathered gathered(mesh);
  on_mesh(mesh, [&](Context& c) {
    gathered.put(c, "ids", reshard(c, leaf(c, ids, from), to));
    gathered.put(c, "x", reshard(c, leaf(c, floats, from, true, DType::bf16), to));
  });
  EXPECT_TRUE(identical(gathered.get("ids"), ids));
  EXPECT_TRUE(identical(gathered.get("x"), floats));
}

std::vector<Kind> kinds(const Sharding& from, const Sharding& to) {
  std::vector<Kind> result;
  for (const auto& step : plan_reshard(from, to)) result.push_back(step.kind);
  return result;
}

TEST(Reshard, PlansOfTheClassicalCases) {
  const Sharding whole = replicated(2);
  const Sharding rows{{{"fsdp"}, {}}, {}}, columns{{{}, {"tensor"}}, {}};
  EXPECT_EQ(kinds(rows, whole), std::vector{Kind::all_gather}) << "FSDP: a weight before use";
  EXPECT_EQ(kinds(whole, rows), std::vector{Kind::slice});
  EXPECT_EQ(kinds({{{}, {}}, {"fsdp"}}, rows), std::vector{Kind::reduce_scatter}) << "FSDP: its gradient";
  EXPECT_EQ(kinds({{{}, {}}, {"tensor"}}, whole), std::vector{Kind::all_reduce}) << "TP: row-parallel output";
  EXPECT_EQ(kinds({{{}, {}}, {"tensor"}}, columns), std::vector{Kind::reduce_scatter})
      << "TP with split activations";
  EXPECT_EQ(kinds({{{"expert"}, {}}, {}}, {{{}, {"expert"}}, {}}), std::vector{Kind::all_to_all})
      << "EP: tokens to experts";
  EXPECT_EQ(kinds(rows, rows), std::vector<Kind>{});
  EXPECT_EQ(kinds({{{"data", "expert"}, {}}, {}}, {{{"data"}, {"expert"}}, {}}),
            std::vector{Kind::all_to_all});
  EXPECT_EQ(kinds({{{}, {}}, {"data", "fsdp"}}, {{{"data", "fsdp"}, {}}, {}}),
            std::vector{Kind::reduce_scatter})
      << "two axes in one collective";
  EXPECT_EQ(kinds({{{"data", "fsdp"}, {}}, {}}, whole), std::vector{Kind::all_gather})
      << "two axes in one collective";
  EXPECT_EQ(kinds({{{}, {"data", "fsdp"}}, {}}, {{{"data", "fsdp"}, {}}, {}}), std::vector{Kind::all_to_all})
      << "two axes in one collective";
  const auto swap = kinds({{{"data"}, {"tensor"}}, {}}, {{{"tensor"}, {"data"}}, {}});
  EXPECT_LE(swap.size(), 3u);
}

TEST(Reshard, CountsItsCollectives) {
  const Mesh mesh({{"fsdp", 4}});
  const Tensor x = random_tensor({8, 6}, 7);
  on_mesh(mesh, [&](Context& c) {
    const Sharding rows{{{"fsdp"}, {}}, {}};
    const Array in = leaf(c, x, rows);
    c.comm->reset_counts();
    const Array out = replicate(c, in);
    ASSERT_EQ(c.comm->counts().size(), 1u);
    EXPECT_EQ(c.comm->counts()[0].kind, "all_gather");
    EXPECT_EQ(c.comm->counts()[0].axis, "fsdp");
    EXPECT_EQ(c.comm->counts()[0].bytes, 2 * 6 * 4 * 3);
    c.comm->reset_counts();
    const Tensor seed = block_of(mesh, c.rank, x, dual(mesh, out.sharding()));
    backward(c, std::span(&out, 1), std::span(&seed, 1));
    ASSERT_EQ(c.comm->counts().size(), 1u);
    EXPECT_EQ(c.comm->counts()[0].kind, "reduce_scatter");
    EXPECT_EQ(c.comm->counts()[0].bytes, 2 * 6 * 4 * 3);
    c.comm->reset_counts();
    const Array sliced = reshard(c, out, rows);
    EXPECT_TRUE(c.comm->counts().empty());
  });
}

TEST(Reshard, GatheredWeightsAreGatheredAgainRatherThanKept) {
  const Mesh mesh({{"fsdp", 2}});
  const Tensor x = random_tensor({8, 6}, 7);
  on_mesh(mesh, [&](Context& c) {
    const Array w = never_save(leaf(c, x, {{{"fsdp"}, {}}, {}}));
    EXPECT_TRUE(replicate(c, w).value()->never_save);
  });
}

}  // namespace
}  // namespace switchyard
