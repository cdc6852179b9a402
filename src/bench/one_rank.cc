#include "bench/one_rank.h"

#include "config/config.h"
#include "engine/session.h"
#include "parallel/comm/local.h"

namespace switchyard::bench {

void on_one_rank(ThreadPool& pool, const Memory& memory, const std::function<void(Context&)>& body) {
  constexpr double kTimeoutSeconds = 600;
  const Config config = Config::from_args(std::vector<std::string>{"ranks=1"});
  const Mesh mesh = mesh_from_config(config);
  const AxisRules rules(config.axis_rules(), mesh);
  run_local_ranks(1, kTimeoutSeconds, [&](Communicator& comm) {
    Context context;
    context.mesh = &mesh;
    context.rules = &rules;
    context.comm = &comm;
    context.pool = &pool;
    context.memory = memory;
    comm.use_device(memory.device());
    body(context);
  });
}

}  // namespace switchyard::bench
