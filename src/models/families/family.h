// Model families: the parts of a model that depend on who published it, one file a family (llama.cc, …).
//
// A family maps config.json to our config keys and back, and says how its
// tensors are named. Code that families share is in common.h. A model's
// mathematics is in its config keys, so no other code asks for the family.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "gguf/architectures.h"
#include "models/families/fused_weights.h"
#include "models/families/hub_config.h"
#include "models/model_config.h"

namespace switchyard {

using ConfigKeys = std::map<std::string, nlohmann::json>;  // our config keys, MaxText's names
using HubJson = nlohmann::ordered_json;                    // a config.json to write

enum class TensorForm {
  matrix,  // [out, in]; ours is [in, out]; heads may be separate dims
  vector,  // one dim; ours may separate heads
  row,     // [1, n]; ours is [n]
  table,   // the same form as ours
  taps,    // [heads · width, 1, taps]; ours is [heads, width, taps]
};

// The name of one of our parameters in a Hugging Face folder. A stack of experts has one name per expert.
struct TensorRule {
  std::string_view ours;  // below `layers.<i>.`
  std::string_view hub;   // below `model.layers.<i>.`; {} stands for the expert
  TensorForm form = TensorForm::matrix;
};

// A field of config.json that may have one value only; `value` is JSON.
struct FixedField {
  std::string_view key, value;
};

// The known fields of a config.json: those that are read, those that are refused at another value (it changes
// something that is not computed here), and those that change nothing here.
struct HubFields {
  std::span<const std::string_view> read = {};
  std::span<const FixedField> refused = {};
  std::span<const std::string_view> unused = {};
  std::array<const HubFields*, 2> more = {};  // further fields, shared by families
};

// The changes that let a family write a model that it could not write as it is.
struct Restated {
  ConfigKeys keys;                   // keys to set; another decoder_block makes another family write it
  bool same_bits = true;             // the restated model gives the same bits
  std::vector<std::string> notices;  // one line for each thing that a user should know
};

// A prefix of names in files, and its form here. It is recognised
// wherever a name begins with it; a written folder has it when `written`.
struct NameRoot {
  std::string_view there = {}, here = {};
  bool written = false;
};

// A field of config.json that some files call `there`, and code `here`.
struct OtherName {
  const char *there, *here;
};

// How a family's files hold prediction layers, of which num_nextn_predict_layers says the number.
enum class PredictionForm {
  none,
  numbered,  // after the layers, each with an embedding, a head and a final norm
  mtp  // one, below "mtp.", with the model's embedding and head; it reads outputs behind their final norm
};

struct ModelFamily {
  std::string_view type;  // model_type
  // model_type of files that hold this family's config in
  // `text_config`, beside other parts; empty: no such files exist.
  std::string_view outer_type = {};
  std::string_view architecture;          // class name in transformers
  const DecoderBlock* block;              // families may share one
  std::span<const TensorRule> tensors;    // tensors whose names differ from most families'
  std::span<const FusedRule> fused = {};  // fused tensors of its files
  // The prefix of names in its files, where it differs from ours. Only for a family with fused tensors.
  NameRoot root = {};
  std::span<const OtherName> other_names = {};
  bool scales_sum = false;    // its class scales the experts' sum, and a router's weights are those before
  bool only_experts = false;  // its config.json need not state intermediate_size
  PredictionForm predictions = PredictionForm::none;
  HubFields fields = {};                        // in addition to common_fields() of common.h
  std::span<const GgufArchitecture> gguf = {};  // the GGUF files that hold models of this family
  // Adds the keys that read_common() (common.h) does not read. Error(usage) that names the key of any setting
  // that we would compute differently.
  void (*read)(const HubConfig& hub, ConfigKeys& keys);
  // Adds the fields of config.json that write_common() does not write.
  void (*write)(const Config& config, const ModelConfig& model, HubJson& hub);
  // True when a model with this family's decoder_block is written as this type.
  bool (*writes)(const ModelConfig& model);
  // Adds the keys that a model accepted by `writes` must restate; null: each can be written as it is.
  void (*restate)(const ModelConfig& model, Restated& restated) = nullptr;
};

// All families, each with its own `type`.
std::span<const ModelFamily* const> model_families();
// The family of a config.json's `model_type`; null when it is absent or unknown.
const ModelFamily* find_family(const nlohmann::json& hub_config);
// The family of a config.json. Error(usage) that lists all families when it is absent or unknown.
const ModelFamily& family_of(const nlohmann::json& hub_config);
// The decoder's config.json when it is nested in a larger one (ModelFamily::outer_type), with settings that
// the file states for the whole model; else the input. Error(usage) when `text_config` is missing.
nlohmann::json decoder_part(const nlohmann::json& hub_config);
// The family that a model is written as; null when no Hugging Face family fits.
const ModelFamily* find_family_to_write(const Config& config, const ModelConfig& model);
// The family that a model is written as; Error(usage) when none fits.
const ModelFamily& family_to_write(const Config& config, const ModelConfig& model);
// The config.json of the model as that family has it. Error(usage), also for a setting that it cannot say.
HubJson hub_config_to_write(const Config& config, const ModelConfig& model);

// Our config keys for a config.json: those of its family, in the style of
// transformers 5 (`rope_parameters`) or as published (`rope_theta`, `rope_scaling`).
// The model gets `predictions` prediction layers: predictions_in().
ConfigKeys config_from_hub(const nlohmann::json& hub_config, std::int64_t predictions = 0);

// One line that names the fields of a config.json that its family does not know; empty: it knows all.
std::string unknown_fields_notice(const nlohmann::json& hub_config);

// The number of prediction layers: as config.json states, but 0 when `contains` lacks the first one's
// tensors, since transformers states one in every DeepSeek-V3 file that it writes. 0 also for a form that is
// not the family's. `tensor` is a name of unfused() weights.
std::int64_t predictions_in(const nlohmann::json& hub_config,
                            const std::function<bool(const std::string& tensor)>& contains);

#define SWITCHYARD_FAMILY(family) extern const ModelFamily family;
#define SWITCHYARD_BLOCK(block) extern const DecoderBlock block;
#include "models/families/list.h"
#undef SWITCHYARD_BLOCK
#undef SWITCHYARD_FAMILY

}  // namespace switchyard
