#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <vector>

#include "commands/commands.h"
#include "config/config.h"
#include "convert/table.h"
#include "core/error.h"
#include "core/json_file.h"
#include "engine/command_config.h"
#include "engine/session.h"
#include "models/layout_warnings.h"
#include "plan/generation_plan.h"
#include "plan/machine_topology.h"
#include "plan/memory_text.h"
#include "plan/planned_weights.h"
#include "plan/planner.h"
#include "plan/search.h"
#include "plan/strategy.h"

namespace switchyard {
namespace {

constexpr std::size_t kMostFound = 10;

// Removes topology=NAME from the settings; the rest are config settings. The last one given counts.
std::string take_topology(std::vector<std::string>& settings) {
  const std::string key = "topology=";
  std::string name = "cpu";
  std::erase_if(settings, [&](const std::string& setting) {
    if (!setting.starts_with(key)) return false;
    name = setting.substr(key.size());
    return true;
  });
  return name;
}

// "287.3 K", "9.581 M", "671 B".
std::string count_text(double count) {
  if (count < 1e3) return fmt::format("{:.0f}", count);
  if (count < 1e6) return fmt::format("{:.4g} K", count * 1e-3);
  return count < 1e9 ? fmt::format("{:.4g} M", count * 1e-6) : fmt::format("{:.4g} B", count * 1e-9);
}

// "8 ranks: expert=8", "1 rank".
std::string layout_text(const Mesh& mesh) {
  const std::string ranks = ranks_text(mesh.size());
  return mesh.size() == 1 ? ranks : ranks + ": " + mesh.to_string();
}

// Names what takes the longest. Ranks of one machine have no network: they copy each other's memory.
std::string bound_text(const StepPlan& plan, const Topology& topology) {
  const std::string bound = plan.bound();
  return bound == "network" && topology.host ? "copies" : bound;
}

void add_warnings(std::string& text, const Config& config, const Mesh& mesh) {
  const Mesh own = stage_mesh(mesh);
  const AxisRules rules(config.axis_rules(), own);
  for (const std::string& line :
       counted_warnings(layout_warnings(rules, parameter_specs(model_config(config)))))
    append(text, "warning: {}\n", line);
}

std::string place_text(const Place& place) {
  std::string text = place.phase.empty() ? "at the start" : fmt::format("in {}", place.phase);
  if (!place.op.empty()) text += fmt::format(", at {}", place.op);
  if (place.layer >= 0) text += fmt::format(" of layer {}", place.layer);
  return text;
}

// "3", or "3-5" for the layers [3, 6).
std::string range_text(std::size_t begin, std::size_t end) {
  return end - begin == 1 ? fmt::format("{}", begin) : fmt::format("{}-{}", begin, end - 1);
}

// Tells the layers, memory, work and time of each pipeline stage, for its first rank.
void add_stages(std::string& text, const std::vector<StepPlan>& stages, const Topology& topology) {
  if (stages.size() == 1) return;
  append(text, "\n{:<8}{:<12}{:>12}{:>14}{:>14}{:>12}\n", "stage", "layers", "weights", "peak", "TFLOP",
         "seconds");
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const StepPlan& s = stages[i];
    std::vector<std::string> blocks;
    for (const LayerRange& block : s.layers)
      blocks.push_back(
          range_text(static_cast<std::size_t>(block.begin), static_cast<std::size_t>(block.end)));
    append(text, "{:<8}{:<12}{:>12}{:>14}{:>14.4g}{:>12.4g}\n", i, fmt::join(blocks, " "),
           gib(s.memory.weights), gib(s.cost.peak_bytes), s.flops * 1e-12, s.seconds());
  }
  const std::size_t largest = largest_stage(stages);
  append(text, "stage {} takes the most memory ({}); what is not in this table is of stage 0\n", largest,
         stages[largest].cost.peak_bytes <= topology.memory_bytes ? "it fits" : "it does not fit");
}

void add_memory(std::string& text, const StepPlan& plan, const Topology& topology) {
  const RankMemory& m = plan.memory;
  append(text, "memory of a rank: {} of {} ({})\n", gib(m.total), gib(topology.memory_bytes),
         m.total <= topology.memory_bytes ? "fits" : "does not fit");
  append(text, "  weights {}  gradients {}  optimizer {}  activations {}\n", gib(m.weights), gib(m.gradients),
         gib(m.optimizer), gib(m.activations));
  if (plan.cost.host_peak_bytes > 0)
    append(text, "  on the host {} (weights {})\n", gib(plan.cost.host_peak_bytes), gib(m.host_weights));
  append(text, "  the peak is {}\n", place_text(plan.peak));
}

void add_collectives(std::string& text, const StepPlan& plan) {
  if (plan.cost.collectives.empty()) return;
  append(text, "\n{:<20}{:<20}{:<12}{:>8}{:>14}{:>12}\n", "collective", "axis", "where", "count",
         "bytes sent", "seconds");
  for (const auto& c : plan.cost.collectives)
    append(text, "{:<20}{:<20}{:<12}{:>8}{:>14}{:>12.4g}\n", c.kind, c.axis, c.where, c.calls, gib(c.bytes),
           c.wait_seconds);
}

// Neighbouring layers that cost the same make one line.
void add_layers(std::string& text, const StepPlan& plan) {
  const auto& layers = plan.measured["layers"];
  append(text, "\n{:<12}{:<8}{:>12}{:>14}{:>14}{:>12}\n", "layer", "kind", "weights", "activations", "TFLOP",
         "seconds");
  auto row = [&](std::size_t i) {
    return fmt::format("{:<8}{:>12}{:>14}{:>14.4g}{:>12.4g}", layers[i]["kind"].get<std::string>(),
                       gib(layers[i]["weights_bytes"]), gib(layers[i]["activation_bytes"]),
                       plan.layer_flops[i] * 1e-12, plan.layer_seconds[i]);
  };
  for (std::size_t begin = 0; begin < layers.size();) {
    std::size_t end = begin + 1;
    while (end < layers.size() && row(end) == row(begin)) ++end;
    append(text, "{:<12}{}\n", range_text(begin, end), row(begin));
    begin = end;
  }
}

void add_skew(std::string& text, const std::vector<SkewPoint>& curve, const Topology& topology) {
  if (curve.size() < 2) return;
  append(text, "\nload of the busiest rank over the mean:");
  for (const auto& point : curve) {
    append(text, "  {:.4g}x {} {:.4g} s", point.imbalance, gib(point.total_peak_bytes), point.seconds);
    if (point.passes > 1) append(text, " in {} passes", point.passes);
  }
  const double fits = fits_up_to(curve, topology.memory_bytes);
  if (fits >= curve.back().imbalance)
    append(text, "\nfits at any imbalance\n");
  else if (fits > 0)
    append(text, "\nfits up to {:.1f}x imbalance\n", fits);
  else
    append(text, "\ndoes not fit even when balanced\n");
}

void add_time(std::string& text, const StepPlan& plan, const Topology& topology) {
  append(text,
         "\n{:.4g} TFLOP a rank, estimated {:.4g} s a step on {} (compute {:.4g}, memory {:.4g}, {} "
         "{:.4g}{}{}; bound by {})\n",
         plan.flops * 1e-12, plan.seconds(), topology.name, plan.compute_seconds, plan.memory_seconds,
         topology.host ? "copies between ranks" : "network", plan.network_seconds,
         plan.start_seconds > 0
             ? fmt::format(", starts of {} kernels {:.4g}", plan.kernels, plan.start_seconds)
             : "",
         plan.bubble_seconds > 0 ? fmt::format(", waiting for other stages {:.4g}", plan.bubble_seconds) : "",
         bound_text(plan, topology));
}

void add_generation(std::string& text, const Config& config, const std::vector<GenerationPlan>& stages,
                    const Mesh& mesh, const Topology& topology) {
  const GenerationPlan &first = stages.front(), &plan = largest_stage(stages);
  append(text, "{} · weight_format {} · {} · {}\n", model_title(config), config.get_string("weight_format"),
         layout_text(mesh), strategy_text(config, model_config(config), mesh));
  add_warnings(text, config, mesh);
  const std::string of_stage = stages.size() == 1 ? "" : fmt::format(" of stage {}", &plan - &first);
  append(text, "memory of a rank{}: {} of {} ({})\n", of_stage, gib(plan.peak), gib(topology.memory_bytes),
         plan.peak <= topology.memory_bytes ? "fits" : "does not fit");
  append(text, "  weights {} ({} of few bits)  cache of {} texts of {} tokens {}  activations {}\n",
         gib(plan.weights), gib(plan.packed_weights), plan.rows, plan.capacity, gib(plan.cache),
         gib(std::max<std::int64_t>(0, plan.peak - plan.weights - plan.cache)));
  if (plan.host_weights > 0) append(text, "  on the host: weights {}\n", gib(plan.host_weights));
  add_collectives(text, first.make);
  const auto time = [&](const std::string& what, std::int64_t tokens, StepPlan GenerationPlan::*part) {
    const double seconds = seconds_of(stages, part);
    append(text, "{}: {:.4g} s, {:.4g} tokens/s, bound by {}\n", what, seconds,
           static_cast<double>(plan.rows * tokens) / seconds, bound_text(first.*part, topology));
  };
  append(text, "\nestimated on {}\n", topology.name);
  time(fmt::format("prompts of {} tokens", plan.prompt), plan.prompt, &GenerationPlan::read);
  time("a token of each text", 1, &GenerationPlan::make);
}

nlohmann::json add_search(std::string& text, const SearchResult& found, const Config& config,
                          const Topology& topology) {
  nlohmann::json list = nlohmann::json::array();
  append(text, "{} legal meshes of {} on {}; {} faster ones do not fit into {}\n", found.legal,
         ranks_text(config.get_int("ranks")), topology.name, found.too_large, gib(topology.memory_bytes));
  if (!found.fitting.empty())
    append(text, "{:>10}  {:<9}{:>12}  {}\n", "s a step", "bound", "memory", "mesh");
  for (const FoundMesh& f : found.fitting) {
    append(text, "{:>10.4g}  {:<9}{:>12}  {}\n", f.plan.seconds(), bound_text(f.plan, topology),
           gib(f.plan.cost.peak_bytes), f.mesh);
    list.push_back({{"mesh", f.mesh},
                    {"keys", f.keys},
                    {"estimated_step_seconds", f.plan.seconds()},
                    {"bound", f.plan.bound()},
                    {"total_peak_bytes", f.plan.cost.peak_bytes}});
  }
  if (found.fitting.empty()) {
    append(text, "no mesh fits; use more ranks or a smaller batch\n");
    return list;
  }
  std::string keys;
  for (const std::string& key : found.fitting[0].keys) {
    if (!key.ends_with("=1") || key.starts_with("ici_fsdp_")) keys += " " + key;
  }
  append(text, "next: switchyard plan … ranks={}{}\n", config.get_int("ranks"), keys);
  return list;
}

// Error(usage) for weights that no training step starts from.
void require_trainable(const Config& config, const Mesh& mesh) {
  std::vector<std::string> notes;  // a run prints them
  const ModelOnMesh model(config, mesh, ModelUse::train);
  if (!config.is_none("load_parameters_path")) require_weights_fit(model, WeightUse::train, &notes);
}

std::int64_t bytes_sent(const StepPlan& plan) {
  std::int64_t bytes = 0;
  for (const auto& c : plan.cost.collectives) bytes += c.bytes;
  return bytes;
}

// The keys of a --mesh, and the settings that it does not replace before them.
std::vector<std::string> settings_of(const std::string& mesh, const std::vector<std::string>& settings) {
  const auto key_of = [](const std::string& setting) { return setting.substr(0, setting.find('=')); };
  std::istringstream stream(mesh);
  std::vector<std::string> own, all = settings;
  for (std::string word; stream >> word;) {
    if (word.find('=') == std::string::npos)
      fail_usage("[plan] --mesh {}: expected key=value words, got {}", in_quotes(mesh), in_quotes(word));
    std::erase_if(all, [&](const std::string& setting) { return key_of(setting) == key_of(word); });
    own.push_back(word);
  }
  all.insert(all.end(), own.begin(), own.end());
  return all;
}

// Tells a line for each mesh. The JSON is that of the first one, with all of them in a list.
Report plan_meshes(const Options& options, const std::string& topology_name, const Tell& tell) {
  Table table({"mesh", "strategy", ">memory", ">sent a step", ">s a step", "bound by", "fits"});
  nlohmann::json list = nlohmann::json::array();
  std::set<std::string> said;
  std::string head;
  for (const std::string& keys : options.lists.at("--mesh")) {
    const Config config = config_to_train("plan", 1, settings_of(keys, options.settings));
    for (const auto& notice : config.notices()) {
      if (said.insert(notice).second) tell(notice);
    }
    const Mesh mesh = mesh_from_config(config);
    require_trainable(config, mesh);
    const Topology topology = Topology::read(topology_name, mesh.size());
    if (topology.name == "machine" && list.empty()) tell(machine_text(topology, mesh.size()));
    const std::vector<StepPlan> stages = plan_stages(config, mesh, topology);
    const StepPlan &plan = stages.front(), &largest = stages[largest_stage(stages)];
    nlohmann::json json = plan_json(stages, skew_curve(config, mesh, topology, plan), topology);
    const std::string strategy = strategy_text(config, model_config(config), mesh);
    json.update({{"keys", keys}, {"strategy", strategy}});
    const bool fits = json["fits"].get<bool>();
    const double up_to = json["fits_up_to_imbalance"].get<double>();
    const bool limited = fits && up_to < json["skew"].back()["imbalance"].get<double>();
    table.add({layout_text(mesh), strategy, gib(largest.cost.peak_bytes), gib(bytes_sent(plan)),
               fmt::format("{:.4g}", plan.seconds()), bound_text(plan, topology),
               !fits     ? "no"
               : limited ? fmt::format("up to {:.1f}x imbalance", up_to)
                         : "yes"});
    if (head.empty())
      head = fmt::format("{} · {} parameters · on {}\n", model_title(config),
                         count_text(json["parameters"].get<double>()), topology.name);
    list.push_back(std::move(json));
  }
  nlohmann::json json = list[0];
  json["meshes"] = std::move(list);
  return reported(options, fmt::format("{}{}memory and bytes are those of one rank\n", head, table.text("")),
                  json);
}

}  // namespace

Options plan_options(std::span<const std::string> args) {
  return parse_options("plan", args);
}

Report run_plan(const Options& given, const Tell& tell) {
  Options options = given;
  const std::string topology_name = take_topology(options.settings);
  if (options.values.contains("--mesh")) {
    if (!options.flags.empty())
      fail_usage("[plan] --mesh and {}: expected one of them", *options.flags.begin());
    return plan_meshes(options, topology_name, tell);
  }
  const bool generates = options.flags.contains("--generate");
  if (generates && options.flags.contains("--search"))
    fail_usage("[plan] --generate and --search: expected one of them");
  const Config config = generates ? config_to_run_fixed("plan", 1, options.settings)
                                  : config_to_train("plan", 1, options.settings);
  std::string text;
  for (const auto& notice : config.notices()) tell(notice);
  const Mesh mesh = mesh_from_config(config);
  const Topology topology = Topology::read(topology_name, mesh.size());
  if (topology.name == "machine") tell(machine_text(topology, mesh.size()));
  if (!generates) require_trainable(config, mesh);
  nlohmann::json json;
  if (generates) {
    std::vector<std::string> notes;
    const std::vector<GenerationPlan> plans = plan_generation(config, mesh, topology, &notes);
    for (const std::string& note : notes) tell(note);
    json = generation_json(config, plans, mesh, topology);
    add_generation(text, config, plans, mesh, topology);
  } else if (options.flags.contains("--search")) {
    const SearchResult found = search_meshes(config, topology, kMostFound);
    json = {{"version", SWITCHYARD_VERSION},
            {"ranks", mesh.size()},
            {"topology", topology.name},
            {"legal", found.legal}};
    json["search"] = add_search(text, found, config, topology);
  } else {
    const std::vector<StepPlan> stages = plan_stages(config, mesh, topology);
    const StepPlan& plan = stages.front();
    const std::vector<SkewPoint> curve = skew_curve(config, mesh, topology, plan);
    json = plan_json(stages, curve, topology);
    json["strategy"] = strategy_text(config, model_config(config), mesh);
    append(text, "{} · {} parameters · {} · {}\n", model_title(config),
           count_text(json["parameters"].get<double>()), layout_text(mesh),
           json["strategy"].get<std::string>());
    add_warnings(text, config, mesh);
    add_memory(text, plan, topology);
    add_stages(text, stages, topology);
    add_layers(text, plan);
    add_collectives(text, plan);
    add_skew(text, curve, topology);
    add_time(text, plan, topology);
  }
  return reported(options, std::move(text), json);
}

}  // namespace switchyard
