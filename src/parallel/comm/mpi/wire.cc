#include "parallel/comm/mpi/wire.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <fstream>
#include <set>
#include <span>
#include <thread>

#include "core/error.h"
#include "core/running_clock.h"

namespace switchyard {
namespace {

// The most bytes of one MPI message: MPI counts in int.
constexpr std::int64_t kPiece = std::int64_t{1} << 30;
constexpr int kNewsTag = 1;
constexpr std::chrono::seconds kStartTimeout{60};

void must(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  fail_runtime("[comm] {} failed: {}", what, std::string(text.data(), static_cast<std::size_t>(length)));
}

void write_to(std::span<char> field, const std::string& text) {
  const std::size_t length = std::min(text.size(), field.size() - 1);
  std::memcpy(field.data(), text.data(), length);
}

ProcessInfo own_info() {
  ProcessInfo info;
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 64> space{};
  if (::readlink("/proc/self/ns/pid", space.data(), space.size() - 1) < 0) space[0] = '?';
  write_to(info.host, boot + " " + space.data());
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) std::memcpy(info.cores, &set, sizeof info.cores);
  static_assert(sizeof set == sizeof info.cores);
  info.pid = ::getpid();
  info.start = std::chrono::duration_cast<std::chrono::milliseconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count();
  return info;
}

}  // namespace

std::vector<int> Transfers::pending() const {
  std::set<int> ranks;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] != MPI_REQUEST_NULL) ranks.insert(ranks_[i]);
  }
  return {ranks.begin(), ranks.end()};
}

Wire::Wire(int launched_processes) {
  int level = 0;
  must(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread");
  any_thread_ = level >= MPI_THREAD_SERIALIZED;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  must(MPI_Comm_dup(MPI_COMM_WORLD, &data_), "MPI_Comm_dup");
  must(MPI_Comm_dup(MPI_COMM_WORLD, &talk_), "MPI_Comm_dup");
  MPI_Comm_rank(data_, &process_);
  MPI_Comm_size(data_, &processes_);
  if (launched_processes > 0 && launched_processes != processes_) {
    fail_usage(
        "[comm] the launcher started {} processes, but MPI knows {}: expected the mpirun of the MPI that "
        "this "
        "program was built with",
        launched_processes, processes_);
  }
  exchange_infos();
  listen();
}

void Wire::exchange_infos() {
  const ProcessInfo own = own_info();
  infos_.resize(static_cast<std::size_t>(processes_));
  MPI_Request request = MPI_REQUEST_NULL;
  constexpr int kBytes = sizeof own;
  must(MPI_Iallgather(&own, kBytes, MPI_BYTE, infos_.data(), kBytes, MPI_BYTE, data_, &request),
       "MPI_Iallgather");
  const auto deadline = RunningClock::now() + kStartTimeout;
  for (int done = 0; done == 0;) {
    must(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) break;
    if (RunningClock::now() > deadline)
      fail_runtime("[comm] process {}: the {} processes did not all start within {} s", process_, processes_,
                   kStartTimeout.count());
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

int Wire::sharing() const {
  const ProcessInfo& own = infos_[static_cast<std::size_t>(process_)];
  return static_cast<int>(std::count_if(infos_.begin(), infos_.end(), [&](const ProcessInfo& info) {
    return std::strcmp(info.host, own.host) == 0 && std::memcmp(info.cores, own.cores, sizeof own.cores) == 0;
  }));
}

void Wire::listen() {
  MPI_Irecv(&incoming_, sizeof incoming_, MPI_BYTE, MPI_ANY_SOURCE, kNewsTag, talk_, &listening_);
}

void Wire::close() {
  {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
    MPI_Cancel(&listening_);
    MPI_Request_free(&listening_);
    MPI_Comm_free(&talk_);
    MPI_Comm_free(&data_);
  }
  MPI_Finalize();  // without the mutex: MPI_Finalize waits for other processes, and the watch needs the mutex
                   // to end a process that waits too long
}

void Wire::send(Transfers& transfers, const Peer& peer, const void* data, std::int64_t bytes) {
  const std::scoped_lock lock(mutex_);
  for (std::int64_t begin = 0; begin < bytes; begin += kPiece) {
    const int count = static_cast<int>(std::min(kPiece, bytes - begin));
    MPI_Request& request = transfers.requests_.emplace_back(MPI_REQUEST_NULL);
    transfers.ranks_.push_back(peer.rank);
    must(MPI_Isend(static_cast<const std::byte*>(data) + begin, count, MPI_BYTE, peer.process, peer.tag,
                   data_, &request),
         "MPI_Isend");
  }
}

void Wire::receive(Transfers& transfers, const Peer& peer, void* data, std::int64_t bytes) {
  const std::scoped_lock lock(mutex_);
  for (std::int64_t begin = 0; begin < bytes; begin += kPiece) {
    const int count = static_cast<int>(std::min(kPiece, bytes - begin));
    MPI_Request& request = transfers.requests_.emplace_back(MPI_REQUEST_NULL);
    transfers.ranks_.push_back(peer.rank);
    must(MPI_Irecv(static_cast<std::byte*>(data) + begin, count, MPI_BYTE, peer.process, peer.tag, data_,
                   &request),
         "MPI_Irecv");
  }
}

bool Wire::test(Transfers& transfers, bool& progress) {
  const std::scoped_lock lock(mutex_);
  std::vector<MPI_Request>& requests = transfers.requests_;
  transfers.finished_.resize(requests.size());
  int count = 0;
  must(MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &count, transfers.finished_.data(),
                    MPI_STATUSES_IGNORE),
       "MPI_Testsome");
  progress = count != MPI_UNDEFINED && count > 0;
  return std::all_of(requests.begin(), requests.end(), [](MPI_Request r) { return r == MPI_REQUEST_NULL; });
}

// An error of this send is not reported: there is nobody left to tell.
void Wire::tell(int process, const News& news) {
  const std::scoped_lock lock(mutex_);
  if (closed_) return;
  const News& kept = told_.emplace_back(news);
  MPI_Request& request = telling_.emplace_back(MPI_REQUEST_NULL);
  MPI_Isend(&kept, sizeof kept, MPI_BYTE, process, kNewsTag, talk_, &request);
}

bool Wire::hear(News& news) {
  const std::scoped_lock lock(mutex_);
  if (closed_) return false;
  int heard = 0;
  if (MPI_Test(&listening_, &heard, MPI_STATUS_IGNORE) != MPI_SUCCESS || heard == 0) return false;
  news = incoming_;
  listen();
  return true;
}

bool Wire::push() {
  const std::scoped_lock lock(mutex_);
  if (closed_) return true;
  int done = 0;
  const int code =
      MPI_Testall(static_cast<int>(telling_.size()), telling_.data(), &done, MPI_STATUSES_IGNORE);
  return code != MPI_SUCCESS || done != 0;
}

}  // namespace switchyard
