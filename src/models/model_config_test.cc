// Tests the model that a config describes.
#include "models/model_config.h"

#include <gtest/gtest.h>

#include <numbers>

#include "core/error.h"
#include "models/parameters.h"
#include "models/same_model.h"

namespace switchyard {
namespace {

using Keys = std::map<std::string, nlohmann::json>;

ModelConfig model_of(const Keys& more) {
  Keys keys{{"decoder_block", "mixtral"},
            {"base_emb_dim", 8},
            {"base_mlp_dim", 12},
            {"base_moe_mlp_dim", 12},
            {"base_num_query_heads", 4},
            {"base_num_kv_heads", 2},
            {"head_dim", 4},
            {"num_experts", 4},
            {"num_experts_per_tok", 2},
            {"base_num_decoder_layers", 3},
            {"vocab_size", 32}};
  for (const auto& [key, value] : more) keys[key] = value;
  return model_config(Config::from_map(keys, {}));
}

// The reference doubles heads and MLPs first, then the embedding, then the number of layers.
TEST(ModelConfig, GrowsByPowersOfTwo) {
  struct Row {
    int scale;
    std::int64_t heads, emb, layers;  // factors
  };
  for (const Row& row : {Row{1, 1, 1, 1}, Row{2, 2, 1, 1}, Row{4, 2, 2, 1}, Row{8, 2, 2, 2}, Row{16, 4, 2, 2},
                         Row{32, 4, 4, 2}, Row{64, 4, 4, 4}}) {
    SCOPED_TRACE(row.scale);
    const ModelConfig m = model_of({{"global_parameter_scale", row.scale}});
    EXPECT_EQ(m.attention().heads, 4 * row.heads);
    EXPECT_EQ(m.attention().kv_heads, 2 * row.heads);
    EXPECT_EQ(m.mlp().width, 12 * row.heads);
    EXPECT_EQ(m.moe_mlp, 12 * row.heads);
    EXPECT_EQ(m.emb, 8 * row.emb);
    EXPECT_EQ(m.layers, 3 * row.layers);
    EXPECT_EQ(m.attention().head_dim, 4);
    EXPECT_EQ(m.vocab, 32);
  }
  EXPECT_THROW(model_of({{"global_parameter_scale", 6}}), Error);
}

TEST(ModelConfig, OneModelInTwoKeysIsTheSame) {
  EXPECT_EQ(differing_key(model_of({{"global_parameter_scale", 4}}), model_of({{"base_emb_dim", 16},
                                                                               {"base_num_query_heads", 8},
                                                                               {"base_num_kv_heads", 4},
                                                                               {"base_mlp_dim", 24},
                                                                               {"base_moe_mlp_dim", 24}})),
            "");
  EXPECT_EQ(differing_key(model_of({}), model_of({{"final_logits_soft_cap", 30.0}})),
            "final_logits_soft_cap");
  EXPECT_EQ(differing_key(model_of({}), model_of({{"final_logits_soft_cap", nullptr}})), "");
}

// With more positions than the original ones MLA's scores have another scale.
TEST(ModelConfig, PositionsBeyondTheOriginalOnes) {
  const Keys latent{{"decoder_block", "deepseek"},
                    {"attention_type", "mla"},
                    {"rope_type", "yarn"},
                    {"rope_factor", 40},
                    {"original_max_position_embeddings", 4096},
                    {"routed_score_func", "sigmoid"}};
  Keys within = latent, beyond = latent, further = latent;
  within["max_position_embeddings"] = 4096;
  beyond["max_position_embeddings"] = 8192;
  further["max_position_embeddings"] = 163840;
  EXPECT_NE(model_of(within).attention().scale, model_of(beyond).attention().scale);
  EXPECT_EQ(differing_key(model_of(within), model_of(beyond)), "max_position_embeddings");
  EXPECT_EQ(differing_key(model_of(beyond), model_of(further)), "");
}

using HasPart = bool (*)(const ModelConfig&, const LayerSpec&);
constexpr HasPart kHasExperts = [](const ModelConfig&, const LayerSpec& l) { return l.has_experts(); };
constexpr HasPart kHasDelta = [](const ModelConfig&, const LayerSpec& l) { return l.delta >= 0; };
constexpr HasPart kHasWindow = [](const ModelConfig& m, const LayerSpec& l) {
  return m.seen_in(l).window > 0;
};
constexpr HasPart kIsUnrotated = [](const ModelConfig& m, const LayerSpec& l) {
  return !m.attention_of(l).rotated;
};

std::vector<bool> flags_of(const ModelConfig& m, HasPart has) {
  std::vector<bool> flags;
  for (const LayerSpec& layer : m.layer_specs) flags.push_back(has(m, layer));
  return flags;
}

TEST(ModelConfig, LayersAreWhatTheirListsSay) {
  using Flags = std::vector<bool>;
  EXPECT_EQ(flags_of(model_of({}), kHasExperts), (Flags{true, true, true}));
  EXPECT_EQ(flags_of(model_of({{"first_num_dense_layers", 1}}), kHasExperts), (Flags{false, true, true}));
  EXPECT_EQ(flags_of(model_of({{"moe_layers", {0, 2}}}), kHasExperts), (Flags{true, false, true}));
  EXPECT_EQ(model_of({{"moe_layers", {0, 2}}}).moe_layers(), (std::vector<std::int64_t>{0, 2}));
  EXPECT_EQ(flags_of(model_of({}), kHasWindow), (Flags{false, false, false}));
  EXPECT_EQ(flags_of(model_of({{"sliding_window_size", 4}}), kHasWindow), (Flags{true, true, true}));
  EXPECT_EQ(flags_of(model_of({{"sliding_window_size", 4}, {"windowed_layers", {1}}}), kHasWindow),
            (Flags{false, true, false}));
  const Keys gpt_oss{{"decoder_block", "gpt_oss"},
                     {"mlp_activations", {"sigmoid", "linear"}},
                     {"mlp_activations_limit", 7.0},
                     {"sliding_window_size", 4}};
  EXPECT_EQ(flags_of(model_of(gpt_oss), kHasWindow), (Flags{true, false, true}));
  const Keys qwen3_next{{"decoder_block", "qwen3_next"}, {"shared_experts", 2}};
  const auto deltas = [&](const std::string& key, nlohmann::json value) {
    Keys keys = qwen3_next;
    keys[key] = std::move(value);
    return flags_of(model_of(keys), kHasDelta);
  };
  EXPECT_EQ(deltas("inhomogeneous_layer_cycle_interval", 2), (Flags{true, false, true}));
  EXPECT_EQ(deltas("inhomogeneous_layer_cycle_interval", 1), (Flags{false, false, false}));
  EXPECT_EQ(deltas("delta_layers", {0, 1}), (Flags{true, true, false}));
  EXPECT_FALSE(model_of({}).has_delta());
  // The experts that every token meets have the width of the others, unless they have their own.
  const ModelConfig plain = model_of(qwen3_next);
  EXPECT_TRUE(plain.attention().gate && plain.norm_plus_one && plain.shared_gate);
  EXPECT_EQ(plain.shared_mlp, 2 * plain.moe_mlp);
  Keys wide = qwen3_next;
  wide["shared_expert_mlp_dim"] = 24;
  EXPECT_EQ(model_of(wide).shared_mlp, 24);
  const ModelConfig llama4 =
      model_of({{"decoder_block", "llama4"}, {"nope_layer_interval", 2}, {"interleave_moe_layer_step", 3}});
  EXPECT_EQ(flags_of(llama4, kIsUnrotated), (Flags{false, true, false}));
  EXPECT_EQ(flags_of(llama4, kHasExperts), (Flags{false, false, true}));
  EXPECT_EQ(flags_of(model_of({{"decoder_block", "llama4"}}), kIsUnrotated), (Flags{false, false, false}));
}

// Where the bands of Llama 3.1's rotation meet there is no band between: waves longer than both bounds are
// stretched, all others stay.
TEST(ModelConfig, RotationWithoutAMiddleBand) {
  RopeConfig rope;
  rope.type = "llama3.1";
  rope.theta = 10000;
  rope.factor = 16;
  rope.low_frequency_factor = rope.high_frequency_factor = 1;
  rope.original_positions = 64;
  RopeConfig plain = rope;
  plain.type = "default";
  const std::vector<double> got = rope_frequencies(rope, 16), whole = rope_frequencies(plain, 16);
  int stretched = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const bool is_long = 2 * std::numbers::pi / whole[i] > 64;
    stretched += is_long ? 1 : 0;
    EXPECT_EQ(got[i], is_long ? whole[i] / 16 : whole[i]) << i;
  }
  EXPECT_GT(stretched, 0);
  EXPECT_LT(stretched, 8);
  // A wave as long as the bound: 0 / 0 would be no number.
  rope.theta = 1;
  rope.original_positions = 1;
  rope.low_frequency_factor = rope.high_frequency_factor = 1 / (2 * std::numbers::pi);
  for (const double f : rope_frequencies(rope, 4)) EXPECT_TRUE(f == 1.0 || f == 1.0 / 16) << f;
}

// Each pair's frequency by its divisor.
TEST(ModelConfig, RotationsDividedPairByPair) {
  RopeConfig rope;
  const std::vector<double> whole = rope_frequencies(rope, 8);
  rope.divisors = {1, 2, 4, 8};
  const std::vector<double> got = rope_frequencies(rope, 8);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(got[i], whole[i] / rope.divisors[i]) << i;
}

// They are numbered on, and are as the last layer is.
TEST(ModelConfig, PredictionLayersAreLikeTheLast) {
  const ModelConfig m = model_of({{"mtp_num_layers", 2}, {"moe_layers", {0, 2}}});
  EXPECT_EQ(m.layers, 3);
  EXPECT_EQ(m.depth(), 5);
  EXPECT_EQ(m.moe_layers(), (std::vector<std::int64_t>{0, 2, 3, 4}));
  const ModelConfig without = without_predictions(m);
  EXPECT_EQ(without.depth(), 3);
  EXPECT_EQ(differing_key(without, model_of({{"moe_layers", {0, 2}}})), "");
  EXPECT_GT(train_flops_per_token(m, 64), train_flops_per_token(without, 64));
}

TEST(ModelConfig, EnvyHasExpertsInEveryOtherLayerAndANormBehindEach) {
  const ModelConfig m = model_of({{"decoder_block", "envy"},
                                  {"num_experts_per_tok", 1},
                                  {"base_num_decoder_layers", 4},
                                  {"interleave_moe_layer_step", 2},
                                  {"inhomogeneous_layer_cycle_interval", 2},
                                  {"use_post_ffw_norm", true}});
  EXPECT_EQ(m.moe_layers(), (std::vector<std::int64_t>{1, 3}));
  EXPECT_TRUE(m.moe().softmax_over_selected);
  int norms = 0;
  for (const ParameterSpec& spec : parameter_specs(m)) norms += spec.name.ends_with(".post_mlp_norm") ? 1 : 0;
  EXPECT_EQ(norms, 4);
}

TEST(ModelConfig, BadPartsAreNamed) {
  const Keys latent{{"decoder_block", "deepseek"}, {"attention_type", "mla"}};
  const auto with = [](Keys keys, const std::string& key, nlohmann::json value) {
    keys[key] = std::move(value);
    return keys;
  };
  const std::pair<Keys, std::string> refused[] = {
      {{{"moe_layers", {3}}}, "moe_layers=[3]: expected numbers from 0 to 2"},
      {{{"moe_layers", {1}}, {"first_num_dense_layers", 1}}, "expected one of them"},
      {{{"windowed_layers", {1}}}, "sliding_window_size=0: windowed_layers needs one above 0"},
      {{{"windowed_layers", {-1}}, {"sliding_window_size", 4}}, "windowed_layers=[-1]"},
      {with(latent, "sliding_window_size", 4), "attention_type=mla has no windows"},
      {with(latent, "attention_sink", true), "attention_type=mla has no sinks"},
      {with(latent, "partial_rotary_factor", 0.5), "partial_rotary_factor=0.5"},
      {{{"partial_rotary_factor", 0.25}}, "rotary dims 1: expected an even number"},
      {{{"partial_rotary_factor", 0.0}}, "rotary dims 0"},
      {{{"mlp_activations", {"gelu", "linear"}}},
       "mlp_activations=[gelu,linear]: decoder_block=mixtral has [silu,linear]"},
      {{{"mlp_activations_limit", 7.0}}, "mlp_activations_limit=7: expected decoder_block=gpt_oss"},
      {{{"decoder_block", "gpt_oss"}, {"sliding_window_size", 4}}, "mlp_activations_limit=-1"},
      {{{"mtp_num_layers", 1},
        {"decoder_block", "qwen3_custom_moe"},
        {"attention_output_dim", 8},
        {"moe_expert_input_dim", 8}},
       "mtp_num_layers=1: decoder_block=qwen3_custom_moe has no prediction layers"},
      {{{"nope_layer_interval", 2}}, "nope_layer_interval=2: expected decoder_block=llama4, got mixtral"},
      {{{"unrotated_layers", {0}}}, "unrotated_layers=[0]: expected decoder_block=llama4, got mixtral"},
      {{{"decoder_block", "llama4"}, {"unrotated_layers", {3}}}, "expected numbers from 0 to 2"},
      {{{"decoder_block", "llama4"}, {"unrotated_layers", {0}}, {"nope_layer_interval", 2}},
       "expected one of them"},
      {with(latent, "clip_qkv", 1), "clip_qkv=1: attention_type=mla clamps nothing"},
      {{{"use_post_ffw_norm", true}}, "use_post_ffw_norm=true: expected decoder_block=envy, got mixtral"},
      {{{"decoder_block", "envy"}, {"shared_experts", 1}}, "decoder_block=envy has no shared experts"},
      {{{"decoder_block", "llama2"},
        {"num_experts", 1},
        {"num_experts_per_tok", 1},
        {"interleave_moe_layer_step", 2}},
       "interleave_moe_layer_step=2"},
      {{{"chunk_attn_window_size", 8}}, "chunk_attn_window_size=8: expected decoder_block=llama4"},
      {{{"temperature_tuning", true}}, "temperature_tuning=true: expected decoder_block=llama4"},
      {{{"interleave_moe_layer_step", 2}}, "interleave_moe_layer_step=2: expected decoder_block=llama4"},
      {{{"decoder_block", "llama4"}, {"interleave_moe_layer_step", 4}}, "interleave_moe_layer_step=4"},
      {{{"decoder_block", "llama4"}, {"interleave_moe_layer_step", 2}, {"moe_layers", {1}}},
       "interleave_moe_layer_step=2"},
      {{{"decoder_block", "llama4"}, {"sliding_window_size", 4}}, "has chunks, not windows"},
      {{{"decoder_block", "llama4"}, {"use_qk_norm", true}, {"qk_norm_over", "width"}}, "qk_norm_over=width"},
      {{{"decoder_block", "llama4"}, {"routed_score_func", "softmax"}}, "routed_score_func=softmax"},
      {{{"decoder_block", "llama4"}, {"routed_bias", true}}, "routed_bias=true"},
      {{{"decoder_block", "llama4"}, {"norm_topk_prob", true}}, "norm_topk_prob=true"},
      {{{"decoder_block", "llama4"}, {"routed_scaling_factor", 2.0}}, "routed_scaling_factor=2"},
      {{{"decoder_block", "llama4"}, {"n_routing_groups", 2}, {"topk_routing_group", 1}},
       "n_routing_groups=2"},
      {{{"decoder_block", "llama4"}, {"mlp_bias", true}}, "mlp_bias=true"},
      {{{"inhomogeneous_layer_cycle_interval", 2}}, "inhomogeneous_layer_cycle_interval=2"},
      {{{"delta_layers", {1}}}, "delta_layers=[1]: expected decoder_block=qwen3_next"},
      {{{"decoder_block", "qwen3_next"}, {"delta_layers", {3}}},
       "delta_layers=[3]: expected numbers from 0 to 2"},
      {{{"decoder_block", "qwen3_next"}, {"delta_layers", {1}}, {"inhomogeneous_layer_cycle_interval", 2}},
       "expected one of them"},
      {{{"decoder_block", "qwen3_next"},
        {"inhomogeneous_layer_cycle_interval", 2},
        {"gdn_num_key_heads", 3},
        {"gdn_num_value_heads", 4}},
       "gdn_num_value_heads=4: expected a multiple of gdn_num_key_heads=3"},
      {{{"decoder_block", "qwen3_next"}, {"attention_bias", true}}, "attention_bias=true"},
      {{{"decoder_block", "qwen3_next"}, {"use_qk_norm", true}, {"qk_norm_over", "width"}},
       "qk_norm_over=width"},
      {{{"decoder_block", "qwen3_next"}, {"sliding_window_size", 4}},
       "decoder_block=qwen3_next has no windows"},
      {{{"shared_expert_mlp_dim", 8}}, "shared_expert_mlp_dim=8: shared_experts=0"},
      {{{"decoder_block", "llama2"}, {"num_experts", 1}, {"num_experts_per_tok", 1}, {"mlp_bias", true}},
       "mlp_bias=true: decoder_block=llama2 has no experts"}};
  for (const auto& [keys, text] : refused) {
    try {
      model_of(keys);
      ADD_FAILURE() << "accepted, expected an error with: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::usage);
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace switchyard
