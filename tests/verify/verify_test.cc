// `switchyard verify` on stored cases: every number on several meshes and strategies, and that it notices
// what is wrong.
#include <cmath>
#include <limits>

#include "damaged_case.h"
#include "verify/layouts.h"

namespace switchyard::verify_test {
namespace {

std::vector<std::string> cases_in(const std::string& folder) {
  std::vector<std::string> cases;
  for (const auto& item : fs::directory_iterator(kGolden / folder)) {
    const fs::path path = item.path();
    if (item.is_directory() || folder.ends_with("_moe") || path.extension() == ".json") cases.push_back(path);
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

// Ring, ragged all-to-all and dense (both layouts) on expert axes; fsdp, tensor and their mixes.
const std::vector<std::string> kLayouts{
    "",
    "ranks=2 ici_expert_parallelism=2",
    "ranks=4 ici_expert_parallelism=4 use_ring_of_experts=true",
    "ranks=4 ici_fsdp_parallelism=2 ici_tensor_parallelism=2",
    "ranks=4 ici_expert_parallelism=4 sparse_matmul=false capacity_factor=-1",
    "ranks=4 ici_expert_parallelism=4 sparse_matmul=false capacity_factor=-1 "
    "moe_dispatch_no_expert_sharding=true",
    "ranks=8 ici_expert_parallelism=4 ici_fsdp_parallelism=2 use_ring_of_experts=true",
    "ranks=8 ici_data_parallelism=2 ici_expert_parallelism=2 ici_tensor_parallelism=2",
};

TEST(Verify, HuggingFaceFoldersOnEveryLayout) {
  for (const auto& layout : kLayouts) expect_pass(cases_in("hf"), layout);
}

// A case says what another layout changes by its meaning: capacities and buffers drop other rows, MaxText's balance
// loss of the dense path and of chunks is another, and only the ring rounds gradients on their way.
bool keeps_its_numbers(const std::string& path) {
  for (const char* part : {"dense", "rbf", "chunks", "combine"}) {
    if (fs::path(path).filename().string().find(part) != std::string::npos) return false;
  }
  return true;
}

TEST(Verify, MoeLayersOnEveryLayout) {
  for (const char* folder : {"maxtext_moe", "maxtext025_moe"}) {
    expect_pass(cases_in(folder), "");
    std::vector<std::string> steady = cases_in(folder);
    std::erase_if(steady, [](const std::string& path) { return !keeps_its_numbers(path); });
    EXPECT_GE(steady.size(), 5u);
    for (const auto& layout : kLayouts) {
      const bool dense = layout.find("sparse_matmul=false") != std::string::npos;
      if (!layout.empty() && !(dense && std::string(folder) == "maxtext025_moe")) expect_pass(steady, layout);
    }
  }
  for (const std::string mesh :
       {"ranks=2 ici_fsdp_parallelism=2", "ranks=8 ici_expert_parallelism=4 ici_tensor_parallelism=2"}) {
    for (const std::string model : {"mixtral_dense_cf1.25_aux_ep4", "deepseek3_dense_cf1.25_aux",
                                    "mixtral_dense_all_forced_aux"}) {
      expect_pass({kGolden / "maxtext025_moe" / (model + ".safetensors")}, mesh);
    }
  }
  for (const char* how : {"rowwise", "fixed"})
    expect_pass({kGolden / "maxtext025_moe" / (std::string("mixtral_ring_combine_") + how + "_aux_ep4.safetensors")},
                "ranks=8 ici_expert_parallelism=4 ici_tensor_parallelism=2");
}

TEST(Verify, TrainingRuns) {
  expect_pass(cases_in("maxtext_train"), "");
  expect_pass(cases_in("maxtext025_train"), "");
  std::vector<std::string> dropless = cases_in("maxtext025_train");
  std::erase_if(dropless, [](const std::string& path) { return path.find("capped") != std::string::npos; });
  expect_pass(dropless, "ranks=4 ici_expert_parallelism=2 ici_tensor_parallelism=2");
  expect_pass({kGolden / "maxtext025_train/deepseek3_1dev.json"},
              "ranks=8 ici_fsdp_parallelism=2 ici_expert_parallelism=4");
}

// Muon's matrices split and whole, replicated and not, experts over fsdp.
TEST(Verify, MuonOnEveryLayout) {
  const std::vector<std::string> runs = {kGolden / "maxtext_train/deepseek3_qkclip_1dev.json"};
  for (const std::string layout :
       {"ranks=2 ici_data_parallelism=2", "ranks=8",
        "ranks=8 ici_data_parallelism=2 ici_tensor_parallelism=2",
        "ranks=8 ici_fsdp_parallelism=2 ici_expert_parallelism=4 shard_exp_on_fsdp=true shard_mode=explicit",
        "ranks=4 custom_mesh_and_rule=shard-exp-on-fsdp shard_mode=explicit"}) {
    expect_pass(runs, layout);
  }
}

// Prediction layers, and the largest scores by which weights are clipped, wherever tokens and heads are.
TEST(Verify, PredictionAndClippingOnEveryLayout) {
  const std::vector<std::string> runs = {kGolden / "maxtext025_train/deepseek3_mtp_1dev.json",
                                         kGolden / "maxtext_train/deepseek3_qkclip_1dev.json"};
  for (const std::string layout :
       {"ranks=2 ici_data_parallelism=2 remat_policy=none", "ranks=2 ici_context_parallelism=2",
        "ranks=4 ici_fsdp_parallelism=2 ici_tensor_parallelism=2 remat_policy=minimal_with_context",
        "ranks=8 ici_expert_parallelism=2 ici_tensor_parallelism=2 ici_context_parallelism=2",
        "ranks=2 gradient_accumulation_steps=2 device=fenced"}) {
    expect_pass(runs, layout);
  }
  expect_pass({runs[1]}, "ranks=2 ici_pipeline_parallelism=2");
}

TEST(Verify, OneStepInPieces) {
  std::vector<std::string> of_rows = cases_in("hf");  // of more than one
  std::erase(of_rows, (kGolden / "hf/qwen3next-tiny").string());
  expect_pass(of_rows, "gradient_accumulation_steps=2");
  expect_pass(cases_in("hf"), "ranks=2 ici_expert_parallelism=2 num_moe_token_chunks=2");
  expect_pass(cases_in("hf"),
              "ranks=4 ici_expert_parallelism=2 num_moe_emb_chunks=2 overlap_communication=on");
  expect_pass(cases_in("hf"),
              "ranks=2 ici_expert_parallelism=2 num_moe_emb_chunks=4 use_ring_of_experts=true");
  expect_pass(cases_in("hf"), "ranks=3");  // a batch that does not divide
}

TEST_F(DamagedCase, JsonHoldsEveryTensor) {
  const std::string file = folder_ / "report.json";
  const Outcome outcome = verify({kGolden / "hf/deepseek3-tiny", "ranks=2", "--json", file});
  EXPECT_EQ(outcome.status, 0);
  const auto report = nlohmann::json::parse(text_of(file));
  EXPECT_FALSE(report.at("version").get<std::string>().empty());
  EXPECT_FALSE(report.at("machine").get<std::string>().empty());
  const auto& item = report.at("cases").at(0);
  EXPECT_EQ(item.at("mesh"), "fsdp=2");
  EXPECT_TRUE(item.at("pass").get<bool>());
  // hidden 4, router 2 x 2, logits, loss, 137 gradients, generated tokens, 10 x 2 of training
  EXPECT_EQ(item.at("tensors").size(), 168u);
  for (const auto& tensor : item.at("tensors")) {
    EXPECT_TRUE(tensor.at("pass").get<bool>() && tensor.at("max_rel").get<double>() <= 1e-4 &&
                tensor.contains("max_abs"))
        << tensor;
  }
}

TEST_F(DamagedCase, AChangedWeightIsFoundWhereItStands) {
  const fs::path folder = copy("hf/deepseek3-tiny");
  change(folder / "model.safetensors", "model.layers.1.mlp.shared_experts.up_proj.weight", 5, 0.5f);
  for (const char* ranks : {"ranks=1", "ranks=4"}) expect_difference({folder, ranks}, "layer 1, hidden.2");
}

TEST_F(DamagedCase, AWrongGradientIsNamed) {
  const fs::path folder = copy("hf/qwen3moe-tiny");
  const std::string name = "grad.model.layers.1.mlp.experts.3.down_proj.weight";
  const float value = SafetensorsFile::open(folder / "io.safetensors").read(name).span<float>()[7];
  change(folder / "io.safetensors", name, 7, -value);
  expect_difference({folder}, "layer 1, " + name);
}

TEST_F(DamagedCase, NaNNeverPasses) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const fs::path folder = copy("hf/llama3-rope-tiny");
  change(folder / "io.safetensors", "logits", 100, nan);
  expect_difference({folder, "--tolerance", "1e9"}, "logits");
  const fs::path layer = copy("maxtext_moe/qwen3_sparse_aux.safetensors");
  change(layer, "wo", 3, nan);
  expect_difference({layer}, "y");
}

TEST_F(DamagedCase, AnotherChoiceOfExpertsIsADifference) {
  const fs::path layer = copy("maxtext_moe/qwen3_sparse_aux.safetensors");
  change(layer, "gate", 2, 4.0f);
  expect_difference({layer, "--tolerance", "10"}, "topk_indices");
}

TEST_F(DamagedCase, ATrajectoryThatPartsIsFound) {
  const fs::path folder = copy("hf/llama3-rope-tiny");
  auto trajectory = nlohmann::json::parse(text_of(folder / "trajectory.json"));
  trajectory["loss_before_update"][6] = trajectory["loss_before_update"][6].get<double>() * 1.0001;
  write(folder / "trajectory.json", trajectory.dump());
  expect_difference({folder}, "training step 6 loss");

  for (const char* suffix : {".json", ".init.safetensors", ".grads.safetensors", ".logits.safetensors"})
    copy(std::string("maxtext025_train/deepseek3_1dev") + suffix);
  const fs::path run = folder_ / "deepseek3_1dev.json";
  const auto original = nlohmann::json::parse(text_of(run));
  auto changed = original;
  changed["metrics"][3]["learning/param_norm"] = 138.0;
  write(run, changed.dump());
  expect_difference({run}, "step 3 learning/param_norm");
  changed = original;
  changed["gate_bias_after_step"][9].begin().value()[1][0] = 0.5;
  write(run, changed.dump());
  expect_difference({run}, "layer 2, step 9 layers.2 router bias");
  changed = original;
  auto& norm = changed["final_parameters"]["model.norm.weight"]["l2"];
  norm = norm.get<double>() * (1 + 1e-5);
  write(run, changed.dump());
  expect_difference({run}, "final model.norm.weight l2");
}

TEST_F(DamagedCase, AContinuationThatPartsIsFound) {
  const fs::path folder = copy("hf/qwen3moe-tiny"), file = folder / "generate.json";
  const auto original = nlohmann::json::parse(text_of(file));
  auto changed = original;
  changed["continuation"].back() = (changed["continuation"].back().get<int>() + 1) % 256;
  write(file, changed.dump());
  expect_difference({folder}, "generated tokens");
  changed = original;
  changed["prompt"][0] = 100000;
  write(file, changed.dump());
  expect_refusal({folder}, "token 100000");
  changed.erase("prompt");
  write(file, changed.dump());
  expect_refusal({folder}, "'prompt' not found");
  changed["prompt"] = nlohmann::json::array();
  write(file, changed.dump());
  expect_refusal({folder}, "0 and 24 tokens");
}

TEST_F(DamagedCase, BrokenCasesAreRefusedInOneLine) {
  expect_refusal({kGolden / "hf/qwen3moe-tiny", "ranks=8", "ici_pipeline_parallelism=8"}, "8 stages for");
  expect_refusal({kGolden / "hf/deepseek3-tiny", "ranks=3", "ici_pipeline_parallelism=3"},
                 "num_pipeline_microbatches=3");
  expect_refusal({folder_ / "nowhere"}, "no case");
  expect_refusal({folder_}, "config.json");
  const fs::path folder = copy("hf/qwen3moe-tiny"), io = folder / "io.safetensors";
  fs::resize_file(io, fs::file_size(io) / 2);
  expect_refusal({folder}, "io.safetensors");
  fs::remove(io);
  expect_refusal({folder}, "io.safetensors");
  const fs::path run = copy("maxtext025_train/deepseek3_1dev.json");
  expect_refusal({run}, "deepseek3_1dev.init.safetensors");
  write(run, "{\"config\": 3}");
  expect_refusal({run}, "no training run");
  write(run, "{");
  expect_refusal({run}, "deepseek3_1dev.json");
  write(
      run,
      R"({"config": [], "devices": 1, "batch": {"inputs": "x", "targets": []}, "metrics": [], "final_parameters": {}})");
  expect_refusal({run}, "deepseek3_1dev.json");
  const fs::path layer = folder_ / "layer.safetensors";
  write_safetensors(layer, {{"x", Tensor::zeros(DType::f32, {1, 2, 3})}}, {});
  expect_refusal({layer}, "expected a MoE-layer file");
  write_safetensors(layer, {{"x", Tensor::zeros(DType::f32, {1, 2, 3})}}, {{"config", "[1]"}});
  expect_refusal({layer}, "layer.safetensors");
  write(folder_ / "case.txt", "");
  expect_refusal({folder_ / "case.txt"}, "expected a folder");
}

TEST_F(DamagedCase, MissingAndSurplusTensorsAreNamed) {
  const fs::path layer = copy("maxtext025_moe/deepseek3_sparse_aux.safetensors");
  const SafetensorsFile stored = SafetensorsFile::open(layer);
  auto rewrite = [&](const std::string& removed, const std::string& added) {
    std::map<std::string, Tensor> tensors;
    for (const auto& item : stored.entries()) {
      if (item.first != removed) tensors[item.first] = stored.read(item.first);
    }
    if (!added.empty()) tensors[added] = Tensor::zeros(DType::f32, {1});
    const fs::path file = folder_ / "changed.safetensors";
    write_safetensors(file, tensors, stored.metadata());
    return file;
  };
  expect_refusal({rewrite("wi_1", "")}, "wi_1");
  expect_refusal({rewrite("y", "")}, "y");
  expect_refusal({rewrite("", "grad.wi_9")}, "grad.wi_9");
  // One shard's statistics stand in this file; those to compare with are in a neighbour that is not there.
  expect_refusal({copy("maxtext_moe/qwen3_ragged_a2a_aux_ep4.safetensors")}, "qwen3_sparse_aux.safetensors");
}

TEST(Verify, WrongCommandLinesAreRefused) {
  const std::string layer = kGolden / "maxtext_moe/qwen3_sparse_aux.safetensors";
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong{
      {{}, "at least one case"},
      {{"ranks=2"}, "at least one case"},
      {{layer, "--tolerance"}, "--tolerance"},
      {{layer, "--tolerance", "small"}, "small"},
      {{layer, "--json"}, "--json"},
      {{layer, "--jason", "x"}, "--jason"},
      {{"--mesh"}, "--mesh"},
      {{"--mesh", "rank=2"}, "ranks"},
      {{"--mesh", "ranks=2", "a.yml", "b.yml"}, "one CONFIG.yml"},
      {{"--mesh", "ranks=2 steps=3"}, "steps is one for all"},
      {{"--mesh", "ring"}, "key=value"},
      {{"--mesh", "ranks=4 ici_expert_parallelism=3"}, "ici_expert_parallelism"},
      {{"--mesh", "ranks=2", "--mesh", "ranks=2 base_emb_dim=64"}, "one model"},
      {{"--mesh", "ranks=2", "dataset_type=text"}, "dataset_type"},
      {{"--mesh", "ranks=2", "--inject-fault", "rank=1"}, "gradient=PARAMETER"},
      {{"--mesh", "ranks=2", "--inject-fault", "rank=2 gradient=head scale=2"}, "rank=2"},
      {{"--mesh", "ranks=2", "--inject-fault", "rank=1 gradient=tail scale=2"}, "tail"},
      {{layer, "--inject-fault", "rank=1 gradient=head scale=2"}, "--mesh"},
      {{layer, "rank=2"}, "ranks"},
      {{layer, "ranks=6", "ici_expert_parallelism=4"}, "ici_expert_parallelism"},
      {{layer, "ranks=8", "ici_expert_parallelism=8"}, "num_experts"},
  };
  for (const auto& [args, part] : wrong) {
    const Outcome outcome = verify(args);
    EXPECT_EQ(outcome.status, 2) << part;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

// Two MoE layers of eight experts.
std::vector<std::string> small_model() {
  return {
      "decoder_block=mixtral", "base_emb_dim=32", "base_num_query_heads=4", "base_num_kv_heads=4",
      "head_dim=16",           "base_mlp_dim=32", "num_experts=8",          "base_num_decoder_layers=2",
      "num_experts_per_tok=2", "vocab_size=64",   "learning_rate=0.001",    "load_balance_loss_weight=0.1"};
}

const std::string kRing = "ranks=8 ici_expert_parallelism=4 ici_fsdp_parallelism=2 use_ring_of_experts=true";
const std::string kTensor = "ranks=4 ici_tensor_parallelism=2 ici_expert_parallelism=2";

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(VerifyMesh, LayoutsAgreeWithEachOtherAndTheDenseEvaluation) {
  const Outcome outcome =
      verify(std::vector<std::string>{"--mesh", kRing, "--mesh", kTensor} + small_model());
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("3 of 3 cases pass"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("router choices: 2"), std::string::npos) << outcome.out;
}

TEST(VerifyMesh, StagesOfATiedModelAgree) {
  const Outcome outcome = verify(
      std::vector<std::string>{"--mesh", "ranks=2 ici_pipeline_parallelism=2 num_pipeline_repeats=2",
                               "--mesh", "ranks=8 ici_pipeline_parallelism=4 ici_tensor_parallelism=2",
                               "--mesh", "ranks=4 ici_pipeline_parallelism=2 ici_data_parallelism=2"} +
      small_model() + std::vector<std::string>{"logits_via_embedding=true", "base_num_decoder_layers=4"});
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
}

TEST(VerifyMesh, AHundredStepsWithTheSameChoicesStayTogether) {
  const std::string ring = "ranks=4 ici_expert_parallelism=2 ici_fsdp_parallelism=2 use_ring_of_experts=true";
  const Outcome outcome =
      verify(std::vector<std::string>{"--mesh", ring, "--mesh", kTensor, "steps=100", "max_target_length=8"} +
             small_model());
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
}

TEST_F(DamagedCase, AnInjectedFaultIsFoundAndNamed) {
  const std::string file = folder_ / "report.json";
  const Outcome outcome =
      verify(std::vector<std::string>{"--mesh", kTensor, "--mesh", kRing, "--inject-fault",
                                      "rank=3 gradient=layers.1.moe.wo scale=1.5", "--json", file} +
             small_model());
  EXPECT_EQ(outcome.status, 3) << outcome.out << outcome.err;
  const auto cases = nlohmann::json::parse(text_of(file)).at("cases");
  ASSERT_EQ(cases.size(), 3u);
  EXPECT_TRUE(cases[0].at("pass").get<bool>()) << "the first layout has no fault";
  for (const std::size_t spoiled : {1u, 2u})
    EXPECT_EQ(cases[spoiled].at("first_difference"), "grad.layers.1.moe.wo");
  EXPECT_NE(outcome.out.find("first difference in layer 1, grad.layers.1.moe.wo"), std::string::npos)
      << outcome.out;
}

TEST(VerifyMesh, DroppedRowsAreNoVerdictAgainstTheDenseEvaluation) {
  const Outcome outcome = verify(std::vector<std::string>{"--mesh", "ranks=2 ici_fsdp_parallelism=2",
                                                          "--mesh", "ranks=4 ici_expert_parallelism=4",
                                                          "sparse_matmul=false", "capacity_factor=1"} +
                                 small_model());
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.err.find("dropped rows"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.out.find("3 of 3 cases pass"), std::string::npos) << outcome.out;
}

TEST(TieWidth, IsTheChangeThatTurnsAChoice) {
  MoeConfig config;
  config.experts = 4;
  config.slots = 2;
  const std::vector<float> logits{1.0f, 0.5f, 0.5001f, -2.0f};
  auto width = [&](std::vector<std::int32_t> ids) { return tie_width(config, logits, {}, ids); };
  EXPECT_EQ(width({0, 2}), 0);
  EXPECT_EQ(width({2, 0}), 0) << "in any order";
  EXPECT_GT(width({0, 1}), 1e-5);
  EXPECT_LT(width({0, 1}), 1e-4);
  EXPECT_GT(width({0, 3}), 0.3);
}

TEST(Verify, OneBrokenCaseDoesNotHideTheOthers) {
  const Outcome outcome = verify({"/nonexistent", kGolden / "maxtext_moe/qwen3_sparse_aux.safetensors"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.out.find("1 of 2 cases pass"), std::string::npos) << outcome.out;
}

TEST(Verify, HelpHasAnExample) {
  const Outcome outcome = verify({"--help"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_NE(outcome.out.find("switchyard verify tests/golden/hf/deepseek3-tiny"), std::string::npos);
}

TEST(MaxError, SeesWhatIsWrong) {
  auto off = [](std::vector<float> got, std::vector<float> want) {
    const Shape shape{static_cast<std::int64_t>(got.size())};
    return difference(Tensor::of<float>(shape, std::span<const float>(got)),
                      Tensor::of<float>(shape, std::span<const float>(want)));
  };
  EXPECT_EQ(off({1, -2}, {1, -2}).max_rel, 0);
  EXPECT_DOUBLE_EQ(off({1, 2}, {1, -2}).max_rel, 2);  // negated
  EXPECT_DOUBLE_EQ(off({0, 0}, {1, -4}).max_rel, 1);  // all zeros
  EXPECT_DOUBLE_EQ(off({1.5f, 4}, {1, 4}).max_rel, 0.125);
  EXPECT_NEAR(off({1e-6f}, {0}).max_rel, 1, 1e-6);  // next to zero: relative to 1e-6
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinite = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, infinite, -infinite}) {
    EXPECT_TRUE(std::isnan(off({1, bad}, {1, 2}).max_rel));
    EXPECT_TRUE(std::isnan(off({1, 2}, {bad, 2}).max_rel));
  }
  EXPECT_FALSE((Row{"", "", "", off({nan}, {1}), 1e9, true}.pass()));
}

}  // namespace
}  // namespace switchyard::verify_test
