#include "convert/stated.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "convert/fold.h"
#include "core/error.h"
#include "core/json_file.h"
#include "engine/initial_weights.h"
#include "engine/session.h"
#include "engine/stored_model.h"
#include "tokenizer/tokenizer_folder.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using Facts = std::vector<std::pair<std::string, std::string>>;

constexpr std::size_t kLongestValue = 100;  // characters of a value that are shown

// The name of llama.cpp's number for the mixture of types that a quantiser was asked for.
std::string file_type_name(std::int64_t number) {
  static const std::map<std::int64_t, std::string> names{
      {0, "F32"},     {1, "F16"},     {2, "Q4_0"},      {3, "Q4_1"},    {7, "Q8_0"},     {8, "Q5_0"},
      {9, "Q5_1"},    {10, "Q2_K"},   {11, "Q3_K_S"},   {12, "Q3_K_M"}, {13, "Q3_K_L"},  {14, "Q4_K_S"},
      {15, "Q4_K_M"}, {16, "Q5_K_S"}, {17, "Q5_K_M"},   {18, "Q6_K"},   {19, "IQ2_XXS"}, {20, "IQ2_XS"},
      {21, "Q2_K_S"}, {22, "IQ3_XS"}, {23, "IQ3_XXS"},  {24, "IQ1_S"},  {25, "IQ4_NL"},  {26, "IQ3_S"},
      {27, "IQ3_M"},  {28, "IQ2_S"},  {29, "IQ2_M"},    {30, "IQ4_XS"}, {31, "IQ1_M"},   {32, "BF16"},
      {36, "TQ1_0"},  {37, "TQ2_0"},  {38, "MXFP4_MOE"}};
  const auto found = names.find(number);
  return found == names.end() ? fmt::format("number {}", number) : found->second;
}

// A value on one line, without quotes around a text.
std::string value_text(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (value.is_string()) text = text.substr(1, text.size() - 2);
  return text.size() <= kLongestValue ? text : text.substr(0, kLongestValue) + "...";
}

Facts facts_of_gguf(const GgufFile& file) {
  const auto& metadata = file.metadata();
  const auto text = [&](const std::string& key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? std::string() : value_text(found->second);
  };
  Facts facts;
  const auto add = [&](const std::string& name, const std::string& value) {
    if (!value.empty()) facts.emplace_back(name, value);
  };
  const std::string architecture = text("general.architecture");
  add("format", fmt::format("GGUF version {}, architecture {}", file.version(), architecture));
  if (const auto type = metadata.find("general.file_type");
      type != metadata.end() && type->second.is_number_integer())
    add("file type", file_type_name(type->second.get<std::int64_t>()));
  add("quantised", text("general.quantized_by"));
  add("imatrix", text("quantize.imatrix.file"));
  add("context", text(architecture + ".context_length"));
  std::string tokenizer = text("tokenizer.ggml.model");
  if (const std::string pre = text("tokenizer.ggml.pre"); !pre.empty()) tokenizer += ", " + pre;
  if (const auto tokens = metadata.find("tokenizer.ggml.tokens"); tokens != metadata.end())
    tokenizer += fmt::format(", {} tokens", tokens->second.size());
  add("tokenizer", tokenizer.empty() ? "none" : tokenizer);
  std::vector<std::string> general;
  for (const auto& [key, value] : metadata) {
    const bool told =
        key == "general.architecture" || key == "general.file_type" || key == "general.quantized_by";
    if (key.starts_with("general.") && !told && !value.is_array())
      general.push_back(fmt::format("{} {}", key.substr(8), value_text(value)));
  }
  if (!general.empty()) facts.emplace_back("general", fmt::format("{}", fmt::join(general, "; ")));
  return facts;
}

// "BPE, 151669 tokens (tokenizer.json)" where the file says so.
std::string tokenizer_text(const fs::path& folder) {
  std::error_code ignored;
  if (fs::exists(folder / "tokenizer.json", ignored)) {
    const nlohmann::json model =
        read_json_file((folder / "tokenizer.json").string()).value("model", nlohmann::json());
    const std::string kind =
        model.is_object() && model.contains("type") ? value_text(model["type"]) + " " : "";
    return kind + "(tokenizer.json)";
  }
  const std::string found = tokenizer_in(folder.string());
  return found.empty() ? "none" : fmt::format("({})", fs::path(found).filename().string());
}

Facts facts_of_folder(const TensorSource& source) {
  Facts facts;
  const nlohmann::json& config = source.config();
  if (!config.is_object()) return facts;
  const nlohmann::json text_config = config.value("text_config", nlohmann::json::object());
  const auto add = [&](const std::string& name, std::initializer_list<const char*> keys) {
    for (const char* key : keys) {
      for (const nlohmann::json* from : {&config, &text_config}) {
        if (!from->is_object() || !from->contains(key) || (*from)[key].is_null()) continue;
        facts.emplace_back(name, value_text((*from)[key]));
        return;
      }
    }
  };
  add("model_type", {"model_type"});
  add("dtype", {"dtype", "torch_dtype"});
  add("context", {"max_position_embeddings"});
  const nlohmann::json quantized = config.value("quantization_config", nlohmann::json());
  if (quantized.is_object())
    facts.emplace_back("quantised", quantized.contains("quant_method") ? value_text(quantized["quant_method"])
                                                                       : value_text(quantized));
  facts.emplace_back("tokenizer", tokenizer_text(source.path()));
  return facts;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> stated_facts(const TensorSource& source) {
  if (source.gguf() != nullptr) return facts_of_gguf(*source.gguf());
  return source.kind() == SourceKind::huggingface ? facts_of_folder(source) : Facts();
}

std::vector<std::string> formats_in_memory(const TensorSource& source) {
  const bool hub = source.kind() == SourceKind::huggingface && !source.config().is_null();
  if (!hub && source.kind() != SourceKind::gguf) return {};
  std::vector<std::string> names, formats, notes;
  std::map<std::string, std::int64_t> counts;
  try {
    Config config = Config::from_map(keys_of_stored_model(source.path()), {});
    config.set("weight_dtype", config.get_string("dtype"), "as generate has it");
    const ModelConfig model = without_predictions(model_config(config));
    for (const ParameterSpec& spec :
         specs_as_stored(config, mesh_from_config(config), model, parameter_specs(model), &notes)) {
      names.push_back(spec.name);
      formats.emplace_back(name_of(spec.dtype));
      ++counts[formats.back()];
    }
  } catch (const Error&) {  // of a model that is not ours to run: the line of the model says why
    return {};
  }
  std::map<std::string, std::vector<std::string>> weights;
  for (const FoldedName& folded : fold_names(names, formats))
    weights[formats[folded.members[0]]].push_back(folded.name);
  std::vector<std::string> lines;
  if (weights.size() == 1) return {fmt::format("all {} weights as {}", names.size(), formats[0])};
  for (const auto& [format, folded] : weights)
    lines.push_back(fmt::format("{} of {} weights as {}: {}", counts[format], names.size(), format,
                                fmt::join(folded, ", ")));
  return lines;
}

}  // namespace switchyard
