#include "engine/model.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/error.h"
#include "engine/initial_weights.h"
#include "engine/own_adapter.h"
#include "engine/session.h"
#include "models/families/lora_keys.h"

namespace switchyard {
namespace {

std::int64_t bytes_in(const ParameterSpec& spec, const Shape& shape) {
  return num_elements(shape) * static_cast<std::int64_t>(size_of(spec.dtype));
}

// Counts what the first rank has read; it reads weights in list order.
class LoadCount {
 public:
  LoadCount(const std::vector<ParameterSpec>& specs, const LoadProgress& progress) : progress_(progress) {
    for (const ParameterSpec& spec : specs) {
      before_[spec.name] = all_;
      all_ += bytes_in(spec, spec.shape);
    }
  }

  void read(const ParameterSpec& spec, const Box& block) {
    if (spec.name != name_) {
      name_ = spec.name;
      read_ = 0;
    }
    read_ = std::min(read_ + bytes_in(spec, block.shape), bytes_in(spec, spec.shape));
    progress_(before_.at(name_) + read_, all_);
  }

 private:
  const LoadProgress& progress_;
  std::map<std::string, std::int64_t> before_;  // of each parameter
  std::int64_t all_ = 0;
  std::string name_;       // of the one that is being read
  std::int64_t read_ = 0;  // of it
};

ModelConfig model_for(const Config& config, ModelUse use) {
  const ModelConfig whole = model_config(config);
  return use != ModelUse::run || config.get_bool("mtp_draft") ? whole : without_predictions(whole);
}

AdapterPlaces places_of(const std::vector<NamedAdapter>& named) {
  AdapterPlaces places;
  for (const NamedAdapter& adapter : named) places.push_back(adapter.read);
  return places;
}

void read_named_adapters(ModelOnMesh& of) {
  if (of.use != ModelUse::run)
    fail_usage("[adapter] adapter={}: only `serve` has several adapters; expected one folder",
               of.config.get_string("adapter"));
  check_several_adapters(of.mesh, of.model);
  for (NamedAdapter& adapter : of.named)
    adapter.read = read_text_adapter(adapter.folder, of.config, of.model);
  of.model.adapter = adapters_together(places_of(of.named), of.model.dtype);
}

// Gives the model the adapter that the config names or asks to train. Returns the adapter whose parameters
// a file has; null where no file has them.
std::shared_ptr<const PeftAdapter> adapter_of_run(ModelOnMesh& of) {
  const bool trains_one = of.use == ModelUse::train && trains_adapter(of.config);
  const std::string folder = trains_one ? adapter_to_go_on_from(of.config) : of.config.get_string("adapter");
  if (trains_one && folder.empty()) {
    for (std::string& line : adapter_lines(*of.model.adapter, of.model)) of.notes.push_back(std::move(line));
    return nullptr;
  }
  if (folder.empty()) return nullptr;
  if (of.model.compat)
    fail_usage("[adapter] adapter={}: expected compat=none, got {}", folder, of.config.get_string("compat"));
  if (!trains_one) of.named = named_adapters(of.config);
  if (!of.named.empty()) {
    read_named_adapters(of);
    return nullptr;
  }
  PeftAdapter read = of.use == ModelUse::run ? read_adapter_to_run(folder, of.config, of.model)
                                             : read_adapter(folder, of.config, of.model);
  of.model.adapter = std::make_shared<const Adapter>(read.adapter);
  if (trains_one)
    for (std::string& line : adapter_lines(*of.model.adapter, of.model)) of.notes.push_back(std::move(line));
  return std::make_shared<const PeftAdapter>(std::move(read));
}

std::vector<ParameterSpec> specs_for(ModelOnMesh& of) {
  if (of.use != ModelUse::train)
    return specs_as_stored(of.config, of.mesh, of.model, specs_to_run(of.config, of.model, &of.notes),
                           &of.notes);
  std::vector<ParameterSpec> specs = specs_to_train(of.config, of.model, &of.notes);
  if (of.model.adapter == nullptr) return specs;
  // A frozen base stays as its files have it.
  return specs_as_stored(of.config, of.mesh, of.model, std::move(specs), &of.notes);
}

}  // namespace

namespace {

// A choice of keys does not go from block to block of a pipeline.
void check_choices_stay(const ModelConfig& model, int blocks) {
  for (int i = 0; i < blocks; ++i) {
    const std::int64_t first = layers_of(Stage::Block{i, blocks}, model.layers).begin;
    if (const int of = model.layer(first).choice_of; of >= 0)
      fail_usage(
          "[pipeline] layer {}, the first of a block of {} layers, attends to the keys that layer {} chose: "
          "expected an indexer in it, or ici_pipeline_parallelism=1",
          first, model.layers / blocks, of);
  }
}

}  // namespace

ModelOnMesh::ModelOnMesh(Config of, ModelUse what_for) : ModelOnMesh(of, mesh_from_config(of), what_for) {}

ModelOnMesh::ModelOnMesh(Config of, Mesh on, ModelUse what_for)
    : config(std::move(of)),
      mesh(std::move(on)),
      use(what_for),
      model(model_for(config, use)),
      adapter(adapter_of_run(*this)),
      specs(specs_for(*this)) {
  const int stages = mesh.axis_size("stage");
  check_choices_stay(model, stages * pipeline_repeats(config, stages));
}

bool ModelOnMesh::is_packed() const {
  return std::ranges::any_of(specs,
                             [](const ParameterSpec& spec) { return switchyard::is_packed(spec.dtype); });
}

Parameters ModelOnMesh::create(Context& context, const Parameters::FillBlock& fill,
                               std::vector<std::string>* warnings) const {
  return Parameters::create_from_blocks(context, stage_specs(specs, context.stage, model), model.init_seed,
                                        fill, warnings);
}

ModelOnRanks::ModelOnRanks(ModelOnMesh of, Processes* with, std::optional<Parameters::FillBlock> weights)
    : ModelOnMesh(std::move(of)),
      own_process(with == nullptr ? one_process() : nullptr),
      processes(with == nullptr ? own_process.get() : with) {
  require_ranks_fit(mesh, *processes);
  const bool on_gpu = device_of_run(config, mesh, *processes, &notes).is_gpu();
  const auto with_adapters = [&](Parameters::FillBlock base) {
    return named.empty() ? with_adapter_weights(std::move(base), adapter)
                         : with_text_adapters(std::move(base), places_of(named));
  };
  if (weights) {
    fill = with_adapters(*std::move(weights));
    return;
  }
  const bool changes = use == ModelUse::train || (use == ModelUse::train_or_run && !is_packed());
  fill = with_adapters(
      initial_weights(config, model, specs, &notes, changes && !on_gpu ? WeightUse::train : WeightUse::run));
}

void ModelOnRanks::run(const std::function<void(Context&)>& body) const {
  run_session(config, mesh, *processes, body);
}

Parameters ModelOnRanks::load(Context& context, const LoadProgress& progress,
                              std::vector<std::string>* warnings) const {
  if (!fill || !progress || context.comm->rank() != 0) return create(context, fill, warnings);
  LoadCount count(stage_specs(specs, context.stage, model), progress);
  return create(
      context,
      [&](const ParameterSpec& spec, const Box& block) {
        Tensor values = fill(spec, block);
        count.read(spec, block);
        return values;
      },
      warnings);
}

std::unique_ptr<Tokenizer> make_tokenizer_of(const Config& config) {
  const std::string type = config.get_string("tokenizer_type"), path = config.get_string("tokenizer_path");
  return type != "byte" && path.empty() ? nullptr : make_tokenizer(type, path);
}

Parameters::FillBlock with_adapter_weights(Parameters::FillBlock base,
                                           std::shared_ptr<const PeftAdapter> adapter) {
  if (adapter == nullptr) return base;
  return [base = std::move(base), adapter = std::move(adapter)](const ParameterSpec& spec, const Box& block) {
    const auto found = adapter->tensors.find(spec.name);
    if (found != adapter->tensors.end()) return slice_block(found->second, block.start, block.shape);
    return base ? base(spec, block) : Tensor();
  };
}

Parameters::FillBlock stoppable(Parameters::FillBlock fill, const std::stop_token& stop, const char* what) {
  if (!stop.stop_possible()) return fill;
  return [fill = std::move(fill), stop, what](const ParameterSpec& spec, const Box& block) {
    if (stop.stop_requested()) fail_runtime("[engine] {}: asked to stop before all weights were there", what);
    return fill ? fill(spec, block) : Tensor();
  };
}

Parameters::FillBlock blocks_of(Parameters::Fill fill) {
  return [fill = std::move(fill)](const ParameterSpec& spec, const Box& block) {
    return slice_block(fill(spec), block.start, block.shape).cast(spec.dtype);
  };
}

}  // namespace switchyard
