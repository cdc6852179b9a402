#include "plan/memory_limit.h"

#include <algorithm>
#include <optional>

#include "core/error.h"
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

bool is_limited(const Config& config) {
  return !config.get_bool("ignore_memory_limit") && config.get_string("device") == "cpu";
}

std::int64_t bytes_of(const std::vector<ParameterSpec>& specs) {
  std::int64_t bytes = 0;
  for (const ParameterSpec& spec : specs)
    bytes += num_elements(spec.shape) * static_cast<std::int64_t>(size_of(spec.dtype));
  return bytes;
}

bool is_enough(const PlannedMemory& planned, std::int64_t ranks, std::int64_t available) {
  return available <= 0 || least_memory_of_process(planned, ranks) <= available;
}

void require_memory(const std::string& command, const PlannedMemory& planned, const Mesh& mesh,
                    const Processes& processes) {
  const std::int64_t available = available_memory_bytes(), ranks = mesh.size() / processes.count();
  if (is_enough(planned, ranks, available)) return;
  const std::int64_t needed = least_memory_of_process(planned, ranks);
  const std::string together =
      ranks == 1 ? "" : fmt::format(", {} ranks of a process {}", ranks, gib(needed));
  fail_usage(
      "[{}] memory of a rank: {}{} of {} (does not fit); use a smaller model or batch, weights of fewer "
      "bits or more machines, or set ignore_memory_limit=true to try",
      command, gib(planned.peak), together, gib(available));
}

// Returns what the stage with the most needs; nothing where that is not limited or cannot be planned.
std::optional<PlannedMemory> memory_to_run(const ModelOnMesh& run, std::int64_t rows, std::int64_t capacity,
                                           bool evicts, const Processes& processes,
                                           std::int64_t checkpoints) {
  if (!is_limited(run.config)) return {};
  PlannedMemory largest;
  try {
    for (int stage = 0; stage < static_cast<int>(run.mesh.axis_size("stage")); ++stage) {
      NoCosts costs;
      AbstractRank rank(run.config, run.mesh, stage, costs, WorkspaceOf::cpu,
                        static_cast<int>(run.mesh.size() / processes.count()), costs, 1);
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
      if (planned.peak > largest.peak) largest = planned;
    }
  } catch (const Error&) {
    return {};
  }
  return largest;
}

}  // namespace

std::int64_t least_memory_of_process(const PlannedMemory& planned, std::int64_t ranks) {
  const std::int64_t weights = std::min(ranks * planned.weights, planned.all_weights);
  const std::int64_t others = std::max<std::int64_t>(0, planned.peak - planned.weights);
  return weights + ranks * std::max<std::int64_t>(0, others - (ranks == 1 ? 0 : planned.all_weights));
}

void require_memory_to_train(const Config& config, const Processes& processes) {
  if (!is_limited(config)) return;
  std::optional<PlannedMemory> largest;
  const Mesh mesh = mesh_from_config(config);
  require_ranks_fit(mesh, processes);
  try {
    const Topology topology = Topology::read("cpu", static_cast<int>(mesh.size()));
    const std::vector<StepPlan> stages = plan_stages(config, mesh, topology);
    const StepPlan& stage = stages[largest_stage(stages)];
    largest = PlannedMemory{stage.memory.weights, stage.memory.total + stage.cost.host_peak_bytes,
                            bytes_of(parameter_specs(model_config(config)))};
  } catch (const Error&) {  // what a run would refuse, too, says so itself
    return;
  }
  require_memory("train", *largest, mesh, processes);
}

void require_memory_to_run(const std::string& command, const ModelOnMesh& run, std::int64_t rows,
                           std::int64_t capacity, bool evicts, const Processes& processes,
                           std::int64_t checkpoints) {
  if (const auto planned = memory_to_run(run, rows, capacity, evicts, processes, checkpoints))
    require_memory(command, *planned, run.mesh, processes);
}

bool has_memory_to_run(const ModelOnMesh& run, std::int64_t rows, std::int64_t capacity, bool evicts,
                       const Processes& processes, std::int64_t checkpoints) {
  const auto planned = memory_to_run(run, rows, capacity, evicts, processes, checkpoints);
  return !planned || is_enough(*planned, run.mesh.size() / processes.count(), available_memory_bytes());
}

}  // namespace switchyard
