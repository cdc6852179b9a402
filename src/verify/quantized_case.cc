// Verifies a packed model: a GGUF file with <type>.expected.safetensors and tensors.json beside it, or a
// Hugging Face folder with expected.safetensors and tensors.json in it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "core/error.h"
#include "core/json_file.h"
#include "engine/model.h"
#include "engine/stored_model.h"
#include "eval/score.h"
#include "generate/generator.h"
#include "gguf/gguf_file.h"
#include "models/blocks/layers.h"
#include "models/families/hub_source.h"
#include "models/families/hub_tensors.h"
#include "models/pipeline.h"
#include "train/step_cost.h"
#include "verify/case.h"
#include "verify/gather.h"
#include "verify/stored_tensors.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

// The tolerance of float32 logits, relative to the largest logit. The README of the cases states it.
constexpr double kLogitTolerance = 1e-4;

// Logits that may be given. The second are those of gpt-oss with the bounds of YaRN's ramp rounded, as
// llama.cpp does; a model may follow either.
constexpr const char* kLogitNames[] = {"logits", "logits_truncated_yarn"};

// The files beside the weights.
struct Beside {
  fs::path expected, tensors;
  std::string entry;  // of tensors.json that speaks of this file; empty: all of it does
};

Beside beside(const fs::path& path, bool is_folder) {
  if (is_folder) return {path / "expected.safetensors", path / "tensors.json", ""};
  fs::path expected = path;
  expected.replace_extension(".expected.safetensors");
  return {expected, path.parent_path() / "tensors.json", path.stem().string()};
}

void require_beside(const std::string& path, const fs::path& file) {
  std::error_code problem;
  if (!fs::exists(file, problem))
    fail_usage("[verify] {}: there is no {}, with which it is to be compared", path, file.string());
}

nlohmann::json stated_tensors(const std::string& path, const Beside& files) {
  nlohmann::json stated = read_json_file(files.tensors.string());
  if (files.entry.empty()) return stated;
  if (!stated.is_object() || !stated.contains(files.entry))
    fail_usage("[verify] {}: states no tensors of {}, the file {}", files.tensors.string(),
               in_quotes(files.entry), path);
  return stated.at(files.entry);
}

TensorReader reader_of(const GgufFile& file) {
  TensorReader reader;
  reader.path = file.path();
  for (const auto& [name, entry] : file.entries()) reader.needed.push_back(name);
  reader.contains = [&file](const std::string& name) { return file.entries().contains(name); };
  reader.shape = [&file](const std::string& name) { return file.at(name).shape; };
  reader.rows = [&file](const std::string& name, std::int64_t begin, std::int64_t end) {
    Tensor rows = file.read_rows(name, begin, end);
    file.release_rows(name, begin, end);
    return rows;
  };
  return reader;
}

TensorReader reader_of(const WeightFolder& folder) {
  TensorReader reader;
  reader.path = folder.path();
  for (const std::string& name : folder.names()) {
    if (folder.is_quantized(name)) reader.needed.push_back(name);
  }
  reader.contains = [&folder](const std::string& name) { return folder.contains(name); };
  reader.shape = [&folder](const std::string& name) { return folder.shape(name); };
  reader.rows = [&folder](const std::string& name, std::int64_t begin, std::int64_t end) {
    const Shape shape = folder.shape(name);
    const bool matrix = shape.size() == 2;
    const Tensor values = matrix ? folder.take_values(name, begin, end)
                                 : folder.take_values(name, 0, shape.empty() ? 1 : shape[0]);
    if (!is_float(values.dtype()))
      fail_usage("[verify] {}: tensor {} is {}, expected floating point", folder.path(), in_quotes(name),
                 name_of(values.dtype()));
    const Tensor exact = values.cast(DType::f32);
    if (matrix) return exact;
    return exact.reshaped({exact.size() / shape.back(), shape.back()}).slice_rows(begin, end);
  };
  return reader;
}

// i32 [S] of the file.
std::vector<std::int32_t> tokens_of(const SafetensorsFile& expected) {
  const Tensor ids = expected.read("input_ids");
  if (ids.rank() != 1 || ids.dtype() != DType::i32 || ids.size() == 0)
    fail_usage("[verify] {}: expected input_ids of int32 [S], got {} {}", expected.path(),
               name_of(ids.dtype()), to_string(ids.shape()));
  return {ids.span<std::int32_t>().begin(), ids.span<std::int32_t>().end()};
}

// The model as a run of these keys has it.
ModelOnRanks model_of(Config config, std::vector<std::string>& notes) {
  ModelOnRanks ranks(ModelOnMesh(std::move(config), ModelUse::run));
  notes.insert(notes.end(), ranks.notes.begin(), ranks.notes.end());
  return ranks;
}

// Logits f32 [1,S,V] of all tokens at once.
Tensor logits_at_once(const ModelOnRanks& of, const Batch& batch) {
  Gather results(of.mesh);
  of.run([&](Context& context) {
    const NoGrad no_grad(context);
    const Parameters parameters = of.load(context);
    const Shape shape{batch.inputs.dim(0), batch.inputs.dim(1), of.model.emb};
    Pipeline(context, PipelineSchedule::one_forward_one_backward, of.model.dtype, shape,
             block_sharding(*context.rules, shape))
        .evaluate([&](const PipelinePass& pass, const Array& input) {
          LossOptions options;
          options.block = pass.block;
          options.input = input;
          options.keep_logits = true;
          const Losses out =
              training_losses(context, of.model, parameters, place_batch(context, batch), options);
          if (out.logits.defined()) results.put(context, "logits", out.logits);
          return StageOutput{out.output, out.loss};
        });
  });
  return results.whole("logits");
}

// Logits f32 [S,V], made as `generate` makes them: one token, then each of the others.
Tensor logits_token_by_token(const ModelOnRanks& of, const std::vector<std::int32_t>& tokens) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  const Tensor all = Tensor::zeros(DType::f32, {count, of.model.vocab});
  of.run([&](Context& context) {
    const Parameters parameters = of.load(context);
    Generator generator(context, of.model, parameters, 1, count);
    for (std::int64_t i = 0; i < count; ++i) {
      const SlotTokens fed{0, {tokens[static_cast<std::size_t>(i)]}};
      const Tensor logits = generator.feed(std::span(&fed, 1));
      if (context.comm->rank() == 0)
        std::memcpy(all.slice_rows(i, i + 1).raw(), logits.raw(), logits.bytes());
    }
  });
  return all;
}

// Returns whether an override sets how weights are kept and multiplied.
bool is_arithmetic(const std::string& setting) {
  const std::string key = setting.substr(0, setting.find('='));
  return key == "dtype" || key == "weight_dtype" || key == "weight_format";
}

class QuantizedCase {
 public:
  QuantizedCase(const CaseRequest& request, const SafetensorsFile& expected)
      : request_(request), expected_(expected), tokens_(tokens_of(expected)) {
    for (const auto& [name, entry] : expected.entries()) {
      const bool known = name == "input_ids" || name.starts_with("tensor.") ||
                         std::ranges::find(kLogitNames, name) != std::end(kLogitNames);
      if (!known)
        fail_usage("[verify] {}: tensor {} is not one of this model's results", expected.path(),
                   in_quotes(name));
    }
  }

  // Compares logits in float32, with the weights dequantised.
  void compare_logits(const nlohmann::json& hub_config, CaseReport& report) const {
    auto keys = config_from_hub(hub_config);
    keys["load_parameters_path"] = request_.path;
    keys["weight_format"] = "dense";
    CaseRequest request = request_;
    if (request.native) std::erase_if(request.overrides, is_arithmetic);
    const ModelOnRanks of = model_of(config_of(keys, request, report), report.notices);
    check_layout(of.config, of.mesh, of.model, {1, 1, 1, static_cast<std::int64_t>(tokens_.size())});
    report.mesh = of.mesh.to_string();
    const Tensor got = logits_at_once(of, batch(of.model));
    const Tensor want = nearest(got);
    report.compare({"logits", "", "", {}, request_.tolerance.value_or(kLogitTolerance)}, got, want);
  }

  void report_native(CaseReport& report) const {
    auto keys = keys_of_stored_model(request_.path);
    keys.try_emplace("weight_dtype", keys.at("dtype"));
    Config config = config_of(keys, request_, report);
    const bool chosen = std::ranges::any_of(
        request_.overrides, [](const std::string& setting) { return setting.starts_with("weight_dtype="); });
    if (!chosen) config.set("weight_dtype", config.get_string("dtype"), "verify: as generate has it");
    std::vector<std::string> notes;
    const ModelOnRanks of = model_of(std::move(config), notes);
    check_layout(of.config, of.mesh, of.model, {1, 1, 1, of.model.moe_execution.token_chunks});
    batch(of.model);  // refuses tokens outside the vocabulary
    const Tensor got = logits_token_by_token(of, tokens_), want = nearest(got);
    Row row{"logits as generate computes", "", "", {}, 0};
    row.judged = false;
    if (!std::ranges::all_of(got.span<float>(), [](float v) { return std::isfinite(v); })) {
      row.judged = true;
      row.failure = "not finite";
    }
    report.compare(row, got, want);
    report.native = score(got, want);
    report.native->notes = std::move(notes);
    report.native->dtype = of.config.get_string("dtype");
    report.native->weight_format = of.config.get_string("weight_format");
  }

 private:
  Config config_of(const std::map<std::string, nlohmann::json>& keys, const CaseRequest& request,
                   CaseReport& report) const {
    return case_config(keys, request, 1, static_cast<std::int64_t>(tokens_.size()), report);
  }

  Batch batch(const ModelConfig& model) const {
    const Tensor ids = Tensor::of<std::int32_t>({1, static_cast<std::int64_t>(tokens_.size())},
                                                std::span<const std::int32_t>(tokens_));
    return case_batch(expected_.path(), ids, ids, model.vocab);
  }

  // Returns the nearer of the given logits [S,V].
  Tensor nearest(const Tensor& got) const {
    Tensor best;
    for (const char* name : kLogitNames) {
      if (best.defined() && !expected_.contains(name)) continue;
      const Tensor want = expected_.read(name);
      if (want.dtype() != DType::f32 || want.size() != got.size())
        fail_usage("[verify] {}: expected {} of float32 [{}, {}], got {} {}", expected_.path(), name,
                   tokens_.size(), got.shape().back(), name_of(want.dtype()), to_string(want.shape()));
      if (!best.defined() || difference(got, want).max_rel < difference(got, best).max_rel) best = want;
    }
    return best;
  }

  NativeLogits score(const Tensor& got, const Tensor& want) const {
    const auto vocab = static_cast<std::size_t>(got.shape().back());
    NativeLogits result;
    result.tokens = static_cast<std::int64_t>(tokens_.size());
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      const auto row = [&](const Tensor& x) {
        return std::span<const float>(x.span<float>().subspan(i * vocab, vocab));
      };
      const TokenScore one = score_token(row(got), tokens_[i], row(want));
      result.mean_kl += static_cast<double>(one.kl) / static_cast<double>(tokens_.size());
      result.same_top += one.same_top ? 1 : 0;
    }
    return result;
  }

  const CaseRequest& request_;
  const SafetensorsFile& expected_;
  const std::vector<std::int32_t> tokens_;
};

}  // namespace

CaseReport verify_quantized(const CaseRequest& request) {
  const bool is_folder = fs::is_directory(request.path);
  CaseReport report{request.path, is_folder ? "folder of few bits" : "GGUF file", "", {}, {}, ""};
  const nlohmann::json hub_config = open_hub_source(request.path).config;
  family_of(hub_config);  // refuses what is none of ours before anything beside it is asked for
  const Beside files = beside(request.path, is_folder);
  require_beside(request.path, files.expected);
  require_beside(request.path, files.tensors);
  const SafetensorsFile expected = SafetensorsFile::open(files.expected.string());
  const QuantizedCase results(request, expected);
  const StatedTensors stated{files.tensors.string(), stated_tensors(request.path, files), expected};
  if (is_folder) {
    const WeightFolder folder = WeightFolder::open(request.path);
    compare_stored_tensors(reader_of(folder), stated, report);
  } else {
    const GgufFile file = GgufFile::open(request.path);
    compare_stored_tensors(reader_of(file), stated, report);
  }
  results.compare_logits(hub_config, report);
  if (request.native) results.report_native(report);
  return report;
}

}  // namespace switchyard
