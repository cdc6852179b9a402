// A library with NCCL's C functions that moves bytes between processes of one machine through sockets, for
// tests of src/parallel/comm/nccl/ without GPUs: memory is the host's, and nothing is on a stream. It keeps
// what NCCL promises of communicators that do not block, and refuses what NCCL would: a call while another is
// on its way, sizes that differ between sender and receiver, a configuration that it does not know.
//
// A communicator has a connection to each other rank and a thread that carries out one group of calls after
// the other. What is received of a group may come in any order of ranks.
#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "parallel/comm/nccl/nccl_api.h"

namespace switchyard::nccl {

namespace {

// 2.28.9, or what a test wants it to be.
int version_code() {
  const char* const text = std::getenv("SWITCHYARD_STAND_IN_VERSION");
  return text == nullptr ? 22809 : std::atoi(text);
}

sockaddr_un address_of(const UniqueId& id, int rank) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // An abstract name: it begins with a zero, and ends with the process.
  std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%.64s.%d", id.internal, rank);
  return address;
}

// SWITCHYARD_STAND_IN_FAULT=kill,rank=1,group=30 (or stop): where rank 1 of a communicator should move the
// bytes of its process's 30th group of calls, the process is killed.
void suffer(int rank) {
  static const char* const text = std::getenv("SWITCHYARD_STAND_IN_FAULT");
  static std::atomic<int> groups{0};
  std::array<char, 8> how{};
  int who = -1, group = -1;
  if (text == nullptr || std::sscanf(text, "%7[a-z],rank=%d,group=%d", how.data(), &who, &group) != 3) return;
  if (rank == who && ++groups == group) ::kill(::getpid(), how[0] == 'k' ? SIGKILL : SIGSTOP);
}

}  // namespace

// One direction of a connection: what is to be sent or received, first to last, each after its size.
struct Way {
  struct Part {
    std::byte* data;
    std::uint64_t bytes, size, done;  // `size`: of the message, as it travels before the bytes
  };
  std::deque<Part> parts;
  bool sends = false;

  void add(const void* data, std::size_t bytes) {
    parts.push_back({static_cast<std::byte*>(const_cast<void*>(data)), bytes, bytes, 0});
  }

  // Moves what can be moved now.
  Status advance(int socket) {
    while (!parts.empty()) {
      Part& part = parts.front();
      const bool in_size = part.done < sizeof part.size;
      std::byte* const where = in_size ? reinterpret_cast<std::byte*>(&part.size) + part.done
                                       : part.data + (part.done - sizeof part.size);
      const std::size_t left =
          in_size ? sizeof part.size - part.done : part.bytes + sizeof part.size - part.done;
      const ssize_t moved = sends ? ::send(socket, where, left, MSG_NOSIGNAL | MSG_DONTWAIT)
                                  : ::recv(socket, where, left, MSG_DONTWAIT);
      if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return kInProgress;
      if (moved <= 0) return kRemoteError;
      part.done += static_cast<std::uint64_t>(moved);
      if (part.done >= sizeof part.size && part.size != part.bytes) return kInvalidUsage;
      if (part.done == part.bytes + sizeof part.size) parts.pop_front();
    }
    return kSuccess;
  }
};

struct Connection {
  int socket = -1;
  Way out{.parts = {}, .sends = true}, in;
};

struct Comm {
  Comm(const UniqueId& id, int ranks, int rank)
      : rank_(rank), connections_(static_cast<std::size_t>(ranks)), id_(id) {
    listening_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_un own = address_of(id, rank);
    if (::bind(listening_, reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0 ||
        ::listen(listening_, ranks) != 0)
      std::abort();
    thread_ = std::thread([this] { work(); });
  }
  ~Comm() {
    {
      const std::scoped_lock lock(mutex_);
      stop_ = true;
      changed_.notify_all();
    }
    thread_.join();
    for (const Connection& c : connections_) {
      if (c.socket >= 0) ::close(c.socket);
    }
    ::close(listening_);
  }

  Status status() const { return status_; }
  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(connections_.size()); }
  // Only while nothing is on its way.
  Connection& to(int peer) { return connections_[static_cast<std::size_t>(peer)]; }
  Status go() {
    const std::scoped_lock lock(mutex_);
    status_ = kInProgress;
    going_ = true;
    changed_.notify_all();
    return kInProgress;
  }

 private:
  void work() {
    const Status met = meet();
    std::unique_lock lock(mutex_);
    status_ = met;
    while (true) {
      changed_.wait(lock, [&] { return stop_ || going_; });
      if (stop_) return;
      going_ = false;
      lock.unlock();
      const Status moved = move_all();
      lock.lock();
      status_ = moved;
    }
  }

  // Connects to the ranks below and waits for those above.
  Status meet() {
    for (int peer = 0; peer < rank_; ++peer) {
      const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      const sockaddr_un other = address_of(id_, peer);
      while (::connect(socket, reinterpret_cast<const sockaddr*>(&other), sizeof other) != 0) {
        if (stops()) return kSystemError;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (::send(socket, &rank_, sizeof rank_, MSG_NOSIGNAL) != sizeof rank_) return kRemoteError;
      to(peer).socket = socket;
    }
    for (int left = ranks() - 1 - rank_; left > 0;) {
      if (stops()) return kSystemError;
      pollfd waiting{listening_, POLLIN, 0};
      if (::poll(&waiting, 1, 20) <= 0) continue;
      const int socket = ::accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC);
      int peer = -1;
      if (::recv(socket, &peer, sizeof peer, MSG_WAITALL) != sizeof peer || peer <= rank_ || peer >= ranks())
        return kRemoteError;
      to(peer).socket = socket;
      --left;
    }
    return kSuccess;
  }

  Status move_all() {
    suffer(rank_);
    while (true) {
      std::vector<pollfd> waiting;
      for (Connection& c : connections_) {
        Status moved = kSuccess;
        short events = 0;
        for (Way* way : {&c.out, &c.in}) {
          if (way->parts.empty()) continue;
          moved = way->advance(c.socket);
          if (moved == kInProgress) events = static_cast<short>(events | (way->sends ? POLLOUT : POLLIN));
          if (moved != kSuccess && moved != kInProgress) return moved;
        }
        if (events != 0) waiting.push_back({c.socket, events, 0});
      }
      if (waiting.empty()) return kSuccess;
      if (stops()) return kSystemError;
      ::poll(waiting.data(), waiting.size(), 20);
    }
  }

  bool stops() {
    const std::scoped_lock lock(mutex_);
    return stop_;
  }

  const int rank_;
  std::vector<Connection> connections_;
  const UniqueId id_;
  int listening_ = -1;
  std::atomic<Status> status_{kInProgress};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false, going_ = false;
  std::thread thread_;  // last: it uses all of the above
};

namespace {

int groups_open = 0;
std::vector<Comm*> comms_of_group;

Status begin_call(Comm* comm, int type, int peer) {
  if (comm == nullptr || type != kBytes || peer < 0 || peer >= comm->ranks()) return kInvalidArgument;
  if (comm->status() != kSuccess) return kInvalidUsage;
  if (std::find(comms_of_group.begin(), comms_of_group.end(), comm) == comms_of_group.end())
    comms_of_group.push_back(comm);
  return kSuccess;
}

Status end_calls() {
  if (groups_open > 0) return kSuccess;
  for (Comm* comm : std::exchange(comms_of_group, {})) comm->go();
  return kInProgress;
}

}  // namespace

extern "C" {

Status ncclGetVersion(int* version) {
  *version = version_code();
  return kSuccess;
}

Status ncclGetUniqueId(UniqueId* id) {
  std::array<unsigned char, 16> random{};
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
    return kSystemError;
  std::string text = "stand-in.";
  for (const unsigned char byte : random) {
    text += static_cast<char>('a' + byte / 16);
    text += static_cast<char>('a' + byte % 16);
  }
  *id = {};
  std::memcpy(id->internal, text.data(), text.size());
  return kSuccess;
}

Status ncclCommInitRankConfig(Comm** comm, int ranks, UniqueId id, int rank, Config* config) {
  if (config->size != sizeof(Config) || config->magic != 0xcafebeef || config->version < 21400 ||
      config->blocking != 0 || rank < 0 || rank >= ranks || std::strncmp(id.internal, "stand-in.", 9) != 0)
    return kInvalidArgument;
  *comm = new Comm(id, ranks, rank);
  return kInProgress;
}

Status ncclCommGetAsyncError(Comm* comm, Status* status) {
  *status = comm->status();
  return kSuccess;
}

Status ncclCommFinalize(Comm* comm) {
  return comm->status() == kSuccess ? kSuccess : kInvalidUsage;
}

Status ncclCommDestroy(Comm* comm) {
  delete comm;
  return kSuccess;
}

Status ncclCommAbort(Comm* comm) {
  delete comm;
  return kSuccess;
}

Status ncclGroupStart() {
  ++groups_open;
  return kSuccess;
}

Status ncclGroupEnd() {
  if (groups_open == 0) return kInvalidUsage;
  --groups_open;
  return end_calls();
}

Status ncclSend(const void* from, std::size_t count, int type, int peer, Comm* comm, void*) {
  if (const Status status = begin_call(comm, type, peer); status != kSuccess) return status;
  if (peer == comm->rank()) return kInvalidArgument;
  comm->to(peer).out.add(from, count);
  return end_calls();
}

Status ncclRecv(void* to, std::size_t count, int type, int peer, Comm* comm, void*) {
  if (const Status status = begin_call(comm, type, peer); status != kSuccess) return status;
  if (peer == comm->rank()) return kInvalidArgument;
  comm->to(peer).in.add(to, count);
  return end_calls();
}

Status ncclAllGather(const void* from, void* to, std::size_t count, int type, Comm* comm, void*) {
  if (const Status status = begin_call(comm, type, 0); status != kSuccess) return status;
  for (int peer = 0; peer < comm->ranks(); ++peer) {
    std::byte* const place = static_cast<std::byte*>(to) + static_cast<std::size_t>(peer) * count;
    if (peer == comm->rank()) {
      if (place != from) std::memcpy(place, from, count);
      continue;
    }
    comm->to(peer).out.add(from, count);
    comm->to(peer).in.add(place, count);
  }
  return end_calls();
}

Status ncclBroadcast(const void* from, void* to, std::size_t count, int type, int root, Comm* comm, void*) {
  if (const Status status = begin_call(comm, type, root); status != kSuccess) return status;
  if (comm->rank() != root) {
    comm->to(root).in.add(to, count);
    return end_calls();
  }
  if (to != from) std::memcpy(to, from, count);
  for (int peer = 0; peer < comm->ranks(); ++peer) {
    if (peer != root) comm->to(peer).out.add(from, count);
  }
  return end_calls();
}

const char* ncclGetErrorString(Status status) {
  switch (status) {
    case kRemoteError:
      return "remote process exited or there was a network error";
    case kInvalidUsage:
      return "invalid usage";
    case kInvalidArgument:
      return "invalid argument";
    default:
      return "system error";
  }
}

const char* ncclGetLastError(Comm*) {
  return "";
}

}  // extern "C"

}  // namespace switchyard::nccl
