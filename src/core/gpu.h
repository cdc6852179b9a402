// The GPU of this process: its presence, its memory, copies, and its streams of work. Process i of a machine,
// in the launcher's numbering (core/local_process.h), uses GPU i of
// those that CUDA shows, modulo their number.
//
// Work runs in the order in which it is issued: kernels, copies and releases of memory go to one stream,
// whichever rank issues them. So ranks of one process that met on the host may read what the others' kernels
// write. Exchanges with other GPUs go to a second stream (OnCommunicationStream); moments order work between
// the two streams. Transfers have a third stream. A build without CUDA has the same functions
// (core/no_cuda/gpu.cc) and reports that there is no GPU.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace switchyard::gpu {

// The reason why this process cannot use a GPU, in one line; empty when it can.
std::string missing();

struct Properties {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;
  int driver_version = 0, runtime_version = 0;  // as CUDA numbers them: 13000 is 13.0
};
Properties properties();

// While alive, work that this thread issues goes to the communication stream, not the computation stream.
class OnCommunicationStream {
 public:
  OnCommunicationStream();
  ~OnCommunicationStream();
  OnCommunicationStream(const OnCommunicationStream&) = delete;
  OnCommunicationStream& operator=(const OnCommunicationStream&) = delete;
  static bool is_on();  // for this thread
};

// Returns at least `bytes` bytes of the GPU's memory, 256-byte aligned, uninitialised. Error(runtime) when
// memory runs out. Allocation is ordered by this thread's stream: a released block may be reused at once on
// the same stream; the other stream must wait before it uses the old or the new block. Free blocks stay with
// this process, by size, until no other memory is left.
std::byte* allocate(std::size_t bytes);
void release(std::byte* block, std::size_t bytes);  // `bytes`: the size passed to allocate()

// Copies from the host to the GPU or back, in the order of this thread's stream. When it returns, the host
// may read `to` and write `from`.
void copy(void* to, const void* from, std::size_t bytes);
// Copies within the GPU's memory, in the order of this thread's stream; returns before the copy is done.
void move(void* to, const void* from, std::size_t bytes);
void fill_zero(void* to, std::size_t bytes);
// The number by which CUDA knows this process's GPU.
int device_index();
// Waits for all work issued to this thread's stream so far. Error(runtime) when a kernel failed.
void synchronize();

// A point in this thread's stream: reached when all work issued before now() is done. On an emulated GPU,
// work is done when issued, and moments use the host's clock. Any thread may query a moment.
class Moment {
 public:
  Moment() = default;  // an empty moment
  static Moment now();
  static Moment now_untimed();  // cheaper; has no seconds_since
  void wait() const;            // blocks until reached. Error(runtime) when a kernel failed
  bool has_come() const;        // has it been reached? The same error
  // Work issued to this thread's stream from now on begins after this moment. Returns at once.
  void hold_stream() const;
  // Both moments must have been reached.
  double seconds_since(const Moment& from) const;

 private:
  std::shared_ptr<void> event_;
};

// Returns pinned memory of the host, which the GPU copies from and to by itself: at least `bytes` bytes,
// 64-byte aligned, uninitialised. Released blocks stay pinned for reuse. Error(runtime) when memory runs out.
std::byte* allocate_host(std::size_t bytes);
void release_host(std::byte* block, std::size_t bytes);  // `bytes`: the size passed to allocate_host()

// A copy between the GPU's memory and pinned memory, on a stream that runs such copies one after the other.
// It begins when all work issued before is done, and overlaps work issued later.
class Transfer {
 public:
  Transfer() = default;  // no transfer
  static Transfer start(void* to, const void* from, std::size_t bytes);
  // Work issued from now on begins after this transfer; no effect when there is no transfer.
  void before_later_work() const;

 private:
  std::shared_ptr<void> event_;
};
// Waits for all transfers: then the host may read and write pinned memory.
void finish_transfers();

// This thread's stream as a CUDA handle (a cudaStream_t).
void* stream();

}  // namespace switchyard::gpu
