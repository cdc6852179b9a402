// Tests that a plan equals the run: the same collectives to the byte, the same memory.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "kernels/cuda/planned.h"
#include "plan/explain.h"
#include "plan/planner.h"
#include "plan/search.h"
#include "train/run.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using Keys = std::vector<std::string>;
using nlohmann::json;

class Silent : public RunObserver {
 public:
  void line(const std::string&) override {}
  void progress(std::int64_t, const std::string&) override {}
};

// Every token goes to every expert, so that the load of a run is exactly balanced.
Keys tiny(const Keys& more) {
  Keys keys{"decoder_block=mixtral",
            "base_emb_dim=32",
            "base_num_query_heads=4",
            "base_num_kv_heads=2",
            "head_dim=16",
            "base_mlp_dim=64",
            "base_num_decoder_layers=3",
            "num_experts=4",
            "num_experts_per_tok=4",
            "vocab_size=96",
            "max_target_length=32",
            "per_device_batch_size=2",
            "steps=2",
            "dtype=float32",
            "dataset_type=synthetic",
            "enable_tensorboard=false",
            "load_balance_loss_weight=0.01"};
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

Keys deepseek(const Keys& more) {
  Keys keys = tiny({"decoder_block=deepseek", "attention_type=mla", "q_lora_rank=16", "kv_lora_rank=8",
                    "qk_nope_head_dim=8", "qk_rope_head_dim=8", "v_head_dim=8", "shared_experts=1",
                    "first_num_dense_layers=1", "base_moe_mlp_dim=32", "routed_bias=true",
                    "routed_score_func=sigmoid", "routed_bias_update_rate=0.001", "base_num_kv_heads=4"});
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

json run_summary_of(const Keys& keys) {
  std::string folder = (fs::path(::testing::TempDir()) / "switchyard_plan.XXXXXX").string();
  EXPECT_NE(::mkdtemp(folder.data()), nullptr);
  Keys all = keys;
  all.push_back("base_output_directory=" + folder);
  all.push_back("run_name=run");
  Silent silent;
  const RunReport report = run_training(Config::from_args(all), *one_process(), silent);
  std::ifstream file(report.folder + "/summary.json");
  json summary = json::parse(file);
  fs::remove_all(folder);
  return summary;
}

json plan_of(const Keys& keys) {
  const Config config = Config::from_args(keys);
  const Mesh mesh = mesh_from_config(config);
  const bool on_gpu = config.get_string("device") == "cuda_emulated";
  Topology topology = Topology::read(on_gpu ? "h100" : "cpu", mesh.size());
  // The emulator is a GPU without what came after 8.0.
  if (on_gpu) topology.gpu_major = 8;
  const std::vector<StepPlan> stages = plan_stages(config, mesh, topology);
  return plan_json(stages, {{1, stages[0].cost.peak_bytes, stages[0].seconds()}}, topology);
}

void expect_same(const Keys& keys) {
  SCOPED_TRACE(fmt::format("{}", fmt::join(keys.begin() + 17, keys.end(), " ")));
  const json run = run_summary_of(keys), plan = plan_of(keys);
  EXPECT_EQ(plan["collectives"].dump(), run["collectives"].dump());
  EXPECT_EQ(plan["host_reads"].dump(), run["host_reads"].dump());
  EXPECT_EQ(plan["parameters"], run["parameters"]);
  for (const char* key : {"weights_bytes", "gradients_bytes", "optimizer_bytes"})
    EXPECT_EQ(plan["per_rank"][key], run["per_rank"][key]) << key;
  const auto got = plan["per_rank"]["total_peak_bytes"].get<double>(),
             want = run["per_rank"]["total_peak_bytes"].get<double>();
  EXPECT_NEAR(got, want, 0.03 * want);
  for (std::size_t i = 0; i < run["layers"].size(); ++i) {
    for (const auto& [key, value] : run["layers"][i].items())
      EXPECT_EQ(plan["layers"][i].at(key), value) << "layer " << i << " " << key;
  }
}

TEST(Plan, OneRankTakesTheMemoryOfARun) {
  expect_same(tiny({}));
  expect_same(tiny({"dtype=bfloat16"}));
  expect_same(tiny({"dtype=bfloat16", "weight_dtype=bfloat16", "logits_via_embedding=true"}));
  expect_same(tiny({"vocab_size=5000", "base_emb_dim=64", "dtype=bfloat16"}));
  expect_same(deepseek({}));
}

TEST(Plan, WhatKernelsOfAGpuWorkIn) {
  const Keys emulated{"device=cuda_emulated", "steps=1"};
  const auto on_gpu = [&](Keys keys) {
    keys.insert(keys.end(), emulated.begin(), emulated.end());
    return keys;
  };
  expect_same(tiny(on_gpu({})));
  expect_same(tiny(on_gpu({"dtype=bfloat16", "vocab_size=2000"})));
  expect_same(deepseek(on_gpu({"dtype=bfloat16", "remat_policy=full"})));
}

// The kernels that a step starts on a GPU: those of a run of three steps without those of a run of two.
TEST(Plan, CountsTheKernelsOfAGpu) {
  const auto started = [](Keys keys, int steps) {
    keys.push_back(fmt::format("steps={}", steps));
    const std::int64_t before = gpu::launches();
    run_summary_of(keys);
    return gpu::launches() - before;
  };
  for (Keys keys : {tiny({"dtype=bfloat16"}), deepseek({"dtype=bfloat16", "remat_policy=full"})}) {
    keys.push_back("device=cuda_emulated");
    SCOPED_TRACE(fmt::format("{}", fmt::join(keys, " ")));
    const json plan = plan_of(keys);
    const auto planned = plan["kernels_per_rank"].get<double>();
    const auto of_step = static_cast<double>(started(keys, 3) - started(keys, 2));
    EXPECT_NEAR(planned, of_step, 0.02 * of_step);
    EXPECT_DOUBLE_EQ(plan["seconds"]["kernel_starts"], 1.3e-6 * planned);
  }
}

TEST(Plan, RematPolicies) {
  for (const char* policy : {"none", "full", "minimal", "minimal_with_context", "save_qkv_proj"})
    expect_same(deepseek({fmt::format("remat_policy={}", policy)}));
  expect_same(
      deepseek({"remat_policy=full", "ranks=4", "ici_fsdp_parallelism=2", "ici_expert_parallelism=2"}));
}

TEST(Plan, ExpertStrategies) {
  const Keys expert{"ranks=4", "ici_fsdp_parallelism=1", "ici_expert_parallelism=4"};
  auto with = [&](Keys keys) {
    keys.insert(keys.begin(), expert.begin(), expert.end());
    return keys;
  };
  expect_same(tiny(with({"use_ring_of_experts=true"})));
  expect_same(tiny(with({"use_ring_of_experts=false"})));
  expect_same(tiny(with({"sparse_matmul=false"})));
  expect_same(tiny(with({"sparse_matmul=false", "moe_dispatch_no_expert_sharding=true"})));
  expect_same(tiny(with({"sparse_matmul=false", "capacity_factor=1.5"})));
  expect_same(
      tiny(with({"sparse_matmul=false", "capacity_factor=1", "moe_dispatch_no_expert_sharding=true"})));
  expect_same(tiny(with({"use_ring_of_experts=true", "num_moe_token_chunks=2"})));
  expect_same(tiny(with({"use_ring_of_experts=false", "num_moe_token_chunks=4", "dtype=bfloat16"})));
  expect_same(tiny(with({"use_ring_of_experts=true", "num_moe_emb_chunks=2"})));
  expect_same(tiny(with({"num_moe_emb_chunks=4", "num_moe_token_chunks=2", "dtype=bfloat16"})));
  expect_same(tiny(with({"use_ring_of_experts=true", "ragged_buffer_factor=0.5"})));
  expect_same(tiny(with({"use_ring_of_experts=false", "ragged_buffer_factor=0.5"})));
  expect_same(tiny(with({"compat=maxtext"})));
  expect_same(tiny(with({"compat=maxtext", "use_ring_of_experts=true"})));
}

// With a cap the load of a run decides how many passes there are; here it is balanced.
TEST(Plan, FurtherPasses) {
  const Keys capped{"ranks=4", "ici_fsdp_parallelism=1", "ici_expert_parallelism=4",
                    "moe_dropless_fallback=layer", "ragged_buffer_factor=0.4"};
  auto with = [&](Keys keys) {
    keys.insert(keys.begin(), capped.begin(), capped.end());
    return keys;
  };
  expect_same(tiny(with({"use_ring_of_experts=true"})));
  expect_same(tiny(with({"use_ring_of_experts=false"})));
  expect_same(tiny(with({"use_ring_of_experts=false", "remat_policy=none", "dtype=bfloat16"})));
  expect_same(tiny(with({"use_ring_of_experts=true", "num_moe_token_chunks=2", "num_moe_emb_chunks=2"})));
  expect_same(deepseek({"moe_dropless_fallback=layer", "ragged_buffer_factor=0.4"}));
}

TEST(Plan, SkewCostsPassesNotMemoryUnderACap) {
  const auto curve_of = [](const Keys& more) {
    Keys keys = tiny({"ranks=4", "ici_fsdp_parallelism=1", "ici_expert_parallelism=4", "num_experts=8",
                      "num_experts_per_tok=2", "max_target_length=2048", "ragged_buffer_factor=1"});
    keys.insert(keys.end(), more.begin(), more.end());
    const Config config = Config::from_args(keys);
    const Mesh mesh = mesh_from_config(config);
    const Topology topology = Topology::read("h100", mesh.size());
    return skew_curve(config, mesh, topology, plan_step(config, mesh, topology));
  };
  for (const char* ring : {"use_ring_of_experts=false", "use_ring_of_experts=true"}) {
    const auto capped = curve_of({ring, "moe_dropless_fallback=layer"}),
               free = curve_of({ring, "ragged_buffer_factor=-1"});
    ASSERT_EQ(capped.size(), free.size());
    EXPECT_EQ(capped.front().total_peak_bytes, free.front().total_peak_bytes);
    for (std::size_t i = 0; i < capped.size(); ++i) {
      EXPECT_EQ(capped[i].passes, static_cast<std::int64_t>(std::ceil(capped[i].imbalance)));
      EXPECT_EQ(free[i].passes, 0);
      EXPECT_LT(static_cast<double>(capped[i].total_peak_bytes),
                1.1 * static_cast<double>(capped.front().total_peak_bytes))
          << ring << " at " << capped[i].imbalance;
    }
    EXPECT_GT(static_cast<double>(free.back().total_peak_bytes),
              1.5 * static_cast<double>(capped.back().total_peak_bytes));
    EXPECT_GT(capped.back().seconds, capped.front().seconds);
  }
}

// What is started ahead is in memory earlier, and counted where it is needed.
TEST(Plan, OverlapOfCommunication) {
  const Keys ahead{"overlap_communication=on", "ranks=4", "ici_fsdp_parallelism=2"};
  auto with = [&](Keys keys) {
    keys.insert(keys.begin(), ahead.begin(), ahead.end());
    return keys;
  };
  expect_same(tiny(with({"ici_expert_parallelism=2", "base_num_decoder_layers=4"})));
  expect_same(tiny(with({"ici_expert_parallelism=2", "dtype=bfloat16", "remat_policy=none"})));
  expect_same(tiny(with({"ici_expert_parallelism=2", "num_moe_token_chunks=2"})));
  expect_same(tiny(with({"ici_expert_parallelism=2", "use_ring_of_experts=true", "num_moe_token_chunks=4"})));
  expect_same(tiny(with({"ici_expert_parallelism=2", "use_ring_of_experts=true", "num_moe_emb_chunks=4"})));
  expect_same(tiny(with({"ici_expert_parallelism=2", "num_moe_emb_chunks=2"})));
  expect_same(deepseek(with({"ici_tensor_parallelism=2", "gradient_accumulation_steps=2"})));
  expect_same(deepseek(with({"ici_fsdp_transpose_parallelism=2", "dtype=bfloat16"})));
  expect_same(deepseek(with({"ici_pipeline_parallelism=2"})));
  expect_same(deepseek(with({"ici_data_parallelism=2", "opt_type=muon"})));
  expect_same(deepseek(
      with({"ici_expert_parallelism=2", "moe_dropless_fallback=layer", "ragged_buffer_factor=0.4"})));
}

// A layer's gathers are on their way while the one before computes.
TEST(Plan, OverlapHidesGathersBehindWork) {
  const Keys more{"ranks=16", "ici_fsdp_parallelism=16", "base_emb_dim=512", "base_mlp_dim=1024",
                  "max_target_length=2048"};
  const auto plan = [&](const char* overlap) {
    Keys keys = tiny(more);
    keys.push_back(std::string("overlap_communication=") + overlap);
    const Config config = Config::from_args(keys);
    const Mesh mesh = mesh_from_config(config);
    return plan_step(config, mesh, Topology::read("h100", mesh.size()));
  };
  const StepPlan off = plan("off"), on = plan("on");
  EXPECT_LT(on.network_seconds, 0.9 * off.network_seconds);
  EXPECT_NEAR(on.compute_seconds, off.compute_seconds, 1e-9);
  EXPECT_GT(on.cost.peak_bytes, off.cost.peak_bytes);
}

// As in a run: GPUs of one machine are processes, between which communication overlaps unless told not to.
TEST(Plan, EveryGpuIsAProcess) {
  const auto plan = [&](const char* topology, const char* overlap) {
    Keys keys = tiny({"ranks=8", "ici_fsdp_parallelism=8", "base_emb_dim=512", "base_mlp_dim=1024"});
    keys.push_back(std::string("overlap_communication=") + overlap);
    const Config config = Config::from_args(keys);
    const Mesh mesh = mesh_from_config(config);
    return plan_step(config, mesh, Topology::read(topology, mesh.size())).cost.peak_bytes;
  };
  EXPECT_EQ(plan("h100", "auto"), plan("h100", "on"));
  EXPECT_LT(plan("h100", "off"), plan("h100", "on"));
  EXPECT_EQ(plan("cpu", "auto"), plan("cpu", "off"));
}

TEST(Plan, PredictionLayersAndClippedScores) {
  expect_same(
      deepseek({"mtp_num_layers=2", "ranks=4", "ici_fsdp_parallelism=2", "ici_tensor_parallelism=2"}));
  expect_same(deepseek(
      {"use_qk_clip=true", "opt_type=muon", "ranks=4", "ici_fsdp_parallelism=2", "ici_data_parallelism=2"}));
}

TEST(Plan, Optimizers) {
  expect_same(deepseek({"opt_type=muon", "ranks=4", "ici_fsdp_parallelism=2", "ici_data_parallelism=2"}));
  expect_same(tiny({"opt_type=sgd", "ranks=2"}));
}

TEST(Plan, FrozenParametersHaveWeightsOnly) {
  const Keys layout{"ranks=4", "ici_fsdp_parallelism=2", "ici_expert_parallelism=2"};
  const auto with = [&](const std::string& key) {
    Keys keys = layout;
    keys.push_back(key);
    return deepseek(keys);
  };
  for (const char* mask : {"moe/gate", "attention", "wi_0", "embedding", "^(?!.*moe).*"})
    expect_same(with(std::string("trainable_parameters_mask=") + mask));
  const json all = plan_of(deepseek(layout))["per_rank"],
             norms = plan_of(with("trainable_parameters_mask=norm"))["per_rank"];
  EXPECT_EQ(all["weights_bytes"], norms["weights_bytes"]);
  for (const char* key : {"gradients_bytes", "optimizer_bytes"}) {
    EXPECT_GT(norms[key], 0);
    EXPECT_LT(norms[key].get<double>(), 0.05 * all[key].get<double>()) << key;
  }
  EXPECT_THROW(plan_of(with("trainable_parameters_mask=no_such_name")), Error);
  EXPECT_THROW(plan_of(with("trainable_parameters_mask=(")), Error);
}

TEST(Plan, Meshes) {
  expect_same(tiny({"ranks=4"}));
  expect_same(deepseek({"ranks=4", "ici_fsdp_parallelism=2", "ici_tensor_parallelism=2"}));
  expect_same(tiny({"ranks=3", "ici_fsdp_parallelism=1", "ici_data_parallelism=3"}));
  expect_same(tiny({"ranks=4", "ici_fsdp_parallelism=1", "ici_tensor_parallelism=4"}));
  expect_same(deepseek(
      {"ranks=4", "ici_fsdp_parallelism=2", "ici_data_parallelism=2", "gradient_accumulation_steps=3"}));
  expect_same(deepseek({"ranks=8", "ici_fsdp_parallelism=2", "ici_tensor_parallelism=2",
                        "ici_expert_parallelism=2", "use_ring_of_experts=true"}));
  expect_same(deepseek({"ranks=8", "ici_fsdp_parallelism=2", "ici_tensor_parallelism=2",
                        "ici_expert_parallelism=2", "dtype=bfloat16"}));
  expect_same(tiny({"ranks=4", "ici_fsdp_parallelism=2", "ici_context_parallelism=2"}));
  expect_same(deepseek({"ranks=4", "ici_fsdp_parallelism=2", "ici_pipeline_parallelism=2"}));
  expect_same(tiny({"ranks=3", "ici_fsdp_parallelism=1", "ici_pipeline_parallelism=3",
                    "pipeline_schedule=gpipe", "num_pipeline_microbatches=6"}));
}

TEST(Plan, BlocksOfStages) {
  const Keys piped{"ranks=4", "ici_fsdp_parallelism=2", "ici_pipeline_parallelism=2",
                   "base_num_decoder_layers=5"};
  const auto with = [&](Keys keys) {
    keys.insert(keys.begin(), piped.begin(), piped.end());
    return keys;
  };
  expect_same(tiny(with({"num_pipeline_repeats=2"})));
  expect_same(tiny(with({"num_pipeline_repeats=2", "num_pipeline_microbatches=4"})));
  expect_same(tiny(with({"num_pipeline_repeats=2", "pipeline_schedule=gpipe", "overlap_communication=on"})));
  const auto plan = [&](const char* repeats) {
    Keys keys = tiny(with({"num_pipeline_microbatches=4"}));
    keys.push_back(std::string("num_pipeline_repeats=") + repeats);
    return plan_of(keys);
  };
  const json once = plan("1"), twice = plan("2");
  EXPECT_EQ(once["stages"][1]["layers"], json({2, 5}));
  EXPECT_EQ(twice["stages"][0]["layers"], json({0, 1, 2, 3}));
  EXPECT_EQ(twice["stages"][1]["layers"], json({1, 2, 3, 5}));
  const auto share = [](const json& of) {
    const double bubble = of["seconds"]["bubble"], all = of["estimated_step_seconds"];
    return bubble / (all - bubble);
  };
  EXPECT_NEAR(share(once), 1.0 / 4, 1e-12);
  EXPECT_NEAR(share(twice), 1.0 / 8, 1e-12);
}

TEST(Plan, TwoStagesHaveTheEmbedding) {
  const Keys piped{"ranks=4", "ici_fsdp_parallelism=2", "ici_pipeline_parallelism=2"};
  const auto with = [&](Keys keys) {
    keys.insert(keys.begin(), piped.begin(), piped.end());
    return keys;
  };
  expect_same(tiny(with({"logits_via_embedding=true"})));
  expect_same(tiny(with({"logits_via_embedding=true", "dtype=bfloat16", "grad_dtype=bfloat16"})));
  expect_same(deepseek(with({"mtp_num_layers=1"})));
  const json tied = plan_of(tiny(with({"logits_via_embedding=true", "vocab_size=4000"}))),
             own = plan_of(tiny(with({"vocab_size=4000"})));
  const auto per_stage = [](const json& of, int stage, const char* key) {
    return of["stages"][static_cast<std::size_t>(stage)]["per_rank"][key].get<std::int64_t>();
  };
  for (const int stage : {0, 1})
    EXPECT_EQ(per_stage(tied, stage, "weights_bytes"), per_stage(own, stage, "weights_bytes"));
  EXPECT_LT(per_stage(tied, 0, "optimizer_bytes"), per_stage(own, 0, "optimizer_bytes"))
      << "each has the state of a half";
}

TEST(Plan, MeshFilesOfTheReference) {
  const std::vector<Keys> layouts{
      {"custom_mesh_and_rule=pure-fsdp", "ici_fsdp_parallelism=8"},
      {"custom_mesh_and_rule=ep-as-dp", "ici_expert_parallelism=2", "ici_fsdp_parallelism=2",
       "ici_fsdp_transpose_parallelism=2"},
      {"custom_mesh_and_rule=ep-as-cp", "ici_expert_parallelism=4", "ici_fsdp_parallelism=2"},
      {"custom_mesh_and_rule=cp-as-ep", "ici_expert_parallelism=2", "ici_context_parallelism=2",
       "ici_fsdp_parallelism=2"},
      {"custom_mesh_and_rule=fsdp-as-dp-for-attn", "ici_expert_parallelism=4", "ici_fsdp_parallelism=2"},
      {"custom_mesh_and_rule=pipeline-large-moe", "ici_expert_parallelism=2", "ici_tensor_parallelism=2",
       "ici_fsdp_parallelism=2"},
      {"custom_mesh_and_rule=shard-exp-on-fsdp", "ici_expert_parallelism=2", "ici_fsdp_parallelism=2",
       "ici_context_parallelism=2"}};
  for (Keys layout : layouts) {
    layout.push_back("ranks=8");
    expect_same(tiny(layout));
    expect_same(deepseek(layout));
  }
}

TEST(Plan, EveryStageOfAPipeline) {
  const json plan = plan_of(tiny({"ranks=4", "ici_fsdp_parallelism=2", "ici_pipeline_parallelism=2",
                                  "vocab_size=4000", "base_num_decoder_layers=3"}));
  ASSERT_EQ(plan["stages"].size(), 2u);
  EXPECT_EQ(plan["stages"][0]["per_rank"], plan["per_rank"]);
  EXPECT_EQ(plan["stages"][0]["layers"], json({0, 1}));
  EXPECT_EQ(plan["stages"][1]["layers"], json({1, 3}));
  EXPECT_GT(plan["stages"][1]["per_rank"]["total_peak_bytes"], plan["per_rank"]["total_peak_bytes"])
      << "two layers and the logits";
  EXPECT_FALSE(plan_of(tiny({"ranks=2"})).contains("stages"));
}

// The load of a run is what it is; the rest is exact.
TEST(Plan, UnevenLoadChangesRaggedBytesOnly) {
  const Keys keys = tiny({"ranks=4", "ici_fsdp_parallelism=1", "ici_expert_parallelism=4", "num_experts=8",
                          "num_experts_per_tok=2", "use_ring_of_experts=false"});
  json run = run_summary_of(keys)["collectives"], plan = plan_of(keys)["collectives"];
  ASSERT_EQ(run.size(), plan.size());
  bool ragged = false;
  for (std::size_t i = 0; i < run.size(); ++i) {
    if (run[i]["kind"] == "ragged_all_to_all") {
      EXPECT_NEAR(plan[i]["bytes"].get<double>(), run[i]["bytes"].get<double>(),
                  0.5 * run[i]["bytes"].get<double>());
      plan[i]["bytes"] = run[i]["bytes"];
      ragged = true;
    }
    EXPECT_EQ(plan[i].dump(), run[i].dump());
  }
  EXPECT_TRUE(ragged);
}

TEST(Plan, SkewRaisesMemoryAndTimeUntilEveryRowIsHere) {
  const Config config = Config::from_args(
      tiny({"ranks=4", "ici_fsdp_parallelism=1", "ici_expert_parallelism=4", "num_experts=8",
            "num_experts_per_tok=2", "max_target_length=512", "use_ring_of_experts=false"}));
  const Mesh mesh = mesh_from_config(config);
  const Topology topology = Topology::read("h100", mesh.size());
  const StepPlan plan = plan_step(config, mesh, topology);
  const auto curve = skew_curve(config, mesh, topology, plan);
  ASSERT_GE(curve.size(), 4u);
  EXPECT_EQ(curve.front().imbalance, 1);
  EXPECT_EQ(curve.back().imbalance, 4);
  for (std::size_t i = 1; i < curve.size(); ++i) {
    EXPECT_GT(curve[i].total_peak_bytes, curve[i - 1].total_peak_bytes);
    EXPECT_GT(curve[i].seconds, curve[i - 1].seconds);
  }
  EXPECT_EQ(fits_up_to(curve, topology.memory_bytes), 4);
  EXPECT_EQ(fits_up_to(curve, curve[0].total_peak_bytes - 1), 0);
  const std::int64_t middle = (curve[2].total_peak_bytes + curve[3].total_peak_bytes) / 2;
  EXPECT_NEAR(fits_up_to(curve, middle), (curve[2].imbalance + curve[3].imbalance) / 2, 0.1);
}

TEST(Plan, IsDeterministic) {
  const Keys keys = deepseek({"ranks=64", "ici_fsdp_parallelism=16", "ici_expert_parallelism=4"});
  EXPECT_EQ(plan_of(keys).dump(), plan_of(keys).dump());
}

Keys large(const Keys& more) {
  Keys keys{"model_name=deepseek3-671b", "per_device_batch_size=1", "max_target_length=4096", "ranks=4096",
            "ici_expert_parallelism=64", "ici_fsdp_parallelism=64"};
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

TEST(Plan, TheLargestModelOnFourThousandRanks) {
  const json plan = plan_of(large({}));
  EXPECT_EQ(plan["layers"].size(), 61u);
  EXPECT_NEAR(plan["parameters"].get<double>(), 671e9, 1e9);
  // Each rank holds a 4,096th of the experts' weights in float32 and more of what experts do not split.
  EXPECT_GT(plan["per_rank"]["weights_bytes"].get<double>(), 671e9 * 4 / 4096);
}

// A plan's time is in the kernels that it counts. They are those of one rank, however many there are; padding
// of uneven shares is a few of them.
TEST(Plan, WorksAsMuchForFourThousandRanksAsForSixtyFour) {
  const double many = plan_of(large({}))["kernels_per_rank"],
               few = plan_of(large(
                   {"ranks=64", "ici_expert_parallelism=8", "ici_fsdp_parallelism=8"}))["kernels_per_rank"];
  EXPECT_NEAR(many, few, few / 100);
  EXPECT_LT(many, 61 * 2000);
}

TEST(Search, FindsLegalMeshesThatFit) {
  const Config config = Config::from_args(tiny({"ranks=8", "num_experts=4", "num_experts_per_tok=2"}));
  const Topology topology = Topology::read("h100", 8);
  const SearchResult found = search_meshes(config, topology, 100);
  EXPECT_EQ(found.fitting.size(), static_cast<std::size_t>(found.legal - found.too_large));
  EXPECT_GE(found.legal, 10);
  double before = 0;
  for (const FoundMesh& f : found.fitting) {
    EXPECT_GE(f.plan.seconds(), before);
    before = f.plan.seconds();
    for (const std::string& key : f.keys) EXPECT_NE(key, "ici_expert_parallelism=8") << "of four experts";
    Keys keys = tiny({"ranks=8", "num_experts=4", "num_experts_per_tok=2"});
    keys.insert(keys.end(), f.keys.begin(), f.keys.end());
    EXPECT_EQ(plan_of(keys)["mesh"], f.mesh);
  }
}

TEST(Search, LeavesOutWhatDoesNotFit) {
  const Config config = Config::from_args(tiny({"ranks=4"}));
  Topology topology = Topology::read("h100", 4);
  std::int64_t largest = 0, smallest = topology.memory_bytes;
  for (const FoundMesh& f : search_meshes(config, topology, 100).fitting) {
    largest = std::max(largest, f.plan.cost.peak_bytes);
    smallest = std::min(smallest, f.plan.cost.peak_bytes);
  }
  topology.memory_bytes = (largest + smallest) / 2;
  const SearchResult found = search_meshes(config, topology, 100);
  EXPECT_GT(found.too_large, 0);
  EXPECT_FALSE(found.fitting.empty());
  for (const FoundMesh& f : found.fitting) EXPECT_LE(f.plan.cost.peak_bytes, topology.memory_bytes);
}

TEST(Topology, CollectivesOverNodesTakeTheLinkBetweenThem) {
  const Topology t = Topology::read("h100", 64);
  const ProcessGroup inside{{0, 1, 2, 3, 4, 5, 6, 7}, 0, "expert"},
      across{{0, 8, 16, 24, 32, 40, 48, 56}, 0, "data"};
  const double fast = t.transfer_seconds({Collective::all_gather, inside, 1 << 30}),
               slow = t.transfer_seconds({Collective::all_gather, across, 1 << 30});
  EXPECT_NEAR(fast, (1 << 30) / 450e9 / 0.8, 1e-4);
  EXPECT_NEAR(slow, (1 << 30) / 50e9 / 0.8, 1e-4);
}

TEST(Topology, AWrongFileIsOneLine) {
  const std::string file = (fs::path(::testing::TempDir()) / "switchyard_topology.yml").string();
  auto refused = [&](const std::string& text) -> std::string {
    std::ofstream(file) << text;
    try {
      Topology::read(file, 8);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::usage);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refused("ranks_per_node: 8\n").find("memory_gib"), std::string::npos);
  EXPECT_NE(refused("ranks_per_node: none\n").find("ranks_per_node"), std::string::npos);
  std::string good;
  for (const char* key : {"ranks_per_node", "memory_gib", "bf16_tflops", "f32_tflops", "memory_gb_per_s",
                          "inside_gb_per_s", "inside_latency_us", "between_gb_per_s", "between_latency_us",
                          "compute_efficiency", "memory_efficiency", "network_efficiency"})
    good += std::string(key) + ": 1\n";
  EXPECT_EQ(refused(good), "");
  const std::string gpu = good + "compute_capability: 9.0\n";
  EXPECT_EQ(refused(gpu), "");
  EXPECT_EQ(Topology::read(file, 8).kernel_start_seconds, 0);
  EXPECT_EQ(refused(gpu + "kernel_start_us: 2\n"), "");
  EXPECT_DOUBLE_EQ(Topology::read(file, 8).kernel_start_seconds, 2e-6);
  EXPECT_NE(refused(gpu + "kernel_start_us: -1\n").find("kernel_start_us"), std::string::npos);
  EXPECT_NE(refused(good + "kernel_start_us: 2\n").find("kernel_start_us"), std::string::npos) << "no GPU";
  EXPECT_NE(refused(good + "memory_gibs: 3\n").find("nearest is memory_gib"), std::string::npos);
  fs::remove(file);
  EXPECT_THROW(Topology::read("h10", 8), Error);
}

TEST(Explain, SaysWhichRuleWasSkippedAndWhy) {
  const std::string rules =
      "logical_axis_rules=[[embed_moe,[expert]],[exp,[expert]],[mlp_moe,[fsdp]],[activation_batch,[fsdp,"
      "expert]]]";
  const Config config =
      Config::from_args(tiny({"ranks=4", "ici_fsdp_parallelism=2", "ici_expert_parallelism=2", rules}));
  const Explanation e = explain_step(config, mesh_from_config(config));
  const auto row = std::find_if(e.parameters.begin(), e.parameters.end(),
                                [](const LayoutRow& r) { return r.name == "layers.1.moe.wi_0"; });
  ASSERT_NE(row, e.parameters.end());
  EXPECT_EQ(row->reasons[0], "not by exp -> expert: embed_moe has expert");
  EXPECT_EQ(row->reasons[1], "by embed_moe -> expert");
  EXPECT_EQ(row->reasons[2], "by mlp_moe -> fsdp");
}

TEST(Explain, NamesTheRuleTheAxesAndTheCollectives) {
  const Config config = Config::from_args(
      tiny({"ranks=8", "ici_data_parallelism=2", "ici_fsdp_parallelism=2", "ici_expert_parallelism=2"}));
  const Explanation e = explain_step(config, mesh_from_config(config));
  const auto row = std::find_if(e.parameters.begin(), e.parameters.end(),
                                [](const LayoutRow& r) { return r.name == "layers.1.moe.wi_0"; });
  ASSERT_NE(row, e.parameters.end());
  EXPECT_EQ(row->rules[0], "exp -> expert");
  EXPECT_EQ(row->reasons[0], "by exp -> expert");
  EXPECT_EQ(row->sharding.dims[0], Axes{"expert"});
  EXPECT_EQ(row->local[0], 2);
  EXPECT_EQ(row->collectives.front(), "forward: all_gather over fsdp");
  EXPECT_EQ(row->collectives.back(), "gradients: reduce_scatter over data");
  EXPECT_TRUE(std::any_of(e.activations.begin(), e.activations.end(), [](const LayoutRow& r) {
    return r.layer == 0 && std::find(r.dims.begin(), r.dims.end(), "activation_batch") != r.dims.end();
  }));
  EXPECT_TRUE(std::any_of(e.activations.begin(), e.activations.end(),
                          [](const LayoutRow& r) { return !r.collectives.empty(); }));
}

}  // namespace
}  // namespace switchyard
