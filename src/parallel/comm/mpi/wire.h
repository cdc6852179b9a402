// Wire: sends and receives bytes between the processes of an MPI job. No call blocks.
//
// All calls of MPI are made under one mutex, so any thread may make them (MPI_THREAD_SERIALIZED). Transfers
// progress only while some thread tests: each test of a transfer moves the bytes of all transfers.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

namespace switchyard {

// Sends and receives in flight, tested together. Their buffers must live until all are done,
// or until the process ends.
class Transfers {
 public:
  void clear() {
    requests_.clear();
    ranks_.clear();
  }
  // The peers of unfinished transfers, ascending.
  std::vector<int> pending() const;

 private:
  friend class Wire;
  std::vector<MPI_Request> requests_;
  std::vector<int> ranks_;  // the other rank of each request
  std::vector<int> finished_;
};

// A short message that may arrive at any time.
struct News {
  enum class Kind : std::int32_t { fault, stalled, resumed, ending };
  Kind kind = Kind::fault;
  std::int32_t process = 0;
  std::int32_t rank = -1;    // the sender; -1 for the process
  std::int32_t channel = 0;  // the waiting thread's channel
  std::int32_t status = 1;   // exit status of a fault
  std::int32_t late = 0;     // stalled: past the deadline, not only asked by a rank that is
  std::int32_t missing = 0;  // stalled: number of valid entries in `ranks`
  std::int32_t ranks[64] = {};
  char text[700] = {};
};

// The data that processes exchange at the start.
struct ProcessInfo {
  char host[112] = {};   // boot and process namespace: equal for processes that can see each other
  char cores[128] = {};  // the affinity mask
  std::int64_t pid = 0;
  std::int64_t start = 0;  // milliseconds since 1970
};

class Wire {
 public:
  // Joins the job. Error(usage) when MPI does not know the processes that the launcher started.
  explicit Wire(int launched_processes);
  // Does nothing if close() was not called: a failed process just ends.
  ~Wire() = default;
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;
  void
  close();  // waits, without a deadline, until all processes close; afterwards tell() and hear() do nothing

  int process() const { return process_; }
  int processes() const { return processes_; }
  bool any_thread() const { return any_thread_; }  // false: only the thread that created the wire may use it
  const std::vector<ProcessInfo>& infos() const { return infos_; }
  int sharing() const;  // number of processes, this one included, that may use the same cores

  // The other end of a transfer; messages call it `rank`.
  struct Peer {
    int process;
    int tag;
    int rank;
  };
  // Transfers between two processes with the same tag arrive in the order of their sends. Both sides pass the
  // same number of bytes; zero bytes make no transfer.
  void send(Transfers& transfers, const Peer& peer, const void* data, std::int64_t bytes);
  void receive(Transfers& transfers, const Peer& peer, void* data, std::int64_t bytes);
  // True when all are done. Sets `progress` to true when one of them finished in this call.
  bool test(Transfers& transfers, bool& progress);

  void tell(int process, const News& news);
  bool hear(News& news);  // false when there is no message
  bool push();            // sends the rest of what tell() queued; true when all is in flight

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
  std::deque<News> told_;  // kept: a send may read them until the process ends
  std::vector<MPI_Request> telling_;
};

}  // namespace switchyard
