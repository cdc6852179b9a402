// Converts a checkpoint to a Hugging Face folder.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/layout.h"
#include "convert/directions.h"
#include "convert/hub_export.h"
#include "convert/hub_form.h"
#include "convert/resumable_folder.h"
#include "convert/stored_names.h"
#include "convert/tensor_mover.h"
#include "core/cores.h"
#include "core/error.h"
#include "core/json_file.h"
#include "engine/carried_files.h"
#include "models/same_model.h"

namespace switchyard {
namespace {

using Json = nlohmann::ordered_json;

// The most bytes of a shard; transformers cuts at the same size.
constexpr std::int64_t kShardBytes = 5'000'000'000;

// A tensor of the written folder: one of pairs_, or several of them joined.
struct Output {
  struct Part {
    std::size_t pair;  // index into pairs_
    std::optional<FusedPlace> place;
  };
  std::string name;
  DType dtype;
  Shape shape;
  std::vector<Part> parts;

  std::int64_t bytes() const { return num_elements(shape) * static_cast<std::int64_t>(size_of(dtype)); }
};

class ToHuggingFace {
 public:
  ToHuggingFace(const ConvertRequest& request, const ConvertLine& line)
      : request_(request),
        line_(line),
        checkpoint_(open_source(request, line)),
        config_(config_of_stored(checkpoint_.manifest().config, checkpoint_.path())),
        form_(hub_form(config_)),
        carried_(files_to_write(checkpoint_)) {
    hub_config_ = config_to_hub(form_.config, "float32");
    family_ = &family_of(nlohmann::json(hub_config_));
    pairs_ = stored_pairs(parameter_specs(model_config(form_.config)), *family_);
    for (const ParameterSpec& spec : parameter_specs(model_config(config_))) {
      const StoredParameter stored = stored_parameter(spec.name, spec.shape);
      stored_here_.insert(stored.names.begin(), stored.names.end());
    }
    layers_ = model_config(form_.config).layers;
    copy_for_predictions(model_config(form_.config));
    check_tensors();
    fuse();
    for (const std::string& notice : form_.notices) line(notice);
    add_special_ids();
  }

  ConvertReport run() {
    ConvertReport report = report_of(pairs_, ConvertTarget::huggingface);
    report.same_bits = form_.same_bits;
    ResumableFolder folder(
        FileSystem::real(), request_.destination,
        job_of(request_, report.target, std::vector{checkpoint_.path() + "/manifest.json"}), "");
    const std::vector<PlannedFile> files = plan();
    for (const ExtraFile& extra : carried_) report.carried.push_back(extra.name);
    if (!folder.is_done()) {
      for (const PlannedFile& file : files) write_file(file, folder, report);
      write_small_files(files, folder);
    }
    folder.finish();
    const auto written = unfused(*family_, nlohmann::json(hub_config_),
                                 std::make_shared<WeightFolder>(WeightFolder::open(request_.destination)));
    for (const StoredPair& pair : pairs_) {
      if (!written->contains(pair.theirs) || written->shape(pair.theirs) != pair.hub.shape)
        fail_runtime("[convert] {}: was written without {}", request_.destination, pair.theirs);
    }
    add_sizes(files, report);
    return report;
  }

 private:
  static CheckpointFolder open_source(const ConvertRequest& request, const ConvertLine& line) {
    std::vector<std::string> skipped;
    CheckpointFolder checkpoint = open_checkpoint(request.source, &skipped);
    for (const std::string& problem : skipped) line("passed over: " + problem);
    return checkpoint;
  }

  // Gives each prediction layer its own copy of the tensors that it shares with the model.
  void copy_for_predictions(const ModelConfig& model) {
    const auto pair_of = [&](std::string_view ours) {
      return *std::ranges::find_if(pairs_, [&](const StoredPair& pair) { return pair.ours == ours; });
    };
    const auto named = [](StoredPair pair, const std::string& theirs) {
      pair.theirs = theirs;
      pair.hub.names = {theirs};
      return pair;
    };
    for (StoredPair& pair : pairs_) {
      if (is_added(pair) && pair.ours.ends_with("prediction.final_norm"))
        pair = named(pair_of("final_norm"), pair.theirs);
    }
    if (family_->predictions != PredictionForm::numbered) return;
    for (std::int64_t i = model.layers; i < model.depth(); ++i) {
      const std::string layer = fmt::format("model.layers.{}.", i);
      pairs_.push_back(named(pair_of("embedding"), layer + std::string(kPredictionEmbedding)));
      pairs_.push_back(
          named(pair_of(model.tied ? "embedding" : "head"), layer + std::string(kPredictionHead)));
    }
  }

  // Checks that the checkpoint holds the model's tensors, each expert's among them, and no others.
  void check_tensors() const {
    for (const ManifestTensor& tensor : checkpoint_.manifest().tensors) {
      if (is_packed(tensor.dtype))
        fail_usage(
            "[convert] {}: its weights are {}, which a Hugging Face folder cannot hold; convert what they "
            "were made of",
            checkpoint_.path(), name_of(tensor.dtype));
    }
    std::set<std::string> known;
    std::vector<std::string> problems;
    for (const StoredPair& pair : pairs_) {
      known.insert(pair.ours);
      if (is_added(pair)) continue;
      if (!checkpoint_.contains(pair.ours))
        problems.push_back("missing " + pair.ours);
      else if (const ManifestTensor& stored = checkpoint_.tensor(pair.ours);
               stored.shape != pair.shape || !is_float(stored.dtype))
        problems.push_back(fmt::format("{} is {} {}, expected {}", pair.ours, name_of(stored.dtype),
                                       to_string(stored.shape), to_string(pair.shape)));
    }
    for (const ManifestTensor& tensor : checkpoint_.manifest().tensors) {
      const bool state = tensor.name.ends_with(".mu") || tensor.name.ends_with(".nu");
      if (!state && !known.contains(tensor.name)) problems.push_back("surplus " + in_quotes(tensor.name));
    }
    if (problems.empty()) return;
    std::string list;
    for (std::size_t i = 0; i < std::min<std::size_t>(5, problems.size()); ++i)
      list += (i ? ", " : "") + problems[i];
    if (problems.size() > 5) list += fmt::format(" and {} more", problems.size() - 5);
    fail_usage("[convert] {}: its tensors are not those of its config: {}", checkpoint_.path(), list);
  }

  // Returns the files beside the weights, named as in the written folder.
  static std::vector<ExtraFile> files_to_write(const CheckpointFolder& checkpoint) {
    std::vector<ExtraFile> files;
    for (ExtraFile& file : carried_files(checkpoint)) {
      const std::string name = file.name.substr(kCarriedFolder.size());
      if (name != "config.json") files.push_back({name, std::move(file.content)});
    }
    return files;
  }

  // Adds the tokens that begin, end and pad a text. No file states them of a model whose weights were random.
  void add_special_ids() {
    const Json ids = special_ids(checkpoint_);
    hub_config_.update(ids);
    const auto stands = [&](const char* name) {
      return std::ranges::any_of(carried_, [&](const ExtraFile& file) { return file.name == name; });
    };
    if (ids.empty() || checkpoint_has("config.json") || stands("generation_config.json")) return;
    Json generation = Json::object();
    for (const auto& [key, id] : ids.items()) {
      if (!id.is_null()) generation[key] = id;
    }
    if (!generation.empty()) carried_.push_back({"generation_config.json", generation.dump(2) + "\n"});
  }

  bool checkpoint_has(const std::string& carried) const {
    return std::ranges::any_of(checkpoint_.manifest().extras, [&](const ManifestExtra& extra) {
      return extra.name == std::string(kCarriedFolder) + carried;
    });
  }

  // Joins the pairs that the Hugging Face family stores as one tensor.
  void fuse() {
    const nlohmann::json config(hub_config_);
    std::map<std::string, std::size_t> fused;
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      const StoredPair& pair = pairs_[i];
      const std::optional<FusedPlace> place = fused_place(*family_, config, pair.theirs);
      if (!place) {
        outputs_.push_back({name_in_files(*family_, pair.theirs, layers_),
                            dtype_of(pair),
                            pair.hub.shape,
                            {{i, std::nullopt}}});
        continue;
      }
      const auto [at, fresh] = fused.emplace(place->fused, outputs_.size());
      if (fresh) outputs_.push_back({name_in_files(*family_, place->fused, layers_), dtype_of(pair), {}, {}});
      Output& output = outputs_[at->second];
      output.parts.push_back({i, place});
      const auto experts = std::ssize(output.parts) / std::ssize(place->rule->parts);
      output.shape = fused_shape(*place, experts, pair.hub.shape);
    }
  }

  // True for a tensor that the written model has and the checkpoint lacks: a router's bias, written as zeros.
  bool is_added(const StoredPair& pair) const { return !stored_here_.contains(pair.ours); }

  DType dtype_of(const StoredPair& pair) const {
    if (is_added(pair)) return DType::f32;
    return request_.dtype && !keeps_its_dtype(pair.ours) ? *request_.dtype
                                                         : checkpoint_.tensor(pair.ours).dtype;
  }

  std::vector<PlannedFile> plan() {
    std::vector<std::vector<std::size_t>> shards(1);
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      const std::int64_t size = outputs_[i].bytes();
      if (bytes + size > request_.file_bytes.value_or(kShardBytes) && !shards.back().empty()) {
        shards.emplace_back();
        bytes = 0;
      }
      shards.back().push_back(i);
      bytes += size;
    }
    for (const StoredPair& pair : pairs_)
      wide_ = wide_ || (dtype_of(pair) == DType::f32 && !keeps_its_dtype(pair.ours));
    hub_config_["torch_dtype"] = wide_ ? "float32" : "bfloat16";
    std::vector<PlannedFile> files;
    for (std::size_t s = 0; s < shards.size(); ++s) {
      const std::string name = shards.size() == 1
                                   ? "model.safetensors"
                                   : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
      files.push_back(plan_file(name, shards[s]));
    }
    return files;
  }

  PlannedFile plan_file(const std::string& name, const std::vector<std::size_t>& members) const {
    std::vector<SafetensorsItem> items;
    for (std::size_t i : members) items.push_back({outputs_[i].name, outputs_[i].dtype, outputs_[i].shape});
    const SafetensorsLayout layout = safetensors_layout(items, {{"format", "pt"}});
    PlannedFile file{name, layout.header, layout.bytes, {}};
    for (std::size_t k : layout.order)
      file.tensors.push_back({members[k], layout.offsets[k], outputs_[members[k]].bytes()});
    return file;
  }

  // An error here is a runtime error: the checks before writing have passed.
  Tensor moved(const StoredPair& pair) {
    if (is_added(pair)) return Tensor::zeros(DType::f32, pair.hub.shape);
    const float factor = form_.factor_of(pair.ours);
    const std::int64_t columns = form_.columns_of(pair.ours);
    try {
      return mover_.move({pair.shape, pair.hub.shape, dtype_of(pair), columns == 0 ? factor : 1,
                          pair.hub.transposed, pair.hub.transposed ? pair.hub.shape[1] : 0},
                         [&](std::int64_t begin, std::int64_t end) {
                           Box rows = whole_box(pair.shape);
                           rows.start[0] = begin;
                           rows.shape[0] = end - begin;
                           const Tensor read = checkpoint_.read(pair.ours, rows);
                           return columns == 0 ? read : scaled(read, factor, DType::f32, columns);
                         });
    } catch (const Error& error) {
      fail_runtime("{}", error.what());
    }
  }

  Tensor made(const Output& output) {
    if (!output.parts[0].place) return moved(pairs_[output.parts[0].pair]);
    const Tensor whole(output.dtype, output.shape);
    for (const auto& [pair, place] : output.parts) put_part(*place, moved(pairs_[pair]), whole);
    return whole;
  }

  void write_file(const PlannedFile& file, ResumableFolder& folder, ConvertReport& report) {
    const bool kept = folder.has(file);
    if (!kept) folder.write(file, [&](std::size_t i) { return made(outputs_[i]); });
    report.files_kept += kept;
    line_(fmt::format("{} {}", kept ? "kept" : "wrote", file.name));
  }

  void write_small_files(const std::vector<PlannedFile>& files, ResumableFolder& folder) {
    Json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", Json::object()}};
    std::int64_t total = 0;
    std::map<std::string, std::string> map;
    for (const PlannedFile& file : files) {
      for (const PlannedFile::Place& place : file.tensors) {
        map[outputs_[place.tensor].name] = file.name;
        total += place.bytes;
      }
    }
    index["metadata"]["total_size"] = total;
    for (const auto& [tensor, file] : map) index["weight_map"][tensor] = file;
    if (files.size() > 1) folder.write_small("model.safetensors.index.json", index.dump(2) + "\n");
    for (const ExtraFile& extra : carried_) folder.write_small(extra.name, extra.content);
    folder.write_small("config.json", hub_config_.dump(2) + "\n");
  }

  const ConvertRequest& request_;
  const ConvertLine& line_;
  CheckpointFolder checkpoint_;
  Config config_;
  HubForm form_;  // the form of the written model
  std::vector<ExtraFile> carried_;
  Json hub_config_;
  const ModelFamily* family_ = nullptr;  // the family of the written model
  std::int64_t layers_ = 0;              // its layers, without those that predict
  std::vector<StoredPair> pairs_;
  std::vector<Output> outputs_;
  std::set<std::string> stored_here_;
  TensorMover mover_{usable_cores()};
  bool wide_ = false;  // some weights are float32
};

}  // namespace

ConvertReport convert_to_huggingface(const ConvertRequest& request, const ConvertLine& line) {
  return ToHuggingFace(request, line).run();
}

}  // namespace switchyard
