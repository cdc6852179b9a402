#include "models/families/peft.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <regex>
#include <set>

#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "core/json_file.h"
#include "models/families/fused_weights.h"
#include "models/families/hub_tensors.h"
#include "models/parameters.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr std::string_view kRoot = "base_model.model.", kA = ".lora_A.weight", kB = ".lora_B.weight",
                           kBelow = ".base_layer";

// Tensors in memory as a model's weights, so that the rules for fused tensors read them.
class WeightsInMemory : public HubWeights {
 public:
  explicit WeightsInMemory(std::string path) : path_(std::move(path)) {}
  void add(const std::string& name, Tensor tensor) { tensors_[name] = std::move(tensor); }

  const std::string& path() const override { return path_; }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, tensor] : tensors_) all.push_back(name);
    return all;
  }
  bool contains(const std::string& name) const override { return tensors_.contains(name); }
  Shape shape(const std::string& name) const override { return at(name).shape(); }
  std::string dtype(const std::string&) const override { return "F32"; }
  Tensor read(const std::string& name) const override { return at(name); }
  Tensor take_rows(const std::string& name, std::int64_t begin, std::int64_t end) const override {
    return at(name).slice_rows(begin, end);
  }

 private:
  const Tensor& at(const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) fail_usage("[adapter] {}: tensor {} is missing", path_, name);
    return found->second;
  }
  std::string path_;
  std::map<std::string, Tensor> tensors_;
};

// Fields that change what an adapter computes, and their values (JSON) at which they do not.
constexpr FixedField kFixed[] = {
    {"peft_type", "\"LORA\""}, {"bias", "\"none\""},        {"lora_bias", "false"},
    {"use_dora", "false"},     {"fan_in_fan_out", "false"}, {"use_qalora", "false"},
};
// Fields that are read, that say what the tensors' names say, or that tell how an adapter began.
constexpr std::string_view kKnown[] = {
    "r",
    "lora_alpha",
    "use_rslora",
    "rank_pattern",
    "alpha_pattern",
    "target_parameters",
    "modules_to_save",
    "peft_version",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "base_model_name_or_path",
    "revision",
    "task_type",
    "auto_mapping",
    "inference_mode",
    "lora_dropout",
    "init_lora_weights",
    "loftq_config",
    "eva_config",
    "corda_config",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "qalora_group_size",
    "ensure_weight_tying",
    "runtime_config",
};

// adapter_config.json.
class PeftConfig {
 public:
  explicit PeftConfig(const std::filesystem::path& folder) : path_(folder / "adapter_config.json") {
    if (!std::filesystem::exists(path_))
      fail_usage("[adapter] {}: expected adapter_config.json and adapter_model.safetensors in it",
                 folder.string());
    json_ = read_json_file(path_);
    ordered_ = nlohmann::ordered_json::parse(standard_json(read_whole_file(path_)));
    if (!json_.is_object()) fail_usage("[adapter] {}: expected an object", path_);
    for (const auto& [key, stated] : json_.items()) check(key, stated);
    if (!value("r").is_number_integer() || value("r") < 1) wrong("r", "a rank of 1 or more");
    if (!value("lora_alpha").is_number() || !std::isfinite(value("lora_alpha").get<double>()))
      wrong("lora_alpha", "a number");
    for (const char* key : {"rank_pattern", "alpha_pattern"}) read_patterns(key);
  }

  // The rank and the factor of the module of that name, whose tensors have rank `rank`.
  AdaptedWeight of(const std::string& name, std::int64_t rank) const {
    const json* const pattern = pattern_of("rank_pattern", name);
    const char* const key = pattern != nullptr ? "rank_pattern" : "r";
    const json stated = pattern != nullptr ? *pattern : value("r");
    if (stated != rank)
      fail_usage("[adapter] {}: \"{}\" says rank {} for {}, its tensors have rank {}", path_, key,
                 stated.dump(), name, rank);
    const json* const other = pattern_of("alpha_pattern", name);
    const double alpha = (other != nullptr ? *other : value("lora_alpha")).get<double>(),
                 r = static_cast<double>(rank);
    const bool root = value("use_rslora") == true;
    return {.rank = rank, .scale = static_cast<float>(alpha / (root ? std::sqrt(r) : r))};
  }
  // The parameters of experts that target_parameters names, of those two.
  bool targets(std::string_view parameter) const {
    const json all = value("target_parameters");
    return all.is_array() && std::ranges::any_of(all, [&](const json& one) {
             return one.is_string() && one.get<std::string>().ends_with(parameter);
           });
  }
  std::vector<std::string> whole_modules() const {
    const json all = value("modules_to_save");
    std::vector<std::string> names;
    if (all.is_null()) return names;
    if (!all.is_array()) wrong("modules_to_save", "a list of names");
    for (const json& one : all) {
      if (!one.is_string()) wrong("modules_to_save", "a list of names");
      names.push_back(one);
    }
    return names;
  }
  // The version as a number that grows, 18002 for 0.18.2; -1 where none is stated.
  std::int64_t version() const {
    std::smatch parts;
    const json stated = value("peft_version");
    const std::string text = stated.is_string() ? stated.get<std::string>() : "";
    if (!std::regex_search(text, parts, std::regex(R"(^(\d+)\.(\d+)\.(\d+))"))) return -1;
    return (std::stoll(parts[1]) * 1000 + std::stoll(parts[2])) * 1000 + std::stoll(parts[3]);
  }
  [[noreturn]] void wrong(const std::string& key, const std::string& expected) const {
    fail_usage("[adapter] {}: \"{}\" is {}, expected {}", path_, key, value(key).dump(), expected);
  }
  const std::string& path() const { return path_; }

 private:
  json value(const std::string& key) const {
    const auto found = json_.find(key);
    return found == json_.end() ? json() : *found;
  }
  void check(const std::string& key, const json& stated) const {
    const auto fixed = std::ranges::find(kFixed, std::string_view(key), &FixedField::key);
    const bool off = stated.is_null() || stated == false || (stated.is_structured() && stated.empty());
    if (fixed != std::end(kFixed)) {
      if (!stated.is_null() && stated != json::parse(fixed->value))
        wrong(key, fmt::format("{}: nothing else is computed here", fixed->value));
    } else if (!off && std::ranges::find(kKnown, key) == std::end(kKnown)) {
      wrong(key, "none: what it changes is not computed here");
    }
  }
  void read_patterns(const std::string& key) {
    if (value(key).is_null()) return;
    const nlohmann::ordered_json& all = ordered_.at(key);
    if (!all.is_object()) wrong(key, "an object from patterns to numbers");
    for (const auto& [pattern, number] : all.items()) {
      const bool is_rank = key == "rank_pattern";
      if (is_rank ? !number.is_number_integer() || number < 1 : !number.is_number())
        wrong(key, is_rank ? "ranks of 1 or more" : "numbers");
      try {
        patterns_[key].emplace_back(std::regex("(?:.*\\.)?(?:" + pattern + ")"), json(number));
      } catch (const std::regex_error&) {
        fail_usage("[adapter] {}: {}: {} is no regular expression", path_, key, in_quotes(pattern));
      }
    }
  }
  // The first pattern, in the file's order, that is the end of the name.
  const json* pattern_of(const std::string& key, const std::string& name) const {
    const auto found = patterns_.find(key);
    if (found == patterns_.end()) return nullptr;
    for (const auto& [pattern, number] : found->second)
      if (std::regex_match(name, pattern)) return &number;
    return nullptr;
  }

  std::string path_;
  json json_;
  nlohmann::ordered_json ordered_;  // the first pattern that fits counts
  std::map<std::string, std::vector<std::pair<std::regex, json>>> patterns_;
};

// The tensors of adapter_model.safetensors, f32, by module.
struct PeftTensors {
  std::string path;
  std::map<std::string, Tensor> a, b, whole;

  explicit PeftTensors(const std::filesystem::path& folder) : path(folder / "adapter_model.safetensors") {
    if (!std::filesystem::exists(path)) {
      const bool pickle = std::filesystem::exists(folder / "adapter_model.bin");
      fail_usage("[adapter] {}: expected adapter_model.safetensors{}", folder.string(),
                 pickle ? "; adapter_model.bin is a pickle, which can run any code and is never opened" : "");
    }
    const SafetensorsFile file = SafetensorsFile::open(path);
    if (file.entries().empty()) fail_usage("[adapter] {}: no tensors", path);
    for (const auto& [name, entry] : file.entries()) add(file, name, entry);
    for (const auto& [module, tensor] : a) require(b, module, kB);
    for (const auto& [module, tensor] : b) require(a, module, kA);
  }
  static std::string name_of_a(const std::string& module) {
    return std::string(kRoot) + module + std::string(kA);
  }
  static std::string name_of_b(const std::string& module) {
    return std::string(kRoot) + module + std::string(kB);
  }

 private:
  void require(const std::map<std::string, Tensor>& among, const std::string& module,
               std::string_view side) const {
    if (!among.contains(module)) fail_usage("[adapter] {}: {}{}{} is missing", path, kRoot, module, side);
  }
  void add(const SafetensorsFile& file, const std::string& name, const SafetensorsFile::Entry& entry) {
    const bool of_a = name.ends_with(kA), of_b = name.ends_with(kB);
    const bool known = of_a || of_b || (name.ends_with(".weight") && name.find(".lora_") == name.npos);
    if (!name.starts_with(kRoot) || !known)
      fail_usage("[adapter] {}: tensor {}: expected {}MODULE{}, {} or .weight", path, in_quotes(name), kRoot,
                 kA, kB);
    if (entry.dtype != "F32" && entry.dtype != "BF16" && entry.dtype != "F16" && entry.dtype != "F64")
      fail_usage("[adapter] {}: tensor {} is {}, expected F32, BF16, F16 or F64", path, name, entry.dtype);
    if ((of_a || of_b) && entry.shape.size() != 2)
      fail_usage("[adapter] {}: tensor {} has shape {}, expected a matrix", path, name,
                 to_string(entry.shape));
    const Tensor values = file.read(name).cast(DType::f32);
    if (!std::ranges::all_of(values.span<float>(), [](float x) { return std::isfinite(x); }))
      fail_usage("[adapter] {}: tensor {} has a value that is no finite number", path, name);
    const std::string module = name.substr(kRoot.size(), name.size() - kRoot.size() -
                                                             (of_a   ? kA.size()
                                                              : of_b ? kB.size()
                                                                     : 0));
    (of_a ? a : of_b ? b : whole)[module] = values;
  }
};

// The weight of ours that a name of the model's files means.
struct OurWeight {
  std::string name;
  std::int64_t expert = -1;  // in a stack
};

class PeftReader {
 public:
  PeftReader(const std::string& folder, const ModelConfig& model, const ModelFamily& family,
             const json& hub_config)
      : config_(folder), tensors_(folder), model_(model), family_(family), hub_config_(hub_config) {
    for (const ParameterSpec& spec : parameter_specs(model)) {
      specs_.emplace(spec.name, spec);
      const HubTensors hub = hub_tensors(family, spec.name, spec.shape);
      const bool stacked = spec.matrix.stack > 0;
      for (std::size_t i = 0; i < hub.names.size(); ++i)
        ours_[hub.names[i]] = {spec.name, stacked ? static_cast<std::int64_t>(i) : -1};
    }
    read_.folder = folder;
  }

  PeftAdapter read() {
    std::map<std::string, std::string> module_of;  // by the name of a parameter in files
    const auto places = places_of_outputs(module_of);
    for (const std::string& name : places->names())
      add_output(name, module_of.at(places->stored_name(name)), places->read(name));
    for (auto& [module, pair] : pairs_) add_pair(pair);
    add_whole();
    check_experts();
    return std::move(read_);
  }

 private:
  // For each module a tensor [outputs, 1] whose values are its outputs' numbers, as its weight is stored:
  // where a file joins several weights, each finds its outputs among them.
  std::shared_ptr<const HubWeights> places_of_outputs(std::map<std::string, std::string>& module_of) {
    const auto numbers = std::make_shared<WeightsInMemory>(tensors_.path);
    for (const auto& [module, a] : tensors_.a) {
      PeftPair& pair = pairs_[module];
      pair.module = module;
      const FusedRule* const rule = experts_rule(module, pair);
      const std::int64_t outputs = rule != nullptr ? pair.outputs : tensors_.b.at(module).dim(0);
      if (rule == nullptr) {
        pair.inputs = a.dim(1);
        pair.outputs = outputs;
      }
      const std::string name = rule != nullptr ? parameter_of(module, *rule) : module + ".weight";
      numbers->add(name, numbers_up_to(outputs, rule, pair.experts));
      module_of[name] = module;
    }
    return unfused(family_, hub_config_, numbers);
  }
  static Tensor numbers_up_to(std::int64_t outputs, const FusedRule* rule, std::int64_t experts) {
    Shape shape{outputs, 1};
    if (rule != nullptr) shape = rule->transposed ? Shape{experts, 1, outputs} : Shape{experts, outputs, 1};
    const Tensor numbers(DType::f32, shape);
    for (std::int64_t i = 0; i < numbers.size(); ++i)
      numbers.data<float>()[i] = static_cast<float>(i % outputs);
    return numbers;
  }

  static std::string without_base_layer(const std::string& module) {
    return module.ends_with(kBelow) ? module.substr(0, module.size() - kBelow.size()) : module;
  }
  static std::string parameter_of(const std::string& module, const FusedRule& rule) {
    const std::string_view fused = rule.fused;
    return without_base_layer(module) + std::string(fused.substr(fused.rfind('.')));
  }

  // The rule of the experts' parameter that the module's tensors are of; null: the module is no experts'.
  const FusedRule* experts_rule(const std::string& module, PeftPair& pair) const {
    const std::string experts = without_base_layer(module);
    std::vector<const FusedRule*> rules;  // of gate and up, and of down
    for (const FusedRule& rule : family_.fused) {
      const bool of_experts = rule.parts[0].find("{}") != std::string_view::npos && rule.rows == nullptr;
      const std::string_view fused = rule.fused;
      if (!of_experts || fused.ends_with("bias") || fused.ends_with("blocks")) continue;
      if (experts.ends_with(fused.substr(0, fused.rfind('.')))) rules.push_back(&rule);
    }
    if (rules.empty()) return nullptr;
    const FusedRule* const rule = parameter_among(module, rules);
    pair.experts = model_.moe().experts;
    const bool down = rule->parts.size() == 1;
    pair.inputs = down ? model_.moe_mlp : model_.moe_emb;
    pair.outputs = down ? model_.moe_emb : model_.moe_mlp * std::ssize(rule->parts);
    read_sides(module, *rule, pair);
    return rule;
  }
  // The wrapper of the parameter that comes last has no base_layer in its name.
  const FusedRule* parameter_among(const std::string& module,
                                   const std::vector<const FusedRule*>& rules) const {
    const std::string experts = without_base_layer(module);
    const bool both = tensors_.a.contains(experts) && tensors_.a.contains(experts + std::string(kBelow));
    const FusedRule* found = nullptr;
    std::string names;
    std::int64_t targeted = 0;
    for (const FusedRule* rule : rules) {
      const std::string name = parameter_of(module, *rule);
      const std::string parameter = name.substr(name.rfind('.'));
      const bool is_target = config_.targets("experts" + parameter);
      targeted += is_target;
      names += (names.empty() ? "" : " and ") + parameter.substr(1);
      const bool down = rule->parts.size() == 1;
      if (both ? down == (module == experts) : is_target) found = rule;
    }
    // "all-linear" adapts both and names none.
    if (found == nullptr || (both ? targeted == 1 : targeted != 1))
      fail_usage("[adapter] {}: target_parameters says not which of {} the tensors of {} are", config_.path(),
                 names, module);
    return found;
  }
  // Tells by widths whether A belongs to the inputs; where both are equal, by who wrote it.
  void read_sides(const std::string& module, const FusedRule& rule, PeftPair& pair) const {
    const Tensor &a = tensors_.a.at(module), &b = tensors_.b.at(module);
    const auto fits = [&](std::int64_t of_a, std::int64_t of_b) {
      return a.dim(1) == of_a && b.dim(0) == of_b;
    };
    if (!fits(pair.inputs, pair.outputs) && !fits(pair.outputs, pair.inputs))
      fail_usage("[adapter] {}: tensor {} has shape {} beside {}, expected {} inputs and {} outputs",
                 tensors_.path, PeftTensors::name_of_a(module), to_string(a.shape()), to_string(b.shape()),
                 pair.inputs, pair.outputs);
    if (a.dim(0) % pair.experts != 0)
      fail_usage("[adapter] {}: tensor {} has shape {}, expected rows for {} experts", tensors_.path,
                 PeftTensors::name_of_a(module), to_string(a.shape()), pair.experts);
    pair.swapped = !fits(pair.inputs, pair.outputs);
    if (pair.inputs != pair.outputs) return;
    // PEFT took [E, x, y] for [E, in, out] before 0.19, for [E, out, in] of all but gpt-oss since 0.19.1.
    constexpr std::int64_t kFirst = 19000;  // 0.19.0, which swapped gpt-oss alone
    const std::int64_t version = config_.version();
    if (version < 0) config_.wrong("peft_version", "a version, as experts have as many inputs as outputs");
    const bool marked = rule.transposed && rule.in_turns;  // gpt-oss; Llama 4 is not marked as transposed
    pair.swapped = marked ? version == kFirst : rule.transposed || version < kFirst;
  }

  // `rows`: for each output of the weight called `name` in files, its place among the module's.
  void add_output(const std::string& name, const std::string& module, const Tensor& rows) {
    PeftPair& pair = pairs_.at(module);
    const auto found = ours_.find(name);
    if (found == ours_.end() || specs_.at(found->second.name).matrix.inputs == 0)
      fail_usage("[adapter] {}: tensor {}: this model has no matrix {}", tensors_.path,
                 PeftTensors::name_of_a(module), in_quotes(name));
    const OurWeight& ours = found->second;
    if (pair.experts > 0 && ours.expert != 0) return;  // the same for each expert
    pair.weights.push_back(ours.name);
    pair.rows.emplace_back();
    for (const float row : rows.span<float>()) pair.rows.back().push_back(static_cast<std::int64_t>(row));
    if (pair.experts == 0) pair.expert = ours.expert;
  }

  void add_pair(PeftPair& pair) {
    const Tensor &a = tensors_.a.at(pair.module), &b = tensors_.b.at(pair.module);
    const std::int64_t count = std::max<std::int64_t>(1, pair.experts), rank = a.dim(0) / count;
    if (b.dim(1) != rank * count)
      fail_usage("[adapter] {}: tensor {} has rank {}, {} rank {}", tensors_.path,
                 PeftTensors::name_of_a(pair.module), rank, PeftTensors::name_of_b(pair.module),
                 b.dim(1) / count);
    std::string name = pair.module;
    if (pair.experts > 0)
      name = without_base_layer(name) + (pair.weights.size() == 1 ? ".down_proj" : ".gate_up_proj");
    pair.how = config_.of(name, rank);
    pair.how.one_a = pair.experts > 0 && pair.weights.size() == 2;
    for (std::size_t w = 0; w < pair.weights.size(); ++w) check_weight(pair, w);
    for (const std::string& weight : pair.weights) {
      const auto [known, is_new] = read_.adapter.weights.emplace(weight, pair.how);
      if (!is_new && (pair.expert < 0 || known->second != pair.how))
        fail_usage("[adapter] {}: tensor {}: its rank and factor differ from those of other experts",
                   tensors_.path, PeftTensors::name_of_a(pair.module));
      const ParameterSpec& spec = specs_.at(weight);
      allocate(lora_a_of(weight, pair.how), spec, true, rank);
      allocate(lora_b_of(weight), spec, false, rank);
    }
    for_values(pair, read_.tensors,
               [&](float& ours, bool in_a, std::int64_t at) { ours = (in_a ? a : b).data<float>()[at]; });
    read_.pairs.push_back(pair);
    ++experts_of_[pair.weights.front()];
  }
  void check_weight(const PeftPair& pair, std::size_t w) const {
    const ParameterSpec& spec = specs_.at(pair.weights[w]);
    const auto [inputs, outputs] = sides_of(spec);
    const Tensor& a = tensors_.a.at(pair.module);
    if (pair.experts == 0 && a.dim(1) != inputs)
      fail_usage("[adapter] {}: tensor {} has shape {}, expected {} inputs", tensors_.path,
                 PeftTensors::name_of_a(pair.module), to_string(a.shape()), inputs);
    if (std::ssize(pair.rows[w]) != outputs)
      fail_usage("[adapter] {}: tensor {}, beside {}, has {} outputs for {}, expected {}", tensors_.path,
                 PeftTensors::name_of_b(pair.module), PeftTensors::name_of_a(pair.module),
                 pair.rows[w].size(), spec.name, outputs);
  }
  static std::pair<std::int64_t, std::int64_t> sides_of(const ParameterSpec& spec) {
    const auto begin = spec.shape.begin() + static_cast<std::ptrdiff_t>(spec.matrix.stack),
               middle = begin + static_cast<std::ptrdiff_t>(spec.matrix.inputs);
    return {num_elements(Shape(begin, middle)), num_elements(Shape(middle, spec.shape.end()))};
  }
  void allocate(const std::string& name, const ParameterSpec& spec, bool is_a, std::int64_t rank) {
    if (read_.tensors.contains(name)) return;
    const auto stack_end = spec.shape.begin() + static_cast<std::ptrdiff_t>(spec.matrix.stack),
               inputs_end = stack_end + static_cast<std::ptrdiff_t>(spec.matrix.inputs);
    Shape shape(spec.shape.begin(), is_a ? inputs_end : stack_end);
    shape.push_back(rank);
    if (!is_a) shape.insert(shape.end(), inputs_end, spec.shape.end());
    read_.tensors[name] = Tensor::zeros(DType::f32, shape);
  }

  // modules_to_save, which replace the model's.
  void add_whole() {
    const auto stored = std::make_shared<WeightsInMemory>(tensors_.path);
    for (const auto& [name, tensor] : tensors_.whole) stored->add(name, tensor);
    for (const std::string& module : config_.whole_modules()) {
      const bool there = std::ranges::any_of(tensors_.whole, [&](const auto& one) {
        return (one.first == module + ".weight") || one.first.ends_with("." + module + ".weight");
      });
      if (!there)
        fail_usage("[adapter] {}: modules_to_save names {}, {} has no such tensor", config_.path(), module,
                   tensors_.path);
    }
    if (tensors_.whole.empty()) return;
    const auto weights = unfused(family_, hub_config_, stored);
    for (const std::string& name : weights->names()) {
      const auto found = ours_.find(name);
      if (found == ours_.end())
        fail_usage("[adapter] {}: tensor {}{}: this model has no weight of that name", tensors_.path, kRoot,
                   weights->stored_name(name));
      const ParameterSpec& spec = specs_.at(found->second.name);
      read_.tensors[spec.name] = load_from_hub(*weights, family_, spec.name, spec.shape);
      read_.adapter.whole.insert(spec.name);
      read_.whole[spec.name] = std::string(kRoot) + weights->stored_name(name);
    }
  }

  // A pair for one expert needs those of all others.
  void check_experts() const {
    for (const PeftPair& pair : read_.pairs) {
      if (pair.expert < 0) continue;
      const std::int64_t count = specs_.at(pair.weights.front()).shape[0];
      if (experts_of_.at(pair.weights.front()) != count)
        fail_usage("[adapter] {}: tensor {}: {} of {} experts have such a pair", tensors_.path,
                   PeftTensors::name_of_a(pair.module), experts_of_.at(pair.weights.front()), count);
    }
  }

 public:
  // visit(ours, in_a, at): a value of ours, and where it is in the pair's lora_A or lora_B.
  template <typename Visit>
  static void for_values(const PeftPair& pair, std::map<std::string, Tensor>& ours, const Visit& visit) {
    const std::int64_t r = pair.how.rank, count = std::max<std::int64_t>(1, pair.experts),
                       first = std::max<std::int64_t>(0, pair.expert), in = pair.inputs;
    const std::int64_t width_a = pair.swapped ? pair.outputs : pair.inputs, width_b = r * count;
    for (std::size_t w = 0; w < pair.weights.size(); ++w) {
      float* const a = ours.at(lora_a_of(pair.weights[w], pair.how)).data<float>();
      float* const b = ours.at(lora_b_of(pair.weights[w])).data<float>();
      const auto out = std::ssize(pair.rows[w]);
      for (std::int64_t e = 0; e < count; ++e) {
        for (std::int64_t k = 0; k < r; ++k) {
          const std::int64_t row = e * r + k, column = k * count + e;
          for (std::int64_t i = 0; i < in; ++i)
            visit(a[((first + e) * in + i) * r + k], !pair.swapped,
                  pair.swapped ? i * width_b + column : row * width_a + i);
          for (std::int64_t o = 0; o < out; ++o) {
            const std::int64_t output = pair.rows[w][static_cast<std::size_t>(o)];
            visit(b[((first + e) * r + k) * out + o], pair.swapped,
                  pair.swapped ? row * width_a + output : output * width_b + column);
          }
        }
      }
    }
  }

 private:
  PeftConfig config_;
  PeftTensors tensors_;
  const ModelConfig& model_;
  const ModelFamily& family_;
  const json& hub_config_;
  std::map<std::string, ParameterSpec> specs_;
  std::map<std::string, OurWeight> ours_;           // by names in files
  std::map<std::string, PeftPair> pairs_;           // by module
  std::map<std::string, std::int64_t> experts_of_;  // pairs of single experts, by our weight
  PeftAdapter read_;
};

}  // namespace

PeftAdapter read_peft(const std::string& folder, const ModelConfig& model, const ModelFamily& family,
                      const json& hub_config) {
  ModelConfig base = model;
  base.adapter = nullptr;
  return PeftReader(folder, base, family, hub_config).read();
}

std::map<std::string, Tensor> to_peft(const PeftAdapter& adapter,
                                      const std::function<Tensor(const std::string&)>& ours, bool gradients) {
  std::map<std::string, Tensor> values, stored;
  for (const auto& [name, tensor] : adapter.tensors) values[name] = ours(name).cast(DType::f32).clone();
  for (const PeftPair& pair : adapter.pairs) {
    const std::int64_t count = std::max<std::int64_t>(1, pair.experts), r = pair.how.rank;
    const Tensor a = Tensor::zeros(DType::f32, {r * count, pair.swapped ? pair.outputs : pair.inputs}),
                 b = Tensor::zeros(DType::f32, {pair.swapped ? pair.inputs : pair.outputs, r * count});
    const bool adds = gradients && !pair.how.one_a;
    PeftReader::for_values(pair, values, [&](float& value, bool in_a, std::int64_t at) {
      float& to = (in_a ? a : b).data<float>()[at];
      to = adds ? to + value : value;
    });
    stored[PeftTensors::name_of_a(pair.module)] = a;
    stored[PeftTensors::name_of_b(pair.module)] = b;
  }
  return stored;
}

}  // namespace switchyard
