#include "train/initial_weights.h"

#include <cmath>
#include <memory>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/hub.h"
#include "checkpoint/json_file.h"
#include "checkpoint/layout.h"
#include "core/error.h"
#include "gguf/hub_source.h"
#include "models/packed_parameters.h"
#include "train/resume.h"

namespace switchyard {
namespace {

// The dense values of a parameter's block, which a packed one is made from.
std::pair<ParameterSpec, Box> dense_request(const ParameterSpec& spec, const Box& block) {
  if (!is_packed(spec.dtype)) return {spec, block};
  return {dense_spec(spec, DType::f32), dense_box(spec, block)};
}

Parameters::FillBlock from_hub(const std::string& folder, const ModelConfig& model,
                               const std::vector<ParameterSpec>& specs, std::vector<std::string>* notes) {
  const HubSource source = open_hub_source(folder);
  const std::shared_ptr<const HubWeights> weights = source.weights;
  const HubFamily family = hub_family(source.config);
  std::map<std::string, Shape> shapes;
  for (const auto& spec : specs)
    shapes[spec.name] = dense_request(spec, {spec.shape, spec.shape}).first.shape;
  for (const auto& name : check_hub_tensors(*weights, family, shapes, model.layers))
    notes->push_back("[weights] left out: " + name);
  const bool in_weight = model.compat && !model.mla && model.attention_scale == 1.0;
  const double query = in_weight ? 1 / std::sqrt(static_cast<double>(model.head_dim)) : 1.0;
  return [weights, family, query](const ParameterSpec& wanted, const Box& of_wanted) {
    const auto [spec, block] = dense_request(wanted, of_wanted);
    Tensor t = load_from_hub(*weights, family, spec.name, spec.shape).cast(spec.dtype);
    if (query != 1.0 && spec.name.ends_with("attention.query")) {
      Tensor scaled = t.cast(DType::f32).clone();
      for (float& v : scaled.span<float>()) v *= static_cast<float>(query);
      t = scaled.cast(spec.dtype);
    }
    return slice_block(t, block.start, block.shape);
  };
}

Parameters::FillBlock from_checkpoint(const Config& config, const std::string& folder,
                                      const std::vector<ParameterSpec>& specs,
                                      std::vector<std::string>* notes) {
  std::vector<std::string> skipped;
  auto checkpoint = std::make_shared<CheckpointFolder>(open_checkpoint(folder, &skipped));
  for (const auto& line : skipped) notes->push_back("warning: " + line);
  std::vector<StoredTensor> needed;
  for (const ParameterSpec& wanted : specs) {
    const ParameterSpec spec = dense_request(wanted, {wanted.shape, wanted.shape}).first;
    const StoredParameter stored = stored_parameter(spec.name, spec.shape);
    for (const std::string& name : stored.names) needed.push_back({name, spec.dtype, stored.shape, false});
  }
  check_fits(config, *checkpoint, needed, Fit::weights);
  notes->push_back("[weights] from " + checkpoint->path());
  return [checkpoint](const ParameterSpec& wanted, const Box& of_wanted) {
    const auto [spec, block] = dense_request(wanted, of_wanted);
    const std::string first = stored_parameter(spec.name, spec.shape).names.front();
    const Tensor stored(checkpoint->tensor(first).dtype, block.shape);
    checkpoint->read_parameter(spec.name, spec.shape, "", block, stored.raw());
    return stored.cast(spec.dtype);
  };
}

}  // namespace

Parameters::FillBlock initial_weights(const Config& config, const ModelConfig& model,
                                      const std::vector<ParameterSpec>& specs,
                                      std::vector<std::string>* notes) {
  const std::string folder = config.get_string("load_parameters_path");
  if (folder.empty()) return nullptr;
  return is_checkpoint_path(folder) ? from_checkpoint(config, folder, specs, notes)
                                    : from_hub(folder, model, specs, notes);
}

}  // namespace switchyard
