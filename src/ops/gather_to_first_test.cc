#include "ops/gather_to_first.h"

#include "autograd/testing.h"

namespace switchyard {
namespace {

using namespace autograd_test;

// The first rank has the whole value, whatever the layout; no other rank has any of it.
TEST(GatherToFirst, IsWholeOnTheFirstRankAlone) {
  Chooser choose(7);
  for (const Mesh& mesh :
       {Mesh({{"data", 1}}), Mesh({{"data", 7}}), Mesh({{"fsdp", 2}, {"tensor", 2}}),
        Mesh({{"data", 3}, {"expert", 2}}), Mesh({{"data", 2}, {"tensor", 2}, {"expert", 2}})}) {
    for (int trial = 0; trial < trials(20); ++trial) {
      const Shape shape{84, trial % 3 == 0 ? 1 : 24, 168};
      const Sharding from = choose.sharding(mesh, shape, false);
      SCOPED_TRACE(mesh.to_string() + ": " + to_string(from));
      const Tensor x = random_tensor(shape, 11);
      int whole = 0;
      on_mesh(mesh, [&](Context& c) {
        const Tensor got = gather_to_first(c, leaf(c, x, from), "x");
        EXPECT_EQ(got.defined(), c.rank == 0);
        if (!got.defined()) return;
        ++whole;
        EXPECT_TRUE(close(got, x, 0));
      });
      EXPECT_EQ(whole, 1);
    }
  }
}

}  // namespace
}  // namespace switchyard
