// Offload: values of remat and optimizer state that wait in memory of the host, on an emulated GPU. Numbers
// are those of a run without it to the bit, and memory falls as `plan` says.
#include "core/offload.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "autograd/op.h"
#include "core/workers.h"
#include "kernels/pointwise/clamp.h"
#include "kernels/pointwise/rms_norm.h"
#include "kernels/product/gemm.h"
#include "plan/planner.h"
#include "train/run.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using Keys = std::vector<std::string>;
using nlohmann::json;

constexpr std::int64_t kLayers = 4, kInputBytes = 16 * 32 * 32 * 4;  // of kActivations

class Quiet : public RunObserver {
 public:
  void line(const std::string&) override {}
  void progress(std::int64_t, const std::string&) override {}
};

Keys plus(Keys a, const Keys& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Every token goes to every expert, as plan assumes it.
Keys small(const Keys& more) {
  return plus(
      {"decoder_block=mixtral", "base_emb_dim=32", "base_num_query_heads=4", "base_num_kv_heads=2",
       "head_dim=16", "base_mlp_dim=64", "base_num_decoder_layers=4", "num_experts=4",
       "num_experts_per_tok=4", "vocab_size=96", "max_target_length=32", "per_device_batch_size=2", "steps=2",
       "dtype=float32", "dataset_type=synthetic", "enable_tensorboard=false", "learning_rate=0.01",
       // The plan has a process a GPU, which exchange ahead; ranks of one process do not.
       "overlap_communication=off"},
      more);
}

struct Ran {
  json summary;
  std::vector<std::string> numbers;  // of each step: loss, norms of gradients and of weights
};

class Folder {
 public:
  Folder() { EXPECT_NE(::mkdtemp(path_.data()), nullptr); }
  ~Folder() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = (fs::path(::testing::TempDir()) / "switchyard_offload.XXXXXX").string();
};

Ran train_in(const Folder& folder, const Keys& keys) {
  Quiet quiet;
  const RunReport report =
      run_training(Config::from_args(plus(keys, {"base_output_directory=" + folder.path(), "run_name=run"})),
                   *one_process(), quiet);
  Ran ran;
  std::ifstream summary(report.folder + "/summary.json"), metrics(report.folder + "/metrics.jsonl");
  ran.summary = json::parse(summary);
  for (std::string line; std::getline(metrics, line);) {
    const json step = json::parse(line);
    std::string text;
    for (const char* key : {"learning/loss", "learning/raw_grad_norm", "learning/param_norm"})
      text += step.at(key).dump() + " ";
    ran.numbers.push_back(text);
  }
  return ran;
}

Ran train_on_gpu(const Keys& keys) {
  const Folder folder;
  return train_in(folder, plus(keys, {"device=cuda_emulated"}));
}

std::int64_t bytes_of(const json& summary, const char* key) {
  return summary["per_rank"].at(key).get<std::int64_t>();
}

// What rank 0 has on a GPU whose kernels are those that the emulator runs.
json planned(const Keys& keys) {
  const Config config = Config::from_args(keys);
  const Mesh mesh = mesh_from_config(config);
  Topology topology = Topology::read("h100", mesh.size());
  topology.gpu_major = 8;
  return plan_stages(config, mesh, topology).front().measured;
}

// `more` makes less memory of the device and takes some of the host: as planned, with the numbers of `base`.
// Returns by how much the peak falls.
std::int64_t expect_less_memory(const Keys& base, const Keys& more) {
  SCOPED_TRACE(testing::PrintToString(plus(base, more)));
  const Keys keys = small(base), offloading = plus(keys, more);
  const Ran without = train_on_gpu(keys), with = train_on_gpu(offloading);
  EXPECT_EQ(with.numbers.size(), 2u);
  EXPECT_EQ(with.numbers, without.numbers);
  EXPECT_EQ(bytes_of(without.summary, "host_offload_peak_bytes"), 0);
  EXPECT_GT(bytes_of(with.summary, "host_offload_peak_bytes"), 0);
  const json plan = planned(keys), offloading_plan = planned(offloading);
  for (const char* key : {"weights_bytes", "optimizer_bytes", "host_offload_peak_bytes"})
    EXPECT_EQ(bytes_of(offloading_plan, key), bytes_of(with.summary, key)) << key;
  for (std::size_t i = 0; i < static_cast<std::size_t>(kLayers); ++i)
    EXPECT_EQ(offloading_plan["layers"][i], with.summary["layers"][i]);
  const char* const peak = "total_peak_bytes";
  const auto got = static_cast<double>(bytes_of(with.summary, peak));
  EXPECT_NEAR(static_cast<double>(bytes_of(offloading_plan, peak)), got, 0.03 * got);
  EXPECT_LT(bytes_of(offloading_plan, peak), bytes_of(plan, peak));
  EXPECT_LT(bytes_of(with.summary, peak), bytes_of(without.summary, peak));
  return bytes_of(without.summary, peak) - bytes_of(with.summary, peak);
}

// What a step holds for backward is more than its weights.
const Keys kActivations{"per_device_batch_size=16", "base_mlp_dim=16", "head_dim=8", "num_experts=2",
                        "num_experts_per_tok=2"};
const Keys kInputs{"remat_policy=custom", "decoder_layer_input=offload"};

TEST(Offload, InputsOfLayersWaitOnTheHost) {
  // While a layer goes back, its input and that of the layer before are there, and gradients grow.
  EXPECT_GT(expect_less_memory(kActivations, kInputs), kInputBytes);
  const Ran with = train_on_gpu(small(plus(kActivations, kInputs)));
  EXPECT_EQ(bytes_of(with.summary, "host_offload_peak_bytes"), kLayers * kInputBytes);
}

TEST(Offload, NamedValuesWaitOnTheHost) {
  const Keys& base = kActivations;
  expect_less_memory(plus(base, {"remat_policy=minimal"}), {"remat_policy=minimal_offloaded"});
  expect_less_memory(plus(base, {"remat_policy=save_qkv_proj"}), {"remat_policy=qkv_proj_offloaded"});
  expect_less_memory(plus(base, {"remat_policy=custom", "context=device", "moe_mlpwi_0=device"}),
                     {"context=offload", "moe_mlpwi_0=offload"});
}

TEST(Offload, OptimizerStateWaitsOnTheHost) {
  const Keys state{"optimizer_memory_host_offload=true"};
  expect_less_memory({"opt_type=adamw"}, state);
  expect_less_memory({"opt_type=muon", "ranks=4", "ici_fsdp_parallelism=2", "ici_expert_parallelism=2",
                      "per_device_batch_size=1"},
                     state);
}

TEST(Offload, RanksAndStages) {
  const Keys all = plus(kInputs, {"query_proj=offload", "optimizer_memory_host_offload=true"});
  const Keys base = plus(kActivations, {"ranks=4", "per_device_batch_size=8"});
  expect_less_memory(plus(base, {"ici_fsdp_parallelism=2", "ici_pipeline_parallelism=2",
                                 "num_pipeline_microbatches=4", "gradient_accumulation_steps=2"}),
                     all);
}

TEST(Offload, CheckpointsHoldStateOfTheHost) {
  const Keys keys =
      plus(small({}), {"device=cuda_emulated", "enable_checkpointing=true", "checkpoint_period=2", "steps=4",
                       "learning_rate_schedule_steps=4", "weight_digest_interval=1"});
  const Keys state{"optimizer_memory_host_offload=true"};
  const Folder folder, plain;
  train_in(folder, plus(keys, plus(state, {"steps=2"})));
  const Ran went_on = train_in(folder, plus(keys, state)), without = train_in(plain, keys);
  ASSERT_EQ(without.numbers.size(), 4u);
  EXPECT_EQ(went_on.numbers, without.numbers);
}

TEST(Offload, TheCpuKeepsItAll) {
  const Folder one, other;
  const Ran with = train_in(one, small(plus(kInputs, {"optimizer_memory_host_offload=true",
                                                      "parameter_memory_host_offload=true"}))),
            without = train_in(other, small({}));
  EXPECT_EQ(with.numbers, without.numbers);
  EXPECT_EQ(with.summary["per_rank"], without.summary["per_rank"]);
  EXPECT_EQ(bytes_of(with.summary, "host_offload_peak_bytes"), 0);
}

// Frozen experts of a layer.
TEST(Offload, WeightsLieOnTheHost) {
  expect_less_memory({"trainable_parameters_mask=attention"}, {"weight_places=layers.2.moe.w=host"});
}

// Frozen ones, and those that updates fetch and send back, on any number of ranks.
TEST(Offload, WeightsOfTheHostAreTrained) {
  const Keys few = small({"base_num_decoder_layers=2", "base_emb_dim=16", "head_dim=8", "base_mlp_dim=16",
                          "vocab_size=32", "max_target_length=8", "per_device_batch_size=1"});
  for (const Keys& base :
       {Keys{"trainable_parameters_mask=attention", "remat_policy=none"},
        Keys{"dtype=bfloat16", "gradient_accumulation_steps=2", "logits_via_embedding=true"},
        Keys{"optimizer_memory_host_offload=true", "mtp_num_layers=1"},
        Keys{"opt_type=muon", "ranks=4", "ici_fsdp_parallelism=2", "ici_expert_parallelism=2"},
        Keys{"weight_format=int8", "trainable_parameters_mask=norm,embedding", "base_emb_dim=32",
             "head_dim=32", "base_mlp_dim=32"}}) {
    SCOPED_TRACE(testing::PrintToString(base));
    const Ran there = train_on_gpu(plus(few, base)),
              away = train_on_gpu(plus(plus(few, base), {"parameter_memory_host_offload=true"}));
    ASSERT_EQ(there.numbers.size(), 2u);
    EXPECT_EQ(away.numbers, there.numbers);
    EXPECT_EQ(bytes_of(away.summary, "weights_bytes"), 0);
    EXPECT_EQ(bytes_of(away.summary, "host_weights_bytes"), bytes_of(there.summary, "weights_bytes"));
  }
}

// The first pattern that is found counts.
TEST(Offload, WeightsThatAreNamedStay) {
  const Keys keys = small({"max_target_length=8", "weight_places=layers.1.moe.wi=device,moe.w=host"});
  const std::int64_t layer = 4 * 3 * 32 * 64 * 4;
  EXPECT_EQ(bytes_of(train_on_gpu(keys).summary, "host_weights_bytes"), 3 * layer + layer / 3);
  EXPECT_EQ(bytes_of(planned(keys), "host_weights_bytes"), 3 * layer + layer / 3);
}

// A kernel whose row is chosen by one view takes no other of another memory.
TEST(Offload, KernelsNameWhatLiesElsewhere) {
  const Memory gpu(Device::cuda_emulated(), nullptr);
  const Tensor x = gpu.zeros(DType::f32, {4, 8}), y = gpu.zeros(DType::f32, {4, 8}),
               rstd = gpu.zeros(DType::f32, {4}), scale = Memory().zeros(DType::f32, {8}),
               b = Memory().zeros(DType::f32, {8, 8});
  Workers workers(1, 1);
  ThreadPool pool(workers);
  const auto refusal = [](const auto& run) -> std::string {
    try {
      run();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(
      refusal([&] {
        rms_norm(pool, {.x = x.view(), .scale = scale.view(), .y = y.view(), .rstd = rstd.view()});
      }),
      "[rms_norm] view 2 of its arguments, float32 [8], lies in memory of the host, and its kernel runs on "
      "a GPU");
  EXPECT_EQ(
      refusal([&] { clamp(pool, 1, b.view(), y.view()); }),
      "[clamp] view 1 of its arguments, float32 [8,8], lies in memory of the host, and its kernel runs on "
      "a GPU");
  EXPECT_EQ(
      refusal([&] { gemm(pool, {.a = x.view(), .b = b.view(), .c = y.view()}); }),
      "[gemm] view 2 of its arguments, float32 [8,8], lies in memory of the host, and its kernel runs on "
      "a GPU");
}

TEST(Offload, RefusesPlacesThatNameNothing) {
  const auto refusal = [](const std::string& places) -> std::string {
    try {
      train_on_gpu(small({"weight_places=" + places}));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::usage);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal("experts=host"),
            "[model] weight_places: 'experts' names no weight of this model, such as head");
  EXPECT_EQ(refusal("moe=disk"),
            "[config] weight_places: expected PATTERN=device or PATTERN=host, got 'moe=disk'");
  EXPECT_EQ(refusal("moe"), "[config] weight_places: expected PATTERN=device or PATTERN=host, got 'moe'");
  EXPECT_EQ(refusal("(=host"), "[config] weight_places: '(' is no regular expression");
}

}  // namespace
}  // namespace switchyard
