// The GPU by way of CUDA's runtime, which is linked statically: the program starts where there is no driver.
#include "core/gpu.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdint>

#include "core/error.h"

namespace switchyard::gpu {
namespace {

void require(cudaError_t status, const char* what) {
  if (status != cudaSuccess) fail_runtime("[cuda] {}: {}", what, cudaGetErrorString(status));
}

// The first device, and what this process has of it. Never destroyed: threads may release memory until the
// end.
struct Gpu {
  Gpu() {
    require(cudaSetDevice(0), "cannot use the GPU");
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cannot make a stream");
    require(cudaDeviceGetDefaultMemPool(&pool, 0), "cannot get the memory pool");
    std::uint64_t keep = UINT64_MAX;  // what is released stays in the pool
    require(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "cannot set up the pool");
  }
  cudaStream_t stream = nullptr;
  cudaMemPool_t pool = nullptr;
};

Gpu& the_gpu() {
  static Gpu* const instance = new Gpu;
  return *instance;
}

std::string find_missing() {
  int devices = 0, driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    return "this machine has no NVIDIA driver (libcuda.so.1)";
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess) return fmt::format("CUDA cannot start: {}", cudaGetErrorString(status));
  return devices == 0 ? "this machine has no NVIDIA GPU" : "";
}

}  // namespace

std::string missing() {
  static const std::string text = find_missing();
  return text;
}

Properties properties() {
  cudaDeviceProp found{};
  require(cudaGetDeviceProperties(&found, 0), "cannot ask for the GPU's properties");
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
  void* block = nullptr;
  const cudaError_t status = cudaMallocAsync(&block, bytes == 0 ? 1 : bytes, the_gpu().stream);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    std::size_t free = 0, all = 0;
    require(cudaMemGetInfo(&free, &all), "cannot ask for the GPU's memory");
    fail_runtime("[memory] the GPU has no {} bytes left: {} of {} are free", bytes, free, all);
  }
  require(status, "cannot allocate");
  return static_cast<std::byte*>(block);
}

void release(std::byte* block) {
  // At the end of the process the driver may be gone, and the memory with it.
  static_cast<void>(cudaFreeAsync(block, the_gpu().stream));
}

void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, the_gpu().stream), "cannot copy");
  synchronize();
}

void move(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0)
    require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, the_gpu().stream), "cannot copy");
}

void fill_zero(void* to, std::size_t bytes) {
  if (bytes > 0) require(cudaMemsetAsync(to, 0, bytes, the_gpu().stream), "cannot fill");
}

void synchronize() {
  require(cudaStreamSynchronize(the_gpu().stream), "a kernel failed");
}

Moment Moment::now() {
  cudaEvent_t event = nullptr;
  require(cudaEventCreate(&event), "cannot make an event");
  Moment moment;
  moment.event_ = std::shared_ptr<void>(
      event, [](void* made) { static_cast<void>(cudaEventDestroy(static_cast<cudaEvent_t>(made))); });
  require(cudaEventRecord(event, the_gpu().stream), "cannot record an event");
  return moment;
}

void Moment::wait() const {
  require(cudaEventSynchronize(static_cast<cudaEvent_t>(event_.get())), "a kernel failed");
}

double Moment::seconds_since(const Moment& from) const {
  float milliseconds = 0;
  require(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(from.event_.get()),
                               static_cast<cudaEvent_t>(event_.get())),
          "cannot time the stream");
  return milliseconds * 1e-3;
}

void* stream() {
  return the_gpu().stream;
}

}  // namespace switchyard::gpu
