// Converts weights: Hugging Face folder <-> checkpoint, and either one to a packed checkpoint.
//
// Streaming: one tensor is converted while the previous one is written, so memory is twice the largest;
// stacks of experts go expert by expert. Data read from a checkpoint is compared with its hashes.
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
  std::optional<ConvertTarget> target;  // default: the one that the source is not
  std::optional<DType> dtype;  // dtype of the weights; default: as stored. The router's bias keeps its own
  // A packed type: weights that can be packed (models/packed_parameters.h) become its blocks, in a
  // checkpoint. The others get `dtype`; by default as stored, or bfloat16 where that has few bits (GGUF).
  std::optional<DType> weights;
  std::string adapter = {};                // added to the weights of a new checkpoint; empty: none
  std::optional<std::int64_t> file_bytes;  // size of a file: 5 GB in a Hugging Face folder, 2 GiB here
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
  std::int64_t files = 0, files_kept = 0;  // kept: files from an earlier attempt
  std::vector<ConvertedKind> kinds;        // for a checkpoint
  std::vector<std::string> carried;        // tokenizer files
  bool same_bits = true;                   // same logits on both sides; else close (convert/hub_form.h)
};

// Receives one line at a time: which tensors are left out, which file is done.
using ConvertLine = std::function<void(const std::string&)>;

// Error(usage) before anything is written: the source is not valid, lacks a tensor or has one that is not the
// model's, the destination exists, or the model has no Hugging Face form. Error(runtime) when reading or
// writing fails; a later call continues.
ConvertReport convert(const ConvertRequest& request, const ConvertLine& line);

}  // namespace switchyard
