// Adapters as PEFT writes them: a folder with adapter_config.json and adapter_model.safetensors.
//
// Tensors stand behind "base_model.model." and a module's name. A module W [out, in] has lora_A [r, in] and
// lora_B [out, r]: W + s · lora_B · lora_A, with s = alpha / r, or alpha / √r with use_rslora. All experts of
// a layer may be in one pair: lora_A [E·r, in], whose row e·r + k is component k of expert e, and lora_B
// [out, r·E], whose column k·E + e is. (PEFT 0.21.2: lora/layer.py, ParamWrapper.) Some versions wrote them
// with the sides swapped: lora_A [E·r, out], lora_B [in, r·E].
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "models/adapter.h"
#include "models/families/family.h"

namespace switchyard {

// One pair of an adapter's tensors.
struct PeftPair {
  std::string module;                           // whose lora_A and lora_B these are
  std::vector<std::string> weights;             // the weights of ours that the module has in it
  std::vector<std::vector<std::int64_t>> rows;  // for each, the module's output that is its output o
  std::int64_t experts = 0;                     // of a pair for all experts; 0: of one matrix
  std::int64_t expert = -1;                     // of a pair for one expert
  std::int64_t inputs = 0, outputs = 0;         // of the module
  bool swapped = false;
  AdaptedWeight how;
};

struct PeftAdapter {
  Adapter adapter;
  std::vector<PeftPair> pairs;
  std::map<std::string, std::string> whole;  // the tensors that stand for whole weights, by our names
  std::map<std::string, Tensor> tensors;     // the adapter's parameters, f32, by our names
  std::string folder;
};

// Reads an adapter of the model, whose config.json is `hub_config`. Error(usage) in one line for a folder
// that is none, for tensors that do not fit the model or that nothing takes, and for a field of
// adapter_config.json that changes what is computed and is not computed here.
PeftAdapter read_peft(const std::string& folder, const ModelConfig& model, const ModelFamily& family,
                      const nlohmann::json& hub_config);

// The adapter's tensors under their names in its file, of values (or gradients) that `ours` returns for our
// names. Where several weights share a lora_A, theirs are added for gradients, and one is taken otherwise.
std::map<std::string, Tensor> to_peft(const PeftAdapter& adapter,
                                      const std::function<Tensor(const std::string&)>& ours, bool gradients);

// How experts are written: all of a layer in one pair of tensors, or a pair for each expert's matrix, which
// programs from before transformers 5 read.
enum class PeftForm { fused, per_expert };

// Writes the adapter's parameters, `tensors` by our names, as the new folder `folder`. Where a module holds
// several of our weights, each with an A of its own, the module's rank is the sum of theirs.
void write_peft(const std::string& folder, const Adapter& adapter,
                const std::map<std::string, Tensor>& tensors, const ModelConfig& model,
                const ModelFamily& family, const nlohmann::json& hub_config, PeftForm form,
                const std::string& base);

}  // namespace switchyard
