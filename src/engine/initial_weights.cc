#include "engine/initial_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/layout.h"
#include "core/error.h"
#include "core/json_file.h"
#include "engine/checkpoint_fit.h"
#include "engine/own_adapter.h"
#include "engine/session.h"
#include "models/families/hub_source.h"
#include "models/families/hub_tensors.h"
#include "models/packed_parameters.h"
#include "models/same_model.h"

namespace switchyard {
namespace {

// The dense block of a parameter from which a packed block is made.
std::pair<ParameterSpec, Box> dense_request(const ParameterSpec& spec, const Box& block) {
  if (!is_packed(spec.dtype)) return {spec, block};
  return {dense_spec(spec, DType::f32), dense_box(spec, block)};
}

// A new adapter's parameters are drawn; with_adapter_weights() has those of a file.
bool is_of_lora(const ParameterSpec& spec) {
  return spec.name.ends_with(".lora_a") || spec.name.ends_with(".lora_b");
}

// The packed type that a dense parameter is stored in.
std::optional<DType> stored_blocks(const HubWeights& weights, const ModelFamily& family,
                                   const ModelConfig& model, const ParameterSpec& spec) {
  if (is_of_lora(spec) || held_factor(model, spec.name) != 1) return std::nullopt;
  return packed_in_hub(weights, family, spec.name, spec.shape);
}

// Tensors of the same shapes may belong to another model: refuses a folder whose config.json is not that of
// the run. Prediction layers that the run does not have are left out.
void check_describes(const Config& config, const ModelConfig& model, const HubSource& source,
                     const std::string& folder) {
  const std::int64_t there = predictions_in(
      source.config, [&](const std::string& tensor) { return source.weights->contains(tensor); });
  check_same_model(
      config, model,
      config_of_hub(source.config, std::min(model.predictions, there), config.get_string("compat")),
      fmt::format("[weights] {}: its config says", folder),
      fmt::format("make them equal (`switchyard train {}` takes all from the folder)", folder));
}

Parameters::FillBlock from_hub(const Config& config, const std::string& folder, const ModelConfig& model,
                               const std::vector<ParameterSpec>& specs, std::vector<std::string>* notes) {
  const HubSource source = open_hub_source(folder);
  const std::shared_ptr<const HubWeights> weights = source.weights;
  const ModelFamily& family = family_of(source.config);
  check_describes(config, model, source, folder);
  for (const std::string& notice : source.notices) notes->push_back("[weights] " + notice);
  std::map<std::string, Shape> shapes;
  for (const auto& spec : specs)
    shapes[spec.name] = dense_request(spec, {spec.shape, spec.shape}).first.shape;
  for (const auto& name : check_hub_tensors(*weights, family, shapes, model.layers))
    notes->push_back("[weights] left out: " + name);
  return [weights, &family, model](const ParameterSpec& wanted, const Box& of_wanted) {
    const auto [spec, block] = dense_request(wanted, of_wanted);
    if (stored_blocks(*weights, family, model, spec) == wanted.dtype)
      return load_blocks_from_hub(*weights, family, spec.name, spec.shape, wanted.shape, of_wanted);
    const auto factor = static_cast<float>(held_factor(model, spec.name));
    return hub_block(*weights, family, spec.name, spec.shape, block, {spec.dtype, factor});
  };
}

// The specs of the weights that the model's own files have.
std::vector<ParameterSpec> of_model(const std::vector<ParameterSpec>& specs) {
  std::vector<ParameterSpec> own;
  for (const ParameterSpec& spec : specs)
    if (!is_of_lora(spec)) own.push_back(spec);
  return own;
}

CheckpointFolder open_parameters(const std::string& folder, std::vector<std::string>* notes) {
  std::vector<std::string> skipped;
  CheckpointFolder checkpoint = open_checkpoint(folder, &skipped);
  if (notes != nullptr) {
    for (const auto& line : skipped) notes->push_back("warning: " + line);
  }
  return checkpoint;
}

// The type that the checkpoint holds a parameter in; none where it lacks it, which check_fits() tells.
std::optional<DType> type_in(const CheckpointFolder& checkpoint, const ParameterSpec& dense) {
  const std::string first = stored_parameter(dense.name, dense.shape).names.front();
  if (!checkpoint.contains(first)) return std::nullopt;
  return checkpoint.tensor(first).dtype;
}

// The packed type of most weights of a checkpoint: the head's, which may have more bits,
// only where no other is.
std::optional<DType> packed_type_of(const CheckpointFolder& checkpoint) {
  std::optional<DType> packed;
  for (const ManifestTensor& tensor : checkpoint.manifest().tensors) {
    if (is_packed(tensor.dtype) && (!packed || tensor.name != "head")) packed = tensor.dtype;
  }
  return packed;
}

// Returns the spec to read for a parameter: packed blocks if they are stored so, else dense values.
ParameterSpec as_stored(const CheckpointFolder& checkpoint, const ParameterSpec& wanted) {
  const std::string first = stored_parameter(wanted.name, wanted.shape).names.front();
  const bool same = checkpoint.contains(first) && checkpoint.tensor(first).dtype == wanted.dtype;
  return same ? wanted : dense_request(wanted, {wanted.shape, wanted.shape}).first;
}

Parameters::FillBlock from_checkpoint(const Config& config, const std::string& folder,
                                      const std::vector<ParameterSpec>& specs,
                                      std::vector<std::string>* notes, WeightUse use) {
  const auto checkpoint = std::make_shared<CheckpointFolder>(open_parameters(folder, notes));
  if (holds_adapter(*checkpoint))
    fail_usage("[weights] {}: holds an adapter alone; give its base, and adapter={}", folder, folder);
  std::vector<StoredTensor> needed;
  for (const ParameterSpec& wanted : specs) {
    const ParameterSpec spec = as_stored(*checkpoint, wanted);
    const StoredParameter stored = stored_parameter(spec.name, spec.shape);
    for (const std::string& name : stored.names) needed.push_back({name, spec.dtype, stored.shape, false});
  }
  check_fits(config, *checkpoint, needed, Fit::weights);
  notes->push_back("[weights] from " + checkpoint->path());
  return [checkpoint, use](const ParameterSpec& wanted, const Box& of_wanted) {
    const ParameterSpec spec = as_stored(*checkpoint, wanted);
    const Box block = spec.dtype == wanted.dtype ? of_wanted : dense_request(wanted, of_wanted).second;
    const std::string first = stored_parameter(spec.name, spec.shape).names.front();
    const DType type = checkpoint->tensor(first).dtype;
    const bool is_cast = is_float(type) && is_float(wanted.dtype);
    if (use == WeightUse::run && (type == wanted.dtype || is_cast)) {
      const Tensor in_file = checkpoint->map_parameter(spec.name, spec.shape, block);
      if (in_file.defined()) return in_file;
    }
    const Tensor stored(type, block.shape);
    checkpoint->read_parameter(spec.name, spec.shape, "", block, stored.raw());
    return is_cast ? stored : stored.cast(spec.dtype);
  };
}

}  // namespace

Parameters::FillBlock initial_weights(const Config& config, const ModelConfig& model,
                                      const std::vector<ParameterSpec>& specs,
                                      std::vector<std::string>* notes, WeightUse use) {
  const std::string folder = config.get_string("load_parameters_path");
  if (folder.empty()) return nullptr;
  const Parameters::FillBlock stored = is_checkpoint_path(folder)
                                           ? from_checkpoint(config, folder, of_model(specs), notes, use)
                                           : from_hub(config, folder, model, of_model(specs), notes);
  return [stored](const ParameterSpec& spec, const Box& block) {
    return is_of_lora(spec) ? Tensor() : stored(spec, block);
  };
}

AdapterBase adapter_base(const Config& config, const ModelConfig& model) {
  const std::string folder = config.get_string("load_parameters_path");
  if (is_hub_source(folder)) {
    const HubSource source = open_hub_source(folder);
    return {&family_of(source.config), source.config};
  }
  return {&family_to_write(config, model), hub_config_to_write(config, model)};
}

namespace {

// Packs those of `specs` that the checkpoint of load_parameters_path holds packed, if it holds any:
// weight_format then says so. Whether it does.
bool pack_as_checkpoint(Config& config, std::vector<ParameterSpec>& specs) {
  const std::optional<DType> wanted = packed_dtype(config.get_string("weight_format"));
  const std::string folder = config.get_string("load_parameters_path");
  if (!folder.empty() && is_checkpoint_path(folder)) {
    const CheckpointFolder checkpoint = open_parameters(folder, nullptr);
    if (const std::optional<DType> packed = packed_type_of(checkpoint)) {
      if (wanted && wanted != packed)
        fail_usage("[weights] weight_format={}: the weights of {} are {} already; expected stored",
                   name_of(*wanted), checkpoint.path(), name_of(*packed));
      for (ParameterSpec& spec : specs) {
        const std::optional<DType> type = type_in(checkpoint, spec);
        if (!type || !is_packed(*type)) continue;
        std::optional<ParameterSpec> blocks = packed_spec(spec, *type);
        if (!blocks)
          fail_usage("[checkpoint] {}: {} is {}, which a weight {} cannot be", checkpoint.path(), spec.name,
                     name_of(*type), to_string(spec.shape));
        spec = *std::move(blocks);
      }
      config.set("weight_format", std::string(name_of(*packed)), "the checkpoint");
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<ParameterSpec> specs_to_run(Config& config, const ModelConfig& model,
                                        std::vector<std::string>* notes) {
  std::vector<ParameterSpec> specs = parameter_specs(model);
  const std::optional<DType> wanted = packed_dtype(config.get_string("weight_format"));
  if (pack_as_checkpoint(config, specs) || !wanted) return specs;
  return packed_specs(std::move(specs), *wanted, notes);
}

std::vector<ParameterSpec> specs_to_train(const Config& config, const ModelConfig& model,
                                          std::vector<std::string>* notes) {
  std::vector<ParameterSpec> specs = parameter_specs(model);
  const std::optional<DType> wanted = packed_dtype(config.get_string("weight_format"));
  Config as_stored = config;
  if (pack_as_checkpoint(as_stored, specs))
    require_packed_frozen(specs);
  else if (wanted)
    return packed_frozen_specs(std::move(specs), *wanted, notes);
  return specs;
}

std::vector<ParameterSpec> specs_as_stored(const Config& config, const Mesh& mesh, const ModelConfig& model,
                                           std::vector<ParameterSpec> specs,
                                           std::vector<std::string>* notes) {
  const std::string folder = config.get_string("load_parameters_path");
  if (config.get_string("weight_format") != "stored" || !is_hub_source(folder)) return specs;
  const HubSource source = open_hub_source(folder);
  const ModelFamily& family = family_of(source.config);
  return specs_stored_as(
      config, mesh,
      [&](const ParameterSpec& spec) { return stored_blocks(*source.weights, family, model, spec); },
      fmt::format("`switchyard inspect {}` says which", folder), std::move(specs), notes);
}

std::vector<ParameterSpec> specs_stored_as(const Config& config, const Mesh& mesh,
                                           const StoredType& stored_type, const std::string& where,
                                           std::vector<ParameterSpec> specs,
                                           std::vector<std::string>* notes) {
  const Mesh own = stage_mesh(mesh);
  const AxisRules rules(config.axis_rules(), own);
  std::map<std::string, ParameterSpec> packed;
  std::int64_t cut = 0, unlike = 0;
  for (const ParameterSpec& spec : specs) {
    const auto stored = stored_type(spec);
    const auto blocks = stored ? packed_spec(spec, *stored) : std::nullopt;
    if (!blocks) continue;
    if (splits_whole_blocks(rules, *blocks))
      packed.emplace(spec.name, *blocks);
    else
      ++cut;
  }
  // They are multiplied together.
  for (const ParameterSpec& spec : specs) {
    if (!spec.name.ends_with(".moe.wi_0")) continue;
    const std::string up = spec.name.substr(0, spec.name.size() - 1) + "1";
    const auto a = packed.find(spec.name), b = packed.find(up);
    if (a != packed.end() && b != packed.end() && a->second.dtype == b->second.dtype) continue;
    unlike += static_cast<std::int64_t>(packed.erase(spec.name) + packed.erase(up));
  }
  std::map<std::string_view, std::int64_t> counts;
  for (ParameterSpec& spec : specs) {
    const auto found = packed.find(spec.name);
    if (found == packed.end()) continue;
    spec = found->second;
    ++counts[name_of(spec.dtype)];
  }
  for (const auto& [name, count] : counts)
    notes->push_back(fmt::format("[weights] {} of {} weights stay as they are stored, in blocks of {} ({})",
                                 count, specs.size(), name, where));
  if (cut > 0)
    notes->push_back(
        fmt::format("[weights] {} weights become dense, as the mesh would cut their blocks", cut));
  if (unlike > 0)
    notes->push_back(fmt::format(
        "[weights] {} weights become dense, as gate and up of a layer's experts differ in type", unlike));
  return specs;
}

}  // namespace switchyard
