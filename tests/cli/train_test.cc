// Training runs from the command line to the files they leave.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "child.h"

namespace switchyard::cli_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

using Help = ProgramTest;
using Training = ProgramTest;

// What does not depend on the clock.
std::vector<json> without_times(std::vector<json> lines) {
  for (json& line : lines) {
    for (auto item = line.begin(); item != line.end();)
      item = item.key().starts_with("perf/") ? line.erase(item) : std::next(item);
  }
  return lines;
}

void expect_close(const std::vector<json>& got, const std::vector<json>& want, const std::string& key) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t step = 0; step < got.size(); ++step) {
    const double expected = want[step][key];
    EXPECT_NEAR(got[step][key].get<double>(), expected, (step == 0 ? 1e-6 : 1e-4) * std::abs(expected))
        << key << " of step " << step;
  }
}

TEST_F(Help, EveryCommandHasAPage) {
  const Finished all = run({"--help"});
  EXPECT_EQ(all.status, 0);
  std::vector<std::string> commands;
  std::istringstream lines(all.out.substr(std::min(all.out.size(), all.out.find("ubcommands:"))));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  ")) commands.push_back(line.substr(2, line.find(' ', 2) - 2));
  }
  EXPECT_GE(commands.size(), 3u) << all.out;
  for (const std::string& command : commands) {
    SCOPED_TRACE(command);
    const Finished page = run({command, "--help"});
    EXPECT_EQ(page.status, 0);
    EXPECT_EQ(page.err, "");
    EXPECT_TRUE(page.out.starts_with("switchyard " + command)) << page.out;
    // An example follows the line of usage.
    EXPECT_NE(page.out.find("  switchyard " + command, 1), std::string::npos) << page.out;
    EXPECT_EQ(run({command, "-h"}).out, page.out);
    std::istringstream before_examples(page.out.substr(0, page.out.find("\nExample")));
    for (std::string line; std::getline(before_examples, line);)
      EXPECT_LE(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xc0) != 0x80; }), 100)
          << line;
  }
  const Finished version = run({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_EQ(std::count(version.out.begin(), version.out.end(), '.'), 2) << version.out;
  const Finished list = run({"config", "--list"});
  EXPECT_EQ(list.status, 0);
  EXPECT_NE(list.out.find("\nnum_experts_per_tok "), std::string::npos);
}

TEST_F(Training, MetricsHaveTheDocumentedNames) {
  const auto lines = train({"load_balance_loss_weight=0.1", "z_loss_multiplier=0.01"});
  ASSERT_EQ(lines.size(), 3u);
  for (std::size_t step = 0; step < 3; ++step) {
    const json& line = lines[step];
    EXPECT_EQ(line["step"], step);
    for (const char* key :
         {"loss", "lm_loss", "moe_lb_loss", "grad_norm", "raw_grad_norm", "param_norm",
          "current_learning_rate", "total_weights", "perplexity", "z_loss", "mtp_loss", "indexer_loss"}) {
      EXPECT_TRUE(line.contains(std::string("learning/") + key) &&
                  line[std::string("learning/") + key].is_number())
          << key;
    }
    for (const char* key : {"step_time_seconds", "per_device_tokens_per_sec", "per_device_tflops_per_sec"}) {
      EXPECT_GT(line.value(std::string("perf/") + key, 0.0), 0) << key;
    }
    double rows = 0;
    for (const char* layer : {"moe/layer_0/", "moe/layer_1/"}) {
      for (const char* key : {"max_over_mean_load", "rows_dropped", "entropy"})
        EXPECT_TRUE(line.contains(std::string(layer) + key)) << key;
      EXPECT_GE(line[std::string(layer) + "max_over_mean_load"].get<double>(), 1);
      EXPECT_LE(line[std::string(layer) + "entropy"].get<double>(), std::log(4) + 1e-9);
      for (int e = 0; e < 4; ++e)
        rows += line[std::string(layer) + "rows/expert_" + std::to_string(e)].get<double>();
    }
    EXPECT_EQ(rows, 2 * 16 * 2);  // layers x tokens x experts a token
    EXPECT_EQ(line["learning/total_weights"], 16);
    const double lm = line["learning/lm_loss"], balance = line["learning/moe_lb_loss"];
    EXPECT_GT(balance, 0.05);
    EXPECT_GT(line["learning/z_loss"].get<double>(), 0.01);
    EXPECT_NEAR(line["learning/loss"].get<double>(), lm + balance, 1e-6 * lm);
    EXPECT_NEAR(line["learning/perplexity"].get<double>(), std::exp(lm), 1e-9 * std::exp(lm));
    EXPECT_LE(line["learning/grad_norm"].get<double>(), 1 + 1e-6);
    EXPECT_GE(line["learning/raw_grad_norm"].get<double>(), line["learning/grad_norm"].get<double>() - 1e-9);
  }
}

TEST_F(Training, LeavesSummaryPlotsAndEvents) {
  const auto begin = std::chrono::steady_clock::now();
  train({"ranks=2", "per_device_batch_size=1", "ici_expert_parallelism=2"});
  const double whole_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const json summary = json::parse(read("out/run/summary.json"));
  EXPECT_EQ(summary["ranks"], 2);
  EXPECT_TRUE(summary["version"].is_string());
  EXPECT_GT(summary["parameters"].get<int>(), 1000);
  EXPECT_EQ(summary["config"]["num_experts"], 4);
  for (const char* key :
       {"weights_bytes", "gradients_bytes", "optimizer_bytes", "activation_peak_bytes", "total_peak_bytes"}) {
    EXPECT_TRUE(summary["per_rank"][key].is_number_integer()) << key;
  }
  ASSERT_FALSE(summary["collectives"].empty());
  bool exchanged = false;
  for (const json& collective : summary["collectives"]) {
    for (const char* key : {"kind", "axis", "where"}) EXPECT_TRUE(collective[key].is_string()) << key;
    EXPECT_GT(collective["count"].get<int>(), 0);
    EXPECT_GE(collective["bytes"].get<int>(), 0);
    exchanged |= collective["axis"] == "expert";
  }
  EXPECT_TRUE(exchanged);
  EXPECT_EQ(summary["layers"].size(), 2u);
  EXPECT_TRUE(summary["fallbacks"].is_array());
  for (const char* phase : {"forward", "backward", "optimizer"})
    EXPECT_GE(summary["phases"].value(phase, -1.0), 0) << phase;
  double startup = 0;
  for (const char* part :
       {"config", "model", "data", "outputs_and_peak", "device", "weights", "optimizer", "first_step"}) {
    EXPECT_GT(summary["startup_seconds"].value(part, -1.0), 0) << part;
    startup += summary["startup_seconds"].value(part, 0.0);
  }
  EXPECT_EQ(summary["startup_seconds"].size(), 8u);
  EXPECT_LE(startup, whole_seconds);

  std::set<std::string> plots;
  for (const auto& file : fs::directory_iterator(path("out/run/plots"))) plots.insert(file.path().filename());
  EXPECT_EQ(plots, (std::set<std::string>{"loss.svg", "expert_load.svg", "time_by_phase.svg"}));
  for (const std::string& plot : plots) {
    const std::string svg = read("out/run/plots/" + plot);
    EXPECT_NE(svg.find("<svg"), std::string::npos);
    EXPECT_NE(svg.find("</svg>"), std::string::npos);
  }
  int events = 0;
  for (const auto& file : fs::directory_iterator(path("out/run/tensorboard"))) {
    EXPECT_TRUE(file.path().filename().string().starts_with("events.out.tfevents."));
    EXPECT_GT(file.file_size(), 500u);
    ++events;
  }
  EXPECT_EQ(events, 1);
}

TEST_F(Training, FilesGoWhereTheyAreWanted) {
  const Finished finished =
      run(Arguments{"train"} + tiny_model() + Arguments{"metrics_file=m.jsonl", "enable_tensorboard=false"});
  EXPECT_EQ(finished.status, 0) << finished.err;
  const std::string lines = read("m.jsonl");
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3);
  EXPECT_FALSE(fs::exists(path("out/run/metrics.jsonl")));
  EXPECT_FALSE(fs::exists(path("out/run/tensorboard")));
  EXPECT_EQ(finished.out.find("metrics.jsonl"), std::string::npos) << finished.out;
}

TEST_F(Training, RunsAgainToTheSameBits) {
  for (const Arguments& how : {Arguments{"dtype=bfloat16"},
                               Arguments{"ranks=4", "per_device_batch_size=1", "ici_expert_parallelism=2"}}) {
    const auto first = without_times(train(how));
    ASSERT_EQ(first.size(), 3u);
    EXPECT_EQ(without_times(train(how)), first);
  }
}

// On the text that is there: a test may not depend on what is installed.
TEST_F(Training, TheTemplateTrains) {
  std::ofstream(path("mine.yml")) << run({"config", "--template"}).out;
  std::ofstream(path("text.txt")) << std::string(20000, 'a');
  const Finished trained = run({"train", "mine.yml", "data_path=text.txt", "steps=2", "eval_interval=-1",
                                "base_output_directory=out", "metrics_file=m.jsonl"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  std::ifstream metrics(path("m.jsonl"));
  std::vector<double> losses;
  for (std::string line; std::getline(metrics, line);) losses.push_back(json::parse(line)["learning/loss"]);
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_LT(losses[1], losses[0]);
}

TEST_F(Training, NoStepsAreARunToo) {
  EXPECT_TRUE(train({"steps=0"}).empty());
  EXPECT_TRUE(fs::exists(path("out/run/summary.json")));
  EXPECT_EQ(train({"steps=-1", "learning_rate_schedule_steps=2"}).size(), 2u);
}

TEST_F(Training, TheMeshDoesNotChangeTheNumbers) {
  const auto one = train({"per_device_batch_size=8"});
  ASSERT_EQ(one.size(), 3u);
  EXPECT_LT(one[2]["learning/loss"].get<double>(), one[0]["learning/loss"].get<double>());
  const std::vector<Arguments> meshes = {
      {"ranks=2"},
      {"ranks=8"},
      {"ranks=2", "ici_data_parallelism=2", "ici_fsdp_parallelism=1"},
      {"ranks=4", "ici_expert_parallelism=4", "use_ring_of_experts=true"},
      {"ranks=4", "ici_expert_parallelism=4"},
      {"ranks=4", "ici_expert_parallelism=2", "sparse_matmul=false"},
      {"ranks=2", "ici_tensor_parallelism=2"},
      {"ranks=8", "ici_expert_parallelism=2", "ici_tensor_parallelism=2"},
      {"ranks=8", "ici_expert_parallelism=2", "ici_data_parallelism=2", "use_ring_of_experts=true"},
      {"ranks=4", "ici_context_parallelism=2", "ici_fsdp_transpose_parallelism=2"},
      {"ranks=8", "ici_tensor_sequence_parallelism=2", "ici_autoregressive_parallelism=2"},
      {"ranks=4", "dcn_data_parallelism=2", "ici_expert_parallelism=2"},
      {"ranks=4", "custom_mesh_and_rule=pure-fsdp"},
      {"ranks=8", "custom_mesh_and_rule=ep-as-cp", "ici_expert_parallelism=4"},
      {"ranks=8", "custom_mesh_and_rule=cp-as-ep", "ici_expert_parallelism=2", "ici_context_parallelism=2"},
      {"ranks=4", "custom_mesh_and_rule=ep-as-dp", "ici_expert_parallelism=4"},
      {"ranks=4", "custom_mesh_and_rule=shard-exp-on-fsdp", "ici_expert_parallelism=2"},
      {"ranks=4", "custom_mesh_and_rule=ep-tp", "ici_expert_parallelism=4", "use_ring_of_experts=true"},
      {"ranks=8", "expert_shard_attention_option=tp", "ici_expert_parallelism=4"},
  };
  for (const Arguments& mesh : meshes) {
    SCOPED_TRACE(::testing::PrintToString(mesh));
    const int ranks = std::stoi(mesh[0].substr(6));
    const auto many = train(mesh + Arguments{"per_device_batch_size=" + std::to_string(8 / ranks)});
    for (const char* key : {"learning/loss", "learning/raw_grad_norm", "learning/param_norm"})
      expect_close(many, one, key);
    for (const char* key : {"moe/layer_0/entropy", "moe/layer_1/rows/expert_2"})
      EXPECT_EQ(many[0][key], one[0][key]) << key;
  }
}

// Experts narrower than the model: other widths around the MoE block than anywhere else.
TEST_F(Training, TheMeshDoesNotChangeLatentExperts) {
  const Arguments model{"decoder_block=qwen3_custom_moe", "use_qk_norm=true", "norm_topk_prob=true",
                        "attention_output_dim=12", "moe_expert_input_dim=12"};
  const auto one = train(model + Arguments{"per_device_batch_size=8"});
  for (const Arguments& mesh : {Arguments{"ranks=8", "ici_expert_parallelism=2", "ici_tensor_parallelism=2",
                                          "per_device_batch_size=1"},
                                Arguments{"ranks=4", "ici_expert_parallelism=4", "use_ring_of_experts=true",
                                          "per_device_batch_size=2"}}) {
    const auto many = train(model + mesh);
    for (const char* key : {"learning/loss", "learning/raw_grad_norm", "learning/param_norm"})
      expect_close(many, one, key);
  }
}

TEST_F(Training, AnyPipelineGivesTheNumbersOfOneStage) {
  const Arguments model{"base_num_decoder_layers=4", "load_balance_loss_weight=0.1",
                        "routed_score_func=sigmoid", "routed_bias=true", "routed_bias_update_rate=0.01"};
  const auto one = train(model + Arguments{"per_device_batch_size=8"});
  const std::vector<Arguments> meshes = {
      {"ranks=2", "ici_pipeline_parallelism=2"},
      {"ranks=2", "ici_pipeline_parallelism=2", "pipeline_schedule=gpipe", "num_pipeline_microbatches=4"},
      {"ranks=4", "ici_pipeline_parallelism=4", "num_pipeline_microbatches=8"},
      {"ranks=4", "ici_pipeline_parallelism=4", "num_pipeline_microbatches=2"},
      {"ranks=4", "ici_pipeline_parallelism=2", "gradient_accumulation_steps=2", "per_device_batch_size=1"},
      {"ranks=8", "dcn_pipeline_parallelism=2", "ici_expert_parallelism=2", "num_pipeline_microbatches=2"},
      {"ranks=8", "ici_pipeline_parallelism=4", "custom_mesh_and_rule=pipeline-large-moe",
       "ici_expert_parallelism=2"},
      {"ranks=4", "ici_pipeline_parallelism=2", "custom_mesh_and_rule=pipeline-large-moe",
       "ici_expert_parallelism=2", "num_pipeline_repeats=2"},
      {"ranks=2", "ici_pipeline_parallelism=2", "num_layers_per_pipeline_stage=1",
       "num_pipeline_microbatches=4"},
      {"ranks=8", "ici_pipeline_parallelism=2", "ici_tensor_parallelism=2", "num_pipeline_microbatches=4"},
  };
  for (const Arguments& mesh : meshes) {
    SCOPED_TRACE(::testing::PrintToString(mesh));
    const int ranks = std::stoi(mesh[0].substr(6));
    const auto many = train(model + Arguments{"per_device_batch_size=" + std::to_string(8 / ranks)} + mesh);
    for (const char* key :
         {"learning/loss", "learning/moe_lb_loss", "learning/raw_grad_norm", "learning/param_norm"})
      expect_close(many, one, key);
    for (const char* key : {"moe/layer_0/entropy", "moe/layer_3/rows/expert_2"})
      EXPECT_EQ(many[0][key], one[0][key]) << key;
  }
}

// Blocks, stages and schedules: the same microbatches, and each sum in the same order.
TEST_F(Training, HowAPipelineIsCutDoesNotChangeABit) {
  const Arguments model{"base_num_decoder_layers=9",
                        "load_balance_loss_weight=0.1",
                        "moe_layers=[0,2,3,7,8]",
                        "routed_score_func=sigmoid",
                        "routed_bias=true",
                        "routed_bias_update_rate=0.01",
                        "gradient_clipping_threshold=0.1"};
  const std::vector<std::pair<int, Arguments>> besides{
      {1, {"num_pipeline_microbatches=4"}},
      {2, {"num_pipeline_microbatches=2", "ici_data_parallelism=2", "gradient_accumulation_steps=2"}},
      {2, {"num_pipeline_microbatches=3", "ici_fsdp_parallelism=2", "dtype=bfloat16"}},
      {2, {"num_pipeline_microbatches=4", "ici_expert_parallelism=2", "opt_type=muon"}}};
  for (const auto& [ranks, keys] : besides) {
    const auto cut = [&, ranks = ranks, keys = keys](int stages, const Arguments& how) {
      return without_times(
          train(model + keys + how +
                Arguments{"ranks=" + std::to_string(stages * ranks),
                          "ici_pipeline_parallelism=" + std::to_string(stages),
                          "per_device_batch_size=" + std::to_string(12.0 / (stages * ranks))}));
    };
    const auto whole = cut(2, {});
    ASSERT_EQ(whole.size(), 3u);
    EXPECT_GT(whole[2]["learning/moe_lb_loss"].get<double>(), 0);
    for (const auto& [stages, how] :
         std::vector<std::pair<int, Arguments>>{{2, {"num_pipeline_repeats=2"}},
                                                {2, {"num_pipeline_repeats=4"}},
                                                {2, {"num_pipeline_repeats=2", "pipeline_schedule=gpipe"}},
                                                {3, {"num_layers_per_pipeline_stage=1"}},
                                                {4, {"pipeline_schedule=gpipe"}}}) {
      SCOPED_TRACE(::testing::PrintToString(keys + how) + std::to_string(stages));
      EXPECT_EQ(cut(stages, how), whole);
    }
  }
}

// The embedding is on the first stage, and on the last one as the head or for prediction layers.
TEST_F(Training, TwoStagesHaveTheEmbedding) {
  const Arguments dense{"decoder_block=qwen3",       "num_experts=1",
                        "num_experts_per_tok=1",     "use_qk_norm=true",
                        "logits_via_embedding=true", "base_num_decoder_layers=4"},
      sparse{"logits_via_embedding=true", "load_balance_loss_weight=0.1", "base_num_decoder_layers=4",
             "gradient_clipping_threshold=0.1"},
      further{"decoder_block=deepseek",
              "attention_type=mla",
              "q_lora_rank=8",
              "kv_lora_rank=8",
              "qk_nope_head_dim=4",
              "qk_rope_head_dim=4",
              "v_head_dim=4",
              "mtp_num_layers=2",
              "shared_experts=1",
              "first_num_dense_layers=1",
              "base_num_decoder_layers=4"};
  const std::vector<Arguments> meshes = {
      {"ranks=2", "ici_pipeline_parallelism=2"},
      {"ranks=2", "ici_pipeline_parallelism=2", "num_pipeline_repeats=2", "num_pipeline_microbatches=4"},
      {"ranks=4", "ici_pipeline_parallelism=4", "pipeline_schedule=gpipe"},
      {"ranks=4", "ici_pipeline_parallelism=2", "ici_data_parallelism=2"},
      {"ranks=8", "ici_pipeline_parallelism=4", "ici_fsdp_parallelism=2"},
      {"ranks=4", "ici_pipeline_parallelism=2", "ici_tensor_parallelism=2"},
      {"ranks=8", "ici_pipeline_parallelism=2", "ici_data_parallelism=2", "ici_fsdp_parallelism=2"}};
  for (const Arguments& model : {dense, sparse, further}) {
    const auto one = train(model + Arguments{"per_device_batch_size=8"});
    for (const Arguments& mesh : meshes) {
      SCOPED_TRACE(::testing::PrintToString(model + mesh));
      const int ranks = std::stoi(mesh[0].substr(6));
      const auto many = train(model + Arguments{"per_device_batch_size=" + std::to_string(8 / ranks)} + mesh);
      for (const char* key : {"learning/loss", "learning/mtp_loss", "learning/raw_grad_norm",
                              "learning/grad_norm", "learning/param_norm"})
        expect_close(many, one, key);
    }
    // Of two stages or of four: both ends sum in one order.
    const Arguments parts{"num_pipeline_microbatches=2"};
    EXPECT_EQ(
        without_times(train(model + parts + Arguments{"ranks=4", "ici_pipeline_parallelism=4"})),
        without_times(train(model + parts +
                            Arguments{"ranks=2", "ici_pipeline_parallelism=2", "per_device_batch_size=4"})));
  }
}

TEST_F(Training, AccumulatedGradientsAreThoseOfTheWholeBatch) {
  const auto whole = train({"per_device_batch_size=8"});
  const std::vector<Arguments> ways = {
      {"per_device_batch_size=1", "gradient_accumulation_steps=8"},
      {"per_device_batch_size=4", "gradient_accumulation_steps=2"},
      {"per_device_batch_size=0.5", "gradient_accumulation_steps=8", "ranks=2"},
      {"per_device_batch_size=0.3333333333", "gradient_accumulation_steps=8", "ranks=3"},
  };
  for (const Arguments& way : ways) {
    SCOPED_TRACE(::testing::PrintToString(way));
    const auto parts = train(way);
    for (const char* key :
         {"learning/loss", "learning/raw_grad_norm", "learning/param_norm", "learning/total_weights"}) {
      expect_close(parts, whole, key);
    }
  }
}

TEST_F(Training, OptimizersAndSchedules) {
  std::map<std::string, double> last;
  for (const std::string optimizer : {"adamw", "adam_pax", "sgd"}) {
    const auto lines = train({"opt_type=" + optimizer});
    ASSERT_EQ(lines.size(), 3u);
    last[optimizer] = lines[2]["learning/loss"];
    EXPECT_LT(last[optimizer], lines[0]["learning/loss"].get<double>()) << optimizer;
  }
  EXPECT_NE(last["adamw"], last["sgd"]);
  const auto rates = [&](const Arguments& arguments) {
    std::vector<double> all;
    for (const json& line : train(Arguments{"steps=10"} + arguments))
      all.push_back(line["learning/current_learning_rate"]);
    return all;
  };
  const auto cosine = rates({"lr_schedule_type=cosine", "warmup_steps_fraction=0.2"});
  EXPECT_EQ(cosine[0], 0);
  EXPECT_FLOAT_EQ(static_cast<float>(cosine[2]), 0.01f);
  EXPECT_TRUE(std::is_sorted(cosine.rbegin(), cosine.rend() - 2));
  for (const std::string style : {"linear", "cosine"}) {
    const auto wsd = rates({"lr_schedule_type=wsd", "wsd_decay_style=" + style,
                            "wsd_decay_steps_fraction=0.4", "warmup_steps_fraction=0.2"});
    EXPECT_FLOAT_EQ(static_cast<float>(wsd[3]), 0.01f);
    EXPECT_FLOAT_EQ(static_cast<float>(wsd[5]), 0.01f);
    EXPECT_LT(wsd[9], 0.01);
  }
}

TEST_F(Training, WhatBackwardKeepsDoesNotChangeABit) {
  const std::vector<std::string> policies = {"full",
                                             "minimal",
                                             "minimal_with_context",
                                             "minimal_flash",
                                             "minimal_offloaded",
                                             "save_dot_with_context_except_mlp",
                                             "save_dot_except_mlpwi",
                                             "save_dot_except_mlp",
                                             "save_qkv_proj",
                                             "save_out_proj",
                                             "qkv_proj_offloaded",
                                             "custom"};
  const auto all_kept = train({"remat_policy=none"});
  for (const std::string& policy : policies) {
    const auto lines = train({"remat_policy=" + policy, "moe_mlpwi_0=device", "out_proj=offload"});
    ASSERT_EQ(lines.size(), 3u);
    for (std::size_t step = 0; step < 3; ++step) {
      for (const char* key : {"learning/loss", "learning/raw_grad_norm", "learning/param_norm"}) {
        EXPECT_EQ(lines[step][key], all_kept[step][key]) << policy << " " << key;
      }
    }
  }
}

TEST_F(Training, OtherModels) {
  const std::vector<Arguments> models = {
      {"logits_via_embedding=true"},
      {"decoder_block=llama2", "num_experts=1", "num_experts_per_tok=1"},
      {"decoder_block=default", "num_experts=1", "num_experts_per_tok=1"},
      {"decoder_block=qwen3_moe", "use_qk_norm=true", "norm_topk_prob=true"},
      {"decoder_block=qwen3_custom_moe", "use_qk_norm=true", "norm_topk_prob=true", "attention_output_dim=12",
       "moe_expert_input_dim=12"},
      {"decoder_block=deepseek", "attention_type=mla", "q_lora_rank=8", "kv_lora_rank=8",
       "qk_nope_head_dim=4", "qk_rope_head_dim=4", "v_head_dim=4", "first_num_dense_layers=1",
       "shared_experts=1", "routed_score_func=sigmoid", "routed_bias=true", "routed_bias_update_rate=0.01",
       "n_routing_groups=2", "topk_routing_group=1"},
      {"weight_dtype=bfloat16", "dtype=bfloat16", "grad_dtype=bfloat16", "mu_dtype=bfloat16"},
  };
  for (const Arguments& model : models) {
    SCOPED_TRACE(::testing::PrintToString(model));
    const auto lines = train(model);
    ASSERT_EQ(lines.size(), 3u);
    EXPECT_LT(lines[2]["learning/loss"].get<double>(), lines[0]["learning/loss"].get<double>());
  }
}

TEST_F(Training, ALossThatDidNotFallIsSaid) {
  const Arguments eight = Arguments{"train"} + tiny_model() + Arguments{"steps=8"};
  const Finished stalled = run(eight + Arguments{"learning_rate=1e-9", "run_name=stalled"});
  ASSERT_EQ(stalled.status, 0) << stalled.err;
  EXPECT_NE(stalled.out.find("the loss did not fall"), std::string::npos) << stalled.out;
  EXPECT_NE(stalled.out.find("learning_rate than 1e-09"), std::string::npos) << stalled.out;
  const Finished fell = run(eight + Arguments{"learning_rate=0.05", "run_name=fell"});
  ASSERT_EQ(fell.status, 0) << fell.err;
  EXPECT_EQ(fell.out.find("the loss did not fall"), std::string::npos) << fell.out;
}

TEST_F(Training, TextWithAHeldOutPart) {
  std::string text;
  for (int i = 0; text.size() < 60000; ++i)
    text += "Sentence " + std::to_string(i) + " of a text that is easy to learn.\n\n";
  write("text/a.txt", text);
  write("text/below/b.txt", text.substr(500));
  const Arguments arguments =
      Arguments{"train"} + tiny_model() +
      Arguments{"dataset_type=text", "data_path=text",       "tokenizer_type=byte",
                "vocab_size=257",    "max_target_length=32", "per_device_batch_size=8",
                "steps=6",           "eval_interval=3",      "eval_steps=2"};
  const Finished finished = run(arguments);
  EXPECT_EQ(finished.status, 0) << finished.err;
  EXPECT_EQ(finished.err, "");
  EXPECT_NE(finished.out.find("held-out loss"), std::string::npos);
  EXPECT_NE(finished.out.find("The model writes"), std::string::npos);
  const auto lines = metrics();
  std::vector<json> evaluations;
  for (const json& line : lines) {
    if (line.contains("eval/loss")) evaluations.push_back(line);
  }
  ASSERT_EQ(evaluations.size(), 2u);
  EXPECT_EQ(evaluations[0]["step"], 2);
  EXPECT_EQ(evaluations[1]["step"], 5);
  EXPECT_LT(evaluations[1]["eval/loss"].get<double>(), lines[0]["learning/loss"].get<double>());
  EXPECT_NE(read("out/run/plots/loss.svg").find("held out"), std::string::npos);
  EXPECT_EQ(run(arguments).status, 0);
  EXPECT_EQ(without_times(metrics()), without_times(lines));
}

TEST_F(Training, EvaluatesOnAnotherLayout) {
  std::string text;
  for (int i = 0; text.size() < 20000; ++i)
    text += "Sentence " + std::to_string(i) + " of a text that is easy to learn.\n\n";
  write("a.txt", text);
  const Arguments arguments = tiny_model() + Arguments{"dataset_type=text",
                                                       "data_path=a.txt",
                                                       "tokenizer_type=byte",
                                                       "vocab_size=260",
                                                       "max_target_length=32",
                                                       "per_device_batch_size=2",
                                                       "steps=4",
                                                       "eval_interval=2",
                                                       "ranks=4",
                                                       "ici_expert_parallelism=2",
                                                       "ici_fsdp_parallelism=2",
                                                       "eval_steps=2"};
  const auto train_with = [&](const Arguments& more) {
    const Finished finished = run(Arguments{"train"} + arguments + more);
    EXPECT_EQ(finished.status, 0) << finished.err;
    return metrics();
  };
  const std::vector<json> plain = train_with({}),
                          own = train_with({"custom_mesh_and_rule_for_eval=ep-as-cp"});
  ASSERT_EQ(own.size(), plain.size());
  int evaluations = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    EXPECT_EQ(own[i]["learning/loss"], plain[i]["learning/loss"]);
    if (!plain[i].contains("eval/loss")) continue;
    ++evaluations;
    const double loss = plain[i]["eval/loss"];
    EXPECT_NEAR(own[i]["eval/loss"].get<double>(), loss, 1e-6 * loss);
  }
  EXPECT_EQ(evaluations, 2);
}

}  // namespace
}  // namespace switchyard::cli_test
