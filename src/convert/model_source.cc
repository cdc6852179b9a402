#include "convert/model_source.h"

#include <filesystem>
#include <map>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/layout.h"
#include "convert/stored_names.h"
#include "core/error.h"
#include "core/json_file.h"
#include "engine/carried_files.h"
#include "models/families/family.h"
#include "models/families/hub_source.h"
#include "models/same_model.h"

namespace switchyard {
namespace {

class HubModel : public ModelSource {
 public:
  HubModel(const std::string& path, const ConvertLine& line)
      : path_(path),
        source_(open_hub_source(path)),
        config_(config_of_hub(source_.config, predictions_in(source_.config,
                                                             [&](const std::string& tensor) {
                                                               return source_.weights->contains(tensor);
                                                             }))),
        weights_(*source_.weights) {
    const ModelConfig model = model_config(config_);
    const std::vector<ParameterSpec> specs = parameter_specs(model);
    const ModelFamily& family = family_of(source_.config);
    std::map<std::string, Shape> shapes;
    for (const auto& spec : specs) shapes[spec.name] = spec.shape;
    const std::vector<std::string> left_out = check_hub_tensors(weights_, family, shapes, model.layers);
    check_copies(model);
    for (const std::string& notice : source_.notices) line(notice);
    for (const std::string& notice : left_out) line("left out: " + notice);
    for (StoredPair& pair : stored_pairs(specs, family)) {
      std::string name = pair.ours;
      pairs_.emplace(std::move(name), std::move(pair));
    }
  }

  const Config& config() const override { return config_; }
  std::vector<std::string> files() const override { return source_.files; }

  Manifest manifest(DType dtype) const override {
    Manifest manifest;
    manifest.version = SWITCHYARD_VERSION;
    Config config = config_;
    for (const char* key : {"weight_dtype", "dtype"})
      config.set(key, std::string(name_of(dtype)), "the weights");
    manifest.config = config.resolved();
    manifest.model = config.get_string("decoder_block");
    return manifest;
  }

  std::vector<ExtraFile> extras() const override { return carried_files(path_); }

  DType dtype(const std::string& tensor) const override {
    return weights_.dtype(pairs_.at(tensor).theirs) == "BF16" ? DType::bf16 : DType::f32;
  }
  bool is_quantized() const override { return !std::filesystem::is_directory(path_); }

  Tensor read(TensorMover& mover, const std::string& tensor, const Shape& shape, DType dtype) const override {
    const StoredPair& pair = pairs_.at(tensor);
    return mover.move(
        {pair.hub.shape, shape, dtype, 1, pair.hub.transposed, pair.hub.transposed ? pair.hub.shape[0] : 0},
        [&](std::int64_t begin, std::int64_t end) {
          return dtype == DType::f32 ? weights_.take_values(pair.theirs, begin, end)
                                     : weights_.take_rows(pair.theirs, begin, end);
        });
  }

 private:
  // Checks that the embedding and head stored with each prediction
  // layer equal the model's, which the layer reads instead.
  void check_copies(const ModelConfig& model) const {
    const std::string embedding = "model.embed_tokens.weight",
                      head = model.tied ? embedding : "lm_head.weight";
    for (std::int64_t i = model.layers; i < model.depth(); ++i) {
      const std::string layer = fmt::format("model.layers.{}.", i);
      check_copy(layer + std::string(kPredictionEmbedding), embedding);
      check_copy(layer + std::string(kPredictionHead), head);
    }
  }

  void check_copy(const std::string& copy, const std::string& original) const {
    if (!weights_.contains(copy)) return;
    if (!same_tensors(weights_, copy, original))
      fail_usage("[convert] {}: {} differs from {}, which prediction layers share with the model here", path_,
                 copy, original);
  }

  const std::string path_;
  const HubSource source_;
  const Config config_;
  const HubWeights& weights_;
  std::map<std::string, StoredPair> pairs_;  // by our name
};

class CheckpointModel : public ModelSource {
 public:
  CheckpointModel(const std::string& path, const ConvertLine& line)
      : checkpoint_(opened(path, line)),
        config_(config_of_stored(checkpoint_.manifest().config, checkpoint_.path())) {
    for (const ParameterSpec& spec : parameter_specs(model_config(config_))) {
      const StoredParameter stored = stored_parameter(spec.name, spec.shape);
      for (const std::string& name : stored.names) check(name, stored.shape);
    }
    const auto& tensors = checkpoint_.manifest().tensors;
    const bool trained = std::any_of(tensors.begin(), tensors.end(), [](const ManifestTensor& tensor) {
      return tensor.name.ends_with(".mu") || tensor.name.ends_with(".nu");
    });
    if (trained) line("left out: the optimizer's state");
  }

  const Config& config() const override { return config_; }
  std::vector<std::string> files() const override { return {checkpoint_.path() + "/manifest.json"}; }

  Manifest manifest(DType dtype) const override {
    const Manifest& from = checkpoint_.manifest();
    Manifest manifest;
    manifest.version = SWITCHYARD_VERSION;
    manifest.step = from.step;
    manifest.config = from.config;
    manifest.config["weight_dtype"] = name_of(dtype);
    manifest.model = from.model;
    manifest.data = from.data;
    manifest.rng = from.rng;
    manifest.phases = from.phases;
    return manifest;
  }

  std::vector<ExtraFile> extras() const override { return carried_files(checkpoint_); }

  DType dtype(const std::string& tensor) const override { return checkpoint_.tensor(tensor).dtype; }
  bool is_quantized() const override { return false; }

  Tensor read(TensorMover& mover, const std::string& tensor, const Shape& shape, DType dtype) const override {
    return mover.move({shape, shape, dtype}, [&](std::int64_t begin, std::int64_t end) {
      Box rows = whole_box(shape);
      rows.start[0] = begin;
      rows.shape[0] = end - begin;
      return checkpoint_.read(tensor, rows);
    });
  }

 private:
  static CheckpointFolder opened(const std::string& path, const ConvertLine& line) {
    std::vector<std::string> skipped;
    CheckpointFolder checkpoint = open_checkpoint(path, &skipped);
    for (const std::string& problem : skipped) line("passed over: " + problem);
    return checkpoint;
  }

  void check(const std::string& name, const Shape& shape) const {
    const ManifestTensor& stored = checkpoint_.tensor(name);
    if (is_packed(stored.dtype))
      fail_usage("[convert] {}: its weights are {} already; convert what they were made of",
                 checkpoint_.path(), name_of(stored.dtype));
    if (stored.shape != shape || !is_float(stored.dtype))
      fail_usage("[convert] {}: its tensors are not those of its config: {} is {} {}, expected {}",
                 checkpoint_.path(), name, name_of(stored.dtype), to_string(stored.shape), to_string(shape));
  }

  const CheckpointFolder checkpoint_;
  const Config config_;
};

}  // namespace

std::unique_ptr<ModelSource> open_hub_model(const std::string& path, const ConvertLine& line) {
  return std::make_unique<HubModel>(path, line);
}

std::unique_ptr<ModelSource> open_checkpoint_model(const std::string& path, const ConvertLine& line) {
  return std::make_unique<CheckpointModel>(path, line);
}

}  // namespace switchyard
