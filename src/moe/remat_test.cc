// Rematerialisation changes memory and time, never a bit of a gradient, and never a routing decision.
#include "autograd/remat.h"

#include "moe/block_testing.h"
#include "ops/basic.h"
#include "ops/einsum.h"
#include "ops/norm.h"

namespace switchyard {
namespace {

using namespace moe_test;

struct Network {
  std::int64_t layers = 2, batch = 4, length = 6, width = 16, hidden = 16;
  MoeConfig config = deepseek3(4, 2);
  MoeExecution execution = with_balance_loss();
  RematPolicy policy = {};
  bool disturb = false;  // after forward the router's bias changes: a second decision would differ
};

struct Layer {
  Array scale, up, gate, down;
  MoeWeights moe;
};

Layer make_layer(const Context& c, const Network& n, std::uint32_t seed) {
  const std::int64_t m = n.width, h = n.hidden, e = n.config.experts;
  auto weight = [&](Shape shape, std::vector<std::string> dims) {
    return never_save(leaf_by_rules(c, random_tensor(shape, seed++, 0.3f), dims));
  };
  Layer layer;
  layer.scale = leaf_by_rules(c, random_tensor({m}, seed++), {"norm"});
  layer.up = weight({m, h}, {"embed", "mlp"});
  layer.gate = weight({m, h}, {"embed", "mlp"});
  layer.down = weight({h, m}, {"mlp", "embed"});
  layer.moe.gate.weight = weight({m, e}, {"embed", ""});
  layer.moe.gate_bias = leaf(c, random_tensor({e}, seed++, 0.1f), replicated(1));
  layer.moe.wi_0.weight = weight({e, m, h}, {"exp", "embed_moe", "mlp_moe"});
  layer.moe.wi_1.weight = weight({e, m, h}, {"exp", "embed_moe", "mlp_moe"});
  layer.moe.wo.weight = weight({e, h, m}, {"exp", "mlp_moe", "embed_moe"});
  return layer;
}

Array run_layer(Context& c, const Network& n, const Layer& layer, const Array& x, const Array& segments) {
  const Array normed = rms_norm(c, x, layer.scale, 1e-5f);
  const Array hidden = swiglu(c, checkpoint_name(einsum(c, "BSM,MH->BSH", normed, layer.gate), "mlpwi_0"),
                              checkpoint_name(einsum(c, "BSM,MH->BSH", normed, layer.up), "mlpwi_1"));
  const Array dense =
      add(c, x, checkpoint_name(einsum(c, "BSH,HM->BSM", hidden, layer.down, &x.sharding()), "mlpwo"));
  return add(c, dense, moe_block(c, n.config, n.execution, layer.moe, dense, segments, 0, 0).y);
}

struct Trace {
  std::map<std::string, Tensor> gradients;
  std::size_t peak = 0;  // bytes over what the weights take
};

Trace train(const Network& n, const Mesh& mesh) {
  Gathered gathered(mesh);
  Trace trace;
  const Tensor x = random_tensor({n.batch, n.length, n.width}, 71), dy = random_tensor(x.shape(), 72);
  Tensor ones(DType::i32, {n.batch, n.length});
  std::fill_n(ones.data<std::int32_t>(), ones.size(), 1);
  std::vector<std::string> names;
  on_mesh(mesh, [&](Context& c) {
    const Array in = leaf_by_rules(c, x, {"activation_batch", "activation_norm_length", "activation_embed"});
    const Array segments = leaf_by_rules(c, ones, {"activation_batch", "activation_norm_length"});
    std::vector<Layer> layers;
    for (std::int64_t i = 0; i < n.layers; ++i)
      layers.push_back(make_layer(c, n, static_cast<std::uint32_t>(100 * (i + 1))));
    const std::size_t before = memory_in_use();
    if (mesh.size() == 1) reset_memory_peak();
    Array y = in;
    for (const Layer& layer : layers) {
      RematRegion region(c, n.policy);
      y = run_layer(c, n, layer, y, segments);
    }
    if (n.disturb) {
      for (const Layer& layer : layers) {
        for (float& b : layer.moe.gate_bias.tensor().span<float>()) b = -b * 50;
      }
    }
    const Tensor seed = block_of(mesh, c.rank, dy, dual(mesh, y.sharding()));
    backward(c, std::span(&y, 1), std::span(&seed, 1));
    if (mesh.size() == 1) trace.peak = memory_peak() - before;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const Layer& l = layers[i];
      const std::pair<const char*, Array> all[] = {{"scale", l.scale},
                                                   {"up", l.up},
                                                   {"gate", l.gate},
                                                   {"down", l.down},
                                                   {"router", l.moe.gate.weight},
                                                   {"wi_0", l.moe.wi_0.weight},
                                                   {"wi_1", l.moe.wi_1.weight},
                                                   {"wo", l.moe.wo.weight}};
      for (const auto& [name, array] : all) {
        gathered.put_grad(c, name + std::to_string(i), array);
        if (c.rank == 0) names.push_back(name + std::to_string(i));
      }
    }
    gathered.put_grad(c, "x", in);
  });
  names.push_back("x");
  for (const auto& name : names) trace.gradients[name] = gathered.get(name);
  return trace;
}

void expect_identical(const Trace& got, const Trace& want, const std::string& what) {
  for (const auto& [name, gradient] : want.gradients) {
    EXPECT_TRUE(identical(got.gradients.at(name), gradient)) << what << ": " << name;
    EXPECT_GT(dot(gradient, gradient), 0) << name;
  }
}

const std::vector<RematPolicy>& policies() {
  static const std::vector<RematPolicy> all{{true, {}},
                                            {true, {"mlpwi_0", "mlpwi_1", "mlpwo"}},
                                            {true, {"moe_mlpwi_0"}},
                                            {true, {"moe_mlpwo", "mlpwo"}}};
  return all;
}

TEST(Remat, GradientsAreTheSameBits) {
  for (const Mesh& mesh : {Mesh(), Mesh({{"expert", 2}}), Mesh({{"data", 2}, {"expert", 2}}),
                           Mesh({{"fsdp", 2}, {"tensor", 2}})}) {
    for (int strategy = 0; strategy < 4; ++strategy) {
      Network n;
      n.execution.ring = strategy == 1;
      n.execution.sparse = strategy < 2;
      n.execution.capacity_factor = strategy == 3 ? 2 : -1;
      const Trace want = train(n, mesh);
      for (const auto& policy : policies()) {
        n.policy = policy;
        expect_identical(train(n, mesh), want, mesh.to_string() + " strategy " + std::to_string(strategy));
      }
    }
  }
}

// Rows kept as they came to the experts, and passes that keep nothing.
TEST(Remat, RowsOfExpertsAreKeptOrMadeAgain) {
  for (const Mesh& mesh : {Mesh(), Mesh({{"expert", 2}}), Mesh({{"fsdp", 2}, {"expert", 2}})}) {
    for (const bool ring : {false, true}) {
      for (const std::int64_t chunks : {1, 2}) {
        Network n;
        n.execution.ring = ring;
        n.execution.token_chunks = n.execution.emb_chunks = chunks;
        const Trace want = train(n, mesh);
        n.execution.keep_rows = true;
        n.policy = {true, {"moe_x_sorted"}};
        expect_identical(train(n, mesh), want, mesh.to_string() + " rows kept");
        n.execution.further_passes = true;
        n.execution.ragged_buffer_factor = 0.6;
        n.policy = {};
        const Trace passes = train(n, mesh);
        n.policy = {true, {"moe_x_sorted", "moe_mlpwi_0", "mlpwo"}};
        expect_identical(train(n, mesh), passes, mesh.to_string() + " passes");
        n.execution.keep_rows = false;
        n.policy = {true, {}};
        expect_identical(train(n, mesh), passes, mesh.to_string() + " passes, rows not kept");
      }
    }
  }
}

TEST(Remat, DecisionsAreNotMadeAgain) {
  for (bool chunks : {false, true}) {
    Network n;
    if (chunks) n.execution.token_chunks = 2;
    const Trace want = train(n, Mesh({{"expert", 2}}));
    n.policy.enabled = true;
    n.disturb = true;
    expect_identical(train(n, Mesh({{"expert", 2}})), want, "expert=2");
    expect_identical(
        train(n, Mesh()),
        [&] {
          n.policy.enabled = n.disturb = false;
          return train(n, Mesh());
        }(),
        "one rank");
  }
}

TEST(Remat, NeedsLessMemory) {
  Network n{.layers = 6, .batch = 8, .length = 32, .width = 32, .hidden = 64};
  const std::size_t all = train(n, Mesh()).peak;
  n.policy = {true, {"mlpwi_0", "mlpwi_1", "mlpwo", "moe_mlpwi_0", "moe_mlpwi_1"}};
  const std::size_t some = train(n, Mesh()).peak;
  n.policy = {true, {}};
  const std::size_t none = train(n, Mesh()).peak;
  EXPECT_LT(static_cast<double>(none), 0.6 * static_cast<double>(all));
  EXPECT_LT(none, some);
  EXPECT_LE(some, all);
}

TEST(Remat, RerunsAreBitIdentical) {
  const Network n{.policy = {true, {}}};
  const Mesh mesh({{"data", 2}, {"expert", 2}});
  expect_identical(train(n, mesh), train(n, mesh), "again");
}

}  // namespace
}  // namespace switchyard
