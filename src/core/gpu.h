// The GPU of this process: whether there is one, its memory, copies, and its streams of work. Process i of a
// machine, as the launcher counts them (core/local_process.h), has GPU i of those that CUDA shows, or i
// modulo their number.
//
// Work is done in the order in which it is given: kernels, copies and the giving back of memory go to one
// stream, whichever rank gives them. So ranks of one process that met on the host may read what the others'
// kernels write. What is exchanged with other GPUs goes to a second stream (OnCommunicationStream), and
// moments say what one stream waits for of the other. Transfers have a third. A build without CUDA has the
// same functions (core/no_cuda/gpu.cc): there is no GPU then.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace switchyard::gpu {

// What keeps this process from using a GPU, in a line; empty: nothing.
std::string missing();

struct Properties {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;
  int driver_version = 0, runtime_version = 0;  // as CUDA numbers them: 13000 is 13.0
};
Properties properties();

// While it lives, what this thread gives goes to the stream of communication instead of that of computation.
class OnCommunicationStream {
 public:
  OnCommunicationStream();
  ~OnCommunicationStream();
  OnCommunicationStream(const OnCommunicationStream&) = delete;
  OnCommunicationStream& operator=(const OnCommunicationStream&) = delete;
  static bool is_on();  // for this thread
};

// At least `bytes` bytes of the GPU's memory, 256-byte aligned, uninitialised. Error(runtime) when there is
// no memory. Memory is had and given back in the order of this thread's stream: what is released may be had
// again at once by who asks next on the same stream, and the other stream must have waited before it uses
// either. Blocks stay with this process, by size, until there is no other memory left.
std::byte* allocate(std::size_t bytes);
void release(std::byte* block, std::size_t bytes);  // the size it was allocated with

// Copies from the host to the GPU or back, in the order of this thread's stream. Returns when the host may
// read `to` and write `from`.
void copy(void* to, const void* from, std::size_t bytes);
// Within the GPU's memory, in the order of this thread's stream: it returns before it is done.
void move(void* to, const void* from, std::size_t bytes);
void fill_zero(void* to, std::size_t bytes);
// Returns when all work given to this thread's stream so far is done. Error(runtime) when a kernel failed.
void synchronize();

// A moment of this thread's stream: all work given to it before now() is done then. Where a GPU is emulated,
// work is done when it is given, and moments are those of the host's clock. Any thread may ask a moment.
class Moment {
 public:
  Moment() = default;  // no moment
  static Moment now();
  static Moment now_untimed();  // cheaper; it has no seconds_since
  void wait() const;            // until it has come. Error(runtime) when a kernel failed
  bool has_come() const;        // the same error
  // What this thread's stream is given from now on begins after it. Returns at once.
  void hold_stream() const;
  // Both have come.
  double seconds_since(const Moment& from) const;

 private:
  std::shared_ptr<void> event_;
};

// Memory of the host that the GPU copies from and to by itself (pinned), at least `bytes` bytes, 64-byte
// aligned, uninitialised. What is released stays pinned for who asks next. Error(runtime) when there is none.
std::byte* allocate_host(std::size_t bytes);
void release_host(std::byte* block, std::size_t bytes);  // the size it was allocated with

// A copy between the GPU's memory and pinned memory, on a stream for such copies, which come one after the
// other there. It begins when all work given before it is done, and runs beside what is given later.
class Transfer {
 public:
  Transfer() = default;  // none
  static Transfer start(void* to, const void* from, std::size_t bytes);
  // Work given from now on begins after it; without effect of none.
  void before_later_work() const;

 private:
  std::shared_ptr<void> event_;
};
// Returns when all transfers are done: the host may read and write pinned memory.
void finish_transfers();

// This thread's stream, as CUDA knows it (a cudaStream_t).
void* stream();

}  // namespace switchyard::gpu
