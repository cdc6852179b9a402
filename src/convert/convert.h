// Conversion of weights: Hugging Face folder <-> checkpoint, and either to a checkpoint of few bits.
//
// Streaming: one tensor is made while the one before it is written, so memory is that of the largest twice;
// stacks of experts go expert by expert. What is read of a checkpoint is compared with its hashes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace switchyard {

enum class ConvertTarget { huggingface, switchyard };

struct ConvertRequest {
  std::string source;
  std::string destination;
  std::optional<ConvertTarget> target;  // the other one than the source is, unless given
  std::optional<DType> dtype;  // of the weights; as stored, unless given. The router's bias keeps its own
  // A packed type: the weights that it is for (models/packed_parameters.h) become blocks of it, and the
  // target is a checkpoint. The others are of `dtype`; as stored, or bfloat16 where that has few bits (GGUF).
  std::optional<DType> weights;
  std::optional<std::int64_t> file_bytes;  // where files are cut: 5 GB in a Hugging Face folder, 2 GiB here
};

// Tensors of a checkpoint that are alike.
struct ConvertedKind {
  std::string kind;  // "experts", "head", …
  DType dtype = DType::f32;
  std::int64_t tensors = 0, parameters = 0, bytes = 0;
};

struct ConvertReport {
  ConvertTarget target = ConvertTarget::switchyard;
  std::int64_t tensors = 0, experts = 0;  // experts: stored one by one, over all layers; three tensors each
  std::int64_t parameters = 0, bytes = 0;
  std::int64_t files = 0, files_kept = 0;  // kept: of an earlier attempt
  std::vector<ConvertedKind> kinds;        // of a checkpoint
  std::vector<std::string> carried;        // tokenizer files
  bool same_bits = true;                   // logits of both sides; or else they are near (convert/hub_form.h)
};

// One line at a time: what is left out, which file is done.
using ConvertLine = std::function<void(const std::string&)>;

// Error(usage) before anything is written: the source is not what it should be, lacks a tensor or has one
// that is not the model's, the destination exists, no Hugging Face form. Error(runtime) when reading or
// writing fails; a later call goes on.
ConvertReport convert(const ConvertRequest& request, const ConvertLine& line);

}  // namespace switchyard
