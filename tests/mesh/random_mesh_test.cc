// Any mesh, same numbers: random models on random meshes give the losses, gradients, norms, loads and router
// biases of one rank.
#include <gtest/gtest.h>

#include "autograd/testing.h"
#include "core/error.h"
#include "verify/layouts.h"

namespace switchyard {
namespace {

using autograd_test::Chooser;
using autograd_test::trials;

// What a trial is drawn from. A new axis, mesh file, strategy or optimizer is added here.
const std::vector<std::string> kAxes{"data",    "fsdp",           "expert",          "tensor",
                                     "context", "fsdp_transpose", "tensor_sequence", "autoregressive"};
const std::vector<std::string> kMeshFiles{
    "pure-fsdp",         "ep-as-dp", "ep-as-cp",           "cp-as-ep",
    "shard-exp-on-fsdp", "ep-tp",    "pipeline-large-moe", "fsdp-as-dp-for-attn",
    "tp-as-ep"};
const std::vector<std::string> kOptimizers{"adamw", "adam_pax", "sgd", "muon"};
const std::vector<std::string> kStrategies{
    "",  // ragged all-to-all
    "use_ring_of_experts=true",
    "ragged_buffer_factor=64",
    "ragged_buffer_factor=0.6 moe_dropless_fallback=layer",
    "ragged_buffer_factor=1 moe_dropless_fallback=layer use_ring_of_experts=true",
    "num_moe_token_chunks=2",
    "num_moe_token_chunks=2 use_ring_of_experts=true",
    "num_moe_emb_chunks=2",
    "num_moe_emb_chunks=4 num_moe_token_chunks=2 use_ring_of_experts=true",
    "sparse_matmul=false",
    "sparse_matmul=false moe_dispatch_no_expert_sharding=true",
    "sparse_matmul=false capacity_factor=1.25",
    "sparse_matmul=false capacity_factor=1 moe_dispatch_no_expert_sharding=true"};
constexpr std::int64_t kMostRanks = 16, kSequence = 16;

struct Trial {
  std::string mesh;  // "ranks=8 ici_expert_parallelism=4 …"
  std::string strategy;
  std::vector<std::string> model;  // and optimizer
};

bool contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

// A mesh of at most kMostRanks. `expert_ranks` becomes what the experts may have to be divisible by,
// `sequence_ranks` over how many parts a sequence may be.
std::string random_mesh(Chooser& choose, std::int64_t& expert_ranks, std::int64_t& sequence_ranks) {
  const std::string file = choose.below(3) == 0 ? choose.of(kMeshFiles) : "";
  const bool experts_over_fsdp = file == "shard-exp-on-fsdp" || choose.below(3) == 0;
  const std::string layout = file.empty() ? "" : " custom_mesh_and_rule=" + file;
  std::vector<std::string> arguments;
  if (!file.empty()) arguments.push_back("custom_mesh_and_rule=" + file);
  const std::vector<std::string> present = Config::from_args(arguments).mesh_axes();
  std::int64_t ranks = 1;
  std::string sizes;
  expert_ranks = sequence_ranks = 1;
  const std::vector<std::int64_t> factors{2, 2, 2, 3, 4, 8};
  const std::int64_t first = choose.below(static_cast<std::int64_t>(kAxes.size()));
  for (std::size_t i = 0; i < kAxes.size(); ++i) {
    const std::string& axis = kAxes[(i + static_cast<std::size_t>(first)) % kAxes.size()];
    const std::int64_t size = choose.of(factors);
    const bool wanted = choose.below(2) == 0;
    if (!wanted || !contains(present, axis) || ranks * size > kMostRanks) continue;
    ranks *= size;
    sizes += fmt::format(" ici_{}_parallelism={}", axis, size);
    if (axis == "expert" || (axis == "context" && file == "cp-as-ep") ||
        (axis == "tensor" && file == "tp-as-ep") || (axis == "fsdp" && experts_over_fsdp))
      expert_ranks *= size;
    if (axis == "context" || axis == "tensor_sequence" || (axis == "expert" && file == "ep-as-cp"))
      sequence_ranks *= size;
  }
  // The default -1 of fsdp would take nothing here: all sizes are given.
  if (contains(present, "fsdp") && sizes.find("ici_fsdp_parallelism") == std::string::npos)
    sizes += " ici_fsdp_parallelism=1";
  if (experts_over_fsdp) sizes += " shard_exp_on_fsdp=true";
  if (choose.below(2) == 0) sizes += " shard_mode=explicit";
  if (choose.below(2) == 0) sizes += " overlap_communication=on";
  return fmt::format("ranks={}{}{}", ranks, sizes, layout);
}

std::vector<std::string> random_model(Chooser& choose, std::int64_t expert_ranks) {
  const std::int64_t experts = std::max<std::int64_t>(2, expert_ranks * (1 + choose.below(2)));
  const std::int64_t slots = 1 + choose.below(std::min<std::int64_t>(4, experts));
  const std::vector<std::int64_t> widths{16, 24, 32}, kv_heads{1, 2, 4};
  std::vector<std::string> keys{
      "vocab_size=48",
      "base_num_query_heads=4",
      "head_dim=8",
      "base_num_decoder_layers=2",
      "load_balance_loss_weight=0.1",
      "steps=2",
      "learning_rate=0.001",
      "adam_eps=1e-5",  // of a gradient that is rounding alone Adam would make a step
      fmt::format("base_emb_dim={}", choose.of(widths)),
      fmt::format("num_experts={}", experts),
      fmt::format("num_experts_per_tok={}", slots),
      fmt::format("opt_type={}", choose.of(kOptimizers)),
      fmt::format("max_target_length={}", kSequence),
      fmt::format("per_device_batch_size={}", 1 + choose.below(8)),
      fmt::format("remat_policy={}", choose.below(2) == 0 ? "full" : "none"),
      fmt::format("logits_via_embedding={}", choose.below(3) == 0)};
  const auto add = [&](std::vector<std::string> more) { keys.insert(keys.end(), more.begin(), more.end()); };
  const std::string width = fmt::format("{}", choose.of(widths));
  switch (choose.below(4)) {
    case 0:
      add({"decoder_block=mixtral", "base_mlp_dim=" + width,
           fmt::format("base_num_kv_heads={}", choose.of(kv_heads))});
      break;
    case 1:
      add({"decoder_block=qwen3_moe", "base_mlp_dim=" + width, "use_qk_norm=true", "norm_topk_prob=true",
           fmt::format("base_num_kv_heads={}", choose.of(kv_heads))});
      break;
    case 2:
      add({"decoder_block=qwen3_next", "base_mlp_dim=" + width, "use_qk_norm=true", "norm_topk_prob=true",
           fmt::format("base_num_kv_heads={}", choose.of(kv_heads)), "inhomogeneous_layer_cycle_interval=2",
           fmt::format("gdn_num_key_heads={}", choose.of(kv_heads)), "gdn_num_value_heads=4",
           "gdn_key_head_dim=8", "gdn_value_head_dim=6",
           fmt::format("gdn_chunk_size={}", 1 + choose.below(20)), "shared_experts=1",
           "shared_expert_mlp_dim=24"});
      break;
    default:
      add({"decoder_block=deepseek", "base_num_kv_heads=4", "base_mlp_dim=32", "base_moe_mlp_dim=" + width,
           "first_num_dense_layers=1", "attention_type=mla",
           fmt::format("q_lora_rank={}", choose.below(2) * 12), "kv_lora_rank=8", "qk_nope_head_dim=8",
           "qk_rope_head_dim=4", "v_head_dim=8", "shared_experts=1", "routed_score_func=sigmoid",
           "routed_bias=true", "routed_bias_update_rate=0.01", "routed_scaling_factor=2.5"});
      if (experts % 2 == 0 && slots <= experts / 2 && choose.below(2) == 0)
        add({"n_routing_groups=2", "topk_routing_group=1"});
  }
  return keys;
}

Trial random_trial(Chooser& choose) {
  Trial trial;
  std::int64_t expert_ranks = 1, sequence_ranks = 1;
  trial.mesh = random_mesh(choose, expert_ranks, sequence_ranks);
  trial.model = random_model(choose, expert_ranks);
  do {
    trial.strategy = choose.of(kStrategies);
  } while (trial.strategy.find("token_chunks") != std::string::npos && sequence_ranks > 1);
  return trial;
}

// Compares the layouts; what refused them, if anything did.
std::string error_of(const LayoutRequest& request) {
  try {
    for (const CaseReport& report : compare_layouts(request)) {
      const Row* first = report.first_failure();
      EXPECT_EQ(first, nullptr) << report.kind << ": " << first->place << " " << first->name << " off by "
                                << first->error.max_abs << ", relative " << first->error.max_rel;
    }
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(RandomMesh, GivesTheNumbersOfOneRank) {
  Chooser choose(2024);
  for (int i = 0; i < trials(12); ++i) {
    const Trial trial = random_trial(choose);
    LayoutRequest request;
    request.layouts = {"ranks=1 " + trial.strategy, trial.mesh + " " + trial.strategy};
    request.arguments = trial.model;
    std::string command =
        "switchyard verify --mesh \"" + request.layouts[0] + "\" --mesh \"" + request.layouts[1] + "\"";
    for (const std::string& key : trial.model) command += " " + key;
    SCOPED_TRACE(fmt::format("trial {}: {}", i, command));
    std::string error = error_of(request);
    // A dim that its axes do not divide may be laid out one way by one rule and another way by the next,
    // which only shard_mode=auto mends.
    const std::string explicitly = " shard_mode=explicit";
    const std::size_t at = request.layouts[1].find(explicitly);
    if (at != std::string::npos && error.starts_with("[sharding] shard_mode=explicit: expected")) {
      request.layouts[1].erase(at, explicitly.size());
      error = error_of(request);
    }
    EXPECT_EQ(error, "");
  }
}

}  // namespace
}  // namespace switchyard
