// The whole program on memory that only kernels, copies and collectives can touch (core/device.h): stored
// cases, training and generation, and what is said of an op that touches it all the same.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/generate_command.h"
#include "cli/verify_testing.h"
#include "core/fence.h"
#include "core/testing.h"
#include "ops/gradient_testing.h"
#include "train/run.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using Keys = std::vector<std::string>;
using nlohmann::json;

const fs::path kGolden = fs::path(kSourceFolder) / "tests/golden";

class Silent : public RunObserver {
 public:
  void line(const std::string&) override {}
  void progress(std::int64_t, const std::string&) override {}
};

class Folder {
 public:
  Folder() : path_((fs::path(::testing::TempDir()) / "switchyard_fenced.XXXXXX").string()) {
    EXPECT_NE(::mkdtemp(path_.data()), nullptr);
  }
  ~Folder() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Keys operator+(Keys a, const Keys& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void expect_pass(const fs::path& stored, const Keys& keys) {
  expect_verified(stored, Keys{"device=fenced"} + keys);
}

const std::vector<Keys> kLayouts{
    {},
    {"ranks=4", "ici_expert_parallelism=4", "use_ring_of_experts=true"},
    {"ranks=4", "ici_expert_parallelism=2", "ici_fsdp_parallelism=2"},
    {"ranks=4", "ici_expert_parallelism=4", "sparse_matmul=false", "capacity_factor=-1"},
    {"ranks=4", "ici_fsdp_parallelism=2", "ici_tensor_parallelism=2"},
    {"ranks=8", "ici_data_parallelism=2", "ici_expert_parallelism=2", "ici_tensor_parallelism=2"},
    {"ranks=4", "ici_expert_parallelism=2", "ici_fsdp_parallelism=2", "ragged_buffer_factor=0.5",
     "moe_dropless_fallback=layer"},
};

TEST(Fenced, HubCasesPass) {
  int cases = 0;
  for (const auto& item : fs::directory_iterator(kGolden / "hf")) {
    for (const Keys& layout : kLayouts) expect_pass(item.path(), layout);
    ++cases;
  }
  EXPECT_GE(cases, 3);
}

TEST(Fenced, LayerAndTrainingCasesPass) {
  int cases = 0;
  for (const std::string folder : {"maxtext_moe", "maxtext_train", "maxtext025_moe", "maxtext025_train"}) {
    for (const auto& item : fs::directory_iterator(kGolden / folder)) {
      const fs::path path = item.path();
      if (folder.ends_with("_train") && path.extension() != ".json") continue;
      expect_pass(path, {});
      // Which rows are dropped, and what the ring does on its way, are another layout's own.
      const std::string name = path.filename();
      const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
      if (!has("rbf") && !has("combine") && !has("capped"))
        expect_pass(path, {"ranks=4", "ici_fsdp_parallelism=4"});
      ++cases;
    }
  }
  EXPECT_GE(cases, 15);
}

// Losses and norms of some steps, the last of them after the run was stored and read again.
std::vector<json> steps_of(const Keys& keys) {
  const Folder folder;
  const Keys all = Keys{"decoder_block=deepseek",
                        "attention_type=mla",
                        "q_lora_rank=16",
                        "kv_lora_rank=8",
                        "qk_nope_head_dim=8",
                        "qk_rope_head_dim=8",
                        "v_head_dim=8",
                        "shared_experts=1",
                        "first_num_dense_layers=1",
                        "base_emb_dim=32",
                        "base_num_query_heads=4",
                        "base_num_kv_heads=4",
                        "base_mlp_dim=64",
                        "base_moe_mlp_dim=32",
                        "base_num_decoder_layers=3",
                        "num_experts=4",
                        "num_experts_per_tok=2",
                        "routed_bias=true",
                        "routed_score_func=sigmoid",
                        "routed_bias_update_rate=0.001",
                        "vocab_size=96",
                        "max_target_length=32",
                        "per_device_batch_size=2",
                        "dataset_type=synthetic",
                        "enable_tensorboard=false",
                        "load_balance_loss_weight=0.01",
                        "base_output_directory=" + folder.path(),
                        "run_name=run",
                        "enable_checkpointing=true",
                        "metrics_file=" + folder.path() + "/metrics.jsonl"} +
                   keys;
  Silent silent;
  for (const char* steps : {"steps=2", "steps=4"})
    run_training(Config::from_args(all + Keys{steps, "learning_rate_schedule_steps=4"}), *one_process(),
                 silent);
  std::vector<json> result;
  std::ifstream file(folder.path() + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    json step = json::parse(line), kept;
    for (const auto& [key, value] : step.items()) {
      if (!key.starts_with("perf/")) kept[key] = value;
    }
    result.push_back(kept);
  }
  return result;
}

TEST(Fenced, TrainsWithTheSameBits) {
  for (const Keys& layout :
       {Keys{},
        {"ranks=4", "ici_expert_parallelism=2", "ici_fsdp_parallelism=2"},
        {"ranks=2", "ici_expert_parallelism=2", "use_ring_of_experts=true", "opt_type=muon"},
        {"ranks=2", "ici_context_parallelism=2", "dtype=bfloat16", "weight_dtype=bfloat16"},
        {"ranks=2", "ici_pipeline_parallelism=2", "overlap_communication=on"}}) {
    const std::vector<json> host = steps_of(layout), fenced = steps_of(layout + Keys{"device=fenced"});
    ASSERT_GE(host.size(), 4u);
    EXPECT_EQ(fenced, host) << testing::PrintToString(layout);
  }
}

TEST(Fenced, GeneratesTheSameTokens) {
  const fs::path model = kGolden / "hf/deepseek3-tiny";
  const Folder folder;
  const auto tokens = [&](const Keys& keys) {
    const std::string file = folder.path() + "/generated.json";
    testing::internal::CaptureStdout();
    const int status = generate_command(
        Keys{model, "prompt=abc", "tokenizer_type=byte", "max_target_length=12", "--json", file} + keys);
    testing::internal::GetCapturedStdout();
    EXPECT_EQ(status, 0);
    std::ifstream stream(file);
    const json made = json::parse(stream);
    return made["results"][0]["tokens"];
  };
  for (const Keys& layout : {Keys{}, {"ranks=4", "ici_expert_parallelism=2", "ici_tensor_parallelism=2"}}) {
    const json host = tokens(layout);
    EXPECT_GE(host.size(), 1u);
    EXPECT_EQ(tokens(layout + Keys{"device=fenced"}), host);
  }
}

// An op that looks into its input by itself, as none may.
class PeekingOp : public Op {
 public:
  // `around`: by the address rather than by the tensor.
  explicit PeekingOp(bool around) : around_(around) {}
  std::string_view name() const override { return "peek"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {in[0]};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor out = c.zeros(in[0].dtype(), in[0].shape());
    const volatile float* const x =
        around_ ? reinterpret_cast<const float*>(in[0].buffer()->data()) : in[0].data<float>();
    if (*x > 1) return {in[0]};
    return {out};
  }
  std::vector<Tensor> backward(Context&, const BackwardCall&) const override { return {Tensor()}; }

 private:
  bool around_;
};

void peek(bool around) {
  autograd_test::on_mesh(Mesh(), [&](Context& c) {
    c.memory = Memory(Device::fenced(), nullptr);
    const Tensor x = c.zeros(DType::f32, {3});
    apply_one(c, std::make_shared<PeekingOp>(around), {make_leaf(x, {3}, replicated(1), false)});
  });
}

TEST(Fence, NamesTheOpThatAsksForTheHostsView) {
  std::string said;
  try {
    peek(false);
  } catch (const Error& error) {
    said = error.what();
  }
  EXPECT_NE(said.find("[peek] forward: [fenced] the host touched memory of the device"), std::string::npos)
      << said;
}

TEST(Fence, NamesTheOpThatFollowsAnAddress) {
  EXPECT_DEATH(
      {
        name_the_op_of_faults();
        peek(true);
      },
      "running op: peek");
}

}  // namespace
}  // namespace switchyard
