// Logits of stored weights, computed layer by layer: memory for the largest layer, not for the model.
#pragma once

#include <optional>
#include <string>

#include "core/tensor.h"

namespace switchyard {

struct StoredLogits {
  Tensor tokens;  // i32 [B,S], random, the same for the same vocabulary
  Tensor logits;  // f32 [B,S,V]
};

// Of a Hugging Face folder, a GGUF file or a checkpoint (of a run the newest), in float32 on one rank.
// `dtype`: weights are rounded to it first, the router's bias excepted. `as_exported`: a checkpoint's weights
// are rounded as an export with a factor on them (convert/hub_form.h) rounds them, which is once at most.
// Error(usage) for a folder that does not hold the model of its config.
StoredLogits stored_logits(const std::string& path, std::optional<DType> dtype, bool as_exported);
// The same for tokens i32 [B,S] that are given, with weights as they are.
Tensor stored_logits_of(const std::string& path, const Tensor& tokens);

}  // namespace switchyard
