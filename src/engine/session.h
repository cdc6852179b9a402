// Session: the mesh, the batch sizes and the ranks of a run, from the config.
#pragma once

#include <functional>
#include <string>

#include "autograd/context.h"
#include "config/config.h"
#include "parallel/comm/processes.h"

namespace switchyard {

// The mesh of the config's parallelism keys. Error(usage) when it does not multiply out.
Mesh mesh_from_config(const Config& config);

// The mesh of one stage of a pipeline: that of the run without the axis `stage`.
Mesh stage_mesh(const Mesh& mesh);
// Where a rank of the run stands in the pipeline.
Stage stage_of(const Config& config, const Mesh& mesh, int rank);

// Blocks of layers that each of so many stages has: num_pipeline_repeats, or as many as
// num_layers_per_pipeline_stage makes, or one. Error(usage) where the two say otherwise than each other or
// than the model, or pipeline_parallel_layers leaves layers out.
int pipeline_repeats(const Config& config, int stages);

// Batch sizes: per_device_batch_size may be fractional when the product is whole.
struct BatchSizes {
  std::int64_t step = 0;  // rows of one optimizer step
  std::int64_t micro =
      0;  // rows of one forward pass; step / (gradient_accumulation_steps · microbatches of the pipeline)
  std::int64_t eval = 0;
  std::int64_t sequence = 0;
};
// Microbatches a batch makes in a pipeline of so many stages; 1 without one.
std::int64_t pipeline_microbatches(const Config& config, int stages);
BatchSizes batch_sizes(const Config& config, const Mesh& mesh);

// Rows that a generation goes on with at once: 1 where per_device_batch_size is not given.
std::int64_t rows_to_generate(const Config& config, const Mesh& mesh);

// Error(usage) for more ranks than `processes` should have threads, or a number that they cannot share
// evenly.
void require_ranks_fit(const Mesh& mesh, const Processes& processes);

// Error(usage) for parameter_memory_host_offload=true, which a GPU does not do.
void require_weights_on_gpu(const Config& config);

// The device of a run whose ranks are in `processes`. Error(usage) where it is missing or, a GPU, as above,
// and between GPUs of several processes for more ranks than one a process and a missing NCCL. `notes` gets a
// line that says how the GPUs reach each other.
Device& device_of_run(const Config& config, const Mesh& mesh, const Processes& processes,
                      std::vector<std::string>* notes = nullptr);

// Whether gathers are started before they are needed (overlap_communication): auto is where ranks are in
// several processes.
bool overlaps_communication(const Config& config, const Communicator& comm);

// Runs `body` on every rank, each with its own context and memory account. For ranks without a model: a
// model's ranks are those of ModelOnRanks (engine/model.h). Errors as of Processes::run_ranks, and
// Error(usage) for an unreadable SWITCHYARD_FAULT (parallel/comm/fault.h).
void run_session(const Config& config, const Mesh& mesh, Processes& processes,
                 const std::function<void(Context&)>& body);
// The same with all ranks in this process.
void run_session(const Config& config, const Mesh& mesh, const std::function<void(Context&)>& body);

}  // namespace switchyard
