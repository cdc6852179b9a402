// Reads the parts of config.json that the Qwen2 and Qwen3 families share.
#pragma once

#include "models/families/common.h"

namespace switchyard {

// The config.json fields of the two readers below: windows, and experts.
extern const HubFields kWindowsOfQwen3Fields, kExpertsOfQwen3Fields;

// The window in tokens; 0: none.
std::int64_t window_of_qwen3(const HubConfig& hub);
// Reads each layer's window from layer_types, or gives one to the layers from max_window_layers on.
void read_windows_of_qwen3(const HubConfig& hub, ConfigKeys& keys);
void write_windows_of_qwen3(const ModelConfig& model, HubJson& hub);
// Reads experts, the layers with experts, and the weights' norm: `normalise` when the file does not say.
void read_experts_of_qwen3(const HubConfig& hub, bool normalise, ConfigKeys& keys);
void write_experts_of_qwen3(const ModelConfig& model, HubJson& hub);
// Restates a softmax over the selected experts (compat=maxtext) as the equal normalised softmax over all.
void restate_experts_of_qwen3(const ModelConfig& model, Restated& restated);

}  // namespace switchyard
