// The facts that a source of tensors states about itself, and its weights' formats in a running model.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "convert/tensor_source.h"

namespace switchyard {

// Names and values, in the order of interest. GGUF file: version, architecture, file type, quantiser, context
// length, tokenizer and its own general.* entries. Hugging Face folder: model_type, dtype, context length,
// tokenizer and quantisation. Checkpoint: none.
std::vector<std::pair<std::string, std::string>> stated_facts(const TensorSource& source);

// For a GGUF file or a Hugging Face folder of a known family: one line for each format that weights have in
// one rank's memory, with the weights in that format. Empty for all other sources.
std::vector<std::string> formats_in_memory(const TensorSource& source);

}  // namespace switchyard
