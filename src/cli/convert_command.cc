#include "cli/convert_command.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/safetensors.h"
#include "cli/help_page.h"
#include "cli/options.h"
#include "convert/convert.h"
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

constexpr const char* kConvertHelp = R"(switchyard convert [options] SRC DST

Writes the weights of SRC as the new folder DST: those of a Hugging Face folder (config.json beside model.safetensors or
its shards) or of a GGUF file (the values of its blocks, in float32 unless --dtype says else) as a checkpoint, those of a checkpoint (or of a run: its newest) as a Hugging Face folder that transformers
loads. --weights FORMAT makes a checkpoint of few bits of either. Tokenizer files go along. A tensor is made while the one before it is written, experts one by one, so memory is
that of the largest tensor twice. DST appears when it is complete; run the same command again to resume one that was ended.

  --to huggingface|switchyard  what DST is to be; it follows from SRC
  --dtype float32|bfloat16     store weights as this (the router's bias stays as it is); as in SRC without
  --weights FORMAT             experts, linear layers and the head in blocks of few bits, as kernels read them: int8,
                               int4, int4a or mxfp4 (docs/quantization.md); bfloat16 and float32 are --dtype's.
                               Always to a checkpoint; `switchyard eval --against` says what was lost
  --verify                     compute logits of SRC and of DST from a few random tokens, layer by layer: the same bits,
                               or within 2e-5 of the largest where the model has to be written in another form
  --save-logits FILE           with --verify: write `tokens` and `logits` of DST as a safetensors file
  --merge-adapter FOLDER       add an adapter (a folder of PEFT, or a run that trained one) to the weights of SRC, in
                               float32, rounded once; DST is a checkpoint
  --export-adapter             SRC is a run that trained an adapter, DST a folder that PEFT reads
  --form peft|per-expert       with it: all experts of a layer in one tensor, or each in its own, as older programs read
  --file-bytes N               begin a new file after N bytes (5 GB in a Hugging Face folder, 2 GiB in a checkpoint)

Exit status: 0 done; 1 failed while reading or writing, run it again to go on; 2 wrong command line or source, nothing was
written; 3 --verify found a difference.

Examples:
  switchyard convert tests/golden/hf/deepseek3-tiny checkpoint --verify
  switchyard convert checkpoint exported --to huggingface --dtype bfloat16
  switchyard convert model.gguf model-int4 --weights int4
)";

struct ConvertOptions {
  bool help = false, verify = false;
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

ConvertOptions parse_convert(std::span<const std::string> args) {
  const Options given = parse_options("convert", args);
  const std::vector<std::string>& paths = given.settings;
  ConvertOptions options;
  options.help = given.help;
  options.verify = given.flags.contains("--verify");
  options.export_adapter = given.flags.contains("--export-adapter");
  for (const auto& [name, value] : given.values) {
    if (name == "--to") options.request.target = parse_target(value);
    if (name == "--dtype") options.request.dtype = parse_float_dtype(value, name);
    if (name == "--weights") set_weights(options.request, value);
    if (name == "--save-logits") options.logits_file = value;
    if (name == "--merge-adapter") options.request.adapter = value;
    if (name == "--form") options.form = parse_form(value);
    if (name == "--file-bytes") options.request.file_bytes = parse_bytes(value);
  }
  if (options.help) return options;
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

void print_kinds(const ConvertReport& report) {
  Table table({"weights", ">tensors", "type", ">bits", ">size"});
  for (const ConvertedKind& kind : report.kinds) {
    table.add({kind.kind, with_commas(kind.tensors), std::string(name_of(kind.dtype)),
               fmt::format("{:g}", bits_of(kind.dtype)), byte_text(kind.bytes)});
  }
  fmt::print("{}", table.text("  "));
}

void print_report(const ConvertRequest& request, const ConvertReport& report) {
  std::string text =
      fmt::format("{} -> {} ({}): {} parameters in {} tensors", request.source, request.destination,
                  report.target == ConvertTarget::huggingface ? "Hugging Face" : "checkpoint",
                  with_commas(report.parameters), with_commas(report.tensors));
  if (report.experts > 0) text += fmt::format(", {} experts", with_commas(report.experts));
  text +=
      fmt::format(", {} in {} file{}", byte_text(report.bytes), report.files, report.files == 1 ? "" : "s");
  if (report.files_kept > 0) text += fmt::format(", {} of them from an earlier attempt", report.files_kept);
  fmt::print("{}\n", text);
  if (request.weights) print_kinds(report);
  if (report.carried.empty()) return;
  std::string names;
  for (const std::string& name : report.carried) names += (names.empty() ? "" : ", ") + name;
  fmt::print("carried along: {}\n", names);
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
void export_adapter(const ConvertOptions& options) {
  const std::string &source = options.request.source, &destination = options.request.destination;
  if (std::filesystem::exists(destination))
    fail_usage("[convert] {}: exists; expected a new folder", destination);
  const std::size_t weights = write_as_peft(source, destination, options.form.value_or(PeftForm::fused));
  fmt::print("{} -> {} (PEFT): {} weights adapted\n", source, destination, weights);
}

// One line; 0 or 3.
int verify_logits(const ConvertOptions& options, const ConvertReport& report) {
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
    fmt::print("{}: the same bits{}\n", what, finite ? "" : ", some not finite");
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
  fmt::print("{}: {} differ, by {:.3g} at most, {:.2g} of the largest", what, differing, apart,
             apart / largest);
  const bool merged = !options.request.adapter.empty();
  if (report.same_bits && !merged) {
    fmt::print("; expected the same bits\n");
    return 3;
  }
  const double allowed = merged ? allowed_for(options.request.destination) : kNear;
  const bool near = finite && apart <= allowed * largest;
  fmt::print(" ({:g} is allowed: {}){}\n", allowed,
             merged ? "an adapter was merged" : "the model was written in another form",
             near ? "" : "; too far");
  return near ? 0 : 3;
}

}  // namespace

int convert_command(std::span<const std::string> args) {
  const ConvertOptions options = parse_convert(args);
  if (options.help) {
    print_help_page(kConvertHelp);
    return 0;
  }
  if (options.export_adapter) {
    export_adapter(options);
    return 0;
  }
  const ConvertReport report =
      convert(options.request, [](const std::string& line) { fmt::print(stderr, "{}\n", line); });
  print_report(options.request, report);
  std::fflush(stdout);
  return options.verify ? verify_logits(options, report) : 0;
}

}  // namespace switchyard
