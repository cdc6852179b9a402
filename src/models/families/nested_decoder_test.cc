// Decoders nested in models that see images: their settings, their tensors' names, and the skipped tensors.
#include <gtest/gtest.h>

#include <map>

#include "models/families/family.h"
#include "models/families/hub_tensors.h"
#include "models/parameters.h"
#include "models/same_model.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;

const Json decoder_fields = {{"hidden_size", 8},
                             {"intermediate_size", 12},
                             {"num_hidden_layers", 2},
                             {"num_attention_heads", 4},
                             {"num_key_value_heads", 2},
                             {"head_dim", 4},
                             {"vocab_size", 32},
                             {"rms_norm_eps", 1e-5},
                             {"rope_theta", 10000},
                             {"max_position_embeddings", 64},
                             {"num_local_experts", 4},
                             {"num_experts_per_tok", 1},
                             {"intermediate_size_mlp", 16},
                             {"moe_intermediate_size", 12},
                             {"kv_lora_rank", 8},
                             {"qk_nope_head_dim", 4},
                             {"qk_rope_head_dim", 4},
                             {"v_head_dim", 4},
                             {"n_routed_experts", 4},
                             {"n_group", 1},
                             {"topk_group", 1},
                             {"first_k_dense_replace", 1}};

// Zeros of given shapes.
class ZeroWeights : public HubWeights {
 public:
  explicit ZeroWeights(std::map<std::string, Shape> shapes) : shapes_(std::move(shapes)) {}
  const std::string& path() const override { return path_; }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, shape] : shapes_) all.push_back(name);
    return all;
  }
  bool contains(const std::string& name) const override { return shapes_.contains(name); }
  Shape shape(const std::string& name) const override { return shapes_.at(name); }
  std::string dtype(const std::string&) const override { return "F32"; }
  Tensor read(const std::string& name) const override { return Tensor::zeros(DType::f32, shapes_.at(name)); }
  Tensor take_rows(const std::string& name, std::int64_t begin, std::int64_t end) const override {
    return read(name).slice_rows(begin, end);
  }

 private:
  std::string path_ = "zeros";
  std::map<std::string, Shape> shapes_;
};

// The tensors of a model's files as such a family has them, names as in a model of text alone.
std::map<std::string, Shape> files_of(const ModelFamily& family, const Json& config,
                                      const ModelConfig& model) {
  std::map<std::string, Shape> files;
  for (const ParameterSpec& spec : parameter_specs(model)) {
    const HubTensors tensors = hub_tensors(family, spec.name, spec.shape);
    for (const std::string& name : tensors.names) {
      const auto place = fused_place(family, config, name);
      if (place)
        files[place->fused] = fused_shape(*place, model.moe().experts, tensors.shape);
      else
        files[name] = tensors.shape;
    }
  }
  return files;
}

struct Nested {
  std::string type, decoder, front, alone;  // ModelFamily::root
  std::vector<std::string> others;          // of what sees images
};

const Nested nested_models[] = {
    {"llama4",
     "llama4_text",
     "language_model.",
     "",
     {"vision_model.a.weight", "multi_modal_projector.b.weight"}},
    {"kimi_k25", "kimi_k2", "language_model.", "", {"vision_tower.a.weight", "mm_projector.b.weight"}},
    {"qwen3_vl_moe", "qwen3_vl_moe_text", "model.language_model.", "model.", {"model.visual.a.weight"}},
};

TEST(NestedDecoder, IsReadAsAModelOfText) {
  for (const Nested& nested : nested_models) {
    SCOPED_TRACE(nested.type);
    Json alone = decoder_fields;
    alone["model_type"] = nested.decoder;
    Json whole = {
        {"model_type", nested.type}, {"text_config", decoder_fields}, {"tie_word_embeddings", true}};
    EXPECT_EQ(&family_of(whole), &family_of(alone));
    EXPECT_EQ(differing_key(model_config(config_of_hub(whole)), model_config(config_of_hub(alone))),
              "logits_via_embedding");
    whole["tie_word_embeddings"] = false;
    const ModelConfig model = model_config(config_of_hub(whole));
    EXPECT_EQ(differing_key(model, model_config(config_of_hub(alone))), "");

    const ModelFamily& family = family_of(whole);
    std::map<std::string, Shape> files;
    for (const auto& [name, shape] : files_of(family, whole, model)) {
      const bool below = name.starts_with(nested.alone);
      files[below ? nested.front + name.substr(nested.alone.size()) : name] = shape;
    }
    for (const std::string& other : nested.others) files[other] = {3, 5};
    std::map<std::string, Shape> parameters;
    for (const ParameterSpec& spec : parameter_specs(model)) parameters[spec.name] = spec.shape;
    const auto weights = unfused(family, whole, std::make_shared<ZeroWeights>(files));
    EXPECT_EQ(check_hub_tensors(*weights, family, parameters, model.layers),
              (std::vector{std::to_string(nested.others.size()) + " tensors of what sees images"}));
    for (const auto& [name, shape] : parameters)
      EXPECT_EQ(load_from_hub(*weights, family, name, shape).shape(), shape) << name;
  }
}

}  // namespace
}  // namespace switchyard
