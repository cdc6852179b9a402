// Reads what a folder with weights says about itself: its model and its tokenizer.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace switchyard {

// True when `path` has weights: a Hugging Face folder, a GGUF file, a checkpoint, or a run.
bool is_stored_model(const std::string& path);

// The config keys of such a path: those of its model and types, `max_target_length` of the model's training,
// load_parameters_path, the two tokenizer keys if it has a tokenizer,
// and those of generation_keys_of(). Error(usage).
std::map<std::string, nlohmann::json> keys_of_stored_model(const std::string& path);

// The decode_* keys that such a path states: the tokens that end a text, and
// how to generate (generate/generation_defaults.h). Error(usage).
std::map<std::string, nlohmann::json> generation_keys_of(const std::string& path);
// One line for a command that makes texts: what such a folder's generation_config.json says in vain
// (ignored_generation_fields()); empty: nothing.
std::string generation_notice_of(const std::string& path);

}  // namespace switchyard
