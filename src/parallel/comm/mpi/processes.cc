// Processes implemented over MPI.
#include "parallel/comm/processes.h"

#include <signal.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "core/cores.h"
#include "parallel/comm/failure.h"
#include "parallel/comm/mpi/mpi_backend.h"
#include "parallel/comm/nccl/nccl_backend.h"

namespace switchyard {
namespace {

// The time that other processes may take to end once the run is over.
constexpr double kFinishSeconds = 60;
constexpr int kAgreeTag = 0;

// The error that ended a process's preparations; status 0: none.
struct Verdict {
  std::int32_t process = 0;
  std::int32_t status = 0;
  char text[1016] = {};
};

class MpiProcesses : public Processes {
 public:
  explicit MpiProcesses(int launched) : wire_(launched), world_(wire_) {}
  ~MpiProcesses() override {
    world_.finish(kFinishSeconds);
    wire_.close();
  }

  int index() const override { return wire_.process(); }
  int count() const override { return wire_.processes(); }
  int cores() const override;
  std::chrono::system_clock::time_point start() const override {
    return std::chrono::system_clock::time_point(std::chrono::milliseconds(wire_.infos().front().start));
  }
  void agree(const Error* failure, double timeout_seconds) override;
  bool agreed() const override { return agreed_; }
  void run_ranks(Workers& workers, double timeout_seconds, Device& device,
                 const std::function<void(Communicator&)>& body) override;

 private:
  void exchange(Transfers& transfers, double timeout_seconds) {
    world_.wait_before_ranks("agreement on the preparations", timeout_seconds, transfers);
  }
  void run_rank(Workers& workers, int rank, SharedObjects& objects, Device& device,
                const std::function<void(Communicator&)>& body);

  Wire wire_;
  World world_;
  bool agreed_ = false;
};

int MpiProcesses::cores() const {
  return std::max(1, usable_cores() / wire_.sharing());
}

// Process 0 collects every process's verdict, and sends all processes the verdict of the first that failed.
void MpiProcesses::agree(const Error* failure, double timeout_seconds) {
  agreed_ = true;
  Verdict own;
  own.process = index();
  if (failure != nullptr) {
    const std::string text = failure->what();
    own.status = failure->kind() == Error::Kind::usage ? 2 : 1;
    std::memcpy(own.text, text.data(), std::min(text.size(), sizeof own.text - 1));
  }
  Verdict verdict = own;
  Transfers transfers;
  if (index() != 0) {
    wire_.send(transfers, {0, kAgreeTag, 0}, &own, sizeof own);
    wire_.receive(transfers, {0, kAgreeTag, 0}, &verdict, sizeof verdict);
    exchange(transfers, timeout_seconds);
  } else {
    std::vector<Verdict> all(static_cast<std::size_t>(count()));
    all[0] = own;
    for (int p = 1; p < count(); ++p)
      wire_.receive(transfers, {p, kAgreeTag, p}, &all[static_cast<std::size_t>(p)], sizeof own);
    exchange(transfers, timeout_seconds);
    const auto first = std::find_if(all.begin(), all.end(), [](const Verdict& v) { return v.status != 0; });
    if (first != all.end()) verdict = *first;
    transfers.clear();
    for (int p = 1; p < count(); ++p) wire_.send(transfers, {p, kAgreeTag, p}, &verdict, sizeof verdict);
    exchange(transfers, timeout_seconds);
  }
  if (verdict.status == 0) return;
  const Error::Kind kind = verdict.status == 2 ? Error::Kind::usage : Error::Kind::runtime;
  if (index() != 0) throw Silent(kind);
  const std::string text = verdict.text;
  throw Error(kind, verdict.process == 0 ? text : fmt::format("{} (on process {})", text, verdict.process));
}

void MpiProcesses::run_ranks(Workers& workers, double timeout_seconds, Device& device,
                             const std::function<void(Communicator&)>& body) {
  if (!agreed_) agree(nullptr, timeout_seconds);
  if (device.is_gpu()) {
    require_nccl(device, workers.ranks());
    if (!wire_.any_thread())
      fail_usage(
          "[comm] device={} over several processes: expected an MPI that serves any thread, got one "
          "that serves one thread a process only",
          device.name());
  }
  const int per_process = workers.ranks(), first = index() * per_process;
  if (per_process > 1 && !wire_.any_thread())
    fail_usage("[comm] expected ranks={}: this MPI serves one thread a process only, got ranks={}", count(),
               count() * per_process);
  world_.start_ranks(per_process, timeout_seconds);
  SharedObjects objects;
  std::vector<std::thread> threads;
  for (int i = 1; i < per_process; ++i)
    threads.emplace_back([&, i] { run_rank(workers, first + i, objects, device, body); });
  run_rank(workers, first, objects, device, body);
  for (std::thread& thread : threads) thread.join();
}

void MpiProcesses::run_rank(Workers& workers, int rank, SharedObjects& objects, Device& device,
                            const std::function<void(Communicator&)>& body) {
  const RankScope scope(workers);
  auto between_hosts = std::make_unique<MpiBackend>(world_, wire_, objects, World::Caller{rank, 0});
  std::unique_ptr<CommBackend> backend;
  if (device.is_gpu())
    backend =
        std::make_unique<NcclBackend>(std::move(between_hosts), NcclLibrary::for_device(device), device);
  else
    backend = std::move(between_hosts);
  Communicator communicator(std::move(backend));
  const auto fail = [&](Error::Kind kind, const std::exception& error) {
    world_.fail(rank, kind, message_with_place(error, communicator.position()));
  };
  try {
    body(communicator);
    // Until all ranks are here another rank may still fail, and this rank must then report that failure.
    communicator.barrier(everyone(communicator, "end of the run"));
  } catch (const Error& error) {
    fail(error.kind(), error);
  } catch (const std::exception& error) {
    fail(Error::Kind::runtime, error);
  } catch (...) {
    world_.fail(rank, Error::Kind::runtime, "an exception that is no std::exception");
  }
}

}  // namespace

std::unique_ptr<Processes> join_processes() {
  const Launch launch = launch_from_environment();
  if (!launch.launched || launch.processes == 1) return one_process();
  leave_sigterm_to_watch();
  ::signal(SIGPIPE,
           SIG_IGN);  // a connection to a process that died must not end this one before it has its say
  return std::make_unique<MpiProcesses>(launch.processes);
}

bool knows_mpi() {
  return true;
}

}  // namespace switchyard
