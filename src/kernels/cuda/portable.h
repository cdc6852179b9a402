// Names for the parts of GPU kernels that are not C++. One source is compiled twice: by nvcc for a GPU, and
// by the host's compiler for the emulator (emulator/emulator.h), which runs a block's threads as fibers.
// So tests check a kernel's results where there is no GPU.
//
// A kernel is a function `GPU_KERNEL name(...)` of plain arguments; launch() runs it. Inside:
//   thread_index(), block_index(), ...   where this thread stands, in one dimension (blocks also in y and z)
//   GPU_SHARED(T, name, count)           an array of the block, uninitialised
//   GPU_UNROLL, GPU_NO_UNROLL            unrolls the loop that follows, or does not
//   GPU_CONSTANT(T)                      an argument that threads look into by an index
//   dynamic_shared<T>()                  the bytes that launch() was asked for
//   barrier()                            all threads of the block meet
//   shuffle*, any, ballot                all 32 threads of a warp exchange values; all must call
//   atomic_add(int*)                     integers alone, for the order of threads must not change a result
//   load_matrices, multiply_tiles, copy_async, ...   fragments of matrices (tiles.h)
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "core/error.h"
#include "core/gpu.h"
#include "core/stream_log.h"
#include "kernels/cuda/planned.h"

#if defined(__CUDACC__)
#include <cuda_runtime.h>

#include <map>
#include <mutex>
#define GPU_KERNEL __global__ void
// A kernel of blocks of so many threads, one to a multiprocessor, and so many blocks to a cluster. Older GPUs
// have no clusters, and never run it.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define GPU_CLUSTER_KERNEL(threads, cluster) \
  __global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(threads, 1)
#else
#define GPU_CLUSTER_KERNEL(threads, cluster) __global__ void __launch_bounds__(threads, 1)
#endif
#define GPU_BLOCK_KERNEL(threads) __global__ void __launch_bounds__(threads, 1)
#define GPU_FUNCTION __device__ inline
#define GPU_HOST_FUNCTION __host__ __device__ inline
#define GPU_CONSTANT(type) const __grid_constant__ type
#define GPU_SHARED(type, name, count) __shared__ type name[count]
#define GPU_UNROLL _Pragma("unroll")
#define GPU_NO_UNROLL _Pragma("unroll 1")
#else
#include "emulator/emulator.h"
#define GPU_KERNEL void
#define GPU_CLUSTER_KERNEL(threads, cluster) void
#define GPU_BLOCK_KERNEL(threads) void
#define GPU_FUNCTION inline
#define GPU_HOST_FUNCTION inline
#define GPU_CONSTANT(type) const type
#define GPU_UNROLL
#define GPU_NO_UNROLL
// An address that no other declaration has tells the emulator which array it is.
#define GPU_SHARED(type, name, count)    \
  static const char place_of_##name = 0; \
  type* const name = static_cast<type*>( \
      ::switchyard::gpu::emulator::shared_array(&place_of_##name, sizeof(type) * (count)))
#endif

namespace switchyard::gpu {

constexpr int kWarp = 32;

// How a kernel is run: blocks in three dimensions, threads of each, and bytes of dynamic shared memory.
struct Launch {
  std::int64_t blocks = 1;
  int threads = 256;
  std::size_t shared_bytes = 0;
  int blocks_y = 1, blocks_z = 1;
  int cluster = 1;  // as the kernel declares it (GPU_CLUSTER_KERNEL)
};

// Around the start of a kernel: counts it (kernels.h: launches) and notes it where the thread's StreamLog is.
class Started {
 public:
  Started();
  ~Started();
  Started(const Started&) = delete;
  Started& operator=(const Started&) = delete;

 private:
  StreamLog* const log_;
};

inline std::int64_t divide_up(std::int64_t x, std::int64_t by) {
  return (x + by - 1) / by;
}

#if defined(__CUDACC__)

GPU_FUNCTION int thread_index() {
  return static_cast<int>(threadIdx.x);
}
GPU_FUNCTION int thread_count() {
  return static_cast<int>(blockDim.x);
}
GPU_FUNCTION std::int64_t block_index() {
  return blockIdx.x;
}
GPU_FUNCTION std::int64_t block_count() {
  return gridDim.x;
}
GPU_FUNCTION int block_index_y() {
  return static_cast<int>(blockIdx.y);
}
GPU_FUNCTION int block_index_z() {
  return static_cast<int>(blockIdx.z);
}
template <typename T>
GPU_FUNCTION T* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char dynamic_shared_bytes[];
  return reinterpret_cast<T*>(dynamic_shared_bytes);
}
GPU_FUNCTION void barrier() {
  __syncthreads();
}
GPU_FUNCTION void warp_barrier() {
  __syncwarp();
}
template <typename T>
GPU_FUNCTION T shuffle(T value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
template <typename T>
GPU_FUNCTION T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
// The value of the lane `by` below; of a lane that has none below, its own.
template <typename T>
GPU_FUNCTION T shuffle_up(T value, int by) {
  return __shfl_up_sync(0xffffffffu, value, by);
}
GPU_FUNCTION std::uint32_t ballot(bool value) {
  return __ballot_sync(0xffffffffu, value);
}
GPU_FUNCTION int bits_set(std::uint32_t x) {
  return __popc(x);
}
GPU_FUNCTION int first_bit(std::uint32_t x) {  // that is set
  return __ffs(static_cast<int>(x)) - 1;
}
GPU_FUNCTION std::int32_t atomic_add(std::int32_t* to, std::int32_t value) {
  return atomicAdd(to, value);
}
GPU_FUNCTION std::uint32_t bits_of(float x) {
  return __float_as_uint(x);
}
GPU_FUNCTION float float_of_bits(std::uint32_t x) {
  return __uint_as_float(x);
}
// x + y, where x may be a product: it is rounded before.
GPU_FUNCTION float rounded_sum(float x, float y) {
  return __fadd_rn(x, y);
}

// Lets the kernel have so many bytes of dynamic shared memory. To ask CUDA each time takes
// as long as to start.
inline void allow_shared(const void* kernel, std::size_t bytes) {
  static std::mutex mutex;
  static std::map<const void*, std::size_t> allowed;
  const std::lock_guard lock(mutex);
  std::size_t& most = allowed[kernel];
  if (bytes <= most) return;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  most = bytes;
}

// Runs kernel(args...) on the stream. Without blocks, and where a GPU is only planned for, nothing is done.
template <typename... Parameters, typename... Args>
void launch(const Launch& how, void (*kernel)(Parameters...), Args... args) {
  if (how.blocks <= 0 || how.blocks_y <= 0 || how.blocks_z <= 0 || PlannedGpu::skips(1)) return;
  constexpr std::size_t kSharedUnasked = 40 * 1024;  // of 48 KB, arrays of the kernel's own beside it
  if (how.shared_bytes > kSharedUnasked)
    allow_shared(reinterpret_cast<const void*>(kernel), how.shared_bytes);
  const Started started;
  const dim3 blocks(static_cast<unsigned>(how.blocks), static_cast<unsigned>(how.blocks_y),
                    static_cast<unsigned>(how.blocks_z));
  kernel<<<blocks, static_cast<unsigned>(how.threads), how.shared_bytes,
           static_cast<cudaStream_t>(stream())>>>(static_cast<Parameters>(args)...);
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess)
    fail_runtime("[cuda] a kernel of {} x {} x {} blocks of {} threads cannot start: {}", how.blocks,
                 how.blocks_y, how.blocks_z, how.threads, cudaGetErrorString(status));
}

#else

inline int thread_index() {
  return emulator::here().thread;
}
inline int thread_count() {
  return emulator::here().threads;
}
inline std::int64_t block_index() {
  return emulator::here().block;
}
inline std::int64_t block_count() {
  return emulator::here().blocks;
}
inline int block_index_y() {
  return emulator::here().block_y;
}
inline int block_index_z() {
  return emulator::here().block_z;
}
template <typename T>
T* dynamic_shared() {
  return static_cast<T*>(emulator::here().dynamic_shared);
}
inline void barrier() {
  emulator::barrier();
}
inline void warp_barrier() {
  emulator::exchange(nullptr, 0);
}
// The value of lane `from(own lane)`.
template <typename T>
T shuffle(T value, int lane) {
  static_assert(sizeof(T) <= emulator::kExchangeBytes);
  return *static_cast<const T*>(emulator::exchange(&value, sizeof(T), lane & (kWarp - 1)));
}
template <typename T>
T shuffle_xor(T value, int mask) {
  return shuffle(value, (thread_index() & (kWarp - 1)) ^ mask);
}
template <typename T>
T shuffle_up(T value, int by) {
  const int lane = thread_index() & (kWarp - 1);
  return shuffle(value, lane >= by ? lane - by : lane);
}
inline std::uint32_t ballot(bool value) {
  std::uint32_t mine = value ? 1 : 0, all = 0;
  emulator::exchange(&mine, sizeof(mine));
  for (int lane = 0; lane < kWarp; ++lane)
    all |= *static_cast<const std::uint32_t*>(emulator::exchanged(lane)) << lane;
  return all;
}
inline int bits_set(std::uint32_t x) {
  return std::popcount(x);
}
inline int first_bit(std::uint32_t x) {
  return std::countr_zero(x);
}
inline std::int32_t atomic_add(std::int32_t* to, std::int32_t value) {
  const std::int32_t before = *to;
  *to += value;
  return before;
}
inline std::uint32_t bits_of(float x) {
  return std::bit_cast<std::uint32_t>(x);
}
inline float float_of_bits(std::uint32_t x) {
  return std::bit_cast<float>(x);
}
inline float rounded_sum(float x, float y) {
  return x + y;
}

template <typename... Parameters, typename... Args>
void launch(const Launch& how, void (*kernel)(Parameters...), Args... args) {
  if (how.blocks <= 0 || how.blocks_y <= 0 || how.blocks_z <= 0 || PlannedGpu::skips(1)) return;
  const Started started;
  int number = 0;
  [[maybe_unused]] const auto check = [&number](auto argument) {
#if defined(__has_builtin) && __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&argument);  // what lies there by chance is no address
#endif
    emulator::check_argument(++number, &argument, sizeof(argument));
  };
  (check(args), ...);
  emulator::run({.blocks = how.blocks,
                 .blocks_y = how.blocks_y,
                 .blocks_z = how.blocks_z,
                 .threads = how.threads,
                 .shared_bytes = how.shared_bytes,
                 .cluster = how.cluster},
                [kernel, args...] { kernel(static_cast<Parameters>(args)...); });
}

#endif

// ---- Elements

GPU_FUNCTION float to_float(float x) {
  return x;
}
GPU_FUNCTION float to_float(bfloat16 x) {
  return float_of_bits(static_cast<std::uint32_t>(x.bits) << 16);
}

// Rounded to nearest even, as bfloat16(float) of the host.
template <typename T>
GPU_FUNCTION T from_float(float x);
template <>
GPU_FUNCTION float from_float<float>(float x) {
  return x;
}
template <>
GPU_FUNCTION bfloat16 from_float<bfloat16>(float x) {
  std::uint32_t word = bits_of(x);
  if ((word & 0x7fffffffu) > 0x7f800000u)
    word |= 0x400000u;  // a NaN stays one
  else
    word += 0x7fffu + ((word >> 16) & 1u);
  bfloat16 result;
  result.bits = static_cast<std::uint16_t>(word >> 16);
  return result;
}

// `count` neighbours that are read or written at once, where their address is a multiple of their size.
template <typename T, int count>
struct alignas(sizeof(T) * count) Vector {
  T at[count];
};

// ---- Sums, in an order that depends on nothing but the sizes

template <typename T>
GPU_FUNCTION T warp_sum(T x) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}
GPU_FUNCTION float warp_max(float x) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const float other = shuffle_xor(x, mask);
    x = other > x ? other : x;
  }
  return x;
}

// Returns the block's sum to all its threads, which must all call. `scratch`: thread_count() / 32 elements.
template <typename T>
GPU_FUNCTION T block_sum(T x, T* scratch) {
  x = warp_sum(x);
  barrier();  // who reads the sum before this one has read it
  if (thread_index() % kWarp == 0) scratch[thread_index() / kWarp] = x;
  barrier();
  T sum = 0;
  for (int i = 0; i < thread_count() / kWarp; ++i) sum += scratch[i];
  return sum;
}

// Calls body(T()) with T float or bfloat16.
template <typename Body>
void with_float_type(DType dtype, const Body& body) {
  CHECK(is_float(dtype), "elements of {}", name_of(dtype));
  dtype == DType::f32 ? body(float()) : body(bfloat16());
}

}  // namespace switchyard::gpu
