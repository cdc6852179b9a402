// Layouts of weights and what follows from them: Muon, experts over fsdp, explicit sharding.
#include <cmath>

#include "child.h"

namespace switchyard::cli_test {
namespace {

using Layouts = ProgramTest;
using nlohmann::json;

const std::vector<std::string> kNumbers{"learning/loss", "learning/raw_grad_norm", "learning/param_norm",
                                        "learning/moe_lb_loss"};

void expect_same(const std::vector<json>& got, const std::vector<json>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t step = 0; step < got.size(); ++step) {
    for (const std::string& key : kNumbers) {
      const double expected = want[step][key];
      EXPECT_NEAR(got[step][key].get<double>(), expected, (step < 2 ? 1e-6 : 1e-4) * std::abs(expected))
          << key << " of step " << step;
    }
  }
}

// A rate without warm-up, so that step 1 has seen an update.
const Arguments kMuon{"opt_type=muon",           "muon_weight_decay=0.1", "load_balance_loss_weight=0.01",
                      "warmup_steps_fraction=0", "num_experts=8",         "base_moe_mlp_dim=24",
                      "base_mlp_dim=24"};

Arguments on_ranks(int ranks, Arguments mesh) {
  mesh.push_back("ranks=" + std::to_string(ranks));
  mesh.push_back("per_device_batch_size=" + std::to_string(8 / ranks));
  return mesh;
}

// Bytes this rank sent in one step for collectives of a kind.
std::int64_t bytes_of(const json& summary, const std::string& kind) {
  std::int64_t bytes = 0;
  for (const json& c : summary["collectives"]) {
    if (c["kind"] == kind) bytes += c["bytes"].get<std::int64_t>();
  }
  return bytes;
}

TEST_F(Layouts, MuonGivesTheSameNumbersOnEveryMesh) {
  const auto one = train(kMuon + on_ranks(1, {}));
  EXPECT_LT(one[2]["learning/loss"].get<double>(), one[0]["learning/loss"].get<double>());
  const std::vector<Arguments> meshes = {
      on_ranks(2, {"ici_data_parallelism=2"}),
      on_ranks(8, {}),
      on_ranks(4, {"ici_tensor_parallelism=2"}),
      on_ranks(8, {"ici_expert_parallelism=4"}),
      on_ranks(8, {"ici_data_parallelism=2", "ici_expert_parallelism=2", "ici_tensor_parallelism=2"}),
      on_ranks(8, {"ici_expert_parallelism=2", "ici_tensor_parallelism=2", "use_ring_of_experts=true"}),
      on_ranks(8, {"ici_context_parallelism=2", "ici_fsdp_transpose_parallelism=2"}),
      on_ranks(8, {"ici_pipeline_parallelism=2", "ici_tensor_parallelism=2"}),
  };
  for (const Arguments& mesh : meshes) {
    for (const std::string key : {"shard_exp_on_fsdp=false", "shard_exp_on_fsdp=true"}) {
      SCOPED_TRACE(::testing::PrintToString(mesh) + " " + key);
      expect_same(train(kMuon + mesh + Arguments{key}), one);
    }
  }
}

TEST_F(Layouts, ExpertsOverFsdpGiveTheSameNumbersInEveryStrategy) {
  const std::vector<Arguments> strategies = {
      {},
      {"use_ring_of_experts=true"},
      {"use_ring_of_experts=true", "num_moe_token_chunks=2"},
      {"num_moe_emb_chunks=4", "overlap_communication=on"},
      {"sparse_matmul=false"},
      {"sparse_matmul=false", "moe_dispatch_no_expert_sharding=true"},
      {"sparse_matmul=false", "capacity_factor=1.25"},
      {"sparse_matmul=false", "capacity_factor=1.25", "moe_dispatch_no_expert_sharding=true"},
  };
  for (const Arguments& strategy : strategies) {
    SCOPED_TRACE(::testing::PrintToString(strategy));
    const auto one = train(kMuon + strategy + on_ranks(1, {}));
    const Arguments mesh = on_ranks(8, {"ici_expert_parallelism=2", "ici_fsdp_parallelism=4"});
    expect_same(train(kMuon + strategy + mesh + Arguments{"shard_exp_on_fsdp=true", "shard_mode=explicit"}),
                one);
    expect_same(train(kMuon + strategy + mesh + Arguments{"custom_mesh_and_rule=shard-exp-on-fsdp"}), one);
  }
}

TEST_F(Layouts, ExpertsOverFsdpSpareMuonItsGathers) {
  const Arguments mesh = on_ranks(4, {"ici_fsdp_parallelism=4"});
  const auto sent = [&](const Arguments& more) {
    train(kMuon + mesh + more);
    return json::parse(read("out/run/summary.json"));
  };
  const json width = sent({}), experts = sent({"shard_exp_on_fsdp=true"}),
             file = sent({"custom_mesh_and_rule=shard-exp-on-fsdp"}), adamw = sent({"opt_type=adamw"});
  // All experts of two layers, three weights of 16 x 24 each: a rank holds a quarter, of which it sends three
  // quarters away to be made whole and, as much of others, back again.
  const std::int64_t expert_bytes = 2 * 3 * 8 * 16 * 24 * 4;
  EXPECT_EQ(bytes_of(width, "ragged_all_to_all") - bytes_of(experts, "ragged_all_to_all"),
            2 * expert_bytes / 4 * 3 / 4);
  EXPECT_EQ(bytes_of(file, "ragged_all_to_all"), bytes_of(experts, "ragged_all_to_all"));
  EXPECT_EQ(bytes_of(adamw, "ragged_all_to_all"), 0);
  // The model itself gathers as much either way.
  EXPECT_EQ(bytes_of(experts, "all_gather"), bytes_of(width, "all_gather"));
}

TEST_F(Layouts, MuonWithOtherDtypesAndAccumulation) {
  const auto whole = train(kMuon + on_ranks(1, {}));
  expect_same(train(kMuon + Arguments{"ranks=2", "per_device_batch_size=1", "gradient_accumulation_steps=4"}),
              whole);
  const Arguments narrow{"weight_dtype=bfloat16", "dtype=bfloat16", "grad_dtype=bfloat16",
                         "mu_dtype=bfloat16"};
  const auto lines = train(kMuon + narrow + on_ranks(4, {"ici_fsdp_parallelism=4"}));
  EXPECT_LT(lines[2]["learning/loss"].get<double>(), lines[0]["learning/loss"].get<double>());
  const auto sized = train(kMuon + Arguments{"muon_consistent_rms=0.2"} + on_ranks(1, {}));
  EXPECT_NE(sized[1]["learning/loss"], whole[1]["learning/loss"]);
  EXPECT_EQ(sized[0]["learning/loss"], whole[0]["learning/loss"]);
}

TEST_F(Layouts, MuonTakesEveryBlock) {
  const std::vector<Arguments> models = {
      {"decoder_block=llama2", "num_experts=1", "num_experts_per_tok=1", "logits_via_embedding=true"},
      {"decoder_block=qwen3_moe", "use_qk_norm=true", "norm_topk_prob=true"},
      {"decoder_block=qwen3_custom_moe", "use_qk_norm=true", "norm_topk_prob=true", "attention_output_dim=12",
       "moe_expert_input_dim=12"},
      {"decoder_block=deepseek", "attention_type=mla", "q_lora_rank=8", "kv_lora_rank=8",
       "qk_nope_head_dim=4", "qk_rope_head_dim=4", "v_head_dim=4", "first_num_dense_layers=1",
       "shared_experts=1", "routed_score_func=sigmoid", "routed_bias=true", "routed_bias_update_rate=0.01"},
  };
  for (const Arguments& model : models) {
    SCOPED_TRACE(::testing::PrintToString(model));
    const Arguments muon{"opt_type=muon", "warmup_steps_fraction=0", "load_balance_loss_weight=0.01"};
    expect_same(train(muon + model + on_ranks(4, {"ici_tensor_parallelism=2", "shard_mode=explicit"})),
                train(muon + model + on_ranks(1, {})));
  }
}

// The hidden layer's width takes fsdp before its batch can: a product would have to gather its tokens.
TEST_F(Layouts, ExplicitShardingRefusesImpliedMoves) {
  write("mesh.yml",
        "mesh_axes: [fsdp]\ndata_sharding: [[fsdp]]\nlogical_axis_rules:\n"
        "  - [activation_mlp, [fsdp]]\n  - [activation_batch, [fsdp]]\n"
        "  - [activation_embed_and_logits_batch, [fsdp]]\n  - [embed, [fsdp]]\n");
  const Arguments model =
      tiny_model() + Arguments{"decoder_block=llama2", "num_experts=1", "num_experts_per_tok=1"};
  const Arguments mesh = on_ranks(2, {"custom_mesh_and_rule=mesh.yml"});
  const Finished implied = run(Arguments{"train"} + model + mesh);
  EXPECT_EQ(implied.status, 0) << implied.err;
  const Finished stated =
      run(Arguments{"train"} + model + mesh + Arguments{"shard_mode=explicit", "run_name=stated"});
  EXPECT_EQ(stated.status, 2);
  EXPECT_FALSE(std::filesystem::exists(path("out/stated"))) << "found before there is a folder";
  EXPECT_EQ(std::count(stated.err.begin(), stated.err.end(), '\n'), 1) << stated.err;
  for (const char* word : {"shard_mode=explicit", "BSM,MH->BSH", "[fsdp, -, -]", "[-, -, -]", "auto"})
    EXPECT_NE(stated.err.find(word), std::string::npos) << word << "\n" << stated.err;
}

TEST_F(Layouts, WhatCannotBeIsSaidInOneLine) {
  expect_no_training({"ranks=8", "shard_exp_on_fsdp=true"}, {"num_experts=4", "fsdp=8"});
  expect_no_training({"opt_type=muon", "muon_beta=1"}, {"muon_beta", "below 1", "got 1"});
  expect_no_training({"opt_type=muon", "muon_consistent_rms=0"}, {"muon_consistent_rms", "above 0", "None"});
  expect_no_training({"shard_mode=manual"}, {"shard_mode", "auto, explicit", "manual"});
}

}  // namespace
}  // namespace switchyard::cli_test
