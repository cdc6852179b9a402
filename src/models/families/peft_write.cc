#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>

#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "metrics/atomic_file.h"
#include "models/families/fused_weights.h"
#include "models/families/hub_tensors.h"
#include "models/families/peft.h"
#include "models/parameters.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr std::string_view kWeight = ".weight";

// A part of a module's pair: one of our weights, and its outputs' places among the module's.
struct ModulePart {
  std::string weight;
  std::vector<std::int64_t> rows;
};

// A module as a file of PEFT has it.
struct Module {
  std::string name;           // of its tensors
  std::string target;         // what adapter_config.json calls it
  bool is_parameter = false;  // a member of target_parameters, not of target_modules
  std::int64_t experts = 0, expert = -1;
  std::int64_t inputs = 0, outputs = 0;
  std::vector<ModulePart> parts;
};

std::vector<std::int64_t> first_numbers(std::int64_t count, std::int64_t begin = 0, std::int64_t step = 1) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) numbers[static_cast<std::size_t>(i)] = begin + i * step;
  return numbers;
}

class PeftWriter {
 public:
  PeftWriter(const Adapter& adapter, const std::map<std::string, Tensor>& ours, const ModelConfig& model,
             const ModelFamily& family, const json& hub_config, PeftForm form)
      : adapter_(adapter), ours_(ours), model_(model), family_(family), hub_config_(hub_config), form_(form) {
    for (const ParameterSpec& spec : parameter_specs(model)) {
      if (!adapter.weights.contains(spec.name)) continue;
      if (spec.matrix.stack == 0)
        add_matrix(spec);
      else if (form == PeftForm::per_expert)
        add_each_expert(spec);
      else
        add_experts(spec);
    }
  }

  void write(const std::string& folder, const std::string& base) {
    std::map<std::string, Tensor> tensors;
    for (const auto& [name, module] : modules_) add_tensors(module, tensors);
    for (const std::string& weight : adapter_.whole) add_whole(weight, tensors);
    std::error_code problem;
    std::filesystem::create_directories(folder, problem);
    if (problem) fail_usage("[adapter] {}: cannot be created: {}", folder, problem.message());
    write_safetensors(folder + "/adapter_model.safetensors", tensors, {{"format", "pt"}});
    write_file_atomic(folder + "/adapter_config.json", config(base).dump(2) + "\n");
  }

 private:
  static std::string without_weight(const std::string& name) {
    CHECK(name.ends_with(kWeight), "a matrix {}", name);
    return name.substr(0, name.size() - kWeight.size());
  }
  static std::pair<std::int64_t, std::int64_t> sides_of(const ParameterSpec& spec) {
    const auto begin = spec.shape.begin() + static_cast<std::ptrdiff_t>(spec.matrix.stack),
               middle = begin + static_cast<std::ptrdiff_t>(spec.matrix.inputs);
    return {num_elements(Shape(begin, middle)), num_elements(Shape(middle, spec.shape.end()))};
  }

  // The name that transformers has for a tensor in memory, where a rule renames it.
  std::string in_memory(const std::string& name) const {
    for (const FusedRule& rule : family_.fused) {
      const bool renames = rule.parts.size() == 1 && rule.rows == nullptr &&
                           rule.parts[0].find("{}") == std::string_view::npos;
      if (renames && name.ends_with(rule.parts[0]))
        return name.substr(0, name.size() - rule.parts[0].size()) + std::string(rule.fused);
    }
    return name_in_files(family_, name, model_.layers);
  }

  void add_matrix(const ParameterSpec& spec) {
    const std::string name = hub_tensors(family_, spec.name, spec.shape).names.front();
    const auto [inputs, outputs] = sides_of(spec);
    const auto place = fused_place(family_, hub_config_, name);
    const bool joined = place && place->rows.groups > 0;
    const std::string stored = joined ? place->fused : in_memory(name);
    Module& module = modules_[stored];
    module.name = module.target = without_weight(stored);
    // PEFT takes the endings of MLPs and routers for those of experts: as parameters it leaves them alone.
    constexpr std::string_view kRewritten[] = {".gate_proj", ".up_proj", ".down_proj", ".gate", ".router"};
    module.is_parameter =
        model_.moe().experts > 1 &&
        std::ranges::any_of(kRewritten, [&](std::string_view end) { return module.target.ends_with(end); });
    if (module.is_parameter) module.target += kWeight;
    module.inputs = inputs;
    module.outputs = joined ? place->rows.groups * place->rows.of_group() : outputs;
    std::vector<std::int64_t> rows = first_numbers(outputs);
    if (joined)
      for (std::int64_t& row : rows) row = place->rows.place_of(place->number, row);
    module.parts.push_back({spec.name, std::move(rows)});
  }

  // The rule of transformers' tensor that has the experts' matrix `name` in it.
  const FusedRule& rule_of_experts(const std::string& name, std::size_t& number) const {
    for (const FusedRule& rule : family_.fused) {
      for (number = 0; number < rule.parts.size(); ++number) {
        const std::string_view part = rule.parts[number];
        const std::size_t at = part.find("{}");
        if (at == std::string_view::npos || rule.fused.ends_with("blocks") || rule.fused.ends_with("bias"))
          continue;
        if (name.ends_with(std::string(part.substr(0, at)) + "0" + std::string(part.substr(at + 2))))
          return rule;
      }
    }
    fail_usage("[adapter] {}: transformers has no tensor for the experts of {}; expected --form per-expert",
               family_.type, name);
  }
  void add_experts(const ParameterSpec& spec) {
    const std::string first = hub_tensors(family_, spec.name, spec.shape).names.front();
    std::size_t number = 0;
    const FusedRule& rule = rule_of_experts(first, number);
    const std::string_view part = rule.parts[number];
    const std::string front = first.substr(0, first.size() - (part.size() - 2 + 1));
    const std::string parameter = name_in_files(family_, front + std::string(rule.fused), model_.layers);
    const auto [inputs, outputs] = sides_of(spec);
    const auto parts = std::ssize(rule.parts), at = static_cast<std::int64_t>(number);
    Module& module = modules_[parameter];
    const std::string experts = parameter.substr(0, parameter.rfind('.'));
    module.name = experts;
    if (parts == 2 && has_down(spec)) module.name += ".base_layer";
    module.target = parameter;
    module.is_parameter = true;
    module.experts = spec.shape[0];
    module.inputs = inputs;
    module.outputs = outputs * parts;
    module.parts.push_back({spec.name, rule.in_turns ? first_numbers(outputs, at, parts)
                                                     : first_numbers(outputs, at * outputs)});
  }
  bool has_down(const ParameterSpec& spec) const {
    return adapter_.weights.contains(spec.name.substr(0, spec.name.rfind('.')) + ".wo");
  }
  void add_each_expert(const ParameterSpec& spec) {
    const HubTensors hub = hub_tensors(family_, spec.name, spec.shape);
    const auto [inputs, outputs] = sides_of(spec);
    if (fused_place(family_, hub_config_, hub.names.front()))
      fail_usage("[adapter] --form per-expert: files of {} have no tensor for each expert; expected peft",
                 family_.type);
    for (std::size_t e = 0; e < hub.names.size(); ++e) {
      Module& module = modules_[hub.names[e]];
      module.name = module.target = without_weight(hub.names[e]);
      module.expert = static_cast<std::int64_t>(e);
      module.inputs = inputs;
      module.outputs = outputs;
      module.parts.push_back({spec.name, first_numbers(outputs)});
    }
  }

  bool shares_a(const Module& module) const {
    return module.parts.size() == 1 || adapter_.weights.at(module.parts.front().weight).one_a;
  }
  std::int64_t rank_of(const Module& module) const {
    std::int64_t rank = 0;
    for (const ModulePart& part : module.parts) {
      const std::int64_t own = adapter_.weights.at(part.weight).rank;
      rank = shares_a(module) ? own : rank + own;
    }
    return rank;
  }
  float scale_of(const Module& module) const {
    const float scale = adapter_.weights.at(module.parts.front().weight).scale;
    for (const ModulePart& part : module.parts)
      if (adapter_.weights.at(part.weight).scale != scale)
        fail_usage("[adapter] {} and {}: expected one factor, as both are in {}", module.parts.front().weight,
                   part.weight, module.name);
    return scale;
  }

  void add_tensors(const Module& module, std::map<std::string, Tensor>& tensors) const {
    const std::int64_t r = rank_of(module), count = std::max<std::int64_t>(1, module.experts),
                       first = std::max<std::int64_t>(0, module.expert), width = r * count;
    const Tensor a = Tensor::zeros(DType::f32, {width, module.inputs}),
                 b = Tensor::zeros(DType::f32, {module.outputs, width});
    std::int64_t begin = 0;  // of a part's components
    for (const ModulePart& part : module.parts) {
      const AdaptedWeight& how = adapter_.weights.at(part.weight);
      const Tensor &own_a = ours_.at(lora_a_of(part.weight, how)), &own_b = ours_.at(lora_b_of(part.weight));
      const auto outputs = std::ssize(part.rows);
      for (std::int64_t e = 0; e < count; ++e) {
        for (std::int64_t k = 0; k < how.rank; ++k) {
          const std::int64_t row = e * r + begin + k, column = (begin + k) * count + e;
          for (std::int64_t i = 0; i < module.inputs; ++i)
            a.data<float>()[row * module.inputs + i] =
                own_a.data<float>()[((first + e) * module.inputs + i) * how.rank + k];
          for (std::int64_t o = 0; o < outputs; ++o)
            b.data<float>()[part.rows[static_cast<std::size_t>(o)] * width + column] =
                own_b.data<float>()[((first + e) * how.rank + k) * outputs + o];
        }
      }
      if (!shares_a(module)) begin += how.rank;
    }
    tensors["base_model.model." + module.name + ".lora_A.weight"] = a;
    tensors["base_model.model." + module.name + ".lora_B.weight"] = b;
  }
  void add_whole(const std::string& weight, std::map<std::string, Tensor>& tensors) const {
    const HubTensors hub = hub_tensors(family_, weight, ours_.at(weight).shape());
    const std::vector<Tensor> parts = to_hub(hub, ours_.at(weight));
    for (std::size_t i = 0; i < parts.size(); ++i)
      tensors["base_model.model." + name_in_files(family_, hub.names[i], model_.layers)] = parts[i];
  }

  // A name as a regular expression.
  static std::string escaped(const std::string& name) {
    std::string text;
    for (const char c : name) text += c == '.' ? "\\." : std::string(1, c);
    return text;
  }
  json config(const std::string& base) const {
    std::map<std::pair<std::int64_t, float>, std::int64_t> counts;
    for (const auto& [name, module] : modules_) ++counts[{rank_of(module), scale_of(module)}];
    const auto usual =
        std::ranges::max_element(counts, {}, [](const auto& item) { return item.second; })->first;
    const auto alpha = [](std::int64_t rank, float scale) {
      const double value = static_cast<double>(scale) * static_cast<double>(rank);
      return value == std::floor(value) ? json(static_cast<std::int64_t>(value)) : json(value);
    };
    json modules = json::array(), parameters = json::array(), ranks = json::object(), alphas = json::object();
    for (const auto& [name, module] : modules_) {
      (module.is_parameter ? parameters : modules).push_back(module.target);
      const std::int64_t rank = rank_of(module);
      if (rank != usual.first) ranks[escaped(module.target)] = rank;
      if (alpha(rank, scale_of(module)) != alpha(usual.first, usual.second))
        alphas[escaped(module.target)] = alpha(rank, scale_of(module));
    }
    json saved = json::array();
    for (const std::string& weight : adapter_.whole) {
      const std::string name = hub_tensors(family_, weight, ours_.at(weight).shape()).names.front();
      saved.push_back(without_weight(name).substr(without_weight(name).rfind('.') + 1));
    }
    return {{"peft_type", "LORA"},
            {"peft_version", "0.21.2"},
            {"task_type", "CAUSAL_LM"},
            {"base_model_name_or_path", base},
            {"bias", "none"},
            {"fan_in_fan_out", false},
            {"inference_mode", true},
            {"init_lora_weights", true},
            {"lora_alpha", alpha(usual.first, usual.second)},
            {"lora_dropout", 0.0},
            {"modules_to_save", saved.empty() ? json() : saved},
            {"r", usual.first},
            {"rank_pattern", ranks},
            {"alpha_pattern", alphas},
            {"target_modules", modules},
            {"target_parameters", parameters.empty() ? json() : parameters},
            {"use_dora", false},
            {"use_rslora", false}};
  }

  const Adapter& adapter_;
  const std::map<std::string, Tensor>& ours_;
  const ModelConfig& model_;
  const ModelFamily& family_;
  const json& hub_config_;
  PeftForm form_;
  std::map<std::string, Module> modules_;  // by the name of the tensor that it changes
};

}  // namespace

void write_peft(const std::string& folder, const Adapter& adapter,
                const std::map<std::string, Tensor>& tensors, const ModelConfig& model,
                const ModelFamily& family, const nlohmann::json& hub_config, PeftForm form,
                const std::string& base) {
  ModelConfig alone = model;
  alone.adapter = nullptr;
  PeftWriter(adapter, tensors, alone, family, hub_config, form).write(folder, base);
}

}  // namespace switchyard
