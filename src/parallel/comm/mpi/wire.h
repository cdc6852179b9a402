// Wire: bytes between the processes of an MPI job, and nothing else. No call blocks.
//
// All calls of MPI happen under one mutex, so that any thread may make them (MPI_THREAD_SERIALIZED). Progress
// is made by whoever asks for it: each test of a transfer moves everybody's bytes.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

namespace switchyard {

// Sends and receives on their way, tested together. Their buffers must live until all are done, or until the
// process ends.
class Transfers {
 public:
  void clear() {
    requests_.clear();
    ranks_.clear();
  }
  // The other ranks of those that are not done, ascending.
  std::vector<int> pending() const;

 private:
  friend class Wire;
  std::vector<MPI_Request> requests_;
  std::vector<int> ranks_;  // the other rank of each request
  std::vector<int> finished_;
};

// A short message that may come at any time.
struct News {
  enum class Kind : std::int32_t { fault, stalled, resumed, ending };
  Kind kind = Kind::fault;
  std::int32_t process = 0;
  std::int32_t rank = -1;    // who says so; -1 for the process
  std::int32_t channel = 0;  // which of its threads waits
  std::int32_t status = 1;   // exit status of a fault
  std::int32_t late = 0;     // stalled: past the deadline, not only asked because another rank is
  std::int32_t missing = 0;  // stalled: how many of `ranks` are given
  std::int32_t ranks[64] = {};
  char text[700] = {};
};

// What processes tell each other at the start.
struct ProcessInfo {
  char host[112] = {};   // boot and process namespace: processes with the same can see each other
  char cores[128] = {};  // the affinity mask
  std::int64_t pid = 0;
};

class Wire {
 public:
  // Joins the job. Error(usage) when MPI does not know the processes that the launcher started.
  explicit Wire(int launched_processes);
  // Does nothing more unless close() came before: a failed process just ends.
  ~Wire() = default;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;
  void
  close();  // waits, without a deadline, until all processes close; tell() and hear() do nothing from then on

  int process() const { return process_; }
  int processes() const { return processes_; }
  bool any_thread() const { return any_thread_; }  // false: only the thread that made the wire may use it
  const std::vector<ProcessInfo>& infos() const { return infos_; }
  int sharing() const;  // how many processes, with this one, may use the same cores

  // The other end of a transfer: `rank` is its name in messages.
  struct Peer {
    int process;
    int tag;
    int rank;
  };
  // Transfers between two processes with the same tag arrive in the order of their sends. Both sides give the
  // same number of bytes; zero bytes are no transfer.
  void send(Transfers& transfers, const Peer& peer, const void* data, std::int64_t bytes);
  void receive(Transfers& transfers, const Peer& peer, void* data, std::int64_t bytes);
  // True when all are done. `progress` becomes true when one of them finished just now.
  bool test(Transfers& transfers, bool& progress);

  void tell(int process, const News& news);
  bool hear(News& news);  // false when there is none
  bool push();            // moves what tell() left behind; true when all of it is on its way

 private:
  void exchange_infos();
  void listen();

  std::mutex mutex_;
  bool closed_ = false;
  int process_ = 0, processes_ = 1;
  bool any_thread_ = false;
  MPI_Comm data_ = MPI_COMM_NULL, talk_ = MPI_COMM_NULL;
  std::vector<ProcessInfo> infos_;
  News incoming_;
  MPI_Request listening_ = MPI_REQUEST_NULL;
  std::deque<News> told_;  // kept: a send may read them for as long as the process lives
  std::vector<MPI_Request> telling_;
};

}  // namespace switchyard
