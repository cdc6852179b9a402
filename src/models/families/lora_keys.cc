#include "models/families/lora_keys.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "config/declaration.h"
#include "core/error.h"
#include "models/families/hub_tensors.h"
#include "models/name_patterns.h"
#include "models/parameters.h"

namespace switchyard {
namespace {

constexpr const char* kPaths[] = {"lora_restore_path", "hf_lora_adapter_path"};

// A layer's weights that a word of lora_target means.
struct Word {
  std::string_view word;
  std::vector<std::string_view> weights;  // below "layers.<i>.": names, or beginnings that end with a dot
};
const std::vector<Word>& words() {
  static const std::vector<Word> all{
      {"attention",
       {"attention.query", "attention.key", "attention.value", "attention.gate", "attention.out",
        "attention.wq_a", "attention.wq_b", "attention.wkv_a", "attention.wkv_b", "delta.query", "delta.key",
        "delta.value", "delta.gate", "delta.out"}},
      {"mlp", {"mlp.wi_0", "mlp.wi_1", "mlp.wo", "up_projection"}},
      {"shared", {"moe.shared.wi_0", "moe.shared.wi_1", "moe.shared.wo"}},
      {"experts", {"moe.wi_0", "moe.wi_1", "moe.wo"}},
      {"router", {"moe.gate"}},
  };
  return all;
}

std::string below_layer(const std::string& name) {
  if (!name.starts_with("layers.")) return name;
  return name.substr(name.find('.', 7) + 1);
}

// Decides which weights a word, a name of Hugging Face or a regular expression means.
class Targets {
 public:
  Targets(const ModelConfig& model, const ModelFamily* family) : layers_(model.layers) {
    for (const ParameterSpec& spec : parameter_specs(model)) {
      if (spec.matrix.inputs == 0) continue;
      names_.push_back(spec.name);
      if (family == nullptr) continue;
      std::string hub = hub_tensors(*family, spec.name, spec.shape).names.front();
      if (hub.ends_with(".weight")) hub.resize(hub.size() - std::string_view(".weight").size());
      hub_[spec.name] = hub.substr(hub.rfind('.') + 1);
    }
  }

  std::vector<std::string> of(const std::string& key, const std::string& word) const {
    std::set<std::string_view> meant;
    for (const Word& one : words()) {
      if (word == one.word || (word == "all" && one.word != "router"))
        meant.insert(one.weights.begin(), one.weights.end());
    }
    std::vector<std::string> found;
    for (const std::string& name : names_) {
      const bool in_layers = layer_of(name) >= 0 && layer_of(name) < layers_;
      const auto hub = hub_.find(name);
      if (in_layers && (meant.contains(below_layer(name)) || (hub != hub_.end() && hub->second == word)))
        found.push_back(name);
    }
    if (!found.empty() || !meant.empty()) return found;
    const NamePatterns pattern(key, {word});
    std::ranges::copy_if(names_, std::back_inserter(found),
                         [&](const std::string& name) { return pattern.find_in(name); });
    return found;
  }
  bool is_word(const std::string& word) const {
    return word == "all" || std::ranges::find(words(), word, &Word::word) != words().end();
  }
  [[noreturn]] void nothing(const std::string& key, const std::string& word) const {
    std::set<std::string> have;
    for (const std::string& name : names_) have.insert(below_layer(name));
    fail_usage("[adapter] {}: {} matches no weight of this model, whose matrices are {}", key, word,
               fmt::join(have, ", "));
  }

 private:
  std::int64_t layers_;
  std::vector<std::string> names_;
  std::map<std::string, std::string> hub_;
};

// "experts=4": the weights that the word means get the number.
template <typename Set>
void apply_patterns(const Config& config, const char* key, const Targets& targets, const Adapter& adapter,
                    const Set& set) {
  for (const std::string& entry : config.get_strings(key)) {
    const std::size_t equals = entry.rfind('=');
    double number = 0;
    const char* const begin = entry.data() + (equals == std::string::npos ? entry.size() : equals + 1);
    const auto [end, problem] = std::from_chars(begin, entry.data() + entry.size(), number);
    if (equals == std::string::npos || problem != std::errc() || end != entry.data() + entry.size() ||
        !(number > 0))
      fail_usage("[adapter] {}={}: expected entries such as experts=4", key, entry);
    const std::string word = entry.substr(0, equals);
    bool any = false;
    for (const std::string& name : targets.of(key, word)) {
      if (!adapter.weights.contains(name)) continue;
      any = true;
      set(name, number, entry);
    }
    if (!any) fail_usage("[adapter] {}={}: nothing of it is adapted", key, entry);
  }
}

bool is_gate_of_experts(const std::string& name) {
  return name.ends_with(".moe.wi_0");
}

}  // namespace

bool trains_adapter(const Config& config) {
  return config.get_bool("enable_lora") || config.get_int("lora_rank") > 0 ||
         !adapter_to_go_on_from(config).empty();
}

std::string adapter_to_go_on_from(const Config& config) {
  std::string path;
  for (const char* key : kPaths) {
    const std::string& stated = config.get_string(key);
    if (stated.empty()) continue;
    if (!path.empty() && path != stated)
      fail_usage("[adapter] lora_restore_path={} and hf_lora_adapter_path={}: expected one of them", path,
                 stated);
    path = stated;
  }
  return path;
}

void check_adapter_keys(const Config& config) {
  if (!trains_adapter(config)) {
    if (config.get_bool("use_dpo"))
      fail_usage("[adapter] use_dpo=true trains an adapter: expected lora_rank above 0");
    for (const char* key : {"lora_alpha", "lora_target", "lora_module_path", "lora_rank_pattern",
                            "lora_alpha_pattern", "lora_use_rslora", "lora_init", "lora_weight_qtype"}) {
      if (config.is_set_by_user(key) && config.resolved().at(key) != find_key(key)->default_value)
        fail_usage("[adapter] {}={}: no adapter is trained; set lora_rank", key,
                   config.resolved().at(key).dump());
    }
    return;
  }
  if (config.get_string("compat") != "none")
    fail_usage("[adapter] compat={}: expected none with lora_rank", config.get_string("compat"));
  if (config.get_float("routed_bias_update_rate") > 0)
    fail_usage(
        "[adapter] routed_bias_update_rate={}: it would change the base, which no adapter can hold; "
        "expected 0 with lora_rank",
        config.get_float("routed_bias_update_rate"));
  if (!config.get_strings("trainable_parameters_mask").empty())
    fail_usage("[adapter] trainable_parameters_mask: expected lora_target with lora_rank");
  if (!config.get_string("adapter").empty())
    fail_usage(
        "[adapter] adapter={}: of generate, serve, chat, eval and verify; training goes on from "
        "lora_restore_path",
        config.get_string("adapter"));
  if (const std::string type =
          config.is_none("lora_weight_qtype") ? "" : config.get_string("lora_weight_qtype");
      !type.empty() && config.get_string("weight_format") != type)
    fail_usage("[adapter] lora_weight_qtype={}: set weight_format={} ({})", type, type,
               type == "nf4" ? "or int4 or mxfp4: there is no nf4" : "the same here");
}

Adapter adapter_of_keys(const Config& config, const ModelConfig& model, const ModelFamily* family) {
  const std::int64_t rank = config.get_int("lora_rank");
  if (rank == 0) fail_usage("[adapter] enable_lora=true: expected lora_rank above 0");
  const Targets targets(model, family);
  Adapter adapter;
  std::vector<std::string> wanted = config.get_strings("lora_target");
  const char* key = "lora_target";
  if (const std::string& path = config.get_string("lora_module_path"); !path.empty()) {
    key = "lora_module_path";
    wanted = {path};
  }
  if (wanted.empty())
    fail_usage("[adapter] lora_target is empty: expected what is adapted, such as attention");
  const bool stated = config.is_set_by_user(key);
  for (const std::string& word : wanted) {
    if (word == "head")
      fail_usage("[adapter] lora_target: head: expected matrices of layers; the head is not adapted");
    const std::vector<std::string> names = targets.of(key, word);
    if (names.empty() && (stated || !targets.is_word(word))) targets.nothing(key, word);
    for (const std::string& name : names) adapter.weights[name] = {.rank = rank};
  }
  apply_patterns(config, "lora_rank_pattern", targets, adapter,
                 [&](const std::string& name, double number, const std::string& entry) {
                   if (number != std::floor(number))
                     fail_usage("[adapter] lora_rank_pattern={}: expected whole ranks", entry);
                   adapter.weights[name].rank = static_cast<std::int64_t>(number);
                 });
  std::map<std::string, double> alphas;
  apply_patterns(config, "lora_alpha_pattern", targets, adapter,
                 [&](const std::string& name, double number, const std::string&) { alphas[name] = number; });
  const double alpha =
      config.get_float("lora_alpha") > 0 ? config.get_float("lora_alpha") : 2.0 * static_cast<double>(rank);
  for (auto& [name, how] : adapter.weights) {
    const auto other = alphas.find(name);
    const auto r = static_cast<double>(how.rank);
    how.scale = static_cast<float>((other == alphas.end() ? alpha : other->second) /
                                   (config.get_bool("lora_use_rslora") ? std::sqrt(r) : r));
  }
  for (auto& [name, how] : adapter.weights) {
    if (!is_gate_of_experts(name) || !config.get_bool("lora_shared_gate_up")) continue;
    const auto up = adapter.weights.find(name.substr(0, name.size() - 1) + "1");
    if (up == adapter.weights.end() || up->second.rank != how.rank) continue;
    how.one_a = up->second.one_a = true;
  }
  const std::string& init = config.get_string("lora_init");
  adapter.start = init == "gaussian" ? AdapterStart::gaussian
                  : init == "test"   ? AdapterStart::test
                                     : AdapterStart::usual;
  return adapter;
}

std::vector<std::string> adapter_lines(const Adapter& adapter, const ModelConfig& model) {
  ModelConfig with = model;
  with.adapter = std::make_shared<const Adapter>(adapter);
  std::int64_t count = 0, all = 0;
  std::map<std::string, std::int64_t> adapted, left;  // weights, by name below the layer
  std::set<std::string> ranks;
  for (const ParameterSpec& spec : parameter_specs(with)) {
    (spec.of_adapter ? count : all) += num_elements(spec.shape);
    const auto how = adapter.weights.find(spec.name);
    if (how != adapter.weights.end()) {
      ++adapted[below_layer(spec.name)];
      ranks.insert(fmt::format("rank {} times {:g}", how->second.rank, how->second.scale));
    } else if (spec.matrix.inputs > 0 && !spec.of_adapter) {
      ++left[below_layer(spec.name)];
    }
  }
  const auto list = [](const std::map<std::string, std::int64_t>& names) {
    std::vector<std::string> parts;
    for (const auto& [name, layers] : names) parts.push_back(fmt::format("{} ({})", name, layers));
    return fmt::format("{}", fmt::join(parts, ", "));
  };
  std::vector<std::string> lines{fmt::format("[adapter] {} parameters beside {} frozen ones, {}, on {}",
                                             count, all, fmt::join(ranks, " and "), list(adapted))};
  if (!left.empty())
    lines.push_back(fmt::format("[adapter] without one: {}, embedding, head, norms", list(left)));
  if (model.moe().experts > 1 && model.moe_execution.balance_weight > 0)
    lines.push_back(fmt::format("[adapter] balance loss {:g} of {} routers",
                                model.moe_execution.balance_weight,
                                adapted.contains("moe.gate") ? "adapted" : "frozen"));
  return lines;
}

}  // namespace switchyard
