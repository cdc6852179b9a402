// Llama 2 and 3, and Mistral: dense, grouped queries.
//
// A layer:
//   q, k, v = W n(x); rope on whole heads; h = x + Wo softmax(q·k · head_dim^-1/2) v;
//     Mistral: the last window's keys
//   y = h + Wo (silu(W0 m) · W1 m), m = n(h)
#include <algorithm>

#include "models/families/common.h"

namespace switchyard {
namespace {

constexpr DecoderBlock kLlama2Block{.name = "llama2", .other_name = "default"};
constexpr DecoderBlock kMistralBlock{.name = "mistral"};

constexpr FixedField kLlamaRefused[] = {{"use_sliding_window", "false"}};
constexpr std::string_view kMistralRead[] = {"sliding_window"};
constexpr FixedField kMistralRefused[] = {{"attention_bias", "false"}, {"use_sliding_window", "false"}};

void read_llama(const HubConfig& hub, ConfigKeys& keys) {
  read_rope(hub, {.usual_theta = 10000}, keys);  // absent from the first published files
  read_grouped_attention(hub, {.biases = true}, keys);
}

void write_llama(const Config&, const ModelConfig& model, HubJson& hub) {
  write_grouped_attention(model, hub);
  hub["mlp_bias"] = false;
}

void read_mistral(const HubConfig& hub, ConfigKeys& keys) {
  constexpr std::int64_t kUsualWindow = 4096;
  read_window_of_all(hub, kUsualWindow, keys);
  keys.contains("sliding_window_size") ? read_windowed_layers(hub, keys) : refuse_windows(hub);
  read_rope(hub, {}, keys);
  read_grouped_attention(hub, {}, keys);
}

void write_mistral(const Config&, const ModelConfig& model, HubJson& hub) {
  write_grouped_attention(model, hub);
  hub["sliding_window"] = model.window() > 0 ? HubJson(model.window()) : HubJson(nullptr);
  const auto is_windowed = [&](const LayerSpec& layer) { return model.seen_in(layer).window > 0; };
  if (model.window() > 0 && !std::ranges::all_of(model.layer_specs, is_windowed))
    hub["layer_types"] = layer_types(model);
}

bool writes_llama(const ModelConfig&) {
  return true;
}

// Neither has norms of queries and keys; Qwen3 is the same layer with them.
void restate_llama(const ModelConfig& model, Restated& restated) {
  if (model.attention().qk_norm) restated.keys["decoder_block"] = "qwen3";
}

}  // namespace

const ModelFamily kLlama{.type = "llama",
                         .architecture = "LlamaForCausalLM",
                         .block = &kLlama2Block,
                         .tensors = {},
                         .fields = {.refused = kLlamaRefused, .more = {&kGroupedFields}},
                         .read = read_llama,
                         .write = write_llama,
                         .writes = writes_llama,
                         .restate = restate_llama};
const ModelFamily kMistral{
    .type = "mistral",
    .architecture = "MistralForCausalLM",
    .block = &kMistralBlock,
    .tensors = {},
    .fields = {.read = kMistralRead, .refused = kMistralRefused, .more = {&kGroupedFields}},
    .read = read_mistral,
    .write = write_mistral,
    .writes = writes_llama,
    .restate = restate_llama};

}  // namespace switchyard
