// Tests that a difference in any single field of an architecture is noticed.
#include "models/architecture.h"

#include <gtest/gtest.h>

#include <set>

#include "config/declaration.h"
#include "models/model_config.h"

namespace switchyard {
namespace {

// Models in which, together, every field has a say.
std::vector<Architecture> models() {
  Architecture dense;
  dense.layers = 4;
  dense.layer_specs.resize(4);
  dense.emb = dense.moe_emb = 8;
  dense.mlps.front().width = 16;
  dense.vocab = 32;
  dense.attentions.resize(1);
  AttentionKind& attention = dense.attentions[0];
  attention.heads = 4;
  attention.kv_heads = 2;
  attention.head_dim = attention.rope_dim = attention.v_dim = 4;
  attention.rope.type = "llama3.1";
  dense.tied = true;
  Architecture routed = dense;
  routed.layer_specs = {{}, {.mlp = -1, .moe = 0}, {.mlp = -1, .moe = 0}, {.mlp = -1, .moe = 0}};
  routed.moe_mlp = 8;
  routed.shared_experts = 1;
  routed.moes.front().experts = 8;
  routed.moes.front().slots = 2;
  routed.moes.front().score = RouterScore::sigmoid;
  routed.moes.front().softmax_over_selected = false;
  routed.moes.front().normalise = routed.moes.front().bias = true;
  routed.moes.front().groups = 4;
  routed.moes.front().kept_groups = 2;
  routed.attentions[0].qk_norm = true;
  Architecture latent = routed;
  latent.attentions[0].mla = true;
  latent.attentions[0].rope.type = "yarn";
  Architecture indexed = latent;
  AttentionKind& chooser = indexed.attentions[0];
  chooser.indexer_heads = chooser.indexer_dim = chooser.indexer_topk = 4;
  Architecture drawn = routed;
  drawn.moes.front().random_routing = true;
  Architecture clamped = routed;
  clamped.moes.front().gate_limit = 7;
  clamped.moes.push_back(clamped.moe());
  clamped.moes[1].gate_limit = 9;
  clamped.layer_specs[1].moe = 1;
  clamped.attentions.push_back(clamped.attention());
  clamped.attentions[1].window = 8;
  clamped.layer_specs[1].attention = 1;
  Architecture chunked = routed;
  chunked.attentions[0].qk_unit_norm = true;
  chunked.attentions.push_back(chunked.attention());
  chunked.attentions[0].chunk = 8;
  AttentionKind& growing = chunked.attentions[1];
  growing.rotated = false;
  growing.query_growth = 0.1;
  growing.query_growth_positions = 16;
  chunked.layer_specs[1].attention = 1;
  chunked.moes.front().choose_by_logit = chunked.moes.front().weights_on_inputs = true;
  Architecture delta = routed;
  delta.layer_specs[1].attention = -1;
  delta.layer_specs[1].delta = 0;
  delta.attentions[0].gate = delta.norm_plus_one = delta.shared_gate = true;
  delta.deltas.push_back({.key_heads = 2, .value_heads = 4, .key_dim = 4, .value_dim = 4, .taps = 4});
  delta.shared_mlp = 12;
  Architecture unlike = routed;
  unlike.attentions.push_back(unlike.attention());
  unlike.attentions[1].heads = 8;
  unlike.layer_specs[1].attention = 1;
  Architecture predicting = routed;
  predicting.predictions = 1;
  predicting.layer_specs.push_back(routed.layer_specs.back());
  return {dense, routed, latent, indexed, drawn, clamped, chunked, delta, unlike, predicting};
}

void change(bool& value) {
  value = !value;
}
void change(std::string& value) {
  value = value == "yarn" ? "default" : "yarn";
}
void change(RouterScore& value) {
  value = value == RouterScore::softmax ? RouterScore::sigmoid : RouterScore::softmax;
}
void change(GateClamp& value) {
  value = value == GateClamp::after ? GateClamp::before : GateClamp::after;
}
void change(std::vector<double>& value) {
  value.push_back(2);
}
template <typename T>
void change(T& value) {
  value = value * 2 + 2;
}
template <typename T>
void change_at(T* field, const char*) {
  change(*field);
}
template <typename T>
void change_at(const OfKinds<T>& places, const char*) {
  for (T* const place : places) change(*place);
}
// Changes what layer 2 is, or the kind that it is of.
void change_at(const LayersWith& layers, const char* name) {
  Architecture& a = *layers.model;
  LayerSpec& layer = a.layer_specs[2];
  const std::string_view field = name;
  if (field == "moe_layers") {
    layer.moe = layer.has_experts() ? -1 : 0;
    layer.mlp = layer.has_experts() ? -1 : 0;
  } else if (field == "delta_layers") {
    if (a.deltas.empty()) a.deltas.emplace_back();
    layer.delta = layer.delta < 0 ? 0 : -1;
    layer.attention = layer.delta < 0 ? 0 : -1;
  } else {
    AttentionKind& kind = a.attentions[static_cast<std::size_t>(layer.attention)];
    if (field == "windowed_layers")
      kind.window = kind.window > 0 ? 0 : 8;
    else
      kind.rotated = !kind.rotated;
  }
}
void change_at(const KindOfLayers& layers, const char* name) {
  Architecture& a = *layers.model;
  LayerSpec& layer = a.layer_specs[2];
  if (std::string_view(name) == "feed_forward_layers") {
    if (layer.has_experts()) layer.moe = static_cast<int>(a.moes.size()) - 1 - layer.moe;
  } else if (std::string_view(name) == "shared_choices") {
    layer.choice_of = layer.choice_of < 0 ? 0 : -1;
  } else if (a.attentions.front().heads != a.attentions.back().heads) {
    layer.attention = static_cast<int>(a.attentions.size()) - 1 - layer.attention;
  }
}
const void* address_of(const auto* field) {
  return field;
}
template <typename T>
const void* address_of(const OfKinds<T>& places) {
  return places.front();
}
const void* address_of(const LayersWith& layers) {
  return reinterpret_cast<const void*>(layers.has);
}
const void* address_of(const KindOfLayers& layers) {
  return reinterpret_cast<const void*>(layers.number);
}

Architecture changed(Architecture a, const ArchitectureField& field) {
  std::visit([&](const auto& at) { change_at(at, field.name); }, field.of(a));
  return a;
}

TEST(Architecture, EveryFieldAloneIsNoticed) {
  for (const ArchitectureField& field : architecture_fields()) {
    SCOPED_TRACE(field.name);
    int checked = 0;
    for (const Architecture& a : models()) {
      EXPECT_EQ(differing_field(a, a), nullptr);
      if (std::string_view(field.name) == "window" && !field.applies(a))
        continue;  // it makes layers windowed
      const Architecture b = changed(a, field);
      if (!field.applies(a) && !field.applies(b)) {
        EXPECT_EQ(architecture_hash(a), architecture_hash(b)) << "it has no say";
        continue;
      }
      ++checked;
      EXPECT_NE(value_of(field, a), value_of(field, b));
      EXPECT_NE(architecture_hash(a), architecture_hash(b));
      EXPECT_EQ(differing_field(a, b), &field) << differing_key(a, b);
      EXPECT_NE(architecture_json(a), architecture_json(b));
    }
    EXPECT_GT(checked, 0) << "no model of this test has it";
  }
}

// With the count of fields that architecture.cc requires: every field has its line.
TEST(Architecture, NoTwoLinesAreOfOneField) {
  Architecture a;
  a.layer_specs.resize(1);
  a.attentions.resize(1);
  a.deltas.resize(1);
  std::set<const void*> fields;
  std::set<std::string> names;
  Aspect last = Aspect::shape;
  for (const ArchitectureField& field : architecture_fields()) {
    SCOPED_TRACE(field.name);
    EXPECT_TRUE(fields.insert(std::visit([](const auto& at) { return address_of(at); }, field.of(a))).second);
    EXPECT_TRUE(names.insert(field.name).second);
    const KeyDeclaration* const key = find_key(field.key);
    ASSERT_NE(key, nullptr) << "no config key is called " << field.key;
    EXPECT_EQ(key->role, KeyRole::model) << field.key;
    EXPECT_GE(field.aspect, last) << "those of shape come first";
    last = field.aspect;
  }
  EXPECT_GT(fields.size(), 40u);
}

// The hash of a model is the same in every build: files may hold it.
TEST(Architecture, TheHashStays) {
  EXPECT_EQ(
      architecture_json(models()[0]).dump(),
      R"({"attention_scale":1.0,"compat":false,"emb":8,"experts":0,"head_dim":4,"heads":4,"kv_heads":2,"layers":4,)"
      R"("logit_soft_cap":0.0,"mla":false,"mlp":16,"moe_emb":8,"norm_epsilon":1e-06,"normalize_tied_logits":false,)"
      R"("qk_norm":false,"rope_factor":1.0,"rope_high_frequency_factor":4.0,"rope_interleaved":false,)"
      R"("rope_low_frequency_factor":1.0,"rope_original_positions":0,"rope_theta":10000.0,)"
      R"("rope_type":"llama3.1","tied":true,"vocab":32})");
  EXPECT_EQ(architecture_hash(models()[0]), "489abba970f16dcd");
}

// How a model is run is no part of it.
TEST(Architecture, ExecutionChangesNothing) {
  const std::map<std::string, nlohmann::json> keys{
      {"decoder_block", "mixtral"}, {"num_experts", 4}, {"num_experts_per_tok", 2}, {"base_emb_dim", 8}};
  const ModelConfig plain = model_config(Config::from_map(keys, {}));
  const std::map<std::string, nlohmann::json> others{{"sparse_matmul", false},
                                                     {"use_ring_of_experts", true},
                                                     {"ragged_buffer_factor", 2.0},
                                                     {"moe_dropless_fallback", "layer"},
                                                     {"eval_ragged_buffer_factor", 2.0},
                                                     {"ragged_drop_policy", "prefix"},
                                                     {"num_moe_token_chunks", 2},
                                                     {"num_moe_emb_chunks", 2},
                                                     {"float32_gate_logits", true},
                                                     {"load_balance_loss_weight", 0.5},
                                                     {"dtype", "bfloat16"},
                                                     {"weight_dtype", "bfloat16"},
                                                     {"remat_policy", "none"},
                                                     {"z_loss_multiplier", 0.25},
                                                     {"init_weights_seed", 5},
                                                     {"mtp_loss_scaling_factor", 0.5}};
  for (const auto& [key, value] : others) {
    auto more = keys;
    more[key] = value;
    const ModelConfig other = model_config(Config::from_map(more, {}));
    EXPECT_EQ(architecture_hash(plain), architecture_hash(other)) << key;
    EXPECT_EQ(differing_key(plain, other), "") << key;
  }
}

// A key that is not of the model's role leaves it as it is, whatever its value.
TEST(Architecture, KeysOfOtherRolesChangeNothing) {
  const std::map<std::string, nlohmann::json> keys{
      {"decoder_block", "mixtral"}, {"num_experts", 4}, {"num_experts_per_tok", 2}, {"base_emb_dim", 8}};
  const ModelConfig plain = model_config(Config::from_map(keys, {}));
  int checked = 0;
  // Keys that need others beside them, and the value of one.
  const std::map<std::string, std::pair<std::string, nlohmann::json>> beside{
      {"use_sft", {"dataset_type", "text"}},
      {"use_dpo", {"lora_rank", 2}},
      {"sft_last_answer_only", {"use_sft", true}},
      {"sft_trust_messages", {"use_sft", true}},
      {"sft_train_on_completion_only", {"use_sft", true}},
      {"enable_lora", {"lora_rank", 2}},
      {"lora_use_rslora", {"lora_rank", 2}},
      {"lora_init", {"lora_rank", 2}}};
  for (const KeyDeclaration& key : all_keys()) {
    const bool is_of_run = key.role == KeyRole::strategy || key.role == KeyRole::training ||
                           key.role == KeyRole::memory || key.role == KeyRole::output;
    if (!is_of_run || key.status != KeyStatus::active) continue;
    std::vector<nlohmann::json> values(key.check.choices.begin(), key.check.choices.end());
    if (key.type == KeyType::boolean) values = {!key.default_value.get<bool>()};
    for (const nlohmann::json& value : values) {
      if (value == key.default_value) continue;
      auto more = keys;
      more[key.name] = value;
      if (const auto needs = beside.find(key.name); needs != beside.end()) {
        more[needs->second.first] = needs->second.second;
        if (key.name == "use_dpo" || key.name.find("sft") != std::string::npos)
          more["dataset_type"] = "text", more["data_path"] = "f";
      }
      const ModelConfig other = model_config(Config::from_map(more, {}));
      EXPECT_EQ(architecture_hash(plain), architecture_hash(other)) << key.name << "=" << value;
      ++checked;
    }
  }
  EXPECT_GT(checked, 60);
}

TEST(DecoderBlock, NamesThoseWithAFeature) {
  EXPECT_EQ(blocks_with(&DecoderBlock::unrotated_layers), "llama4");
  EXPECT_EQ(blocks_with(&DecoderBlock::interleaved_experts), "llama4 or envy");
  EXPECT_EQ(blocks_with(&DecoderBlock::delta_nets), "qwen3_next, qwen3_5_moe or qwen3_5_dense");
}

}  // namespace
}  // namespace switchyard
