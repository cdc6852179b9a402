// What a folder with weights says of itself: its model and its tokenizer.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace switchyard {

// Whether `path` has weights: a Hugging Face folder, a GGUF file, a checkpoint, or a run.
bool is_stored_model(const std::string& path);

// The config keys of such a path: those of its model, its types, `max_target_length` as the model was
// trained, load_parameters_path, its tokenizer's two where it has one, and the decode_* keys that its folder
// gives (generate/generation_defaults.h). Error(usage).
std::map<std::string, nlohmann::json> keys_of_stored_model(const std::string& path);

}  // namespace switchyard
