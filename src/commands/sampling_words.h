// Words of a command line that `generate`, `chat` and `serve` share: temperature=0.7 max_tokens=200 …, named
// as the fields of requests are.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace switchyard {

struct SamplingWords {
  nlohmann::json fields = nlohmann::json::object();  // of the request that says the same
  std::vector<std::string> settings = {};            // the rest of the command line, for the config
};

// Takes the words out of the settings. Beside decode_sampling_strategy a word becomes the config's key of the
// same meaning. Without it, config keys of sampling join the words; of `chat` also without any word.
// Error(usage) for a wrong value, a strategy that would pass over the word, and a key of another value.
SamplingWords take_sampling_words(const std::string& command, std::span<const std::string> settings);

// Returns the value that the settings or the environment (M_KEY) give a key of the config.
std::optional<std::string> given_value(std::span<const std::string> settings, const std::string& key);

// Reads the value of a chat request's field. Error(usage) for an unknown field and for a
// wrong value.
nlohmann::json request_field(const std::string& name, const std::string& text);

}  // namespace switchyard
