// Tests that experts with adapters act as experts with changed weights, in every strategy, and that experts
// in blocks of few bits pass gradients to their inputs.
#include "kernels/packed/packed_weights.h"
#include "moe/block_testing.h"

namespace switchyard {
namespace {

using namespace moe_test;

enum class Form { adapters, merged, packed, unpacked };

struct Case {
  Form form = Form::adapters;
  MoeExecution execution = {};
  MoeConfig config = mixtral(4, 2);
};

constexpr std::int64_t kExperts = 4, kWidth = 64, kHidden = 32, kRank = 3;

// The layer [E,inputs,outputs] of a form, split over the experts.
Linear layer_of(Context& c, Form form, std::int64_t inputs, std::int64_t outputs, std::uint32_t seed) {
  const std::vector<std::string> dims{"exp", "", ""};
  const Tensor weight = random_tensor({kExperts, inputs, outputs}, seed, 0.2f);
  if (form == Form::adapters || form == Form::merged) {
    Linear layer{leaf_by_rules(c, weight, dims), {}, LowRank{}};
    layer.adapter->a = leaf_by_rules(c, random_tensor({kExperts, inputs, kRank}, seed + 1, 0.3f), dims);
    layer.adapter->b = leaf_by_rules(c, random_tensor({kExperts, kRank, outputs}, seed + 2, 0.3f), dims);
    layer.adapter->scale = 0.5f;
    return form == Form::adapters ? layer : Linear{layer.merged(c)};
  }
  const Shape blocks{kExperts, inputs / kGroupInputs, outputs / kBlockOutputs};
  const Tensor packed(DType::packed_int8, blocks), values(DType::f32, weight.shape());
  EXPECT_TRUE(pack_weights(*c.pool, {weight.view(), packed.view()}));
  unpack_weights(*c.pool, {packed.view(), values.view()});
  if (form == Form::unpacked) return {leaf_by_rules(c, values, dims, false)};
  const Sharding split = c.rules->sharding({"exp", "", ""}, blocks);
  const std::int64_t here = local_shape(*c.mesh, blocks, split)[0],
                     first = local_offset(*c.mesh, c.rank, blocks, split)[0];
  return {make_leaf(packed.slice_rows(first, first + here), blocks, split, false)};
}

std::map<std::string, Tensor> run_case(const Case& test, const Mesh& mesh) {
  Gathered gathered(mesh);
  const Tensor x = random_tensor({4, 4, kWidth}, 31), dy = random_tensor(x.shape(), 32);
  on_mesh(mesh, [&](Context& c) {
    MoeWeights w;
    w.gate.weight = leaf(c, random_tensor({kWidth, kExperts}, 33, 0.5f), replicated(2));
    w.wi_0 = layer_of(c, test.form, kWidth, kHidden, 40);
    w.wi_1 = layer_of(c, test.form, kWidth, kHidden, 50);
    w.wo = layer_of(c, test.form, kHidden, kWidth, 60);
    const Array in = leaf_by_rules(c, x, {"activation_batch", "activation_norm_length", "activation_embed"});
    const Array segments = leaf_by_rules(c, random_integers({4, 4}, 1, 1, 2), {"activation_batch", ""});
    const Array y = moe_block(c, test.config, test.execution, w, in, segments, 0, 0).y;
    gathered.put(c, "y", y);
    const Tensor seed = block_of(mesh, c.rank, dy, dual(mesh, y.sharding()));
    backward(c, std::span(&y, 1), std::span(&seed, 1));
    gathered.put_grad(c, "dx", in);
    gathered.put_grad(c, "dgate", w.gate.weight);
    if (test.form != Form::adapters) return;
    const std::pair<const char*, const Linear*> layers[] = {
        {"wi_0", &w.wi_0}, {"wi_1", &w.wi_1}, {"wo", &w.wo}};
    for (const auto& [name, layer] : layers) {
      gathered.put_grad(c, std::string(name) + ".a", layer->adapter->a);
      gathered.put_grad(c, std::string(name) + ".b", layer->adapter->b);
    }
  });
  std::map<std::string, Tensor> result;
  for (const std::string name : {"y", "dx", "dgate"}) result[name] = gathered.get(name);
  for (const std::string name : {"wi_0", "wi_1", "wo"}) {
    for (const char* matrix : {".a", ".b"}) {
      if (test.form == Form::adapters) result[name + matrix] = gathered.get(name + matrix);
    }
  }
  return result;
}

void expect_close(const std::map<std::string, Tensor>& got, const std::map<std::string, Tensor>& want,
                  const std::string& what) {
  for (const auto& [name, tensor] : want) {
    EXPECT_TRUE(close(got.at(name), tensor, 2e-5)) << what << ": " << name;
    EXPECT_GT(dot(tensor, tensor), 0) << name;
  }
}

std::vector<std::pair<std::string, MoeExecution>> ways() {
  return {{"ring", {.ring = true}},
          {"all_to_all", {}},
          {"kept rows", {.ring = true, .keep_rows = true}},
          {"chunks of M", {.emb_chunks = 2}},
          {"weights at combine", {.weights_at_combine = true}},
          {"dense", {.sparse = false}},
          {"capacity", {.sparse = false, .capacity_factor = 4}}};
}

TEST(ExpertAdapters, AreTheSameInEveryStrategy) {
  for (const MoeConfig& config : {mixtral(kExperts, 2), llama4(kExperts, 2)}) {
    const auto want = run_case({Form::merged, {.sparse = false}, config}, Mesh());
    const auto one = run_case({Form::adapters, {.sparse = false}, config}, Mesh());
    expect_close(one, want, "dense");
    for (const auto& [name, execution] : ways()) {
      for (const Mesh& mesh : {Mesh(), Mesh({{"expert", 2}}), Mesh({{"tensor", 2}, {"expert", 2}})})
        expect_close(run_case({Form::adapters, execution, config}, mesh), one,
                     name + " on " + mesh.to_string());
    }
  }
}

TEST(PackedExperts, PassGradientsOn) {
  for (const auto& [name, execution] : ways()) {
    for (const Mesh& mesh : {Mesh(), Mesh({{"expert", 2}})}) {
      const std::string what = name + " on " + mesh.to_string();
      expect_close(run_case({Form::packed, execution}, mesh), run_case({Form::unpacked, execution}, mesh),
                   what);
    }
  }
}

}  // namespace
}  // namespace switchyard
