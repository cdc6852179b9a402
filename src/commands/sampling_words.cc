#include "commands/sampling_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "config/declaration.h"
#include "core/error.h"
#include "generate/sampling.h"

namespace switchyard {
namespace {

enum class WordKind { number, integer, texts };

struct Word {
  const char* name;
  const char* key;         // of the config; empty: none has this meaning
  const char* strategies;  // those that read the word; empty: all do
  WordKind kind;
  double least = 0, most = 0;
};

constexpr double kMostInteger = std::numeric_limits<std::int32_t>::max();
constexpr double kLargestSeed = 9.2e18;
constexpr std::size_t kMostStopTexts = 16;

constexpr Word kWords[] = {
    {"temperature", "decode_sampling_temperature", "weighted nucleus topk composite", WordKind::number, 0,
     100},
    {"top_p", "decode_sampling_nucleus_p", "nucleus composite", WordKind::number, 0, 1},
    {"top_k", "decode_sampling_top_k", "topk composite", WordKind::integer, -1, kMostInteger},
    {"min_p", "decode_sampling_min_p", "weighted nucleus topk composite", WordKind::number, 0, 1},
    {"presence_penalty", "decode_presence_penalty", "", WordKind::number, -kMostPenalty, kMostPenalty},
    {"frequency_penalty", "decode_frequency_penalty", "", WordKind::number, -kMostPenalty, kMostPenalty},
    {"repetition_penalty", "decode_repetition_penalty", "", WordKind::number, kLeastRepetitionPenalty,
     kMostRepetitionPenalty},
    {"max_tokens", "", "", WordKind::integer, 1, kMostInteger},
    {"seed", "", "", WordKind::integer, -kLargestSeed, kLargestSeed},
    {"stop", "", "", WordKind::texts}};

// Other fields of chats that a person may set. The server checks their values.
constexpr const char* kOtherFields[] = {"model",
                                        "max_completion_tokens",
                                        "min_tokens",
                                        "ignore_eos",
                                        "stop_token_ids",
                                        "logit_bias",
                                        "response_format",
                                        "structured_outputs",
                                        "guided_json",
                                        "guided_regex",
                                        "guided_choice",
                                        "tools",
                                        "tool_choice",
                                        "parallel_tool_calls",
                                        "documents",
                                        "chat_template",
                                        "chat_template_kwargs",
                                        "add_generation_prompt",
                                        "continue_final_message",
                                        "reasoning_effort",
                                        "reasoning_format",
                                        "include_reasoning",
                                        "thinking_token_budget",
                                        "thinking_budget",
                                        "max_reasoning_tokens",
                                        "verbosity",
                                        "cache_salt",
                                        "prompt_cache_key",
                                        "service_tier",
                                        "safety_identifier",
                                        "metadata",
                                        "store",
                                        "user"};

const Word* find_word(std::string_view name) {
  const auto* const word = std::ranges::find_if(kWords, [&](const Word& one) { return one.name == name; });
  return word == std::end(kWords) ? nullptr : word;
}

// Reads a number as the config does: 32_000 is one, too.
nlohmann::json number_of(std::string text) {
  std::erase(text, '_');
  const nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  return value.is_number() ? value : nlohmann::json();
}

nlohmann::json texts_of(const std::string& text) {
  const bool is_json = text.starts_with('[') || text.starts_with('"');
  nlohmann::json list = is_json ? nlohmann::json::parse(text, nullptr, false) : nlohmann::json(text);
  if (list.is_string()) list = nlohmann::json::array({list});
  const auto is_text = [](const nlohmann::json& one) { return one.is_string() && one != ""; };
  const bool is_fine = list.is_array() && list.size() <= kMostStopTexts && std::ranges::all_of(list, is_text);
  return is_fine ? list : nlohmann::json();
}

std::string expected_of(const Word& word) {
  if (word.kind == WordKind::texts)
    return fmt::format("a text, or a JSON list of at most {} texts that are not empty", kMostStopTexts);
  const char* const kind = word.kind == WordKind::integer ? "a whole number" : "a number";
  if (word.most == kLargestSeed) return kind;
  if (word.most == kMostInteger) return fmt::format("{} of {} or more", kind, word.least);
  return fmt::format("{} of {} to {}", kind, word.least, word.most);
}

nlohmann::json value_of(const std::string& command, const Word& word, const std::string& text) {
  const nlohmann::json value = word.kind == WordKind::texts ? texts_of(text) : number_of(text);
  const bool is_wrong = value.is_null() || (word.kind == WordKind::integer && !value.is_number_integer()) ||
                        (value.is_number() && (value < word.least || value > word.most));
  if (is_wrong)
    fail_usage("[{}] {}: expected {}, got {}", command, word.name, expected_of(word),
               text.empty() ? "nothing" : text);
  return value;
}

bool reads(const std::string& strategy, const Word& word) {
  return std::string_view(word.strategies).find(strategy) != std::string_view::npos;
}

// Joins a word with the config's key of its meaning. `samples`: tokens are drawn.
void join_key(const std::string& command, const Word& word, bool samples, SamplingWords& taken) {
  if (word.key[0] == '\0') return;
  const std::optional<std::string> key = given_value(taken.settings, word.key);
  const bool is_given = taken.fields.contains(word.name);
  const std::string given = is_given ? taken.fields[word.name].dump() : "";
  if (is_given && key && number_of(*key) != taken.fields[word.name])
    fail_usage("[{}] {}={} and {}={}: expected one value, they mean the same", command, word.name, given,
               word.key, *key);
  if (word.strategies[0] == '\0') return;
  const std::optional<std::string> strategy = given_value(taken.settings, "decode_sampling_strategy");
  if (!strategy) {
    if (!is_given && key && samples) taken.fields[word.name] = value_of(command, word, *key);
    return;
  }
  if (!is_given) return;
  const bool is_greedy =
      *strategy == "greedy" && word.name == std::string_view("temperature") && taken.fields[word.name] == 0;
  if (!is_greedy && !reads(*strategy, word))
    fail_usage("[{}] {}={}: decode_sampling_strategy={} would pass over it; leave the strategy out", command,
               word.name, given, *strategy);
  if (!key) taken.settings.push_back(fmt::format("{}={}", word.key, given));
  taken.fields.erase(word.name);
}

}  // namespace

std::optional<std::string> given_value(std::span<const std::string> settings, const std::string& key) {
  std::optional<std::string> value;
  for (const std::string& setting : settings) {
    if (setting.starts_with(key + "=")) value = setting.substr(key.size() + 1);
  }
  if (value) return value;
  std::string variable = "M_" + key;
  std::ranges::transform(variable, variable.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  if (const char* const text = std::getenv(variable.c_str())) value = text;
  return value;
}

SamplingWords take_sampling_words(const std::string& command, std::span<const std::string> settings) {
  SamplingWords taken;
  for (const std::string& setting : settings) {
    const std::size_t equals = setting.find('=');
    const Word* const word = equals == std::string::npos ? nullptr : find_word(setting.substr(0, equals));
    if (word == nullptr)
      taken.settings.push_back(setting);
    else
      taken.fields[word->name] = value_of(command, *word, setting.substr(equals + 1));
  }
  const bool samples = command == "chat" || std::ranges::any_of(kWords, [&](const Word& word) {
                         return word.strategies[0] != '\0' && taken.fields.contains(word.name);
                       });
  for (const Word& word : kWords) join_key(command, word, samples, taken);
  return taken;
}

nlohmann::json request_field(const std::string& name, const std::string& text) {
  if (const Word* const word = find_word(name)) return value_of("chat", *word, text);
  std::vector<std::string> known(std::begin(kOtherFields), std::end(kOtherFields));
  if (std::ranges::find(known, name) == known.end()) {
    for (const Word& word : kWords) known.emplace_back(word.name);
    fail_usage("[chat] unknown field {}{}", name, nearest_hint(name, known));
  }
  if (name == "model") return text;
  const nlohmann::json value = nlohmann::json::parse(text, nullptr, false);
  return value.is_discarded() ? nlohmann::json(text) : value;
}

}  // namespace switchyard
