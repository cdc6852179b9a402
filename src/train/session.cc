#include "train/session.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "dist/comm/local.h"

namespace switchyard {

Mesh mesh_from_config(const Config& config) {
  std::vector<ParallelismSizes> sizes;
  for (const auto& axis : config.mesh_axes()) {
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

BatchSizes batch_sizes(const Config& config, const Mesh& mesh) {
  auto whole = [&](const char* key, double per_device) {
    const double rows = per_device * mesh.size();
    if (!(std::round(rows) >= 1) || std::abs(rows - std::round(rows)) > 1e-6) {
      fail_usage("[train] {}={} on {} ranks makes a batch of {} rows: expected a whole number", key,
                 per_device, mesh.size(), rows);
    }
    return static_cast<std::int64_t>(std::round(rows));
  };
  BatchSizes sizes;
  sizes.micro = whole("per_device_batch_size", config.get_float("per_device_batch_size"));
  sizes.step = sizes.micro * config.get_int("gradient_accumulation_steps");
  const double eval = config.get_float("eval_per_device_batch_size");
  sizes.eval = eval > 0 ? whole("eval_per_device_batch_size", eval) : sizes.micro;
  sizes.sequence = config.get_int("max_target_length");
  return sizes;
}

void require_thread_ranks(const Mesh& mesh) {
  constexpr int kMost = 1024;
  if (mesh.size() > kMost)
    fail_usage("[train] ranks={}: expected at most {}, as every rank is a thread of this process",
               mesh.size(), kMost);
}

void run_session(const Config& config, const Mesh& mesh, const std::function<void(Context&)>& body) {
  require_thread_ranks(mesh);
  const AxisRules rules(config.axis_rules(), mesh);
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int threads = std::max(1, cores / mesh.size());
  run_local_ranks(mesh.size(), config.get_float("collective_timeout_seconds"), [&](Communicator& comm) {
    const AccountScope account(std::make_shared<MemoryAccount>());
    ThreadPool pool(threads);
    Context context;
    context.rank = comm.rank();
    context.mesh = &mesh;
    context.rules = &rules;
    context.comm = &comm;
    context.pool = &pool;
    body(context);
  });
}

}  // namespace switchyard
