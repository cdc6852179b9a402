#include "models/families/nested_decoder.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "core/error.h"

namespace switchyard {
namespace {

using nlohmann::json;

struct NestedDecoder {
  std::string_view type, decoder;  // model_type of the whole and of its decoder
  std::string_view front,
      alone;  // of the names of the decoder's tensors in its files, and in a decoder's own
};

constexpr NestedDecoder kNestedDecoders[] = {
    {"llama4", "llama4_text", "language_model.", ""},
    {"qwen3_vl_moe", "qwen3_vl_moe_text", "model.language_model.", "model."},
};

const NestedDecoder* nested_decoder(const json& config) {
  const auto* const found = std::find_if(
      std::begin(kNestedDecoders), std::end(kNestedDecoders),
      [&](const auto& n) { return config.is_object() && config.value("model_type", json()) == n.type; });
  return found == std::end(kNestedDecoders) ? nullptr : found;
}

class DecoderWeights : public HubWeights {
 public:
  DecoderWeights(std::shared_ptr<const HubWeights> whole, const NestedDecoder& nested)
      : whole_(std::move(whole)) {
    for (const std::string& name : whole_->names()) {
      const bool ours = name.starts_with(nested.front);
      const std::string here = ours ? std::string(nested.alone) + name.substr(nested.front.size()) : name;
      if (!stored_.emplace(here, name).second)
        fail_usage("[checkpoint] {}: two tensors for {}", whole_->path(), here);
    }
  }

  const std::string& path() const override { return whole_->path(); }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [here, there] : stored_) all.push_back(here);
    return all;
  }
  bool contains(const std::string& name) const override { return stored_.contains(name); }
  Shape shape(const std::string& name) const override { return whole_->shape(stored(name)); }
  std::string dtype(const std::string& name) const override { return whole_->dtype(stored(name)); }
  Tensor read(const std::string& name) const override { return whole_->read(stored(name)); }
  Tensor take_rows(const std::string& name, std::int64_t begin, std::int64_t end) const override {
    return whole_->take_rows(stored(name), begin, end);
  }
  Tensor take_values(const std::string& name, std::int64_t begin, std::int64_t end) const override {
    return whole_->take_values(stored(name), begin, end);
  }
  std::optional<DType> packed_dtype(const std::string& name) const override {
    return whole_->packed_dtype(stored(name));
  }
  Tensor take_blocks(const std::string& name) const override { return whole_->take_blocks(stored(name)); }
  std::optional<DType> packed_stack_dtype(const std::string& name) const override {
    return whole_->packed_stack_dtype(stored(name));
  }
  Tensor take_stack_blocks(const std::string& name, const StackRows& rows) const override {
    return whole_->take_stack_blocks(stored(name), rows);
  }

 private:
  // A name that is missing is an error of the files', under that name.
  const std::string& stored(const std::string& name) const {
    const auto found = stored_.find(name);
    return found == stored_.end() ? name : found->second;
  }

  std::shared_ptr<const HubWeights> whole_;
  std::map<std::string, std::string> stored_;  // by the name here
};

}  // namespace

json decoder_config(const json& hub_config) {
  const NestedDecoder* const nested = nested_decoder(hub_config);
  if (nested == nullptr) return hub_config;
  const auto text = hub_config.find("text_config");
  if (text == hub_config.end() || !text->is_object())
    fail_usage("[hub config] text_config: expected an object, as model_type={} has its decoder there",
               nested->type);
  json config = *text;
  config["model_type"] = nested->decoder;
  // The whole model's word counts: its class ties the head, and reads the files.
  for (const char* key : {"tie_word_embeddings", "quantization_config", "dtype", "torch_dtype"}) {
    if (hub_config.contains(key)) config[key] = hub_config[key];
  }
  return config;
}

std::shared_ptr<const HubWeights> decoder_weights(const json& hub_config,
                                                  std::shared_ptr<const HubWeights> weights) {
  const NestedDecoder* const nested = nested_decoder(hub_config);
  if (nested == nullptr) return weights;
  return std::make_shared<DecoderWeights>(std::move(weights), *nested);
}

bool is_of_another_part(const std::string& name) {
  constexpr std::string_view kParts[] = {"vision_model.", "multi_modal_projector.", "model.visual.",
                                         "visual."};
  return std::any_of(std::begin(kParts), std::end(kParts),
                     [&](std::string_view part) { return name.starts_with(part); });
}

}  // namespace switchyard
