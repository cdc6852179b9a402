#include "models/families/quantization.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "checkpoint/block_scaled.h"
#include "checkpoint/int4_weight.h"
#include "core/error.h"
#include "core/json_file.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr const char* kExpected =
    "none, quant_method=fp8 with weight_block_size=[128,128], gptq with bits=4, compressed-tensors with "
    "format=pack-quantized and symmetric num_bits=4, or mxfp4";

// True for forms that checkpoint/block_scaled.h reads. Their rounding of activations is not imitated.
bool is_block_scaled(const json& form) {
  const json format = form.value("fmt", json("e4m3"));
  return (format == "e4m3" || format == "float8_e4m3fn") &&
         form.value("weight_block_size", json()) == json{kScaleBlock, kScaleBlock};
}

// True for forms that checkpoint/int4_weight.h reads; reading the tensors checks their zeros and inputs.
bool is_four_bit_gptq(const json& form) {
  const json format = form.value("checkpoint_format", json("gptq"));
  return form.value("bits", json()) == 4 && (format == "gptq" || format == "gptq_v2");
}

bool is_read(const json& form) {
  if (!form.is_object()) return false;
  const json method = form.value("quant_method", json());
  if (method == "fp8") return is_block_scaled(form);
  if (is_gptq_form(form)) return is_four_bit_gptq(form);
  if (method == "compressed-tensors") return compressed_form_problem(form).empty();
  return method == "mxfp4";
}

// The fields that tell forms apart, those first that tell most.
constexpr const char* kTelling[] = {"quant_method",
                                    "quant_algo",
                                    "format",
                                    "packing_format",
                                    "checkpoint_format",
                                    "version",
                                    "fmt",
                                    "bits",
                                    "w_bit",
                                    "num_bits",
                                    "type",
                                    "strategy",
                                    "group_size",
                                    "q_group_size",
                                    "weight_block_size",
                                    "load_in_4bit",
                                    "load_in_8bit",
                                    "bnb_4bit_quant_type",
                                    "quant_type"};

// A value of a line: a text without quotes, at most so long.
std::string field_text(const json& value) {
  constexpr std::size_t kMost = 60;
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (value.is_string()) text = text.substr(1, text.size() - 2);
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

void tell(const json& form, std::vector<std::string>& words) {
  for (const char* key : kTelling) {
    if (const auto value = form.find(key); value != form.end() && !value->is_null())
      words.push_back(fmt::format("{}={}", key, field_text(*value)));
  }
}

// "quant_method=compressed-tensors, format=pack-quantized, num_bits=4": the last
// of the first group's weights.
std::string telling_fields(const json& form) {
  std::vector<std::string> words;
  if (form.is_object()) {
    tell(form, words);
    const json groups = form.value("config_groups", json());
    if (groups.is_object() && !groups.empty() && groups.front().is_object()) {
      const json weights = groups.front().value("weights", json());
      if (weights.is_object()) tell(weights, words);
    }
  }
  return words.empty() ? field_text(form) : fmt::format("{}", fmt::join(words, ", "));
}

[[noreturn]] void refuse(const std::string& where, const json& form) {
  const bool compressed = form.is_object() && form.value("quant_method", json()) == "compressed-tensors";
  fail_usage("[hub config] {}: {}: this form of weights is not supported{}; expected {}", where,
             telling_fields(form),
             compressed ? fmt::format(" for its {}", compressed_form_problem(form)) : std::string(),
             kExpected);
}

// The field of a config.json that states a form; MLX's folders state theirs in `quantization`.
const char* stating_field(const json& config) {
  for (const char* key : {"quantization_config", "compression_config", "quantization"}) {
    if (const auto form = config.find(key); form != config.end() && !form->is_null()) return key;
  }
  return nullptr;
}

}  // namespace

void check_quantization(const json& config) {
  const char* const key = stating_field(config);
  if (key != nullptr && !is_read(config[key])) refuse(key, config[key]);
}

void check_quantization_of(const std::filesystem::path& folder, const json& config) {
  check_quantization(config);
  if (stating_field(config) != nullptr) return;
  const auto stated_by = [&](const char* name) {
    std::error_code error;
    const std::filesystem::path file = folder / name;
    json form = std::filesystem::exists(file, error) ? read_json_file(file.string()) : json::object();
    return form.is_object() ? form : json::object();
  };
  if (json form = stated_by("hf_quant_config.json").value("quantization", json());
      form.is_object() && !form.value("quant_algo", json()).is_null()) {
    form["quant_method"] = "modelopt";
    refuse((folder / "hf_quant_config.json").string(), form);
  }
  if (json form = stated_by("quant_config.json"); form.contains("w_bit")) {
    form["quant_method"] = "awq";
    refuse((folder / "quant_config.json").string(), form);
  }
  if (json form = stated_by("quantize_config.json"); form.contains("bits")) {
    form.emplace("quant_method", "gptq");
    if (!is_read(form)) refuse((folder / "quantize_config.json").string(), form);
  }
}

}  // namespace switchyard
