// What the families of Qwen2 and Qwen3 share in their config.json.
#pragma once

#include "models/families/common.h"

namespace switchyard {

// The fields of the next two: of windows, and of experts.
extern const HubFields kWindowsOfQwen3Fields, kExpertsOfQwen3Fields;

// 0: none.
std::int64_t window_of_qwen3(const HubConfig& hub);
// Windows of all layers, of layer_types, or of those from max_window_layers on.
void read_windows_of_qwen3(const HubConfig& hub, ConfigKeys& keys);
void write_windows_of_qwen3(const ModelConfig& model, HubJson& hub);
// Experts, which layers have them, and the weights' norm: `normalise` where a file does not say.
void read_experts_of_qwen3(const HubConfig& hub, bool normalise, ConfigKeys& keys);
void write_experts_of_qwen3(const ModelConfig& model, HubJson& hub);
// compat=maxtext weighs by a softmax over the selected, which is a normalised softmax over all.
void restate_experts_of_qwen3(const ModelConfig& model, Restated& restated);

}  // namespace switchyard
