// Reads and writes the parts of config.json that model families share.
#pragma once

#include "models/families/family.h"

namespace switchyard {

// Turns a floating-point whole number into an integer: our keys for scales and factors are integers.
nlohmann::json shortest(double value);

// Fields that every family has.
const HubFields& common_fields();
// Fields of a family with grouped-query attention.
extern const HubFields kGroupedFields;
// The value of a field whose null means false, and whose default may be true.
bool flag_or_null(const HubConfig& hub, const char* key, bool absent);
// Other names of the number of experts, which some classes take for it: where several are stated, they agree.
extern const HubFields kNamesOfExperts;
// Error(usage) for a field whose value `family` does not compute.
void check_fields(const HubConfig& hub, const ModelFamily& family);

// config.json -> our keys.
void read_common(const HubConfig& hub, ConfigKeys& keys);  // sizes; refuses what no family of ours has
// Rotary embeddings: theta and scaling. `usual_theta`: theta for a file that states none, or 0.
struct RopeDefaults {
  bool latent = false;        // MLA: interleaved pairs, and scores scaled by mscale
  bool states_pairs = false;  // MLA: rope_interleave says whether the pairs are interleaved
  double usual_theta = 0;
  // Rotated share of a head for a file that states none; 0: the family rotates whole heads.
  double usual_share = 0;
  nlohmann::json usual = nlohmann::json::object();  // the rotation of a file that states none
};
void read_rope(const HubConfig& hub, const RopeDefaults& defaults, ConfigKeys& keys);
struct GroupedAttention {
  std::int64_t head_dim = 0;  // for a file that states none; 0: width / heads
  bool qk_norm = false;
  bool biases = false;  // the family reads attention_bias
};
void read_grouped_attention(const HubConfig& hub, const GroupedAttention& family, ConfigKeys& keys);
// The list `key`, which has a value for each layer. `what` begins the message for another one.
const nlohmann::json& list_of_layers(const HubConfig& hub, const char* key, std::string_view what);
// Error(usage) for a list `key` that is not `only` for each layer; `what` says it in the message.
void check_all_layers(const HubConfig& hub, const char* key, const nlohmann::json& only,
                      std::string_view what);
// The numbers of the layers for which the list `key` has the word `yes`. The list has one word for each
// layer, and all other words must be `no`.
nlohmann::json layers_that_are(const HubConfig& hub, const char* key, const char* yes, const char* no);
// Reads layer_types of a family with windows: sliding_attention layers have one, full_attention layers do
// not. Without layer_types the block decides which layers have windows.
void read_windowed_layers(const HubConfig& hub, ConfigKeys& keys);
// Reads Mistral's and Mixtral's `sliding_window`, the window of every layer; null: none. `usual`: of a file
// that does not state it; 0: none.
void read_window_of_all(const HubConfig& hub, std::int64_t usual, ConfigKeys& keys);
// A family whose layers are of two kinds by a word each: sliding_attention layers have a window and may
// differ otherwise, full_attention layers are as the model's keys say.
struct TwoKinds {
  std::vector<std::string> words;  // of each layer
  ConfigKeys windowed;             // keys of the layers with a window
  // The rotations of a file without rope_parameters, which are one rotation, or one for each word.
  nlohmann::json full_rope, windowed_rope;
};
// A rotation without scaling.
nlohmann::json plain_rotation(double theta, double share);
// The words of layer_types.
std::vector<std::string> words_of_layers(const HubConfig& hub);
// Sets attention_kinds and layer_kinds, and the keys of rotation.
void read_two_kinds(const HubConfig& hub, const TwoKinds& kinds, ConfigKeys& keys);
// The kind of the layers with a window; null: no layer has one. And that of those without.
const AttentionKind* windowed_kind(const ModelConfig& model);
const AttentionKind* full_kind(const ModelConfig& model);
// True where layers with a window are of one kind, and so are those without.
bool has_two_kinds(const ModelConfig& model);
// Error(usage) for windows in a family that has none; layer_types may only have `kind_of_layers`.
void refuse_windows(const HubConfig& hub, const char* kind_of_layers = "full_attention");

// Our keys -> config.json.
HubJson write_common(const Config& config, const ModelConfig& model);
HubJson layer_types(const ModelConfig& model);  // says which layers have a window
void write_grouped_attention(const ModelConfig& model, HubJson& hub);
// layer_types, sliding_window, and rope_parameters with a rotation for each word.
void write_two_kinds(const Config& config, const ModelConfig& model, HubJson& hub);

}  // namespace switchyard
