// Reads how a model's folder wants text to be generated.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace switchyard {

// A field of a config.json; where it is null or not there, that of the part of the config that is for text
// (text_config). Null for a field of neither. transformers reads special tokens so.
const nlohmann::json* stated_of_text(const nlohmann::json& config, const char* name);

// Returns the decode_* keys that generation_config.json and config.json in a folder give, as transformers
// reads them; none where the folder has neither. temperature, top_k, top_p, min_p, repetition_penalty and
// eos_token_id (a number or a list; config.json's where generation_config.json has none). do_sample=true
// draws, anything else is greedy; a field that is null or not there limits nothing. Other fields have no
// effect (ignored_generation_fields() tells of them). Error(usage), which names file and field, for values
// that mean nothing.
std::map<std::string, nlohmann::json> generation_defaults(const std::filesystem::path& folder);

// One line that names the fields of a folder's generation_config.json that would change texts elsewhere and
// have no effect here; empty: there are none. A field at a value that changes nothing needs no line.
std::string ignored_generation_fields(const std::filesystem::path& folder);

}  // namespace switchyard
