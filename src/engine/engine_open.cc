// Opens the public Engine, and tells what was opened.
#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <utility>

#include "core/error.h"
#include "core/memory_account.h"
#include "engine/engine_impl.h"
#include "models/architecture.h"

namespace switchyard {
namespace {

// The processes that hold the engine's ranks. MPI lets a program join them only once,
// so an engine owns them until it is destroyed.
std::shared_ptr<Processes> join_for_engine() {
  if (launch_from_environment().processes == 1) return one_process();
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  static const std::unique_ptr<Processes> joined = join_processes();
  static std::weak_ptr<Processes> taken;
  if (!taken.expired())
    fail_usage("[engine] open: expected one engine at a time in a program under mpirun, got another");
  std::shared_ptr<Processes> mine(joined.get(), [](Processes*) {});
  taken = mine;
  return mine;
}

}  // namespace

Engine Engine::open(const Settings& settings, const std::stop_token& stop, const OpenProgress& progress) {
  constexpr std::chrono::milliseconds kBetween(50);
  const Config& config = settings.checked().config;
  const std::shared_ptr<Processes> processes = join_for_engine();
  const double timeout = config.get_float("collective_timeout_seconds");
  const auto make = [&](const std::stop_token& stopped, const LoadProgress& loading) {
    std::shared_ptr<Impl> impl;
    try {
      impl = std::make_shared<Impl>(config, processes);
    } catch (const Error& error) {
      processes->agree(&error, timeout);  // throws
    } catch (const std::exception& error) {
      const Error told(Error::Kind::runtime, error.what());
      processes->agree(&told, timeout);
    }
    processes->agree(nullptr, timeout);
    impl->on_ranks.fill = stoppable(impl->on_ranks.fill, stopped, "open");
    impl->start(loading);
    return impl;
  };
  if (!progress) return Engine(make(stop, nullptr));
  std::atomic<std::int64_t> read{0}, all{0};
  std::stop_source stops;
  const std::stop_callback passed_on(stop, [&] { stops.request_stop(); });
  std::future<std::shared_ptr<Impl>> made = std::async(std::launch::async, [&] {
    return make(stops.get_token(), [&](std::int64_t so_far, std::int64_t of) {
      all = of;
      read = so_far;
    });
  });
  try {
    while (made.wait_for(kBetween) != std::future_status::ready) {
      const std::int64_t so_far = read;  // before `all`, which is set before it
      progress(so_far, all);
    }
  } catch (...) {
    stops.request_stop();
    made.wait();
    throw;
  }
  Engine engine(made.get());
  progress(all, all);
  return engine;
}

const std::vector<std::string>& Engine::notes() const {
  return impl_->on_ranks.notes;
}

std::int64_t Engine::vocabulary() const {
  return impl_->model.vocab;
}

int Engine::ranks() const {
  return impl_->mesh.size();
}

std::vector<std::pair<std::string, int>> Engine::mesh() const {
  std::vector<std::pair<std::string, int>> axes;
  for (const MeshAxis& axis : impl_->mesh.axes()) axes.emplace_back(axis.axis.name(), axis.size);
  return axes;
}

std::string Engine::device() const {
  return impl_->config.get_string("device");
}

std::string Engine::model() const {
  return architecture_json(impl_->model).dump();
}

MemoryUse Engine::memory() const {
  MemoryUse use;
  for (const auto& account : impl_->accounts) {
    if (account == nullptr) continue;
    use.in_use += account->in_use();
    use.peak += account->peak();
  }
  return use;
}

}  // namespace switchyard
