#include "generate/generation_defaults.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/json_file.h"
#include "generate/sampling.h"

namespace switchyard {
namespace {

using DecodeKeys = std::map<std::string, nlohmann::json>;

constexpr std::int64_t kLargestId = std::numeric_limits<std::int32_t>::max();

// A JSON object in a file, or an empty one where there is no file.
class FieldsOfFile {
 public:
  explicit FieldsOfFile(const std::filesystem::path& path) : path_(path.string()) {
    std::error_code error;
    if (std::filesystem::exists(path, error)) object_ = read_json_file(path_);
    if (!object_.is_object()) fail_usage("[generate] {}: expected an object", path_);
  }

  const nlohmann::json& all() const { return object_; }
  const std::string& path() const { return path_; }
  // Null where the field is null or not there.
  const nlohmann::json* find(const char* name) const { return stated_of_text(object_, name); }
  const nlohmann::json* number(const char* name, double least, double most) const {
    const nlohmann::json* const field = find(name);
    if (field != nullptr &&
        (!field->is_number() || !(field->get<double>() >= least && field->get<double>() <= most)))
      refuse(name, fmt::format("a number of {} to {}", least, most));
    return field;
  }
  bool boolean(const char* name) const {
    const nlohmann::json* const field = find(name);
    if (field != nullptr && !field->is_boolean()) refuse(name, "true or false");
    return field != nullptr && field->get<bool>();
  }
  // A list of ids, also of one that stands alone.
  nlohmann::json ids(const char* name) const {
    const nlohmann::json* const field = find(name);
    if (field == nullptr) return nlohmann::json::array();
    const nlohmann::json list = field->is_array() ? *field : nlohmann::json::array({*field});
    for (const nlohmann::json& id : list) {
      if (!id.is_number_integer() || id < 0 || id > kLargestId) refuse(name, "a token or a list of tokens");
    }
    return list;
  }

 private:
  [[noreturn]] void refuse(const char* name, const std::string& expected) const {
    fail_usage("[generate] {}: {}: expected {}", path_, name, expected);
  }

  std::string path_;
  nlohmann::json object_ = nlohmann::json::object();
};

constexpr std::string_view kRead[] = {"temperature",        "top_k",     "top_p",       "min_p",
                                      "repetition_penalty", "do_sample", "eos_token_id"};

// Fields that change no text: who wrote the file, what a class returns, how it keeps its cache, tokens that a
// tokenizer states, and how drafts are made.
constexpr std::string_view kWithoutSay[] = {"transformers_version",
                                            "_from_model_config",
                                            "_commit_hash",
                                            "trust_remote_code",
                                            "bos_token_id",
                                            "pad_token_id",
                                            "decoder_start_token_id",
                                            "use_cache",
                                            "cache_implementation",
                                            "cache_config",
                                            "return_legacy_cache",
                                            "return_dict_in_generate",
                                            "output_scores",
                                            "output_logits",
                                            "output_attentions",
                                            "output_hidden_states",
                                            "remove_invalid_values",
                                            "low_memory",
                                            "disable_compile",
                                            "compile_config",
                                            "prefill_chunk_size",
                                            "is_assistant",
                                            "num_assistant_tokens",
                                            "num_assistant_tokens_schedule",
                                            "assistant_confidence_threshold",
                                            "assistant_early_exit",
                                            "assistant_lookbehind",
                                            "target_lookbehind",
                                            "prompt_lookup_num_tokens",
                                            "max_matching_ngram_size"};

// Fields that change nothing at 1. All others change nothing at 0, false, and when they are empty.
constexpr std::string_view kNeutralAtOne[] = {
    "num_beams",       "num_beam_groups", "num_return_sequences",       "typical_p",
    "top_h",           "guidance_scale",  "encoder_repetition_penalty", "length_penalty",
    "target_prob_mass"};

bool is_among(std::span<const std::string_view> names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

bool changes_nothing(const std::string& name, const nlohmann::json& value) {
  if (value.is_number()) return value == (is_among(kNeutralAtOne, name) ? 1 : 0);
  return value == false || value.empty() || value == "";
}

}  // namespace

const nlohmann::json* stated_of_text(const nlohmann::json& config, const char* name) {
  if (!config.is_object()) return nullptr;
  if (const auto field = config.find(name); field != config.end() && !field->is_null()) return &*field;
  const auto text = config.find("text_config");
  return text == config.end() ? nullptr : stated_of_text(*text, name);
}

std::string ignored_generation_fields(const std::filesystem::path& folder) {
  const FieldsOfFile generation(folder / "generation_config.json");
  std::vector<std::string> ignored;
  for (const auto& [name, value] : generation.all().items()) {
    if (!is_among(kRead, name) && !is_among(kWithoutSay, name) && !changes_nothing(name, value))
      ignored.push_back(in_quotes(name));
  }
  if (ignored.empty()) return "";
  return fmt::format("warning: {}: without effect here: {}", generation.path(), fmt::join(ignored, ", "));
}

std::map<std::string, nlohmann::json> generation_defaults(const std::filesystem::path& folder) {
  const FieldsOfFile model(folder / "config.json"), generation(folder / "generation_config.json");
  DecodeKeys keys;
  nlohmann::json ends = generation.ids("eos_token_id");
  if (ends.empty()) ends = model.ids("eos_token_id");
  if (!ends.empty()) keys["decode_end_tokens"] = ends;
  if (const auto* t = generation.number("temperature", 0, 100)) keys["decode_sampling_temperature"] = *t;
  if (const auto* p = generation.number("min_p", 0, 1)) keys["decode_sampling_min_p"] = *p;
  if (const auto* penalty =
          generation.number("repetition_penalty", kLeastRepetitionPenalty, kMostRepetitionPenalty))
    keys["decode_repetition_penalty"] = *penalty;

  // Here 0 and 1 mean all tokens.
  const nlohmann::json* const top_p = generation.number("top_p", 0, 1);
  const nlohmann::json* const top_k = generation.number("top_k", 0, static_cast<double>(kLargestId));
  const bool limits_p = top_p != nullptr && *top_p < 1, limits_k = top_k != nullptr && *top_k > 0;
  if (limits_p && *top_p > 0) keys["decode_sampling_nucleus_p"] = *top_p;
  if (limits_k) keys["decode_sampling_top_k"] = static_cast<std::int64_t>(top_k->get<double>());
  if (!generation.boolean("do_sample")) return keys;
  if (limits_p && *top_p == 0) return keys;  // nothing but the most probable token
  // top_p counts with the temperature applied, as composite has it and nucleus does not.
  keys["decode_sampling_strategy"] = limits_p ? "composite" : limits_k ? "topk" : "weighted";
  if (limits_p && !limits_k) keys["decode_sampling_top_k"] = kLargestId;
  return keys;
}

}  // namespace switchyard
