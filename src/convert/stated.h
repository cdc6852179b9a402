// What a source of tensors says of itself beside them, and what its weights become when a model runs on them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "convert/tensor_source.h"

namespace switchyard {

// Names and values, in the order in which people ask: of a GGUF file its version, architecture, file type,
// quantiser, context length, tokenizer and its own general.* entries; of a Hugging Face folder model_type,
// dtype, context length, tokenizer and how it is quantised; of a checkpoint none.
std::vector<std::pair<std::string, std::string>> stated_facts(const TensorSource& source);

// Of a GGUF file or a Hugging Face folder of a family that is known here: a line for each format that its
// weights have in memory on one rank, with the weights that have it. Empty for all others.
std::vector<std::string> formats_in_memory(const TensorSource& source);

}  // namespace switchyard
