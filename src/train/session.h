// Session: ranks, mesh and rules of a run, from the config.
#pragma once

#include <functional>

#include "autograd/context.h"
#include "config/config.h"

namespace switchyard {

// The mesh of the config's parallelism keys. Error(usage) when it does not multiply out.
Mesh mesh_from_config(const Config& config);

// Batch sizes: per_device_batch_size may be fractional when the product is whole.
struct BatchSizes {
  std::int64_t step = 0;   // rows of one optimizer step
  std::int64_t micro = 0;  // rows of one forward pass; step / gradient_accumulation_steps
  std::int64_t eval = 0;
  std::int64_t sequence = 0;
};
BatchSizes batch_sizes(const Config& config, const Mesh& mesh);

// Error(usage) for more ranks than one process should have threads.
void require_thread_ranks(const Mesh& mesh);

// Runs `body` on every rank (threads of this process), each with its own context and memory account. Errors
// as of run_local_ranks.
void run_session(const Config& config, const Mesh& mesh, const std::function<void(Context&)>& body);

}  // namespace switchyard
