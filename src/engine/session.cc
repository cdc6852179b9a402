#include "engine/session.h"

#include <algorithm>
#include <cmath>

#include "autograd/ahead.h"
#include "config/declaration.h"
#include "core/current_memory.h"
#include "core/fence.h"
#include "core/offload.h"
#include "kernels/registry/proofs.h"
#include "models/model_config.h"
#include "parallel/comm/nccl/library.h"

namespace switchyard {

namespace {

// The mesh's axes, then missing axes whose size has a key: build_mesh refuses a size for them.
std::vector<std::string> axes_with_sizes(const Config& config) {
  std::vector<std::string> axes = config.mesh_axes();
  for (const KeyDeclaration& key : all_keys()) {
    if (!key.name.starts_with("ici_") || !key.name.ends_with("_parallelism")) continue;
    if (key.status == KeyStatus::derived) continue;  // ici_parallelism, the list of all sizes
    const std::string name = key.name.substr(4, key.name.size() - 4 - std::string("_parallelism").size());
    const std::string axis = name == "pipeline" ? "stage" : name;
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) axes.push_back(axis);
  }
  return axes;
}

}  // namespace

Mesh mesh_from_config(const Config& config) {
  std::vector<ParallelismSizes> sizes;
  for (const auto& axis : axes_with_sizes(config)) {
    const std::string name = axis == "stage" ? "pipeline" : axis;
    ParallelismSizes s;
    s.axis = axis;
    const std::string dcn = "dcn_" + name + "_parallelism", ici = "ici_" + name + "_parallelism";
    s.dcn = config.get_int(dcn);
    s.ici = config.get_int(ici);
    s.dcn_given = config.is_set_by_user(dcn);
    s.ici_given = config.is_set_by_user(ici);
    sizes.push_back(s);
  }
  return build_mesh(config.mesh_axes(), sizes, config.get_int("ranks"), config.get_int("num_slices"));
}

Mesh stage_mesh(const Mesh& mesh) {
  return mesh.without("stage");
}

Stage stage_of(const Config& config, const Mesh& mesh, int rank) {
  Stage stage;
  stage.count = mesh.axis_size("stage");
  if (stage.count == 1) return stage;
  stage.index = mesh.coordinate(rank, "stage");
  stage.repeats = pipeline_repeats(config, stage.count);
  stage.across = {mesh.group(rank, Axes{"stage"}), stage.index, "stage"};
  for (int other = 0; other < mesh.size(); ++other) {
    const int of_other = mesh.coordinate(other, "stage");
    if (of_other == stage.index) stage.ranks.push_back(other);
    if (of_other == 0) stage.first_ranks.push_back(other);
    if (of_other + 1 == stage.count) stage.last_ranks.push_back(other);
  }
  return stage;
}

int pipeline_repeats(const Config& config, int stages) {
  if (stages == 1) return 1;
  const std::int64_t layers = number_of_layers(config), given = config.get_int("num_pipeline_repeats"),
                     piped = config.get_int("pipeline_parallel_layers");
  if (piped > 0 && piped != layers)
    fail_usage(
        "[pipeline] pipeline_parallel_layers={}: expected -1 or all {} layers; layers outside of the stages "
        "are "
        "planned, not built yet",
        piped, layers);
  std::int64_t repeats = given > 0 ? given : 1;
  if (config.is_set_by_user("num_layers_per_pipeline_stage")) {
    const std::int64_t of_block = config.get_int("num_layers_per_pipeline_stage");
    if (layers % (stages * of_block) != 0 || (given > 0 && given * stages * of_block != layers))
      fail_usage(
          "[pipeline] num_layers_per_pipeline_stage={}: expected equal blocks{}, and {} stages share {} "
          "layers",
          of_block, given > 0 ? fmt::format(", num_pipeline_repeats={} of a stage", given) : "", stages,
          layers);
    repeats = layers / (stages * of_block);
  }
  if (stages > layers)
    fail_usage("[pipeline] ici_pipeline_parallelism: {} stages for {} layers", stages, layers);
  if (repeats > layers / stages)
    fail_usage("[pipeline] num_pipeline_repeats={}: expected at most {}, as {} stages share {} layers",
               repeats, layers / stages, stages, layers);
  return static_cast<int>(repeats);
}

std::int64_t pipeline_microbatches(const Config& config, int stages) {
  const std::int64_t given = config.get_int("num_pipeline_microbatches");
  return stages == 1 ? 1 : given > 0 ? given : stages;
}

BatchSizes batch_sizes(const Config& config, const Mesh& mesh) {
  auto whole = [&](const char* key, double per_device) {
    const double rows = per_device * mesh.size();
    if (!(std::round(rows) >= 1) || std::abs(rows - std::round(rows)) > 1e-6) {
      fail_usage("[train] {}={} on {} makes a batch of {} rows: expected a whole number", key, per_device,
                 ranks_text(mesh.size()), rows);
    }
    return static_cast<std::int64_t>(std::round(rows));
  };
  BatchSizes sizes;
  const std::int64_t rows = whole("per_device_batch_size", config.get_float("per_device_batch_size"));
  const std::int64_t microbatches = pipeline_microbatches(config, mesh.axis_size("stage"));
  if (rows % microbatches != 0) {
    fail_usage("[pipeline] num_pipeline_microbatches={}: expected a divisor of the {} rows of a batch",
               microbatches, rows);
  }
  sizes.micro = rows / microbatches;
  sizes.step = rows * config.get_int("gradient_accumulation_steps");
  const double eval = config.get_float("eval_per_device_batch_size");
  sizes.eval = eval > 0 ? whole("eval_per_device_batch_size", eval) : rows;
  sizes.sequence = config.get_int("max_target_length");
  return sizes;
}

std::int64_t rows_to_generate(const Config& config, const Mesh& mesh) {
  if (!config.is_set_by_user("per_device_batch_size")) return 1;
  return batch_sizes(config, mesh).step / config.get_int("gradient_accumulation_steps");
}

void require_ranks_fit(const Mesh& mesh, const Processes& processes) {
  constexpr int kMost = 1024;
  if (mesh.size() % processes.count() != 0) {
    fail_usage("[train] ranks={}: expected a multiple of the {} processes that mpirun started", mesh.size(),
               processes.count());
  }
  if (mesh.size() / processes.count() > kMost) {
    fail_usage("[train] ranks={}: expected at most {} a process", mesh.size(), kMost);
  }
}

Device& device_of_run(const Config& config, const Mesh& mesh, const Processes& processes,
                      std::vector<std::string>* notes) {
  Device& device = Device::named(config.get_string("device"));
  registry::take_unproven_rows(config.get_string("gpu_kernels") == "all");
  const auto unproven =
      std::ranges::count_if(proofs::kAll, [](const Proof* p) { return registry::unproven(p); });
  if (device.kind() == DeviceKind::cuda && notes != nullptr && unproven > 0)
    notes->push_back(fmt::format(
        "{} kernels have run on an emulated card only and are left out: gpu_kernels=all takes them",
        unproven));
  if (!device.is_gpu() || processes.count() == 1) return device;
  require_nccl(device, mesh.size() / processes.count());
  if (notes != nullptr)
    notes->push_back(fmt::format("between {} GPUs (device={}): {}", processes.count(), device.name(),
                                 NcclLibrary::for_device(device).name()));
  return device;
}

bool may_place_weights_on_host(const Config& config) {
  return config.get_bool("parameter_memory_host_offload") || !config.get_strings("weight_places").empty();
}

bool starts_ahead(const Config& config, const Context& context) {
  return overlaps_communication(config, *context.comm) ||
         (may_place_weights_on_host(config) && context.offload != nullptr && context.comm->size() == 1);
}

bool overlaps_communication(const Config& config, const Communicator& comm) {
  const std::string& choice = config.get_string("overlap_communication");
  return choice == "on" || (choice == "auto" && !comm.in_one_process());
}

void run_session(const Config& config, const Mesh& mesh, Processes& processes,
                 const std::function<void(Context&)>& body) {
  require_ranks_fit(mesh, processes);
  const Mesh own = stage_mesh(mesh);
  const AxisRules rules(config.axis_rules(), own);
  Device& device = device_of_run(config, mesh, processes);
  if (!device.is_host()) name_the_op_of_faults();
  Workers workers(processes.cores(), mesh.size() / processes.count());
  const std::optional<Fault> fault = fault_from_environment();
  const double timeout = config.get_float("collective_timeout_seconds");
  processes.run_ranks(workers, timeout, device, [&](Communicator& comm) {
    Context context;
    if (fault && fault->rank == comm.rank()) {
      if (is_numeric(fault->kind))
        context.fault = fault;
      else
        comm.inject(*fault);
    }
    context.memory = Memory(device, std::make_shared<MemoryAccount>());
    if (device.is_gpu()) context.offload = std::make_shared<HostMemory>(context.memory);
    const MemoryScope memory(context.memory);
    ThreadPool pool(workers);
    context.stage = stage_of(config, mesh, comm.rank());
    const auto& ranks = context.stage.ranks;
    context.rank = ranks.empty()
                       ? comm.rank()
                       : static_cast<int>(std::find(ranks.begin(), ranks.end(), comm.rank()) - ranks.begin());
    context.mesh = &own;
    context.rules = &rules;
    context.comm = &comm;
    context.pool = &pool;
    context.explicit_sharding = config.get_string("shard_mode") == "explicit";
    GathersAhead ahead;
    if (overlaps_communication(config, comm)) comm.start_progress_thread();
    if (starts_ahead(config, context)) context.ahead = &ahead;
    body(context);
  });
}

void run_session(const Config& config, const Mesh& mesh, const std::function<void(Context&)>& body) {
  run_session(config, mesh, *one_process(), body);
}

}  // namespace switchyard
