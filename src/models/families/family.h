// Model families: what of a model depends on whose it is, one file a family (llama.cc, deepseek.cc, …).
//
// A family maps config.json to our config keys and back, and says how its tensors are named. What all
// families have alike is in common.h; a model's mathematics is in its config keys, so nothing else asks which
// family it is of.
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
#include "models/families/fused_weights.h"
#include "models/families/hub_config.h"
#include "models/model_config.h"

namespace switchyard {

using ConfigKeys = std::map<std::string, nlohmann::json>;  // our config keys, MaxText's names
using HubJson = nlohmann::ordered_json;                    // a config.json that is written

enum class TensorForm {
  matrix,  // [out, in], ours [in, out], either with heads apart
  vector,  // of one dim, ours may have heads apart
  table,   // as ours
  taps,    // [heads · width, 1, taps], ours [heads, width, taps]
};

// How one of our parameters is named in a Hugging Face folder. A stack of experts has a name an expert.
struct TensorRule {
  std::string_view ours;  // below `layers.<i>.`
  std::string_view hub;   // below `model.layers.<i>.`; {} is the expert
  TensorForm form = TensorForm::matrix;
};

// A field of config.json that may have one value only: `value` is JSON.
struct FixedField {
  std::string_view key, value;
};

// The fields of a config.json, so that none is passed over: those that are read, those that are refused at
// another value, as what they change is not computed here, and those that change nothing here.
struct HubFields {
  std::span<const std::string_view> read = {};
  std::span<const FixedField> refused = {};
  std::span<const std::string_view> unused = {};
  std::array<const HubFields*, 2> more = {};  // which families have in common
};

// What a model states otherwise so that a family can write it.
struct Restated {
  ConfigKeys keys;                   // to set; with another decoder_block another family writes it
  bool same_bits = true;             // whether the model so stated gives the same bits
  std::vector<std::string> notices;  // one line for each thing that a user should know
};

// The beginning of names in files, and of the same names here. Read wherever it stands; a folder that is
// written has it if `written`.
struct NameRoot {
  std::string_view there = {}, here = {};
  bool written = false;
};

struct ModelFamily {
  std::string_view type;  // model_type
  // model_type of files that hold this one's config in `text_config`, beside other parts; empty: there are
  // none.
  std::string_view outer_type = {};
  std::string_view architecture;          // class of transformers
  const DecoderBlock* block;              // families may share one
  std::span<const TensorRule> tensors;    // those that are not named as most families name them
  std::span<const FusedRule> fused = {};  // tensors of its files that hold several matrices
  // How names in its files begin, where not as here. Only of a family that fuses.
  NameRoot root = {};
  bool only_experts = false;  // its config.json need not state intermediate_size
  // Its files may hold prediction layers after the layers, as num_nextn_predict_layers says; their embedding,
  // head and final norm are stored with each.
  bool predictions = false;
  HubFields fields = {};  // beside those of every family (common_fields() of common.h)
  // Adds to keys what read_common (common.h) does not. Error(usage) that names the key of anything that we
  // would compute differently.
  void (*read)(const HubConfig& hub, ConfigKeys& keys);
  // Adds to a config.json what write_common does not.
  void (*write)(const Config& config, const ModelConfig& model, HubJson& hub);
  // Whether a model with this family's decoder_block is written as this type.
  bool (*writes)(const ModelConfig& model);
  // Adds what a model that `writes` takes must state otherwise; null where each can be written as it is.
  void (*restate)(const ModelConfig& model, Restated& restated) = nullptr;
};

// All of them; each has another `type`.
std::span<const ModelFamily* const> model_families();
// By `model_type`; null where it is absent or none of them.
const ModelFamily* find_family(const nlohmann::json& hub_config);
// The same. Error(usage) that lists all of them where it is absent or none.
const ModelFamily& family_of(const nlohmann::json& hub_config);
// The config.json of the decoder alone, where it is a part of a file's (ModelFamily::outer_type), with what
// the file states for the whole model; else all of it. Error(usage) where such a file has no `text_config`.
nlohmann::json decoder_part(const nlohmann::json& hub_config);
// That a model is written as; null where Hugging Face has none.
const ModelFamily* find_family_to_write(const Config& config, const ModelConfig& model);
// The same; Error(usage) where there is none.
const ModelFamily& family_to_write(const Config& config, const ModelConfig& model);

// Every config.json's keys: those of its family, in the style of transformers 5 (`rope_parameters`) or as
// published (`rope_theta`, `rope_scaling`).
// Of prediction layers only those that are asked for are among the model's: predictions_in().
ConfigKeys config_from_hub(const nlohmann::json& hub_config, std::int64_t predictions = 0);

// One line that names the fields of a config.json that its family does not know; empty where there are none.
std::string unknown_fields_notice(const nlohmann::json& hub_config);

// How many prediction layers a model has: as many as its config.json states, or none where `contains` does
// not know the first one's tensors, as transformers states one in every file of DeepSeek-V3 that it writes.
std::int64_t predictions_in(const nlohmann::json& hub_config,
                            const std::function<bool(const std::string& tensor)>& contains);

#define SWITCHYARD_FAMILY(family) extern const ModelFamily family;
#include "models/families/list.h"
#undef SWITCHYARD_FAMILY
// qwen3.cc and envy.cc: layers that no Hugging Face model has.
extern const DecoderBlock kQwen3CustomMoeBlock, kEnvyBlock;

}  // namespace switchyard
