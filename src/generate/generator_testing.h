// What tests of the generator share: small models, layouts, and logits of whole rows and of pieces.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/rng.h"
#include "engine/session.h"
#include "generate/generator.h"

namespace switchyard::generator_test {

using Keys = std::map<std::string, nlohmann::json>;
using Rows = std::vector<std::vector<std::int32_t>>;

inline constexpr std::int64_t kVocabulary = 40;

inline Keys small_model() {
  return {{"vocab_size", kVocabulary}, {"base_emb_dim", 24},     {"base_mlp_dim", 20},
          {"base_moe_mlp_dim", 12},    {"dtype", "float32"},     {"num_experts", 4},
          {"num_experts_per_tok", 2},  {"init_weights_seed", 3}, {"max_target_length", 8}};
}

inline Keys grouped_queries() {
  Keys keys = small_model();
  keys["base_mlp_dim"] = keys["base_moe_mlp_dim"];
  keys.insert({{"decoder_block", "mixtral"},
               {"base_num_decoder_layers", 2},
               {"base_num_query_heads", 4},
               {"base_num_kv_heads", 2},
               {"head_dim", 6}});
  return keys;
}

// The log softmax of one token, by its definition.
inline double log_probability(std::span<const float> logits, std::int32_t token) {
  double sum = 0;
  for (const float logit : logits)
    sum +=
        std::exp(static_cast<double>(logit) - static_cast<double>(logits[static_cast<std::size_t>(token)]));
  return -std::log(sum);
}

// Bytes of a rank's account for all that the caches of two rows remember after some calls.
inline std::int64_t bytes_remembered(const Keys& keys, std::int64_t capacity,
                                     const std::vector<std::vector<SlotTokens>>& calls) {
  const Config config = Config::from_map(keys, {});
  const ModelConfig model = model_config(config);
  std::int64_t bytes = 0;
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const Parameters parameters =
        Parameters::create(context, parameter_specs(model), model.init_seed, {}, nullptr);
    Generator generator(context, model, parameters, 2, capacity);
    const std::int64_t before = context.memory.in_use();
    for (const std::vector<SlotTokens>& call : calls) generator.feed(call);
    bytes = context.memory.in_use() - before;
  });
  return bytes;
}

// Llama 4's layers: chunks of three tokens, and a layer without rotation whose queries grow.
inline Keys chunked() {
  Keys keys = grouped_queries();
  keys["decoder_block"] = "llama4";
  keys.insert({{"shared_experts", 1},
               {"use_qk_norm", true},
               {"nope_layer_interval", 2},
               {"interleave_moe_layer_step", 2},
               {"chunk_attn_window_size", 3},
               {"temperature_tuning", true},
               {"temperature_tuning_floor_scale", 2}});
  return keys;
}

// Mistral's: every layer has a window of five tokens.
inline Keys windowed() {
  Keys keys = grouped_queries();
  keys["sliding_window_size"] = 5;
  return keys;
}

// Envy's: one expert a token in the second layer, norms behind the MLP and the experts; and what OLMoE may
// have, a bound of queries, keys and values.
inline Keys envy() {
  Keys keys = grouped_queries();
  keys["decoder_block"] = "envy";
  keys["num_experts_per_tok"] = 1;
  keys.insert({{"use_qk_norm", true},
               {"use_post_ffw_norm", true},
               {"interleave_moe_layer_step", 2},
               {"clip_qkv", 0.5}});
  return keys;
}

// Layers of two kinds, as MiMo, Laguna and Step have them: other heads, windows, sinks and gates each, and
// values that are narrower than keys.
inline Keys two_kinds() {
  Keys keys = grouped_queries();
  keys["base_num_decoder_layers"] = 3;
  keys.insert({{"value_head_dim", 4},
               {"attention_value_scale", 0.7},
               {"attention_gate", "head"},
               {"layer_kinds", {"window", "full", "window"}},
               {"attention_kinds",
                {{"window",
                  {{"sliding_window_size", 5},
                   {"attention_sink", true},
                   {"base_num_query_heads", 6},
                   {"rope_max_timescale", 100}}},
                 {"full", {{"partial_rotary_factor", 0.34}, {"attention_gate_curve", "softplus"}}}}}});
  return keys;
}

inline Keys latent() {
  Keys keys = small_model();
  keys.insert({{"decoder_block", "deepseek"},
               {"base_num_decoder_layers", 3},
               {"first_num_dense_layers", 1},
               {"base_num_query_heads", 4},
               {"base_num_kv_heads", 4},
               {"attention_type", "mla"},
               {"q_lora_rank", 10},
               {"kv_lora_rank", 14},
               {"qk_nope_head_dim", 6},
               {"qk_rope_head_dim", 4},
               {"v_head_dim", 8},
               {"routed_score_func", "sigmoid"},
               {"routed_bias", true},
               {"shared_experts", 1},
               {"norm_topk_prob", true},
               {"rope_type", "default"}});
  return keys;
}

// The same with an indexer that chooses three keys.
inline Keys indexed() {
  Keys keys = latent();
  keys.insert({{"use_indexer", true}, {"indexer_n_heads", 3}, {"indexer_head_dim", 8}, {"indexer_topk", 3}});
  return keys;
}

// This model has an indexer too, but its last layer attends to the keys that the layer before it chose.
inline Keys shared_choices() {
  Keys keys = indexed();
  keys["shared_choice_layers"] = {2};
  return keys;
}

// Gated delta nets in all layers but the last.
inline Keys delta_nets() {
  Keys keys = grouped_queries();
  keys["decoder_block"] = "qwen3_next";
  keys["base_num_decoder_layers"] = 3;
  keys.insert({{"inhomogeneous_layer_cycle_interval", 3},
               {"use_qk_norm", true},
               {"gdn_num_key_heads", 2},
               {"gdn_num_value_heads", 4},
               {"gdn_key_head_dim", 6},
               {"gdn_value_head_dim", 5},
               {"gdn_chunk_size", 4},
               {"shared_experts", 1},
               {"shared_expert_mlp_dim", 10}});
  return keys;
}

inline Rows random_rows(const std::vector<std::int64_t>& lengths) {
  Rows rows;
  std::uint64_t at = 0;
  for (const std::int64_t length : lengths) {
    rows.emplace_back();
    for (std::int64_t i = 0; i < length; ++i)
      rows.back().push_back(rng_randint(rng_key(11), at++, 0, static_cast<std::int32_t>(kVocabulary)));
  }
  return rows;
}

// The model's logits for what follows every token of each row, [row][token · vocabulary], computed for the
// whole rows at once on one rank.
inline std::vector<std::vector<float>> every_logits_at_once(const Keys& keys, const Rows& rows) {
  std::vector<std::vector<float>> all;
  const Config config = Config::from_map(keys, {});
  const ModelConfig model = model_config(config);
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const NoGrad no_grad(context);
    const Parameters parameters =
        Parameters::create(context, parameter_specs(model), model.init_seed, {}, nullptr);
    for (const auto& row : rows) {
      const Shape shape{1, static_cast<std::int64_t>(row.size())};
      Batch batch{Tensor::of<std::int32_t>(shape, row), Tensor(DType::i32, shape), Tensor(DType::i32, shape),
                  Tensor(DType::i32, shape), Tensor(DType::i32, shape)};
      for (std::size_t i = 0; i < row.size(); ++i) {
        batch.targets.span<std::int32_t>()[i] = 0;
        batch.inputs_position.span<std::int32_t>()[i] = static_cast<std::int32_t>(i);
        batch.inputs_segmentation.span<std::int32_t>()[i] = 1;
        batch.targets_segmentation.span<std::int32_t>()[i] = 1;
      }
      LossOptions options;
      options.keep_logits = true;
      const Tensor logits =
          training_losses(context, model, parameters, place_batch(context, batch), options).logits.tensor();
      all.emplace_back(logits.span<float>().begin(), logits.span<float>().end());
    }
  });
  return all;
}

// Those of each row's next token alone.
inline std::vector<std::vector<float>> logits_at_once(const Keys& keys, const Rows& rows) {
  auto all = every_logits_at_once(keys, rows);
  for (auto& of_row : all) of_row.erase(of_row.begin(), of_row.end() - kVocabulary);
  return all;
}

inline std::vector<std::string> settings_of(const std::string& layout) {
  std::vector<std::string> settings;
  for (std::size_t begin = 0; begin < layout.size();) {
    const std::size_t end = std::min(layout.find(' ', begin), layout.size());
    settings.push_back(layout.substr(begin, end - begin));
    begin = end + 1;
  }
  return settings;
}

inline constexpr const char* kLayouts[] = {"",
                                           "ranks=2 ici_tensor_parallelism=2",
                                           "ranks=4 ici_tensor_parallelism=4",
                                           "ranks=2 ici_context_parallelism=2",
                                           "ranks=2 ici_expert_parallelism=2",
                                           "ranks=3 ici_fsdp_parallelism=3",
                                           "ranks=2 ici_pipeline_parallelism=2",
                                           "ranks=2 ici_expert_parallelism=2 use_ring_of_experts=true",
                                           "sparse_matmul=false num_moe_token_chunks=2"};

// Logits that a generator gives on the layout for the last tokens of rows fed in pieces, [row][vocabulary].
inline std::vector<std::vector<float>> logits_in_pieces(const Keys& keys, const std::string& layout,
                                                        const Rows& rows,
                                                        const std::vector<std::vector<std::size_t>>& pieces) {
  const Config config = Config::from_map(keys, settings_of(layout));
  const ModelConfig model = model_config(config);
  std::vector<std::vector<float>> last(rows.size());
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const Parameters parameters = Parameters::create(
        context, stage_specs(parameter_specs(model), context.stage, model), model.init_seed, {}, nullptr);
    Generator generator(context, model, parameters, static_cast<std::int64_t>(rows.size()), 12);
    std::vector<std::size_t> fed(rows.size(), 0);
    for (const auto& counts : pieces) {
      std::vector<SlotTokens> piece;
      for (std::size_t r = 0; r < rows.size(); ++r) {
        if (counts[r] == 0) continue;
        const auto from = rows[r].begin() + static_cast<std::ptrdiff_t>(fed[r]);
        piece.push_back({r, {from, from + static_cast<std::ptrdiff_t>(counts[r])}});
        fed[r] += counts[r];
      }
      const Tensor got = generator.feed(piece);
      if (context.comm->rank() != 0) continue;
      for (std::size_t i = 0; i < piece.size(); ++i) {
        const auto row = got.span<float>().subspan(i * kVocabulary, kVocabulary);
        last[piece[i].slot].assign(row.begin(), row.end());
      }
    }
    for (std::size_t r = 0; r < rows.size(); ++r) EXPECT_EQ(fed[r], rows[r].size());
  });
  return last;
}

}  // namespace switchyard::generator_test
