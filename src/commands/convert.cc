#include "convert/convert.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/safetensors.h"
#include "commands/commands.h"
#include "convert/inspect.h"
#include "convert/logits.h"
#include "convert/table.h"
#include "core/error.h"
#include "core/packed_words.h"
#include "engine/initial_weights.h"
#include "engine/own_adapter.h"
#include "models/families/peft.h"
#include "models/same_model.h"

namespace switchyard {
namespace {

struct ConvertOptions {
  bool verify = false;
  std::string logits_file;
  ConvertRequest request;
  bool export_adapter = false;
  std::optional<PeftForm> form;
};

std::int64_t parse_bytes(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || end != text.data() + text.size() || value <= 0)
    fail_usage("[convert] --file-bytes {}: expected a positive whole number", text);
  return value;
}

ConvertTarget parse_target(const std::string& text) {
  if (text == "huggingface") return ConvertTarget::huggingface;
  if (text == "switchyard") return ConvertTarget::switchyard;
  fail_usage("[convert] --to {}: expected huggingface or switchyard", text);
}

// Reads --weights and --dtype; either may name a dense type.
void set_weights(ConvertRequest& request, const std::string& text) {
  request.weights = packed_dtype(text);
  if (request.weights) return;
  const bool dense = text == "bfloat16" || text == "float32";
  if (!dense)
    fail_usage("[convert] --weights {}: expected {}, bfloat16 or float32", text,
               fmt::join(packed_words(), ", "));
  request.dtype = parse_float_dtype(text, "--weights");
}

PeftForm parse_form(const std::string& text) {
  if (text == "peft") return PeftForm::fused;
  if (text == "per-expert") return PeftForm::per_expert;
  fail_usage("[convert] --form {}: expected peft or per-expert", text);
}

ConvertOptions parse_convert(const Options& given) {
  ConvertOptions options;
  const auto value = [&](const char* name) {
    const auto found = given.values.find(name);
    return found == given.values.end() ? nullptr : &found->second;
  };
  options.verify = given.flags.contains("--verify");
  options.export_adapter = given.flags.contains("--export-adapter");
  if (const auto* text = value("--to")) options.request.target = parse_target(*text);
  if (const auto* text = value("--dtype")) options.request.dtype = parse_float_dtype(*text, "--dtype");
  if (const auto* text = value("--weights")) set_weights(options.request, *text);
  if (const auto* text = value("--save-logits")) options.logits_file = *text;
  if (const auto* text = value("--merge-adapter")) options.request.adapter = *text;
  if (const auto* text = value("--form")) options.form = parse_form(*text);
  if (const auto* text = value("--file-bytes")) options.request.file_bytes = parse_bytes(*text);
  const std::vector<std::string>& paths = given.settings;
  if (paths.size() != 2)
    fail_usage("[convert] expected SRC and DST, got {} paths; `switchyard convert --help` says more",
               paths.size());
  if (!options.logits_file.empty() && !options.verify) fail_usage("[convert] --save-logits needs --verify");
  if (options.form && !options.export_adapter) fail_usage("[convert] --form needs --export-adapter");
  if (options.export_adapter && (options.verify || options.request.weights || options.request.dtype ||
                                 options.request.target || !options.request.adapter.empty()))
    fail_usage("[convert] --export-adapter: expected SRC, DST and --form alone");
  if (!options.request.adapter.empty() && options.request.target == ConvertTarget::huggingface)
    fail_usage("[convert] --merge-adapter {}: makes a checkpoint; convert that to huggingface",
               options.request.adapter);
  if (options.verify && options.request.weights)
    fail_usage(
        "[convert] --verify --weights {}: the logits differ; `switchyard eval DST --against SRC` says by how "
        "much",
        name_of(*options.request.weights));
  if (paths[1].ends_with(".gguf"))
    fail_usage("[convert] {}: GGUF files are read, not written; DST is a folder", paths[1]);
  options.request.source = paths[0];
  options.request.destination = paths[1];
  return options;
}

void add_kinds(std::string& text, const ConvertReport& report) {
  Table table({"weights", ">tensors", "type", ">bits", ">size"});
  for (const ConvertedKind& kind : report.kinds) {
    table.add({kind.kind, with_commas(kind.tensors), std::string(name_of(kind.dtype)),
               fmt::format("{:g}", bits_of(kind.dtype)), byte_text(kind.bytes)});
  }
  text += table.text("  ");
}

std::string report_text(const ConvertRequest& request, const ConvertReport& report) {
  std::string text =
      fmt::format("{} -> {} ({}): {} parameters in {} tensors", request.source, request.destination,
                  report.target == ConvertTarget::huggingface ? "Hugging Face" : "checkpoint",
                  with_commas(report.parameters), with_commas(report.tensors));
  if (report.experts > 0) text += fmt::format(", {} experts", with_commas(report.experts));
  text +=
      fmt::format(", {} in {} file{}", byte_text(report.bytes), report.files, report.files == 1 ? "" : "s");
  if (report.files_kept > 0) text += fmt::format(", {} of them from an earlier attempt", report.files_kept);
  text += "\n";
  if (request.weights) add_kinds(text, report);
  if (report.carried.empty()) return text;
  std::string names;
  for (const std::string& name : report.carried) names += (names.empty() ? "" : ", ") + name;
  append(text, "carried along: {}\n", names);
  return text;
}

// The difference of logits that is allowed, relative to the largest logit, where weights are rounded or
// operations come in another order. Comparisons with other programs allow as much.
constexpr double kNear = 2e-5;
// Weights that an adapter was merged into are rounded to bfloat16.
constexpr double kMergedNear = 1.0 / 256;

constexpr double kDeltaNear = 2.4e-4;  // delta nets amplify rounding

// How far the logits of a checkpoint with a merged adapter may be from those with it beside the weights.
double allowed_for(const std::string& path) {
  const CheckpointFolder checkpoint = open_checkpoint(path, nullptr);
  for (const ManifestTensor& tensor : checkpoint.manifest().tensors)
    if (tensor.dtype == DType::bf16) return kMergedNear;
  return model_config(config_of_stored(checkpoint.manifest().config, path)).has_delta() ? kDeltaNear : kNear;
}

// Writes the adapter of a run as a folder of PEFT.
Report export_adapter(const Options& given, const ConvertOptions& options) {
  const std::string &source = options.request.source, &destination = options.request.destination;
  if (std::filesystem::exists(destination))
    fail_usage("[convert] {}: exists; expected a new folder", destination);
  const std::size_t weights = write_as_peft(source, destination, options.form.value_or(PeftForm::fused));
  return reported(given, fmt::format("{} -> {} (PEFT): {} weights adapted\n", source, destination, weights),
                  {{"version", SWITCHYARD_VERSION},
                   {"source", source},
                   {"destination", destination},
                   {"form", "peft"},
                   {"tensors", weights}});
}

nlohmann::ordered_json report_json(const ConvertRequest& request, const ConvertReport& report) {
  nlohmann::ordered_json json{
      {"version", SWITCHYARD_VERSION},
      {"source", request.source},
      {"destination", request.destination},
      {"form", report.target == ConvertTarget::huggingface ? "huggingface" : "switchyard"},
      {"tensors", report.tensors},
      {"experts", report.experts},
      {"parameters", report.parameters},
      {"bytes", report.bytes},
      {"files", report.files},
      {"files_kept", report.files_kept},
      {"carried", report.carried},
      {"kinds", nlohmann::ordered_json::array()}};
  for (const ConvertedKind& kind : report.kinds)
    json["kinds"].push_back({{"kind", kind.kind},
                             {"dtype", name_of(kind.dtype)},
                             {"tensors", kind.tensors},
                             {"parameters", kind.parameters},
                             {"bytes", kind.bytes}});
  return json;
}

// Adds a line to the text and `verified` to the JSON.
int verify_logits(const ConvertOptions& options, const ConvertReport& report, std::string& text,
                  nlohmann::ordered_json& json) {
  const bool as_exported = report.target == ConvertTarget::huggingface;
  const StoredLogits from = stored_logits(options.request.source, options.request.dtype, as_exported,
                                          options.request.adapter),
                     to = stored_logits(options.request.destination, {}, false);
  if (!options.logits_file.empty())
    write_safetensors(options.logits_file, {{"tokens", to.tokens}, {"logits", to.logits}}, {});
  CHECK(from.logits.shape() == to.logits.shape(), "{} and {}", to_string(from.logits.shape()),
        to_string(to.logits.shape()));
  const auto a = from.logits.span<float>(), b = to.logits.span<float>();
  const std::string what = fmt::format("verify: logits {} of random tokens", to_string(to.logits.shape()));
  if (std::memcmp(a.data(), b.data(), a.size_bytes()) == 0) {
    const bool finite = std::all_of(b.begin(), b.end(), [](float v) { return std::isfinite(v); });
    append(text, "{}: the same bits{}\n", what, finite ? "" : ", some not finite");
    json["verified"] = {{"same_bits", true}, {"apart", 0}, {"holds", true}};
    return 0;
  }
  double apart = 0, largest = 0;
  std::size_t differing = 0;
  bool finite = true;
  for (std::size_t i = 0; i < a.size(); ++i) {
    differing += std::memcmp(&a[i], &b[i], sizeof(float)) != 0;
    finite = finite && std::isfinite(a[i]) && std::isfinite(b[i]);
    apart = std::max(apart, std::abs(double{a[i]} - double{b[i]}));
    largest = std::max(largest, std::abs(double{a[i]}));
  }
  append(text, "{}: {} differ, by {:.3g} at most, {:.2g} of the largest", what, differing, apart,
         apart / largest);
  json["verified"] = {{"same_bits", false}, {"apart", apart / largest}, {"holds", false}};
  const bool merged = !options.request.adapter.empty();
  if (report.same_bits && !merged) {
    append(text, "; expected the same bits\n");
    return 3;
  }
  const double allowed = merged ? allowed_for(options.request.destination) : kNear;
  const bool near = finite && apart <= allowed * largest;
  append(text, " ({:g} is allowed: {}){}\n", allowed,
         merged ? "an adapter was merged" : "the model was written in another form", near ? "" : "; too far");
  json["verified"]["holds"] = near;
  return near ? 0 : 3;
}

}  // namespace

Options convert_options(std::span<const std::string> args) {
  return parse_options("convert", args);
}

Report run_convert(const Options& given, const Tell& tell) {
  const ConvertOptions options = parse_convert(given);
  if (options.export_adapter) return export_adapter(given, options);
  const ConvertReport report = convert(options.request, tell);
  std::string text = report_text(options.request, report);
  nlohmann::ordered_json json = report_json(options.request, report);
  const int status = options.verify ? verify_logits(options, report, text, json) : 0;
  return reported(given, std::move(text), json, status);
}

}  // namespace switchyard
