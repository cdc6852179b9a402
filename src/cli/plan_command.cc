#include "cli/plan_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "cli/options.h"
#include "config/config.h"
#include "metrics/atomic_file.h"
#include "plan/generation_plan.h"
#include "plan/memory_text.h"
#include "plan/planner.h"
#include "plan/search.h"

namespace switchyard {
namespace {

constexpr std::size_t kMostFound = 10;

constexpr const char* kPlanHelp =
    R"(switchyard plan [--search | --generate] [--json FILE] [CONFIG.yml] [key=value ...] [topology=NAME]

Runs one training step of rank 0 without data and shows what it takes: memory and where its peak is, collectives
by kind, axis, count and bytes, FLOPs, and the estimated time of a step with what bounds it. For MoE models also
memory and time as the load of the experts gets uneven. The counts are those of a run.

  topology=NAME  what the ranks run on: a file of configs/topology (cpu, h100, h200) or a path; default cpu
  --search       try every mesh of the given number of ranks and list the fastest that fit
  --generate     instead of a training step what `generate` and `serve` take: weights as weight_format says, the cache
                 of max_target_length tokens for per_device_batch_size texts a rank, the time of their prompts
                 (max_prefill_predict_length tokens) and of a token
  --json FILE    also write everything to FILE

Memory is that of a rank alone: ranks of one process, which share weights, take less together. Ranks that are processes
(mpirun) also gather what the optimizer updated: their counts come with a topology of GPUs, which are processes, or of
ranks_per_node: 1 or as many as a process has.

Example:
  switchyard plan model_name=deepseek3-671b ranks=4096 ici_fsdp_parallelism=64 ici_expert_parallelism=64 \
      per_device_batch_size=1 max_target_length=4096 topology=h100
)";

// Takes topology=NAME out of the settings, which are the config's otherwise; the last one counts.
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

// Of a pipeline: what each stage's first rank takes.
void print_stages(const std::vector<StepPlan>& stages, const Topology& topology) {
  if (stages.size() == 1) return;
  fmt::print("\n{:<8}{:<12}{:>12}{:>14}{:>14}{:>12}\n", "stage", "layers", "weights", "peak", "TFLOP",
             "seconds");
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const StepPlan& s = stages[i];
    std::vector<std::string> blocks;
    for (const LayerRange& block : s.layers)
      blocks.push_back(
          range_text(static_cast<std::size_t>(block.begin), static_cast<std::size_t>(block.end)));
    fmt::print("{:<8}{:<12}{:>12}{:>14}{:>14.4g}{:>12.4g}\n", i, fmt::join(blocks, " "),
               gib(s.memory.weights), gib(s.cost.peak_bytes), s.flops * 1e-12, s.seconds());
  }
  const std::size_t largest = largest_stage(stages);
  fmt::print("stage {} takes the most memory ({}); what is not in this table is of stage 0\n", largest,
             stages[largest].cost.peak_bytes <= topology.memory_bytes ? "it fits" : "it does not fit");
}

void print_memory(const StepPlan& plan, const Topology& topology) {
  const RankMemory& m = plan.memory;
  fmt::print("memory of a rank: {} of {} ({})\n", gib(m.total), gib(topology.memory_bytes),
             m.total <= topology.memory_bytes ? "fits" : "does not fit");
  fmt::print("  weights {}  gradients {}  optimizer {}  activations {}\n", gib(m.weights), gib(m.gradients),
             gib(m.optimizer), gib(m.activations));
  if (plan.cost.host_peak_bytes > 0)
    fmt::print("  offloaded to the host {}\n", gib(plan.cost.host_peak_bytes));
  fmt::print("  the peak is {}\n", place_text(plan.peak));
}

void print_collectives(const StepPlan& plan) {
  if (plan.cost.collectives.empty()) return;
  fmt::print("\n{:<20}{:<20}{:<12}{:>8}{:>14}{:>12}\n", "collective", "axis", "where", "count", "bytes sent",
             "seconds");
  for (const auto& c : plan.cost.collectives)
    fmt::print("{:<20}{:<20}{:<12}{:>8}{:>14}{:>12.4g}\n", c.kind, c.axis, c.where, c.calls, gib(c.bytes),
               c.wait_seconds);
}

// Neighbouring layers that cost the same make one line.
void print_layers(const StepPlan& plan) {
  const auto& layers = plan.measured["layers"];
  fmt::print("\n{:<12}{:<8}{:>12}{:>14}{:>14}{:>12}\n", "layer", "kind", "weights", "activations", "TFLOP",
             "seconds");
  auto row = [&](std::size_t i) {
    return fmt::format("{:<8}{:>12}{:>14}{:>14.4g}{:>12.4g}", layers[i]["kind"].get<std::string>(),
                       gib(layers[i]["weights_bytes"]), gib(layers[i]["activation_bytes"]),
                       plan.layer_flops[i] * 1e-12, plan.layer_seconds[i]);
  };
  for (std::size_t begin = 0; begin < layers.size();) {
    std::size_t end = begin + 1;
    while (end < layers.size() && row(end) == row(begin)) ++end;
    fmt::print("{:<12}{}\n", range_text(begin, end), row(begin));
    begin = end;
  }
}

void print_skew(const std::vector<SkewPoint>& curve, const Topology& topology) {
  if (curve.size() < 2) return;
  fmt::print("\nload of the busiest rank over the mean:");
  for (const auto& point : curve) {
    fmt::print("  {:.4g}x {} {:.4g} s", point.imbalance, gib(point.total_peak_bytes), point.seconds);
    if (point.passes > 1) fmt::print(" in {} passes", point.passes);
  }
  const double fits = fits_up_to(curve, topology.memory_bytes);
  if (fits >= curve.back().imbalance)
    fmt::print("\nfits at any imbalance\n");
  else if (fits > 0)
    fmt::print("\nfits up to {:.1f}x imbalance\n", fits);
  else
    fmt::print("\ndoes not fit even when balanced\n");
}

void print_time(const StepPlan& plan, const Topology& topology) {
  fmt::print(
      "\n{:.4g} TFLOP a rank, estimated {:.4g} s a step on {} (compute {:.4g}, memory {:.4g}, network "
      "{:.4g}{}; bound by {})\n",
      plan.flops * 1e-12, plan.seconds(), topology.name, plan.compute_seconds, plan.memory_seconds,
      plan.network_seconds,
      plan.bubble_seconds > 0 ? fmt::format(", waiting for other stages {:.4g}", plan.bubble_seconds) : "",
      plan.bound());
}

void print_generation(const Config& config, const std::vector<GenerationPlan>& stages, const Mesh& mesh,
                      const Topology& topology) {
  const GenerationPlan &first = stages.front(), &plan = largest_stage(stages);
  fmt::print("{} · weight_format {} · {}: {}\n", config.get_string("model_name"),
             config.get_string("weight_format"), ranks_text(mesh.size()), mesh.to_string());
  const std::string of_stage = stages.size() == 1 ? "" : fmt::format(" of stage {}", &plan - &first);
  fmt::print("memory of a rank{}: {} of {} ({})\n", of_stage, gib(plan.peak), gib(topology.memory_bytes),
             plan.peak <= topology.memory_bytes ? "fits" : "does not fit");
  fmt::print("  weights {} ({} of few bits)  cache of {} texts of {} tokens {}  activations {}\n",
             gib(plan.weights), gib(plan.packed_weights), plan.rows, plan.capacity, gib(plan.cache),
             gib(std::max<std::int64_t>(0, plan.peak - plan.weights - plan.cache)));
  print_collectives(first.make);
  const auto time = [&](const std::string& what, std::int64_t tokens, StepPlan GenerationPlan::*part) {
    const double seconds = seconds_of(stages, part);
    fmt::print("{}: {:.4g} s, {:.4g} tokens/s, bound by {}\n", what, seconds,
               static_cast<double>(plan.rows * tokens) / seconds, (first.*part).bound());
  };
  fmt::print("\nestimated on {}\n", topology.name);
  time(fmt::format("prompts of {} tokens", plan.prompt), plan.prompt, &GenerationPlan::read);
  time("a token of each text", 1, &GenerationPlan::make);
}

nlohmann::json print_search(const SearchResult& found, const Config& config, const Topology& topology) {
  nlohmann::json list = nlohmann::json::array();
  fmt::print("{} legal meshes of {} on {}; {} faster ones do not fit into {}\n", found.legal,
             ranks_text(config.get_int("ranks")), topology.name, found.too_large, gib(topology.memory_bytes));
  if (!found.fitting.empty()) fmt::print("{:>10}  {:<9}{:>12}  {}\n", "s a step", "bound", "memory", "mesh");
  for (const FoundMesh& f : found.fitting) {
    fmt::print("{:>10.4g}  {:<9}{:>12}  {}\n", f.plan.seconds(), f.plan.bound(), gib(f.plan.cost.peak_bytes),
               f.mesh);
    list.push_back({{"mesh", f.mesh},
                    {"keys", f.keys},
                    {"estimated_step_seconds", f.plan.seconds()},
                    {"bound", f.plan.bound()},
                    {"total_peak_bytes", f.plan.cost.peak_bytes}});
  }
  if (found.fitting.empty()) {
    fmt::print("no mesh fits; use more ranks or a smaller batch\n");
    return list;
  }
  std::string keys;
  for (const std::string& key : found.fitting[0].keys) {
    if (!key.ends_with("=1") || key.starts_with("ici_fsdp_")) keys += " " + key;
  }
  fmt::print("next: switchyard plan … ranks={}{}\n", config.get_int("ranks"), keys);
  return list;
}

}  // namespace

int plan_command(std::span<const std::string> args) {
  Options options = parse_options("plan", {"--search", "--generate"}, args);
  if (options.help) {
    std::fputs(kPlanHelp, stdout);
    return 0;
  }
  const std::string topology_name = take_topology(options.settings);
  const Config config = Config::from_args(options.settings);
  for (const auto& notice : config.notices()) fmt::print("{}\n", notice);
  const Mesh mesh = mesh_from_config(config);
  const Topology topology = Topology::read(topology_name, mesh.size());
  nlohmann::json json;
  if (options.flags.contains("--generate")) {
    if (options.flags.contains("--search"))
      fail_usage("[plan] --generate and --search: expected one of them");
    const std::vector<GenerationPlan> plans = plan_generation(config, mesh, topology);
    json = generation_json(config, plans, mesh, topology);
    print_generation(config, plans, mesh, topology);
  } else if (const std::string& format = config.get_string("weight_format");
             format != "stored" && format != "dense") {
    fail_usage(
        "[plan] weight_format={}: expected stored or dense for a training step; --generate plans the rest",
        format);
  } else if (options.flags.contains("--search")) {
    const SearchResult found = search_meshes(config, topology, kMostFound);
    json = {{"version", SWITCHYARD_VERSION},
            {"ranks", mesh.size()},
            {"topology", topology.name},
            {"legal", found.legal}};
    json["search"] = print_search(found, config, topology);
  } else {
    const std::vector<StepPlan> stages = plan_stages(config, mesh, topology);
    const StepPlan& plan = stages.front();
    const std::vector<SkewPoint> curve = skew_curve(config, mesh, topology, plan);
    json = plan_json(stages, curve, topology);
    fmt::print("{} · {:.4g} B parameters · {}: {}\n", config.get_string("model_name"),
               json["parameters"].get<double>() * 1e-9, ranks_text(mesh.size()), mesh.to_string());
    print_memory(plan, topology);
    print_stages(stages, topology);
    print_layers(plan);
    print_collectives(plan);
    print_skew(curve, topology);
    print_time(plan, topology);
  }
  if (!options.json_file.empty()) write_file_atomic(options.json_file, json.dump(1) + "\n");
  return 0;
}

}  // namespace switchyard
