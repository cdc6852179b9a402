#include "train/matrix_exchange.h"

#include <mutex>

#include "autograd/testing.h"

namespace switchyard {
namespace {

using autograd_test::on_mesh;

struct Layout {
  Shape shape;
  MatrixForm form;
  Sharding sharding;
  bool sends = true;
};

Parameter parameter_of(const Context& c, const Layout& layout) {
  const Shape local = local_shape(*c.mesh, layout.shape, layout.sharding);
  const std::size_t dims = layout.shape.size();
  ParameterSpec spec{"w",  layout.shape, std::vector<std::string>(dims), Initializer::zeros, 0, DType::f32,
                     true, layout.form};
  return {spec, make_leaf(Tensor(DType::f32, local), layout.shape, layout.sharding, true)};
}

// This rank's range of a weight in which each element is its own index.
Tensor range_of(const Context& c, const Layout& layout) {
  const Shape local = local_shape(*c.mesh, layout.shape, layout.sharding);
  Tensor block(DType::f32, {num_elements(local)});
  autograd_test::visit_block(
      *c.mesh, c.rank, layout.shape, layout.sharding,
      [&](std::int64_t to, std::int64_t from) { block.data<float>()[to] = static_cast<float>(from); });
  const ProcessGroup& group = c.group(dual(*c.mesh, layout.sharding).partial);
  const auto ranks = static_cast<std::int64_t>(group.ranks.size());
  const std::int64_t size = block.size(), share = (size + ranks - 1) / ranks;
  const std::int64_t begin = std::min(size, share * group.index);
  return block.slice_rows(begin, std::min(size, begin + share));
}

void expect_round_trip(const Mesh& mesh, const Layout& layout) {
  std::int64_t matrix = 1, inputs = 1;
  for (std::size_t d = layout.form.stack; d < layout.shape.size(); ++d) matrix *= layout.shape[d];
  for (std::size_t d = 0; d < layout.form.inputs; ++d) inputs *= layout.shape[layout.form.stack + d];
  std::mutex mutex;
  std::vector<int> owners(static_cast<std::size_t>(num_elements(layout.shape) / matrix), 0);
  std::int64_t most = 0, bytes = 0;
  on_mesh(mesh, [&](Context& c) {
    OwnerLoads loads;
    const MatrixExchange exchange(c, parameter_of(c, layout), loads);
    EXPECT_EQ(exchange.inputs(), inputs);
    EXPECT_EQ(exchange.outputs(), matrix / inputs);
    const Tensor range = range_of(c, layout);
    const Tensor whole = exchange.gather(c, range);
    EXPECT_EQ(whole.shape(), (Shape{exchange.owned(), inputs, matrix / inputs}));
    const Tensor back = exchange.scatter(c, whole);
    EXPECT_EQ(back.size(), range.size());
    for (std::int64_t i = 0; i < back.size(); ++i)
      EXPECT_EQ(back.data<float>()[i], range.data<float>()[i]) << i;
    const std::lock_guard lock(mutex);
    for (std::int64_t m = 0; m < whole.dim(0); ++m) {
      const float* at = whole.data<float>() + m * matrix;
      const auto index = static_cast<std::int64_t>(at[0]) / matrix;
      for (std::int64_t i = 0; i < matrix; ++i) EXPECT_EQ(at[i], static_cast<float>(index * matrix + i));
      ++owners[static_cast<std::size_t>(index)];
    }
    most = std::max(most, exchange.owned());
    for (const auto& count : c.comm->counts()) bytes += count.bytes;
  });
  for (int owner : owners) EXPECT_EQ(owner, 1);  // every matrix has one owner in the whole mesh
  // Shared evenly, as far as whole matrices go.
  EXPECT_LE(most, (static_cast<std::int64_t>(owners.size()) + mesh.size() - 1) / mesh.size());
  const std::int64_t weight = num_elements(layout.shape) * 4;
  if (layout.sends)
    EXPECT_GT(bytes, 0);
  else
    EXPECT_EQ(bytes, 0);
  EXPECT_LE(bytes, 2 * weight);  // each element once there and once back
}

TEST(MatrixExchange, BringsMatricesTogetherOnceAndBack) {
  const MatrixForm stacked{1, 1}, plain{0, 1}, merged{0, 2};
  const Mesh mesh({{"data", 2}, {"fsdp", 2}, {"tensor", 2}});
  const std::vector<Layout> layouts = {
      {{8, 4, 6}, stacked, {{{"data", "fsdp", "tensor"}, {}, {}}, {}}, false},
      {{8, 4, 6}, stacked, {{{"fsdp"}, {}, {}}, {}}, false},
      {{16, 4, 6}, stacked, replicated(3), false},
      {{8, 4, 6}, stacked, {{{}, {"fsdp"}, {}}, {}}},
      {{8, 4, 6}, stacked, {{{"fsdp"}, {}, {"tensor"}}, {}}},
      {{8, 4, 6}, stacked, {{{}, {"fsdp"}, {"tensor"}}, {}}},
      {{6, 4, 6}, stacked, {{{}, {"data", "fsdp"}, {"tensor"}}, {}}},
      {{3, 5, 7}, stacked, replicated(3)},
      {{6, 5, 7}, stacked, {{{"fsdp"}, {}, {}}, {}}},
      {{4, 6}, plain, replicated(2)},
      {{5, 7}, plain, replicated(2)},
      {{4, 6}, plain, {{{"fsdp"}, {"tensor"}}, {}}},
      {{8, 6}, plain, {{{"data", "tensor", "fsdp"}, {}}, {}}},
      {{1, 1}, plain, replicated(2), false},
      {{4, 2, 3}, plain, {{{"fsdp"}, {"tensor"}, {}}, {}}},   // heads beside the outputs
      {{4, 2, 6}, merged, {{{"tensor"}, {}, {"fsdp"}}, {}}},  // heads beside the inputs
  };
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(to_string(layout.shape) + " " + to_string(layout.sharding));
    expect_round_trip(mesh, layout);
  }
}

TEST(MatrixExchange, AnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    const Mesh mesh({{"data", ranks}});
    for (const std::int64_t matrices : {1, 2, 5, 8}) {
      SCOPED_TRACE(fmt::format("{} matrices on {} ranks", matrices, ranks));
      expect_round_trip(mesh, {{matrices, 3, 5}, {1, 1}, replicated(3), matrices % ranks != 0});
    }
  }
}

TEST(MatrixExchange, SingleMatricesGoRound) {
  const Mesh mesh({{"data", 2}, {"fsdp", 2}});
  std::mutex mutex;
  std::vector<std::int64_t> owned(4, 0);
  on_mesh(mesh, [&](Context& c) {
    OwnerLoads loads;
    std::int64_t mine = 0;
    for (int i = 0; i < 8; ++i)
      mine += MatrixExchange(c, parameter_of(c, {{4, 6}, {0, 1}, {{{"fsdp"}, {}}, {}}}), loads).owned();
    const std::lock_guard lock(mutex);
    owned[static_cast<std::size_t>(c.rank)] = mine;
  });
  EXPECT_EQ(owned, (std::vector<std::int64_t>{2, 2, 2, 2}));
}

}  // namespace
}  // namespace switchyard
