#include "plan/memory_limit.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <new>
#include <optional>

#include "core/error.h"
#include "core/messages.h"
#include "engine/session.h"
#include "generate/generator.h"
#include "kernels/machine/machine.h"
#include "models/pipeline.h"
#include "plan/memory_text.h"
#include "plan/planner.h"
#include "train/abstract_rank.h"

namespace switchyard {
namespace {

constexpr std::int64_t kPromptTokens = 64;  // that are read at once, in a plan: the weights are what counts

bool is_on_cpu(const Config& config) {
  return config.get_string("device") == "cpu";
}

// On other devices the weights that lie on the host are counted, and nothing else.
bool is_limited(const Config& config) {
  return !config.get_bool("ignore_memory_limit") && (is_on_cpu(config) || may_place_weights_on_host(config));
}

std::int64_t bytes_of(const std::vector<ParameterSpec>& specs) {
  std::int64_t bytes = 0;
  for (const ParameterSpec& spec : specs)
    bytes += num_elements(spec.shape) * static_cast<std::int64_t>(size_of(spec.dtype));
  return bytes;
}

void say_unchecked(const std::string& command, const std::string& why) {
  say("[{}] nobody checked whether memory suffices: {}", command, why);
}

// Passes on what a run would refuse, too, and says what else kept `plan` from its end.
std::optional<PlannedMemory> planned_or_said(const std::string& command,
                                             const std::function<PlannedMemory()>& plan) {
  try {
    return plan();
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::runtime) throw;
    say_unchecked(command, error.what());
  } catch (const std::bad_alloc&) {
    fail_usage("[{}] memory does not even hold the plan of the run (does not fit)", command);
  }
  return {};
}

std::string lacking(const std::string& command, const PlannedMemory& planned, const Mesh& mesh,
                    const Processes& processes) {
  const auto available = available_memory();
  if (!available) {
    say_unchecked(command, "the system does not tell how much there is (/proc/meminfo has no MemAvailable)");
    return "";
  }
  return lacking_memory(planned, mesh.size() / processes.count(), processes.cores(), *available);
}

void require_memory(const std::string& command, const PlannedMemory& planned, const Mesh& mesh,
                    const Processes& processes) {
  const std::string text = lacking(command, planned, mesh, processes);
  if (text.empty()) return;
  fail_usage(
      "[{}] memory of a rank: {} (does not fit); use a smaller model or batch, weights of fewer "
      "bits or more machines, or set ignore_memory_limit=true to try",
      command, text);
}

// Calls body(rank) for the first rank of each stage; returns the largest of the results.
PlannedMemory largest_of_stages(const ModelOnMesh& run, const Processes& processes,
                                const std::function<PlannedMemory(AbstractRank&)>& body) {
  PlannedMemory largest;
  for (int stage = 0; stage < static_cast<int>(run.mesh.axis_size("stage")); ++stage) {
    NoCosts costs;
    constexpr int kAnyGpu = 8;
    AbstractRank rank(run.config, run.mesh, stage, costs, WorkspaceOf::cpu,
                      static_cast<int>(run.mesh.size() / processes.count()), costs, 1,
                      is_on_cpu(run.config) ? 0 : kAnyGpu);
    const PlannedMemory planned = body(rank);
    if (planned.peak > largest.peak) largest = planned;
  }
  return largest;
}

// Counts a model's weights that lie on the host, where its processes have GPUs.
PlannedMemory memory_on_host(const ModelOnMesh& run, const Processes& processes) {
  return largest_of_stages(run, processes, [&](AbstractRank& rank) {
    run.create(rank.context());
    const std::int64_t weights = rank.context().offload->account().in_use();
    std::vector<ParameterSpec> there = run.specs;
    std::erase_if(there, [](const ParameterSpec& spec) { return spec.place != WeightPlace::host; });
    return PlannedMemory{weights, weights, bytes_of(there)};
  });
}

PlannedMemory memory_to_run(const ModelOnMesh& run, std::int64_t rows, std::int64_t capacity, bool evicts,
                            const Processes& processes, std::int64_t checkpoints) {
  if (!is_on_cpu(run.config)) return memory_on_host(run, processes);
  return largest_of_stages(run, processes, [&](AbstractRank& rank) {
    Context& context = rank.context();
    const Parameters parameters = run.create(context);
    PlannedMemory planned{rank.account().in_use(), 0, bytes_of(run.specs)};
    Generator generator(context, run.model, parameters, rows, capacity, evicts, checkpoints);
    std::vector<SlotTokens> texts;
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row)
      texts.push_back(
          {row, std::vector<std::int32_t>(static_cast<std::size_t>(std::min(kPromptTokens, capacity)))});
    generator.feed(texts);
    planned.peak = rank.account().peak();
    return planned;
  });
}

}  // namespace

std::int64_t least_memory_of_process(const PlannedMemory& planned, std::int64_t ranks) {
  const std::int64_t weights = std::min(ranks * planned.weights, planned.all_weights);
  const std::int64_t others = std::max<std::int64_t>(0, planned.peak - planned.weights);
  return weights + ranks * std::max<std::int64_t>(0, others - (ranks == 1 ? 0 : planned.all_weights));
}

std::string lacking_memory(const PlannedMemory& planned, std::int64_t ranks, int cores,
                           const AvailableMemory& available) {
  const std::int64_t needed = least_memory_of_process(planned, ranks), stacks = bytes_of_stacks(cores, ranks);
  std::string text = gib(planned.peak);
  if (ranks > 1) text += fmt::format(", {} ranks of a process {}", ranks, gib(needed));
  if (needed > available.bytes) return fmt::format("{} of {}", text, gib(available.bytes));
  // Tensors' memory takes up to half of the addresses at once (BufferPool): the other
  // half must hold the stacks.
  if (!available.limit || std::max(needed + stacks, 2 * stacks) <= available.limit->left) return "";
  return fmt::format("{} and stacks {} of {} that {} leaves", text, gib(stacks), gib(available.limit->left),
                     available.limit->name);
}

void require_memory_to_train(const Config& config, const Processes& processes) {
  if (!is_limited(config)) return;
  const Mesh mesh = mesh_from_config(config);
  require_ranks_fit(mesh, processes);
  const auto planned = planned_or_said("train", [&] {
    if (!is_on_cpu(config)) return memory_on_host(ModelOnMesh(config, mesh, ModelUse::train), processes);
    const Topology topology = Topology::read("cpu", static_cast<int>(mesh.size()));
    const std::vector<StepPlan> stages = plan_stages(config, mesh, topology);
    const StepPlan& stage = stages[largest_stage(stages)];
    return PlannedMemory{stage.memory.weights, stage.memory.total + stage.cost.host_peak_bytes,
                         bytes_of(parameter_specs(model_config(config)))};
  });
  if (planned) require_memory("train", *planned, mesh, processes);
}

void require_memory_to_run(const std::string& command, const ModelOnMesh& run, std::int64_t rows,
                           std::int64_t capacity, bool evicts, const Processes& processes,
                           std::int64_t checkpoints) {
  if (!is_limited(run.config)) return;
  const auto planned = planned_or_said(
      command, [&] { return memory_to_run(run, rows, capacity, evicts, processes, checkpoints); });
  if (planned) require_memory(command, *planned, run.mesh, processes);
}

void require_memory_of_weights(const std::string& command, std::span<const ModelOnMesh* const> models,
                               const Processes& processes) {
  if (!is_limited(models[0]->config)) return;
  const auto planned = planned_or_said(command, [&] {
    PlannedMemory together;
    for (const ModelOnMesh* const model : models) {
      const PlannedMemory one = !is_on_cpu(model->config)
                                    ? memory_on_host(*model, processes)
                                    : largest_of_stages(*model, processes, [&](AbstractRank& rank) {
                                        const Parameters parameters = model->create(rank.context());
                                        const std::int64_t weights = rank.account().in_use();
                                        return PlannedMemory{weights, weights, bytes_of(model->specs)};
                                      });
      together.weights += one.weights;
      together.peak += one.peak;
      together.all_weights += one.all_weights;
    }
    return together;
  });
  if (planned) require_memory(command, *planned, models[0]->mesh, processes);
}

bool has_memory_to_run(const std::string& command, const ModelOnMesh& run, std::int64_t rows,
                       std::int64_t capacity, bool evicts, const Processes& processes,
                       std::int64_t checkpoints) {
  if (!is_limited(run.config)) return true;
  const auto planned = planned_or_said(
      command, [&] { return memory_to_run(run, rows, capacity, evicts, processes, checkpoints); });
  return !planned || lacking(command, *planned, run.mesh, processes).empty();
}

}  // namespace switchyard
