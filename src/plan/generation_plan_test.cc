// Tests that a plan of generation equals the generator's
// run: the same collectives to the byte, the same weights.
#include "plan/generation_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/session.h"
#include "generate/generator.h"
#include "models/packed_parameters.h"

namespace switchyard {
namespace {

using Keys = std::vector<std::string>;

// Every token goes to every expert, so that their load is exactly balanced.
Config config_of(const Keys& more) {
  Keys keys{"decoder_block=mixtral",
            "base_emb_dim=64",
            "base_num_query_heads=4",
            "base_num_kv_heads=2",
            "head_dim=32",
            "base_mlp_dim=64",
            "base_num_decoder_layers=2",
            "num_experts=4",
            "num_experts_per_tok=4",
            "vocab_size=96",
            "max_target_length=16",
            "max_prefill_predict_length=6",
            "per_device_batch_size=2",
            "dtype=bfloat16",
            "weight_dtype=bfloat16"};
  keys.insert(keys.end(), more.begin(), more.end());
  return Config::from_args(keys);
}

struct Counted {
  std::int64_t weights = 0, cache = 0;  // bytes
  std::vector<CollectiveCount> read, make;
};

// What rank 0 of a session does.
Counted counted_of(const Config& config, const Mesh& mesh) {
  const ModelConfig model = model_config(config);
  const auto packed = packed_dtype(config.get_string("weight_format"));
  const auto specs = packed ? packed_specs(parameter_specs(model), *packed, nullptr) : parameter_specs(model);
  Counted counted;
  run_session(config, mesh, [&](Context& context) {
    const Parameters parameters = Parameters::create(context, specs, model.init_seed, {}, nullptr);
    Generator generator(context, model, parameters, rows_to_generate(config, mesh), 16,
                        !config.get_bool("enable_prefix_caching"));
    const std::int64_t before = context.memory.in_use();
    const auto feed = [&](std::size_t tokens) {
      std::vector<SlotTokens> texts;
      for (std::size_t row = 0; row < static_cast<std::size_t>(generator.slots()); ++row)
        texts.push_back({row, std::vector<std::int32_t>(tokens, 3)});
      context.comm->reset_counts();
      generator.feed(texts);
      return context.comm->counts();
    };
    const auto read = feed(6), make = feed(1);
    if (context.comm->rank() != 0) return;
    counted.read = read;
    counted.make = make;
    counted.cache = context.memory.in_use() - before;
    for (const auto& p : parameters.all())
      counted.weights += static_cast<std::int64_t>(p.array.tensor().bytes());
  });
  return counted;
}

void expect_same(const std::vector<CollectiveCount>& plan, const std::vector<CollectiveCount>& run) {
  ASSERT_EQ(plan.size(), run.size());
  for (std::size_t i = 0; i < run.size(); ++i) {
    EXPECT_EQ(plan[i].kind, run[i].kind);
    EXPECT_EQ(plan[i].axis, run[i].axis);
    EXPECT_EQ(plan[i].calls, run[i].calls) << run[i].kind;
    EXPECT_EQ(plan[i].bytes, run[i].bytes) << run[i].kind;
  }
}

// A GPU's products of many rows work on weights of values: those of one product at a time are unpacked. Those
// of up to 64 rows an expert read weights as they are stored.
TEST(GenerationPlan, AGpuUnpacksWeightsForManyRows) {
  const auto unpacked_bytes = [](const char* kernels, const char* prefill, const char* length) {
    const Config config = config_of({"base_emb_dim=512", "base_mlp_dim=512", "weight_format=int4",
                                     std::string("gpu_kernels=") + kernels,
                                     std::string("max_prefill_predict_length=") + prefill,
                                     std::string("max_target_length=") + length});
    const Mesh mesh = mesh_from_config(config);
    Topology topology = Topology::read("h100", 1);
    EXPECT_EQ(topology.gpu_major, 9);
    const std::int64_t with = plan_generation(config, mesh, topology).front().peak;
    topology.gpu_major = 0;
    return with - plan_generation(config, mesh, topology).front().peak;
  };
  const std::int64_t unpacked = 4 * 512 * 512 * 2;  // gate, up or down of all experts
  EXPECT_GT(unpacked_bytes("all", "72", "80"), unpacked / 2);
  EXPECT_LT(unpacked_bytes("all", "72", "80"), 2 * unpacked);
  EXPECT_LT(unpacked_bytes("all", "6", "16"), unpacked / 2);
}

TEST(GenerationPlan, CountsWhatAGeneratorDoes) {
  for (const char* format : {"stored", "int8", "int4"}) {
    for (const Keys& layout : {Keys{"ranks=1"}, Keys{"ranks=2", "ici_fsdp_parallelism=2"},
                               Keys{"ranks=2", "ici_fsdp_parallelism=1", "ici_expert_parallelism=2"}}) {
      Keys keys = layout;
      keys.push_back(std::string("weight_format=") + format);
      SCOPED_TRACE(fmt::format("{}", fmt::join(keys, " ")));
      const Config config = config_of(keys);
      const Mesh mesh = mesh_from_config(config);
      const auto plans = plan_generation(config, mesh, Topology::read("cpu", mesh.size()));
      ASSERT_EQ(plans.size(), 1u);
      const GenerationPlan& plan = plans.front();
      const Counted run = counted_of(config, mesh);
      EXPECT_EQ(plan.weights, run.weights);
      expect_same(plan.read.cost.collectives, run.read);
      expect_same(plan.make.cost.collectives, run.make);
      // Keys and values of each layer, two rows a rank.
      EXPECT_EQ(plan.cache, 2 * 2 * 2 * 16 * 2 * 32 * 2);
      EXPECT_EQ(plan.packed_weights > 0, std::string(format) != "stored");
      EXPECT_GE(plan.peak, plan.weights + plan.cache);
    }
  }
}

// A layer with a window has room for the window and a little more, one with chunks for
// a chunk, others for all.
TEST(GenerationPlan, CountsWhatLayersWithWindowsRemember) {
  constexpr std::int64_t kTokenBytes = 2 * 2 * 2 * 32 * 2;  // of two rows: keys and values, heads, bfloat16
  const auto expect_tokens = [&](const Keys& keys, std::int64_t tokens) {
    const Config config = config_of(keys);
    const Mesh mesh = mesh_from_config(config);
    const std::int64_t planned =
        plan_generation(config, mesh, Topology::read("cpu", mesh.size())).front().cache;
    EXPECT_EQ(planned, tokens * kTokenBytes);
    EXPECT_EQ(counted_of(config, mesh).cache, planned);
  };
  expect_tokens({"ranks=1"}, 16 + 16);
  expect_tokens({"ranks=1", "sliding_window_size=4"}, 2 * (4 + 2));
  expect_tokens({"ranks=2", "ici_fsdp_parallelism=2", "sliding_window_size=4"}, 2 * (4 + 2));
  expect_tokens({"ranks=1", "sliding_window_size=8", "windowed_layers=1"}, 16 + 8 + 2);
  expect_tokens({"ranks=1", "sliding_window_size=15"}, 16 + 16);
  expect_tokens({"ranks=1", "sliding_window_size=4", "enable_prefix_caching=true"}, 16 + 16);
  expect_tokens({"ranks=1", "decoder_block=llama4", "shared_experts=1", "num_experts_per_tok=1",
                 "chunk_attn_window_size=4", "nope_layer_interval=2"},
                4 + 2 + 16);
}

// A stage holds its layers and their cache, and a token passes all of them.
TEST(GenerationPlan, OfAPipelineHasEveryStage) {
  const Config config = config_of({"ranks=2", "ici_fsdp_parallelism=1", "ici_pipeline_parallelism=2"});
  const Mesh mesh = mesh_from_config(config);
  const auto stages = plan_generation(config, mesh, Topology::read("cpu", mesh.size()));
  ASSERT_EQ(stages.size(), 2u);
  const std::int64_t embedding = 96 * 64 * 2;
  EXPECT_EQ(stages[1].weights, stages[0].weights - embedding + embedding + 64 * 2);  // head and final norm
  EXPECT_EQ(stages[0].cache, stages[1].cache);
  EXPECT_EQ(&largest_stage(stages), &stages[stages[1].peak > stages[0].peak ? 1 : 0]);
  EXPECT_DOUBLE_EQ(seconds_of(stages, &GenerationPlan::make),
                   stages[0].make.seconds() + stages[1].make.seconds());
}

TEST(GenerationPlan, RefusesWhatGenerateRefuses) {
  const auto plan = [](const Keys& keys) {
    const Config config = config_of(keys);
    const Mesh mesh = mesh_from_config(config);
    return plan_generation(config, mesh, Topology::read("cpu", mesh.size()));
  };
  EXPECT_THROW(plan({"ranks=4", "ici_fsdp_parallelism=1", "ici_tensor_parallelism=4", "weight_format=int4"}),
               Error);
  EXPECT_THROW(plan({"max_target_length=6"}), Error);
}

}  // namespace
}  // namespace switchyard
