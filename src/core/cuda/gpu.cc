// The GPU by CUDA's runtime, which is linked statically: the program also starts where there is no driver.
#include "core/gpu.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>

#include "core/cuda/streams.h"
#include "core/error.h"
#include "core/free_blocks.h"
#include "core/graph_recording.h"
#include "core/local_process.h"

namespace switchyard::gpu {
namespace {

void require(cudaError_t status, const char* what) {
  if (status != cudaSuccess) fail_runtime("[cuda] {}: {}", what, cudaGetErrorString(status));
}

// Modules are loaded when their first kernel is: the program has hundreds, and a run starts a few dozen. CUDA
// reads the variable at its first call; what the user has set stays.
void load_modules_lazily() {
  static const bool set = ::setenv("CUDA_MODULE_LOADING", "LAZY", 0) == 0;
  static_cast<void>(set);
}

// Which device a call means is a matter of the thread that makes it.
void choose_device() {
  static thread_local const bool chosen = [] {
    require(cudaSetDevice(device_index()), "cannot use the GPU");
    return true;
  }();
  static_cast<void>(chosen);
}

// Gpu: this process's streams and pool of its device. Nobody destroys it:
// threads may release memory until the end.
struct Gpu {
  Gpu() {
    require(cudaStreamCreateWithFlags(&computation, cudaStreamNonBlocking), "cannot make a stream");
    // Other GPUs wait for what is sent: its kernels go first where blocks of both wait for a multiprocessor.
    int least = 0, greatest = 0;
    require(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cannot ask for priorities");
    require(cudaStreamCreateWithPriority(&communication, cudaStreamNonBlocking, greatest),
            "cannot make a stream");
    require(cudaStreamCreateWithFlags(&transfers, cudaStreamNonBlocking), "cannot make a stream for copies");
    require(cudaDeviceGetDefaultMemPool(&pool, device_index()), "cannot get the memory pool");
    std::uint64_t keep = UINT64_MAX;  // what is released stays in the pool
    require(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "cannot set up the pool");
  }
  cudaStream_t computation = nullptr, communication = nullptr, transfers = nullptr;
  cudaMemPool_t pool = nullptr;
  FreeBlocks computation_blocks, communication_blocks;  // that were released on the stream
};

Gpu& the_gpu() {
  choose_device();
  static Gpu* const instance = new Gpu;
  return *instance;
}

cudaStream_t own_stream() {
  const Gpu& gpu = the_gpu();
  return OnCommunicationStream::is_on() ? gpu.communication : gpu.computation;
}

FreeBlocks& own_blocks(Gpu& gpu) {
  return OnCommunicationStream::is_on() ? gpu.communication_blocks : gpu.computation_blocks;
}

cudaEvent_t event_of(const std::shared_ptr<void>& event) {
  return static_cast<cudaEvent_t>(event.get());
}

std::shared_ptr<void> recorded_event(cudaStream_t stream, unsigned flags) {
  cudaEvent_t event = nullptr;
  require(cudaEventCreateWithFlags(&event, flags), "cannot make an event");
  std::shared_ptr<void> kept(
      event, [](void* made) { static_cast<void>(cudaEventDestroy(static_cast<cudaEvent_t>(made))); });
  require(cudaEventRecord(event, stream), "cannot record an event");
  return kept;
}

// Orders two streams: work given to `later` from now on begins after all work given to `earlier` so far.
void put_after(cudaStream_t later, cudaStream_t earlier) {
  const std::shared_ptr<void> now = recorded_event(earlier, cudaEventDisableTiming);
  require(cudaStreamWaitEvent(later, event_of(now)), "cannot order streams");
}

// Pinned blocks that nobody has. Never destroyed, as the GPU.
FreeBlocks& pinned_blocks() {
  static FreeBlocks* const instance = new FreeBlocks;
  return *instance;
}
std::size_t pinned_size(std::size_t bytes) {
  return FreeBlocks::rounded(bytes, std::size_t{64} << 10);
}

std::size_t block_size(std::size_t bytes) {
  return FreeBlocks::rounded(bytes, 512);
}

// Gives all that nobody has back to the driver, so that it can make larger blocks of it.
void give_blocks_back(Gpu& gpu) {
  for (std::byte* block : gpu.computation_blocks.take_all())
    require(cudaFreeAsync(block, gpu.computation), "cannot give memory back");
  for (std::byte* block : gpu.communication_blocks.take_all())
    require(cudaFreeAsync(block, gpu.communication), "cannot give memory back");
  require(cudaStreamSynchronize(gpu.computation), "a kernel failed");
  require(cudaStreamSynchronize(gpu.communication), "a kernel failed");
}

// A block that a graph being recorded may keep: memory that is allocated on a captured stream would live in
// the graph alone.
cudaError_t allocate_outside_capture(void** block, std::size_t size) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  require(cudaThreadExchangeStreamCaptureMode(&mode), "cannot leave the capture's mode");
  const cudaError_t status = cudaMalloc(block, size);
  require(cudaThreadExchangeStreamCaptureMode(&mode), "cannot return to the capture's mode");
  return status;
}

cudaError_t allocate_block(void** block, std::size_t size) {
  if (GraphRecording::of_thread() != nullptr) return allocate_outside_capture(block, size);
  return cudaMallocAsync(block, size, own_stream());
}

std::string find_missing() {
  load_modules_lazily();
  int devices = 0, driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    return "this machine has no NVIDIA driver (libcuda.so.1)";
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess) return fmt::format("CUDA cannot start: {}", cudaGetErrorString(status));
  return devices == 0 ? "this machine has no NVIDIA GPU" : "";
}

}  // namespace

int device_index() {
  static const int index = [] {
    load_modules_lazily();
    int devices = 0;
    require(cudaGetDeviceCount(&devices), "cannot count the GPUs");
    if (devices == 0) fail_runtime("[cuda] this machine has no NVIDIA GPU");
    return local_process() % devices;
  }();
  return index;
}

std::string missing() {
  static const std::string text = find_missing();
  return text;
}

Properties properties() {
  cudaDeviceProp found{};
  require(cudaGetDeviceProperties(&found, device_index()), "cannot ask for the GPU's properties");
  Properties result{.name = found.name,
                    .major = found.major,
                    .minor = found.minor,
                    .multiprocessors = found.multiProcessorCount,
                    .memory_bytes = found.totalGlobalMem};
  require(cudaDriverGetVersion(&result.driver_version), "cannot ask for the driver's version");
  require(cudaRuntimeGetVersion(&result.runtime_version), "cannot ask for the runtime's version");
  return result;
}

std::byte* allocate(std::size_t bytes) {
  Gpu& gpu = the_gpu();
  const std::size_t size = block_size(bytes);
  if (std::byte* const block = own_blocks(gpu).take(size)) return block;
  void* block = nullptr;
  cudaError_t status = allocate_block(&block, size);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    forbid_in_graph("more memory than the GPU has free");
    give_blocks_back(gpu);
    status = allocate_block(&block, size);
  }
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    std::size_t free = 0, all = 0;
    require(cudaMemGetInfo(&free, &all), "cannot ask for the GPU's memory");
    fail_runtime("[memory] the GPU has no {} bytes left: {} of {} are free", bytes, free, all);
  }
  require(status, "cannot allocate");
  return static_cast<std::byte*>(block);
}

void release(std::byte* block, std::size_t bytes) {
  own_blocks(the_gpu()).give(block, block_size(bytes));
}

void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  forbid_in_graph("a copy to the host or from it");
  require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, own_stream()), "cannot copy");
  synchronize();
}

void move(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0)
    require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, own_stream()), "cannot copy");
}

void fill_zero(void* to, std::size_t bytes) {
  if (bytes > 0) require(cudaMemsetAsync(to, 0, bytes, own_stream()), "cannot fill");
}

void synchronize() {
  forbid_in_graph("a wait for the stream");
  require(cudaStreamSynchronize(own_stream()), "a kernel failed");
}

Moment Moment::now() {
  Moment moment;
  moment.event_ = recorded_event(own_stream(), cudaEventDefault);
  return moment;
}

Moment Moment::now_untimed() {
  Moment moment;
  moment.event_ = recorded_event(own_stream(), cudaEventDisableTiming);
  return moment;
}

void Moment::wait() const {
  forbid_in_graph("a wait for a moment");
  require(cudaEventSynchronize(event_of(event_)), "a kernel failed");
}

bool Moment::has_come() const {
  forbid_in_graph("a question whether a moment has come");
  choose_device();
  const cudaError_t status = cudaEventQuery(event_of(event_));
  if (status == cudaErrorNotReady) return false;
  require(status, "a kernel failed");
  return true;
}

void Moment::hold_stream() const {
  require(cudaStreamWaitEvent(own_stream(), event_of(event_)), "cannot wait for an event");
}

double Moment::seconds_since(const Moment& from) const {
  float milliseconds = 0;
  require(cudaEventElapsedTime(&milliseconds, event_of(from.event_), event_of(event_)),
          "cannot time the stream");
  return milliseconds * 1e-3;
}

std::byte* allocate_host(std::size_t bytes) {
  const std::size_t size = pinned_size(bytes);
  if (std::byte* const block = pinned_blocks().take(size)) return block;
  choose_device();
  forbid_in_graph("an allocation of pinned memory");
  void* block = nullptr;
  const cudaError_t status = cudaHostAlloc(&block, size, cudaHostAllocDefault);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    fail_runtime("[memory] the host has no {} bytes of pinned memory left", size);
  }
  require(status, "cannot allocate pinned memory");
  return static_cast<std::byte*>(block);
}

void release_host(std::byte* block, std::size_t bytes) {
  pinned_blocks().give(block, pinned_size(bytes));
}

Transfer Transfer::start(void* to, const void* from, std::size_t bytes) {
  forbid_in_graph("a transfer to the host or from it");
  const Gpu& gpu = the_gpu();
  put_after(gpu.transfers, gpu.computation);
  if (bytes > 0) require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, gpu.transfers), "cannot copy");
  Transfer transfer;
  transfer.event_ = recorded_event(gpu.transfers, cudaEventDisableTiming);
  return transfer;
}

void Transfer::before_later_work() const {
  if (event_ == nullptr) return;
  require(cudaStreamWaitEvent(the_gpu().computation, event_of(event_)), "cannot order streams");
}

void finish_transfers() {
  forbid_in_graph("a wait for transfers");
  require(cudaStreamSynchronize(the_gpu().transfers), "a copy between GPU and host failed");
}

void* stream() {
  return own_stream();
}

Streams streams() {
  const Gpu& gpu = the_gpu();
  return {gpu.computation, gpu.communication, gpu.transfers};
}

}  // namespace switchyard::gpu
