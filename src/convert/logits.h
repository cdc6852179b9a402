// Logits of stored weights, computed layer by layer: memory is that of the largest layer, not of the model.
#pragma once

#include <optional>
#include <string>

#include "core/tensor.h"

namespace switchyard {

struct StoredLogits {
  Tensor tokens;  // i32 [B,S], random; depends on the vocabulary only
  Tensor logits;  // f32 [B,S,V]
};

// Logits of a Hugging Face folder, a GGUF file or a checkpoint (the newest one of a run), in float32 on one
// rank. `dtype`: weights except the router's bias are rounded to it first. `as_exported`: a checkpoint's
// weights are rounded as an export with factors (convert/hub_form.h) rounds them, at most once. Error(usage)
// for a folder whose tensors are not the model of its config.
// With an `adapter` (a folder of PEFT, or a run) beside the weights, not merged; empty: none.
StoredLogits stored_logits(const std::string& path, std::optional<DType> dtype, bool as_exported,
                           const std::string& adapter = "");
// Logits for given tokens i32 [B,S], with unrounded weights.
Tensor stored_logits_of(const std::string& path, const Tensor& tokens);

}  // namespace switchyard
