// Mistral Small 4 (mistral4): DeepSeek-V3's latent attention with queries that grow with the position; the
// router's scores are a softmax.
//
// A layer:
//   latent attention as in deepseek.cc, its queries times 1 + beta · ln(1 + floor(position / P));
//     P is the number of positions before YaRN stretches them
//   y = h + MLP(m) in the first dense layers, m = n(h); else
//     y = h + sum of w[e]·E[e](m) + S(m) with p = softmax(G m), the best groups by the sum of their two
//     largest p, the K best p there, w = p / sum of the chosen p · scaling
#include <cmath>

#include "models/families/deepseek.h"

namespace switchyard {
namespace {

constexpr DecoderBlock kMistral4Block{.name = "mistral4",
                                      .experts = true,
                                      .growing_queries = true,
                                      .latent_attention = true,
                                      .groups_by_two_best = true};

constexpr FusedRule kMistral4Fused[] = {
    {.fused = "mlp.experts.gate_up_proj", .parts = kGateAndUpOfExperts},
    {.fused = "mlp.experts.down_proj", .parts = kDownOfExperts},
};

// llama_4_scaling_beta is a field of the rotation.
constexpr std::string_view kMistral4Read[] = {
    "rope_interleave",     "llama_4_scaling_beta",  "n_routed_experts",
    "num_experts_per_tok", "n_shared_experts",      "moe_intermediate_size",
    "norm_topk_prob",      "routed_scaling_factor", "n_group",
    "topk_group",          "first_k_dense_replace"};

nlohmann::json mistral4_rotation() {
  return {{"rope_type", "yarn"},
          {"factor", 128},
          {"beta_fast", 32},
          {"beta_slow", 1},
          {"mscale", 1},
          {"mscale_all_dim", 1},

          {"llama_4_scaling_beta", 0.1},
          {"original_max_position_embeddings", 8192}};
}

// The growth of queries, which the rotation states.
void read_growth(const nlohmann::json& rotation, ConfigKeys& keys) {
  const HubConfig rope(rotation, "rope ");
  const double beta = rope.number("llama_4_scaling_beta", 0);
  if (!(beta >= 0) || !std::isfinite(beta)) rope.wrong("llama_4_scaling_beta", "0 or more");
  keys["temperature_tuning"] = beta > 0;
  if (beta == 0) return;
  keys["temperature_tuning_scale"] = beta;
  keys["temperature_tuning_floor_scale"] = rope.positive("original_max_position_embeddings");
  keys["temperature_tuning_offset"] = 0;
}

// partial_rotary_factor says again how wide the rotated part of a head is.
void check_rotated_share(const HubConfig& hub, ConfigKeys& keys) {
  const double rotated = static_cast<double>(hub.positive("qk_rope_head_dim")),
               share = rotated / (rotated + static_cast<double>(hub.positive("qk_nope_head_dim")));
  if (const double stated = keys["partial_rotary_factor"]; stated != 1 && std::abs(stated - share) > 1e-6)
    HubConfig(hub.all(), "rope ").wrong("partial_rotary_factor", fmt::format("none, or {}", share));
  keys["partial_rotary_factor"] = 1;
}

void read_mistral4(const HubConfig& hub, ConfigKeys& keys) {
  nlohmann::json all = hub.all();
  if (!hub.has("rope_parameters") && !hub.has("rope_scaling")) all["rope_parameters"] = mistral4_rotation();
  read_rope(HubConfig(all), {.latent = true, .states_pairs = true, .usual_theta = 10000, .usual_share = 1},
            keys);
  read_growth(all[HubConfig(all).has("rope_scaling") ? "rope_scaling" : "rope_parameters"], keys);
  check_rotated_share(hub, keys);
  read_latent_attention(hub, keys);
  read_first_expert_layer(hub, 0, keys);
  const std::int64_t groups = hub.integer("n_group", 1), best = hub.integer("topk_group", 1),
                     experts = hub.positive("n_routed_experts");
  if (groups > 1 && (experts % groups != 0 || best < 1 || best > groups))
    hub.wrong("n_group",
              fmt::format("a divisor of n_routed_experts={}, and topk_group from 1 to it", experts));
  keys["num_experts"] = experts;
  keys["num_experts_per_tok"] = hub.positive("num_experts_per_tok");
  keys["shared_experts"] = hub.integer("n_shared_experts", 1);
  keys["base_moe_mlp_dim"] = hub.positive("moe_intermediate_size");
  keys["routed_score_func"] = "softmax";
  keys["norm_topk_prob"] = flag_or_null(hub, "norm_topk_prob", true);
  keys["routed_scaling_factor"] = hub.number("routed_scaling_factor", 1);
  keys["n_routing_groups"] = groups > 1 ? groups : -1;
  keys["topk_routing_group"] = groups > 1 ? best : -1;
}

void write_mistral4(const Config& config, const ModelConfig& model, HubJson& hub) {
  const AttentionKind& attention = model.attention();
  write_latent_attention(model, hub);
  HubJson rope = hub["rope_scaling"].is_null() ? HubJson{{"rope_type", "default"}} : hub["rope_scaling"];
  rope["rope_theta"] = hub["rope_theta"];
  rope["original_max_position_embeddings"] =
      attention.scales_queries() ? attention.query_growth_positions : attention.rope.original_positions;
  rope["llama_4_scaling_beta"] = attention.query_growth;
  hub.erase("rope_theta");
  hub.erase("rope_scaling");
  hub["rope_parameters"] = rope;
  hub["rope_interleave"] = attention.rope.interleaved;
  hub["first_k_dense_replace"] = config.get_int("first_num_dense_layers");
  hub["n_routed_experts"] = model.moe().experts;
  hub["num_experts_per_tok"] = model.moe().slots;
  hub["n_shared_experts"] = model.shared_experts;
  hub["moe_intermediate_size"] = model.moe_mlp;
  hub["norm_topk_prob"] = model.moe().normalise;
  hub["routed_scaling_factor"] = config.get_float("routed_scaling_factor");
  hub["n_group"] = model.moe().groups > 1 ? model.moe().groups : 1;
  hub["topk_group"] = model.moe().groups > 1 ? model.moe().kept_groups : 1;
}

// Growth steps over the positions before stretching, as a file states both in one field.
bool writes_mistral4(const ModelConfig& model) {
  const AttentionKind& k = model.attention();
  const bool one_number = k.rope.type != "yarn" || k.query_growth_positions == k.rope.original_positions;
  return model.moe().score == RouterScore::softmax && !model.moe().bias && !model.has_indexer() &&
         (!k.scales_queries() || (k.query_growth_offset == 0 && one_number));
}

}  // namespace

const ModelFamily kMistral4{.type = "mistral4",
                            .architecture = "Mistral4ForCausalLM",
                            .block = &kMistral4Block,
                            .tensors = {},
                            .fused = kMistral4Fused,
                            .fields = {.read = kMistral4Read, .more = {&kLatentFields, &kNamesOfExperts}},
                            .read = read_mistral4,
                            .write = write_mistral4,
                            .writes = writes_mistral4};

}  // namespace switchyard
