#include "config/builder.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <utility>

#include "config/declaration.h"
#include "config/decoder_block.h"
#include "config/meant_keys.h"
#include "config/not_built.h"
#include "config/value.h"
#include "config/variables.h"
#include "core/error.h"
#include "switchyard/setting_error.h"

namespace switchyard {
namespace {

const KeyDeclaration& known_key(const std::string& name, const std::string& source) {
  if (const KeyDeclaration* key = find_key(name)) return *key;
  const std::string_view meant = keys_meant_by(name);
  const std::string nearest = meant.empty() ? nearest_key(name) : std::string(meant);
  const std::string advice = !meant.empty()    ? "here it is " + nearest
                             : nearest.empty() ? "`switchyard config --list` shows all keys"
                                               : "the nearest known key is " + nearest;
  throw SettingError(fmt::format("[config] unknown key {} ({}); {}", name, source, advice), name, "",
                     nearest);
}

// Checks rules: each is [name, axis], [name, [axis, …]] or [name, null].
void check_rules(const nlohmann::json& rules, const std::string& source) {
  for (const nlohmann::json& rule : rules) {
    const bool is_pair = rule.is_array() && rule.size() == 2 && rule[0].is_string();
    const bool has_axes =
        is_pair && (rule[1].is_string() || rule[1].is_null() ||
                    (rule[1].is_array() && std::all_of(rule[1].begin(), rule[1].end(),
                                                       [](const auto& axis) { return axis.is_string(); })));
    if (!has_axes) {
      fail_usage("[config] logical_axis_rules: expected rules like [embed, [fsdp]], got {} ({})",
                 value_text(rule), source);
    }
  }
}

// Rules of a mesh file or the command line: a name that base.yml has no rule for is no dim of a model, and a
// rule for it would do nothing. The same for an axis that has no size.
void check_rule_words(const nlohmann::json& rules, const std::vector<std::string>& names,
                      const std::string& source) {
  const auto refuse = [&](const std::string& what, const std::string& word, const std::string& nearest) {
    fail_usage("[config] logical_axis_rules: expected {}, got {}{} ({})", what, word,
               nearest.empty() ? "" : "; the nearest is " + nearest, source);
  };
  for (const nlohmann::json& rule : rules) {
    const std::string name = rule[0].get<std::string>();
    if (std::find(names.begin(), names.end(), name) == names.end())
      refuse("the name of a dim that base.yml has a rule for", name, nearest_of(name, names));
    for (const nlohmann::json& axis : rule[1].is_array() ? rule[1] : nlohmann::json::array({rule[1]})) {
      if (axis.is_null() || axis == "stage" || axis == "tensor_transpose")
        continue;  // the reference's files name these
      const std::string key = fmt::format("ici_{}_parallelism", axis.get<std::string>());
      if (find_key(key) == nullptr)
        refuse("mesh axes that have a key for their size", axis.get<std::string>(), nearest_key(key));
    }
  }
}

// A model of the reference that is not built is refused with what it has and we have not.
void refuse_model_not_built(const std::string& model, const std::string& what) {
  if (const std::string reason = reason_not_built(model); !reason.empty())
    fail_usage("[config] {}: {}", what, reason);
}

constexpr std::string_view kCase = "case";  // the source of keys that are no user's text
constexpr std::string_view kEnvironment = "M_";

// Returns whether `word` differs from `meant` in at most two letters at one place, as a typing error does.
bool is_slip(const std::string& word, const std::string& meant) {
  const std::size_t shorter = std::min(word.size(), meant.size());
  std::size_t same = 0, at_end = 0;
  while (same < shorter && word[same] == meant[same]) ++same;
  while (at_end < shorter - same && word[word.size() - 1 - at_end] == meant[meant.size() - 1 - at_end])
    ++at_end;
  return std::max(word.size(), meant.size()) - same - at_end <= 2;
}

// The variable of the environment that gives a key.
std::string environment_name(const std::string& key) {
  std::string name(kEnvironment);
  for (const char letter : key) name += static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  return name;
}

// Blocks have one word each here; the reference has two for some.
nlohmann::json name_of_block(const nlohmann::json& word) {
  for (const DecoderBlock* block : decoder_blocks())
    if (word == block->other_name) return block->name;
  return word;
}

// The value of a key in its type.
nlohmann::json typed_value_of(const std::string& name, const nlohmann::json& untyped,
                              const std::string& source) {
  const KeyDeclaration& key = known_key(name, source);
  if (name != "decoder_block" || !untyped.is_string()) return typed_value(key, untyped, source);
  const std::string& block = untyped.get_ref<const std::string&>();
  if (const std::string_view missing = missing_in_block(block); !missing.empty())
    fail_usage("[config] decoder_block={} is planned, not built yet ({}): expected {} ({})", block, missing,
               expected_value(key), source);
  return name_of_block(typed_value(key, untyped, source));
}

// Words that name a key in another way than key=value: the line says how to write it.
void refuse_option(std::span<const std::string> arguments, std::size_t at) {
  const std::string& word = arguments[at];
  const bool has_value = word.find('=') != std::string::npos;
  if (has_value && !word.starts_with("-")) return;
  const std::string setting = setting_meant(arguments, at);
  const std::string_view meant = keys_meant_by(word);
  if (setting.empty() && !meant.empty() && !has_value)
    fail_usage("[config] expected key=value, got {}; here it is {}", word, meant);
  if (setting.empty()) return;
  if (has_value)
    fail_usage("[config] unknown key {} (command line); write {}", word.substr(0, word.find('=')), setting);
  fail_usage("[config] expected key=value, got {}; write {}", word, setting);
}

// The keys of a group, each by its own name.
UntypedKeys members_of(const std::string& group, const nlohmann::json& value, const std::string& source) {
  UntypedKeys members;
  const bool none = value.is_null() || (value.is_string() && (value == "" || value == "None"));
  if (none) return members;
  if (!value.is_object() && !(value.is_array() && value.empty()))
    fail_usage("[config] {}={} ({}): expected keys and values, such as {{lora_rank: 16}}", group,
               value_text(value), source);
  for (const auto& [name, member] : value.items()) members.emplace_back(name, member);
  return members;
}

// Refuses a key that is typed for what another key does. A file of the reference's may hold it.
void refuse_meant_otherwise(const std::string& name, const std::string& value) {
  const std::string_view acting = acting_keys_for(name);
  if (!acting.empty()) fail_usage("[config] {}={} changes nothing here; set {}", name, value, acting);
}

bool describes_model(const UntypedKeys& keys) {
  return std::ranges::find(keys, "decoder_block", &UntypedKeys::value_type::first) != keys.end();
}

// Keys of what a model has beside its text decoder. Rotation in sections is the plain one on text alone.
bool is_of_images_or_sound(const std::string& name) {
  constexpr std::string_view kOthers[] = {
      "use_multimodal",       "use_audio",         "use_mrope",
      "vision_encoder_block", "mrope_section",     "image_placeholder",
      "video_placeholder",    "audio_placeholder", "position_id_per_seconds"};
  return name.ends_with("_for_vit") || name.ends_with("_for_audio") ||
         std::ranges::find(kOthers, name) != std::end(kOthers);
}

std::string unknown_name(const std::string& key, const std::string& name,
                         const std::vector<std::string>& known) {
  const std::string nearest = nearest_of(name, known);
  std::vector<std::string> kin;  // names that begin nearly so: of mixtrl the sizes of mixtral
  for (const std::string& item : known) {
    const std::string begin = item.substr(0, item.find('-'));
    if (begin == name || !nearest_of(name, std::span(&begin, 1)).empty()) kin.push_back(item);
  }
  const std::string list = fmt::format("{}", fmt::join(kin.empty() ? known : kin, ", "));
  return fmt::format("[config] {}={}: there is no such file in configs; {}", key, name,
                     nearest.empty() ? "there are " + list : "the nearest is " + nearest);
}

// Rules for `dim` where there are none: those of `stand_in`, each behind the one it copies.
nlohmann::json with_rules_for(const nlohmann::json& rules, const std::string& dim,
                              const std::string& stand_in) {
  nlohmann::json all = nlohmann::json::array();
  for (const nlohmann::json& rule : rules) {
    if (rule[0] == dim) return rules;
    all.push_back(rule);
    if (rule[0] == stand_in) all.push_back({dim, rule[1]});
  }
  return all;
}

// The expert dim of the experts' weights takes the FSDP axes after its own, before any other dim may: the
// rule goes first.
nlohmann::json with_experts_on_fsdp(const nlohmann::json& rules) {
  nlohmann::json axes = nlohmann::json::array(), others = nlohmann::json::array();
  std::vector<std::string> fsdp = {"fsdp"};
  for (const AxisRule& rule : axis_rules_of(rules)) {
    if (rule.name == "exp_with_fsdp") fsdp = rule.axes;
    if (rule.name == "exp" && axes.empty()) axes = rule.axes;
    if (rule.name != "exp") others.push_back({rule.name, rule.axes});
  }
  for (const std::string& axis : fsdp) {
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) axes.push_back(axis);
  }
  others.insert(others.begin(), nlohmann::json::array({"exp", axes}));
  return others;
}

// The layout that a mesh file holds.
struct MeshFile {
  std::string source;
  UntypedKeys keys;
  bool is_ours = false;
};

MeshFile read_mesh_file(const std::string& key, const std::string& mesh) {
  const std::vector<std::string> known = config_names("mesh");
  MeshFile file;
  file.is_ours = std::binary_search(known.begin(), known.end(), mesh);
  const bool is_path = mesh.find('/') != std::string::npos || mesh.ends_with(".yml");
  if (!file.is_ours && !is_path) fail_usage("{}", unknown_name(key, mesh, known));
  file.source = file.is_ours ? "mesh/" + mesh + ".yml" : mesh;
  file.keys = read_config_file(file.is_ours ? config_folder() / file.source : std::filesystem::path(mesh));
  const std::vector<std::string> layout = {"mesh_axes",
                                           "data_sharding",
                                           "logical_axis_rules",
                                           "context_sharding",
                                           "ulysses_context_sharding",
                                           "input_data_sharding_logical_axes"};
  for (const auto& item : file.keys) {
    if (std::find(layout.begin(), layout.end(), item.first) == layout.end()) {
      fail_usage("[config] {}: a mesh file holds mesh_axes, data_sharding and logical_axis_rules, got {}",
                 file.source, item.first);
    }
  }
  return file;
}

bool is_base_file(const std::filesystem::path& file) {
  std::error_code problem;
  return std::filesystem::equivalent(file, config_folder() / "base.yml", problem);
}

}  // namespace

std::vector<AxisRule> axis_rules_of(const nlohmann::json& rules) {
  std::vector<AxisRule> list;
  for (const nlohmann::json& rule : rules) {
    AxisRule& next = list.emplace_back();
    next.name = rule[0].get<std::string>();
    if (rule[1].is_string()) next.axes = {rule[1].get<std::string>()};
    if (rule[1].is_array()) next.axes = rule[1].get<std::vector<std::string>>();
  }
  return list;
}

std::pair<std::string, std::string> split_argument(const std::string& argument) {
  const auto equals = argument.find('=');
  const auto begin = std::min(argument.find_first_not_of(' '), argument.size());
  if (equals == std::string::npos || equals <= begin) {
    fail_usage("[config] expected key=value, got {}", argument.empty() ? "nothing" : argument);
  }
  const auto end = argument.find_last_not_of(' ', equals - 1) + 1;
  return {argument.substr(begin, end - begin), argument.substr(equals + 1)};
}

ConfigBuilder::ConfigBuilder() {
  for (const KeyDeclaration& key : all_keys()) {
    config_.entries_[key.name] = {&key, key.default_value, "default", false};
  }
}

void ConfigBuilder::add_arguments(std::span<const std::string> arguments) {
  std::map<std::string, std::string> seen;
  for (std::size_t at = 0; at < arguments.size(); ++at) {
    refuse_option(arguments, at);
    const auto [name, text] = split_argument(arguments[at]);
    refuse_meant_otherwise(name, text);
    add_text(name, text, "command line");
    if (!seen.emplace(name, text).second) given_twice_.insert(name);
  }
}

void ConfigBuilder::add_text(const std::string& name, const std::string& text, const std::string& source) {
  const KeyDeclaration* const key = find_key(name);
  const bool verbatim = key != nullptr && key->verbatim;
  add_user_key(name, verbatim ? nlohmann::json(text) : untyped_value(name, text), source);
}

// An M_ that is near no key is another program's.
void ConfigBuilder::add_environment() {
  constexpr std::size_t kLeastLetters = 5;
  std::map<std::string, std::string> variables;  // sorted
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::size_t equals = text.find('=');
    if (text.starts_with(kEnvironment) && equals != std::string_view::npos)
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  for (const auto& [variable, text] : variables) {
    std::string name = variable.substr(kEnvironment.size());
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    const bool is_key = find_key(name) != nullptr;
    const std::string nearest = is_key ? name : nearest_key(name);
    if (!is_key || variable != environment_name(name)) {
      if (is_key || (name.size() >= kLeastLetters && is_slip(name, nearest)))
        notice(fmt::format("{} of the environment is not read: the nearest key is {}, as {}", variable,
                           nearest, environment_name(nearest)));
      continue;
    }
    for (const UserKey& key : user_keys_) {
      if (key.name == name && key.source != kCase)
        fail_usage(
            "[config] {} is given twice: {}={} in the environment, {}={} on the {}; leave one of them out",
            name, variable, text, name, value_text(key.value), key.source);
    }
    add_text(name, text, variable);
  }
}

void ConfigBuilder::add_map(const std::map<std::string, nlohmann::json>& keys) {
  for (const auto& [name, value] : keys) {
    // The name that a MoE layer file uses for its mesh.
    add_user_key(name == "expert_parallelism" ? "ici_expert_parallelism" : name, value, std::string(kCase));
  }
}

void ConfigBuilder::add_user_key(const std::string& name, nlohmann::json untyped, const std::string& source) {
  if (name == "base_config")
    fail_usage("[config] base_config: expected in a config file, got it from the {}", source);
  if (is_group(name)) {
    for (auto& [member, value] : members_of(name, untyped, source))
      add_user_key(fmt::format("{}.{}", name, member), std::move(value), source);
    return;
  }
  const std::string key = without_group(name);
  known_key(key, source);
  user_keys_.push_back({key, std::move(untyped), source});
}

ConfigBuilder::Given ConfigBuilder::given(const std::string& name) const {
  for (auto key = user_keys_.rbegin(); key != user_keys_.rend(); ++key) {
    if (key->name == name) return {key->value, key->source};
  }
  const auto found_in = [&](const UntypedKeys& keys) {
    return std::ranges::find(keys, name, &UntypedKeys::value_type::first);
  };
  for (const auto* layers : {&model_layers_, &config_layers_}) {
    for (auto layer = layers->rbegin(); layer != layers->rend(); ++layer) {
      if (const auto found = found_in(layer->keys); found != layer->keys.end())
        return {found->second, layer->source};
    }
  }
  if (const auto found = found_in(base_keys_); found != base_keys_.end()) return {found->second, kBaseFile};
  const Config::Entry& entry = config_.entry(name);
  return {entry.value, entry.source};
}

nlohmann::json ConfigBuilder::value_given(const std::string& name) const {
  const Given by = given(name);
  return value_of(name, by.value, by.source);
}

nlohmann::json ConfigBuilder::value_of(const std::string& name, const nlohmann::json& untyped,
                                       const std::string& source) const {
  if (source == kCase) return typed_value_of(name, untyped, source);
  const auto lookup = [this](const std::string& key) { return given(key).value; };
  return typed_value_of(name, filled_in(name, untyped, source, lookup), source);
}

void ConfigBuilder::assign(const std::string& name, nlohmann::json value, const std::string& source,
                           bool by_user) {
  Config::Entry& entry = config_.entries_.find(name)->second;
  if (name == "logical_axis_rules") {
    check_rules(value, source);
    const bool users = (by_user && source != kCase) || source == config_.get_string("custom_mesh_and_rule");
    if (known_dims_.empty()) {
      for (const AxisRule& rule : axis_rules_of(value)) known_dims_.push_back(rule.name);
    }
    if (users) check_rule_words(value, known_dims_, source);
    if (std::ranges::find(config_layers_, source, &ConfigLayer::source) != config_layers_.end())
      tell_unknown_dims(value, source);
    rule_layers_.push_back(value);
  }
  entry.value = std::move(value);
  entry.source = source;
  entry.by_user = entry.by_user || by_user;
}

// Files of the reference's may have rules for dims that nothing here has.
void ConfigBuilder::tell_unknown_dims(const nlohmann::json& rules, const std::string& source) {
  std::set<std::string> told;
  for (const AxisRule& rule : axis_rules_of(rules)) {
    if (std::ranges::find(known_dims_, rule.name) != known_dims_.end() || !told.insert(rule.name).second)
      continue;
    notice(fmt::format("logical_axis_rules: no dim is called {}, its rule changes nothing{} ({})", rule.name,
                       nearest_hint(rule.name, known_dims_), source));
  }
}

void ConfigBuilder::apply_file(const UntypedKeys& keys, const std::string& source) {
  for (const auto& [name, value] : keys) assign(name, value_of(name, value, source), source, false);
}

// A file that describes a model with images or sound describes its text decoder too, which is built.
UntypedKeys ConfigBuilder::text_decoder(UntypedKeys keys, const std::string& source) {
  const auto says = [&](const char* name) {
    const auto found = std::ranges::find(keys, name, &UntypedKeys::value_type::first);
    return found != keys.end() && value_of(name, found->second, source).get<bool>();
  };
  if (!describes_model(keys) || !(says("use_multimodal") || says("use_audio") || says("use_mrope")))
    return keys;
  notice(source + ": the text decoder only; images and sound are not built");
  std::erase_if(keys, [](const auto& key) { return is_of_images_or_sound(key.first); });
  return keys;
}

// Refuses a model that is not built before it looks at the other keys. Returns the keys that it applied.
UntypedKeys ConfigBuilder::apply_described_model(UntypedKeys keys, const std::string& source) {
  for (const auto& [name, value] : keys) {
    if (name == "decoder_block") value_of(name, value, source);
    if (name == "weight_dtype" && value.is_string() &&
        value.get_ref<const std::string&>().starts_with("float8"))
      fail_usage("[config] weight_dtype={} ({}): {}", value.get<std::string>(), source, kNoFp8Training);
  }
  keys = text_decoder(std::move(keys), source);
  apply_file(keys, source);
  return keys;
}

// base.yml lies below all already. Rules of a file that inherits replace those of the files below it, as any
// key does; those of a file that does not are merged (merge_rules). Returns the keys that count.
UntypedKeys ConfigBuilder::apply_layers(const std::vector<ConfigLayer>& layers) {
  UntypedKeys counted;
  for (const ConfigLayer& layer : layers) {
    if (is_base_file(layer.file)) continue;
    const auto is_rules = [](const auto& item) { return item.first == "logical_axis_rules"; };
    if (layer.inherits && std::any_of(layer.keys.begin(), layer.keys.end(), is_rules)) rule_layers_.clear();
    UntypedKeys keys = layer.keys;
    if (describes_model(keys))
      keys = apply_described_model(std::move(keys), layer.source);
    else
      apply_file(keys, layer.source);
    counted.insert(counted.end(), keys.begin(), keys.end());
  }
  return counted;
}

void ConfigBuilder::find_model_file() {
  const std::string model = value_given("model_name").get<std::string>();
  if (model == "default" || model.empty()) return;
  const std::vector<std::string> known = config_names("models");
  if (!std::binary_search(known.begin(), known.end(), model)) {
    refuse_model_not_built(model, "model_name=" + model);
    fail_usage("{}", unknown_name("model_name", model, known));
  }
  model_source_ = "models/" + model + ".yml";
  model_layers_ = read_config_layers(config_folder() / model_source_, model_source_);
}

void ConfigBuilder::apply_model_file() {
  for (const auto& item : apply_layers(model_layers_))
    model_values_[item.first] = config_.entry(item.first).value;
}

void ConfigBuilder::check_against_model(const std::string& name, const nlohmann::json& value) {
  const auto of_model = model_values_.find(name);
  if (of_model == model_values_.end() || of_model->second == value) return;
  fail_usage("[config] {}={} differs from {} of {}: leave it out, or give override_model_config=true", name,
             value_text(value), value_text(of_model->second), model_source_);
}

void ConfigBuilder::apply_user_keys() {
  const bool may_override = value_given("override_model_config").get<bool>();
  std::vector<UserKey> typed = user_keys_;
  for (UserKey& key : typed) key.value = value_of(key.name, key.value, key.source);
  std::map<std::string, const UserKey*> last;
  for (const UserKey& key : typed) last[key.name] = &key;
  for (const auto& [name, key] : last) {
    if (!may_override) check_against_model(name, key->value);
    assign(name, key->value, key->source, true);
  }
  for (const std::string& name : given_twice_) {
    notice(fmt::format("{} is given more than once; the last value, {}, is used", name,
                       value_text(last.at(name)->value)));
  }
}

// Rules of a higher layer take the place of those with the same name, and stand after the others; with
// override_logical_axis_rules they replace all.
void ConfigBuilder::merge_rules() {
  nlohmann::json merged = nlohmann::json::array();
  const bool replaces = config_.get_bool("override_logical_axis_rules");
  for (const nlohmann::json& layer : rule_layers_) {
    std::set<std::string> names;
    for (const nlohmann::json& rule : layer) names.insert(rule[0].get<std::string>());
    nlohmann::json next = nlohmann::json::array();
    for (const nlohmann::json& rule : merged) {
      if (!replaces && !names.contains(rule[0].get<std::string>())) next.push_back(rule);
    }
    next.insert(next.end(), layer.begin(), layer.end());
    merged = std::move(next);
  }
  config_.entries_.find("logical_axis_rules")->second.value = std::move(merged);
}

// expert_shard_attention_option names one of our mesh files; rules of the user's own say it themselves.
void ConfigBuilder::derive_mesh_file() {
  const std::string option = config_.get_string("expert_shard_attention_option"),
                    given = config_.get_string("custom_mesh_and_rule");
  if (option == "fsdp") return;
  const std::string meant = option == "tp" ? "ep-tp" : "ep-as-cp";
  if (given.empty())
    return config_.set("custom_mesh_and_rule", meant, "expert_shard_attention_option=" + option);
  const std::vector<std::string> known = config_names("mesh");
  if (given != meant && std::binary_search(known.begin(), known.end(), given)) {
    fail_usage(
        "[config] expert_shard_attention_option={} means custom_mesh_and_rule={}, got {}: leave one of them "
        "out",
        option, meant, given);
  }
}

void ConfigBuilder::apply_mesh_file() {
  const std::string mesh = config_.get_string("custom_mesh_and_rule");
  if (mesh.empty()) return;
  const MeshFile file = read_mesh_file("custom_mesh_and_rule", mesh);
  apply_file(file.keys, file.source);
}

// The mesh stays that of training, as in the reference; only rules change. Axes that it lacks have size 1.
void ConfigBuilder::apply_mesh_file_for_eval() {
  const std::string key = "custom_mesh_and_rule_for_eval", mesh = config_.get_string(key);
  if (mesh.empty()) return;
  const MeshFile file = read_mesh_file(key, mesh);
  const std::vector<std::string> axes = config_.mesh_axes();
  for (const auto& [name, untyped] : file.keys) {
    const nlohmann::json value = value_of(name, untyped, file.source);
    if (name == "logical_axis_rules") {
      check_rules(value, file.source);
      if (!file.is_ours) check_rule_words(value, known_dims_, file.source);
      config_.rules_for_eval_ = completed(value);
    } else if (name == "mesh_axes") {
      for (const std::string& axis : value.get<std::vector<std::string>>()) {
        check_axis_name(axis);
        if (std::find(axes.begin(), axes.end(), axis) == axes.end())
          notice(fmt::format("{}={}: the mesh of the run, which evaluations have too, has no axis {}", key,
                             mesh, axis));
      }
    }
  }
}

// Dims that files from before MaxText 0.2.5 have no rules for are split as the dims that stood for them.
nlohmann::json ConfigBuilder::completed(const nlohmann::json& rules) const {
  const bool is_mla = config_.get_string("attention_type") == "mla";
  nlohmann::json all = with_rules_for(rules, "embed_attn", "embed");
  all = with_rules_for(all, "embed_router", is_mla ? "embed_moe" : "embed");
  all = with_rules_for(all, "segment_ids_batch", "activation_batch");
  return config_.get_bool("shard_exp_on_fsdp") ? with_experts_on_fsdp(all) : all;
}

void ConfigBuilder::complete_rules() {
  Config::Entry& entry = config_.entries_.find("logical_axis_rules")->second;
  entry.value = completed(entry.value);
  if (config_.get_bool("shard_exp_on_fsdp")) entry.source = "shard_exp_on_fsdp=true";
}

// No shell expands a ~ in a file.
void ConfigBuilder::expand_home() {
  for (const char* name :
       {"base_output_directory", "data_path", "load_parameters_path", "load_full_state_path", "metrics_file",
        "tokenizer_path", "eval_data_path", "chat_template_path", "routing_record", "routing_replay",
        "custom_mesh_and_rule", "custom_mesh_and_rule_for_eval"}) {
    const Config::Entry& entry = config_.entry(name);
    const std::string path = config_.get_string(name);
    std::string expanded;
    for (std::size_t at = 0; at < path.size(); ++at) {
      const bool begins = at == 0 || (path[at - 1] == ':' && std::string_view(name) == "data_path"),
                 home = begins && path[at] == '~' && (at + 1 == path.size() || path[at + 1] == '/');
      if (!home) {
        expanded += path[at];
        continue;
      }
      const char* const folder = std::getenv("HOME");
      if (folder == nullptr)
        fail_usage("[config] {}={}: ~ means the folder that HOME names, which is not set", name, path);
      expanded += folder;
    }
    if (expanded != path) config_.set(name, expanded, entry.source);
  }
}

void ConfigBuilder::derive_names() {
  config_.name_run(std::chrono::system_clock::now());
  for (const std::filesystem::path& part : std::filesystem::path(config_.get_string("run_name"))) {
    if (part == ".." || part == "/") {
      fail_usage("[config] run_name={}: expected a folder below base_output_directory, got {} in it",
                 config_.get_string("run_name"), part.string());
    }
  }
  if (config_.is_none("base_output_directory")) {
    config_.set("base_output_directory", "./switchyard_output", "when empty");
  }
  for (const char* name : {"base_output_directory", "load_parameters_path", "load_full_state_path",
                           "metrics_file", "data_path"}) {
    const std::string cloud = config_.get_string(name);
    if (!cloud.starts_with("gs://")) continue;
    const std::string local = "./" + cloud.substr(5);
    notice(fmt::format("{}={} means the local folder {}", name, cloud, local));
    config_.set(name, local, "gs:// means a local folder");
  }
}

// Sets what training on conversations or pairs means for keys that the user did not set.
void ConfigBuilder::derive_sft() {
  const bool pairs = config_.get_bool("use_dpo");
  if (!config_.get_bool("use_sft") && !pairs) return;
  const auto derive = [&](const char* key, nlohmann::json value) {
    const std::string& source = config_.entry(key).source;
    if (source == "default" || source == kBaseFile)
      config_.set(key, std::move(value), pairs ? "use_dpo=true" : "use_sft=true");
  };
  if (pairs) {
    derive("train_data_columns", {"prompt", "chosen", "rejected"});
    return;
  }
  derive("sft_train_on_completion_only", true);
  // A line's own columns tell its form. `text` must be named: a file of texts would be trained whole.
  derive("train_data_columns", {"messages", "conversations", "prompt", "completion", "question", "answer",
                                "instruction", "input", "output", "system"});
}

// Sets the keys whose values a block of the reference has built in, whatever the keys say there.
void ConfigBuilder::derive_block() {
  const DecoderBlock& block = decoder_block(config_.get_string("decoder_block"));
  const auto derive = [&](bool has, const char* key, bool value) {
    if (has && config_.entry(key).source == "default")
      config_.set(key, value, fmt::format("decoder_block={}", block.name));
  };
  derive(block.normed_queries, "use_qk_norm", true);
  derive(block.no_output_bias, "attention_output_bias", false);
}

// Llama 3.1's scaling has constants of its own; the defaults of these keys are YaRN's.
// The reference knows them by the name alone of a model, or of its file.
void ConfigBuilder::derive_llama3_scaling() {
  const std::string name = config_.get_string("model_name"),
                    model = name == "default" ? std::filesystem::path(config_path_).stem().string() : name;
  if (model.starts_with("llama3.1") && config_.entry("rope_type").source == "default")
    config_.set("rope_type", "llama3.1", "model_name=" + model);
  if (config_.get_string("rope_type") != "llama3.1") return;
  if (!config_.get_bool("rope_use_scale")) return config_.set("rope_type", "default", "rope_use_scale=false");
  const std::string source = "rope_type=llama3.1";
  if (config_.entry("rope_factor").source == "default") config_.set("rope_factor", 8.0, source);
  if (config_.entry("original_max_position_embeddings").source == "default") {
    config_.set("original_max_position_embeddings", 8192, source);
  }
}

// The reference always divides sigmoid scores by their sum; a user who says otherwise is heard.
void ConfigBuilder::derive_normalised_scores() {
  const bool heard = config_.is_set_by_user("norm_topk_prob") && !config_.follows_maxtext();
  const std::string& score = config_.get_string("routed_score_func");
  if ((score == "sigmoid" || score == "sqrtsoftplus") && !heard)
    config_.set("norm_topk_prob", true, "routed_score_func=" + score);
}

// The reference drops the last assignments over ragged_buffer_factor. Its prediction layers have had a norm
// of their own since August 2026.
void ConfigBuilder::derive_compat() {
  if (!config_.follows_maxtext()) return;
  const std::string& compat = config_.get_string("compat");
  if (!config_.is_set_by_user("ragged_drop_policy"))
    config_.set("ragged_drop_policy", "prefix", "compat=" + compat);
  if (compat == kCompat202608 && !config_.is_set_by_user("mtp_own_norm"))
    config_.set("mtp_own_norm", false, "compat=" + compat);
}

void ConfigBuilder::refuse_planned() const {
  for (const KeyDeclaration& key : all_keys()) {
    const Config::Entry& entry = config_.entry(key.name);
    if (key.status != KeyStatus::planned || entry.value == key.default_value) continue;
    fail_usage("[config] {}={} is planned, not built yet: leave it at {} ({})", key.name,
               value_text(entry.value), key.default_value == "" ? "empty" : value_text(key.default_value),
               entry.source);
  }
}

void ConfigBuilder::list_inert() {
  std::string names;
  for (const KeyDeclaration& key : all_keys()) {
    const Config::Entry& entry = config_.entry(key.name);
    const bool changes = entry.source != "default" && entry.value != key.default_value;
    if (key.status != KeyStatus::inert || (!entry.by_user && !changes)) continue;
    names += (names.empty() ? "" : ", ") + key.name;
  }
  if (!names.empty())
    notice("inert keys (`switchyard config --list` says why they change nothing here): " + names);
}

// A path that does not exist but whose last part is one of ours means ours, as in a pasted reference command;
// one whose folders are nearly those of ours was mistyped.
std::filesystem::path ConfigBuilder::resolved_config_path() {
  const std::filesystem::path given = config_path_;
  refuse_model_not_built(given.stem().string(), config_path_);
  std::error_code problem;
  if (std::filesystem::exists(given, problem)) return given;
  const std::filesystem::path ours = config_of_ours(given);
  if (ours.empty() || is_mistyped(given, ours)) {
    if (find_key(config_path_) != nullptr)
      fail_usage("[config] there is no file {}; a setting is written {}=VALUE", config_path_, config_path_);
    const std::filesystem::path near = nearest_path(given);
    const std::string meant = near.empty() ? ours.string() : near.string();
    fail_usage("[config] there is no file {}{}", config_path_,
               meant.empty() ? "" : "; the nearest is " + meant);
  }
  notice(fmt::format("there is no file {}; {} is used", config_path_, ours.string()));
  return ours;
}

void ConfigBuilder::read_files() {
  const std::filesystem::path base = config_folder() / "base.yml";
  std::error_code problem;
  if (!std::filesystem::is_regular_file(base, problem)) {
    fail_usage("[config] there is no file {}: set SWITCHYARD_CONFIG_DIR to the folder of base.yml",
               base.string());
  }
  base_keys_ = read_config_file(base);
  if (!config_path_.empty()) config_layers_ = read_config_layers(resolved_config_path(), config_path_);
  find_model_file();
}

Config ConfigBuilder::build() {
  read_files();
  apply_file(base_keys_, kBaseFile);
  apply_layers(config_layers_);
  apply_model_file();
  apply_user_keys();
  merge_rules();
  expand_home();
  derive_mesh_file();
  apply_mesh_file();
  apply_mesh_file_for_eval();
  complete_rules();
  derive_names();
  config_.derive_dataset_type();
  derive_sft();
  derive_block();
  derive_llama3_scaling();
  derive_normalised_scores();
  derive_compat();
  refuse_planned();
  check_consistency(config_);
  list_inert();
  for (auto& line : ineffective_keys(config_)) notice(std::move(line));
  return std::move(config_);
}

}  // namespace switchyard
