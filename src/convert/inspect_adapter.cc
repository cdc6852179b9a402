#include "convert/inspect_adapter.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "checkpoint/checkpoint_folder.h"
#include "convert/fold.h"
#include "convert/inspect.h"
#include "convert/model_source.h"
#include "convert/table.h"
#include "core/json_file.h"
#include "engine/own_adapter.h"
#include "models/families/hub_source.h"
#include "models/parameters.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPeftConfig = "adapter_config.json";

bool is_peft(const std::string& path) {
  return fs::exists(fs::path(path) / kPeftConfig);
}

// The Gram matrix of r vectors: `at(k, i)` is component i of vector k.
std::vector<double> gram(std::int64_t r, std::int64_t length, auto at) {
  std::vector<double> products(static_cast<std::size_t>(r * r));
  for (std::int64_t i = 0; i < length; ++i)
    for (std::int64_t k = 0; k < r; ++k)
      for (std::int64_t l = 0; l < r; ++l)
        products[static_cast<std::size_t>(k * r + l)] += double{at(k, i)} * double{at(l, i)};
  return products;
}

// The square of the norm of a·b, summed over the stack: the trace of (aᵀa)(b·bᵀ), which needs no product of
// the weight's size.
double squared_norm(const Tensor& a, const Tensor& b, std::int64_t stack, std::int64_t r) {
  const std::int64_t inputs = a.size() / stack / r, outputs = b.size() / stack / r;
  double sum = 0;
  for (std::int64_t e = 0; e < stack; ++e) {
    const float *const x = a.data<float>() + e * inputs * r, *const y = b.data<float>() + e * r * outputs;
    const auto left = gram(r, inputs, [&](std::int64_t k, std::int64_t i) { return x[i * r + k]; });
    const auto right = gram(r, outputs, [&](std::int64_t k, std::int64_t o) { return y[k * outputs + o]; });
    for (std::size_t i = 0; i < left.size(); ++i) sum += left[i] * right[i];
  }
  return std::max(sum, 0.0);
}

double squared_norm(const ModelSource& base, TensorMover& mover, const ParameterSpec& spec) {
  const StoredParameter stored = stored_parameter(spec.name, spec.shape);
  double sum = 0;
  for (const std::string& name : stored.names) {
    const Tensor values = base.read(mover, name, stored.shape, DType::f32);
    for (const float value : values.span<float>()) sum += double{value} * double{value};
  }
  return sum;
}

}  // namespace

bool is_adapter(const std::string& path) {
  if (is_peft(path)) return true;
  return is_checkpoint_path(path) && holds_adapter(open_checkpoint(path, nullptr));
}

std::string base_of_adapter(const std::string& path) {
  std::string base;
  if (is_peft(path)) {
    const nlohmann::json config = read_json_file((fs::path(path) / kPeftConfig).string());
    const auto stated = config.find("base_model_name_or_path");
    if (stated != config.end() && stated->is_string()) base = stated->get<std::string>();
  } else {
    base = base_path_of(open_checkpoint(path, nullptr));
  }
  return is_hub_source(base) || is_checkpoint_path(base) ? base : "";
}

AdapterInspection inspect_adapter(const std::string& path, const std::string& base_path) {
  const auto ignore = [](const std::string&) {};
  const std::unique_ptr<ModelSource> base = is_checkpoint_path(base_path)
                                                ? open_checkpoint_model(base_path, ignore)
                                                : open_hub_model(base_path, ignore);
  Config config = base->config();
  config.set("load_parameters_path", base_path, "the base");
  const ModelConfig model = model_config(config);
  const PeftAdapter read = read_adapter(path, config, model);
  AdapterInspection result;
  result.path = path;
  result.base = base_path;
  for (const auto& [name, tensor] : read.tensors) result.parameters += tensor.size();
  result.whole.assign(read.adapter.whole.begin(), read.adapter.whole.end());
  TensorMover mover(1);
  for (const ParameterSpec& spec : parameter_specs(model)) {
    const auto how = read.adapter.weights.find(spec.name);
    if (how == read.adapter.weights.end()) continue;
    const auto stack_end = spec.shape.begin() + static_cast<std::ptrdiff_t>(spec.matrix.stack);
    const double change = squared_norm(read.tensors.at(lora_a_of(spec.name, how->second)),
                                       read.tensors.at(lora_b_of(spec.name)),
                                       num_elements(Shape(spec.shape.begin(), stack_end)), how->second.rank);
    result.weights.push_back(
        {spec.name, how->second.rank, how->second.scale,
         std::abs(double{how->second.scale}) * std::sqrt(change / squared_norm(*base, mover, spec))});
  }
  return result;
}

std::string adapter_text(const AdapterInspection& inspection, bool all) {
  std::string text = fmt::format("{}: adapter of {}\n  parameters  {}\n\n", inspection.path, inspection.base,
                                 with_commas(inspection.parameters));
  std::vector<std::string> names, kinds;
  for (const AdapterInspection::Weight& weight : inspection.weights) {
    names.push_back(weight.name);
    kinds.push_back(all ? weight.name : fmt::format("{} {}", weight.rank, weight.scale));
  }
  Table table({"weight", ">rank", ">scale", ">change, least", ">change, most"});
  for (const FoldedName& folded : fold_names(names, kinds)) {
    const auto change = [&](std::size_t a, std::size_t b) {
      return inspection.weights[a].change < inspection.weights[b].change;
    };
    const auto [least, most] = std::ranges::minmax_element(folded.members, change);
    const AdapterInspection::Weight& first = inspection.weights[folded.members[0]];
    table.add({folded.name, std::to_string(first.rank), fmt::format("{:g}", first.scale),
               fmt::format("{:.3g}", inspection.weights[*least].change),
               fmt::format("{:.3g}", inspection.weights[*most].change)});
  }
  text += table.text("  ");
  for (const std::string& name : inspection.whole) text += fmt::format("  {} as a whole\n", name);
  return text;
}

nlohmann::json adapter_json(const AdapterInspection& inspection) {
  nlohmann::json weights = nlohmann::json::array();
  for (const AdapterInspection::Weight& weight : inspection.weights)
    weights.push_back(
        {{"name", weight.name}, {"rank", weight.rank}, {"scale", weight.scale}, {"change", weight.change}});
  return {{"path", inspection.path}, {"kind", "adapter"},
          {"base", inspection.base}, {"parameters", inspection.parameters},
          {"weights", weights},      {"whole", inspection.whole}};
}

}  // namespace switchyard
