#include "generate/generation_defaults.h"

#include <limits>

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

}  // namespace

const nlohmann::json* stated_of_text(const nlohmann::json& config, const char* name) {
  if (!config.is_object()) return nullptr;
  if (const auto field = config.find(name); field != config.end() && !field->is_null()) return &*field;
  const auto text = config.find("text_config");
  return text == config.end() ? nullptr : stated_of_text(*text, name);
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
