// Session: builds the mesh, the batch sizes and the ranks of a run from the config.
#pragma once

#include <functional>
#include <string>

#include "autograd/context.h"
#include "config/config.h"
#include "parallel/comm/processes.h"

namespace switchyard {

// The mesh of the config's parallelism keys. Error(usage) when the product of its axes is not the rank count.
Mesh mesh_from_config(const Config& config);

// The mesh of one pipeline stage: the run's mesh without the axis `stage`.
Mesh stage_mesh(const Mesh& mesh);
// The pipeline stage that a rank of the run belongs to.
Stage stage_of(const Config& config, const Mesh& mesh, int rank);

// Blocks of layers in each of `stages` stages: num_pipeline_repeats, or as many as
// num_layers_per_pipeline_stage implies, or one. Error(usage) when the two contradict each other or the
// model, or when pipeline_parallel_layers leaves layers out.
int pipeline_repeats(const Config& config, int stages);

// Batch sizes. per_device_batch_size may be fractional when the product is whole.
struct BatchSizes {
  std::int64_t step = 0;  // rows in one optimizer step
  std::int64_t micro =
      0;  // rows in one forward pass; step / (gradient_accumulation_steps · microbatches of the pipeline)
  std::int64_t eval = 0;
  std::int64_t sequence = 0;
};
// Microbatches that a batch is split into in a pipeline of `stages` stages; 1 without a pipeline.
std::int64_t pipeline_microbatches(const Config& config, int stages);
BatchSizes batch_sizes(const Config& config, const Mesh& mesh);

// Sequences that are generated at the same time: 1 when per_device_batch_size is not given.
std::int64_t rows_to_generate(const Config& config, const Mesh& mesh);

// Error(usage) for more ranks than `processes` should have
// threads, or a number of ranks that they cannot share evenly.
void require_ranks_fit(const Mesh& mesh, const Processes& processes);

// The device of a run whose ranks are in `processes`. Error(usage) when the device is missing; for a GPU
// also, with several processes, when a process has more than one rank or NCCL is missing. `notes`
// gets a line that says how the GPUs reach each other.
Device& device_of_run(const Config& config, const Mesh& mesh, const Processes& processes,
                      std::vector<std::string>* notes = nullptr);

// True when all-gathers are prefetched (overlap_communication);
// auto: when ranks are in several processes.
bool overlaps_communication(const Config& config, const Communicator& comm);
// True when a key may place weights in the memory of the host (ParameterSpec::place).
bool may_place_weights_on_host(const Config& config);
// True when gathers start before their turn: then, and where one rank fetches weights from the host.
bool starts_ahead(const Config& config, const Context& context);

// Runs `body` on every rank, each with its own context and memory account. For ranks without a model;
// ModelOnRanks (engine/model.h) runs those of a model. Errors as from Processes::run_ranks, and Error(usage)
// for an unreadable SWITCHYARD_FAULT (parallel/comm/fault.h).
void run_session(const Config& config, const Mesh& mesh, Processes& processes,
                 const std::function<void(Context&)>& body);
// Runs all ranks in this process.
void run_session(const Config& config, const Mesh& mesh, const std::function<void(Context&)>& body);

}  // namespace switchyard
