// Hopper's copy engine (PTX ISA: cp.async.bulk.tensor), the barriers in shared memory that say what has come
// (mbarrier), clusters of blocks, and how many registers a thread has.
#pragma once

#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.h"

namespace switchyard::gpu {

#if defined(__CUDACC__)
#if defined(GPU_HAS_WGMMA) || !defined(__CUDA_ARCH__)

// The number of this block in its cluster.
GPU_FUNCTION int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of the cluster meet.
GPU_FUNCTION void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// A phase of the barrier in shared memory ends when so many arrivals have come, and the bytes that they said.
GPU_FUNCTION void init_barrier(std::uint64_t* at, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(at)), "r"(arrivals) : "memory");
}
// One arrival, after which `bytes` must come until the phase ends.
GPU_FUNCTION void expect_bytes(std::uint64_t* at, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(at)), "r"(bytes)
               : "memory");
}
// Until the phase of this parity has ended; of a barrier that has just begun, the one of parity 1 has.
GPU_FUNCTION void wait_for_phase(std::uint64_t* at, std::uint32_t parity) {
  std::uint32_t ended = 0;
  while (ended == 0) {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(ended)
        : "r"(shared_address(at)), "r"(parity)
        : "memory");
  }
}
// One arrival at the barrier at this address of block `rank` of the cluster. What tensor cores have read
// needs no fence; one of the whole cluster, which `.release.cluster` is, takes longer than a step.
GPU_FUNCTION void arrive_at(std::uint64_t* at, int rank) {
  asm volatile(
      "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
      "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(shared_address(at)),
      "r"(rank)
      : "memory");
}
// Starts to copy the box that begins at (x, y, z), and tells `barrier` of its bytes. Each block of the
// cluster whose bit `blocks` has gets the box at the same place, and its barrier is told. 0: this block.
GPU_FUNCTION void copy_box(void* to, const TensorMap& map, std::int64_t x, std::int64_t y, std::int64_t z,
                           std::uint64_t* barrier, std::uint16_t blocks) {
  const auto i = static_cast<int>(x), j = static_cast<int>(y), k = static_cast<int>(z);
  if (blocks != 0)
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], "
        "[%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
        "l"(&map.map), "r"(i), "r"(j), "r"(k), "r"(shared_address(barrier)), "h"(blocks)
        : "memory");
  else
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
        "%4}], "
        "[%5];" ::"r"(shared_address(to)),
        "l"(&map.map), "r"(i), "r"(j), "r"(k), "r"(shared_address(barrier))
        : "memory");
}

// Starts to copy the box of a tensor of four dims, for this block alone.
GPU_FUNCTION void copy_box(void* to, const TensorMap& map, std::int64_t x, std::int64_t y, std::int64_t z,
                           std::int64_t w, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
      "%5}], [%6];" ::"r"(shared_address(to)),
      "l"(&map.map), "r"(static_cast<int>(x)), "r"(static_cast<int>(y)), "r"(static_cast<int>(z)),
      "r"(static_cast<int>(w)), "r"(shared_address(barrier))
      : "memory");
}
// Starts to copy so many bytes, a multiple of 16, from and to multiples of 16, and tells `barrier` of them.
GPU_FUNCTION void copy_bytes(void* to, const void* from, std::uint32_t bytes, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// Starts to store the box from shared memory, which show_to_tensor_cores() must have shown. What of it is
// outside of the tensor is left out.
GPU_FUNCTION void store_box(const TensorMap& map, const void* from, std::int64_t x, std::int64_t y,
                            std::int64_t z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map.map),
      "r"(static_cast<int>(x)), "r"(static_cast<int>(y)), "r"(static_cast<int>(z)), "r"(shared_address(from))
      : "memory");
}
GPU_FUNCTION void store_box(const TensorMap& map, const void* from, std::int64_t x, std::int64_t y,
                            std::int64_t z, std::int64_t w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(&map.map),
      "r"(static_cast<int>(x)), "r"(static_cast<int>(y)), "r"(static_cast<int>(z)), "r"(static_cast<int>(w)),
      "r"(shared_address(from))
      : "memory");
}
// Starts to add `count` numbers of shared memory, a multiple of 4, to those in the GPU's memory. The order of
// additions by several threads is not told: they must see to it.
GPU_FUNCTION void add_floats(float* to, const float* from, std::int64_t count) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(static_cast<int>(count * 4))
               : "memory");
}
// Starts to store `count` numbers, a multiple of 4, of shared memory.
GPU_FUNCTION void store_floats(float* to, const float* from, std::int64_t count) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(static_cast<int>(count * 4))
               : "memory");
}
// Ends a group: all that this thread stored and added since the last call.
GPU_FUNCTION void end_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until no more than the last `left` groups of this thread are on their way; `read`: until shared memory has
// been read for all others.
template <int left, bool read>
GPU_FUNCTION void wait_for_stores() {
  if constexpr (read)
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(left) : "memory");
  else
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(left) : "memory");
}

// One arrival at a barrier of this block.
GPU_FUNCTION void arrive(std::uint64_t* at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(at)) : "memory");
}

// Until the number in the GPU's memory is `value`. Blocks that raise it must have started before this one.
GPU_FUNCTION void wait_for_number(const std::int32_t* at, std::int32_t value) {
  std::int32_t now;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(at) : "memory");
  } while (now != value);
  // Copies that this thread starts later see what the other blocks stored.
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
// Raises the number by one, after what this thread stored and added and has waited for.
GPU_FUNCTION void raise_number(std::int32_t* at) {
  asm volatile("fence.proxy.async.global;\nred.release.gpu.global.add.s32 [%0], 1;" ::"l"(at) : "memory");
}

// The cluster sees barriers that init_barrier() made after its next meeting.
GPU_FUNCTION void show_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// So many threads of the block meet; `id`: 1 to 15, of those who meet.
GPU_FUNCTION void named_barrier(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// This thread counts among the `threads` of the named barrier, and does not wait for them.
GPU_FUNCTION void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// The threads of this warpgroup have so many registers from now on, fewer or more than before.
template <int count>
GPU_FUNCTION void give_up_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
GPU_FUNCTION void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

#endif
#else

inline int cluster_rank() {
  return emulator::here().rank;
}
inline void cluster_barrier() {
  emulator::cluster_barrier();
}
inline void init_barrier(std::uint64_t* at, int arrivals) {
  emulator::begin_phases(at, arrivals);
}
inline void expect_bytes(std::uint64_t* at, std::uint32_t bytes) {
  emulator::expect(at, bytes);
}
inline void wait_for_phase(std::uint64_t* at, std::uint32_t parity) {
  emulator::wait_for_phase(at, parity);
}
inline void arrive_at(std::uint64_t* at, int rank) {
  emulator::arrive(at, rank);
}
inline void copy_box(void* to, const TensorMap& map, std::int64_t x, std::int64_t y, std::int64_t z,
                     std::uint64_t* barrier, std::uint16_t blocks) {
  emulator::copy_box(to, map.map, {x, y, z, 0, 0}, barrier, blocks != 0 ? blocks : 1u << cluster_rank());
}
inline void copy_box(void* to, const TensorMap& map, std::int64_t x, std::int64_t y, std::int64_t z,
                     std::int64_t w, std::uint64_t* barrier) {
  emulator::copy_box(to, map.map, {x, y, z, w, 0}, barrier, 1u << cluster_rank());
}
inline void copy_bytes(void* to, const void* from, std::uint32_t bytes, std::uint64_t* barrier) {
  emulator::copy_bulk(to, from, bytes, barrier);
}
inline void store_box(const TensorMap& map, const void* from, std::int64_t x, std::int64_t y, std::int64_t z,
                      std::int64_t w = 0) {
  emulator::store_box(map.map, from, {x, y, z, w, 0});
}
inline void add_floats(float* to, const float* from, std::int64_t count) {
  emulator::add_bulk(to, from, count);
}
inline void store_floats(float* to, const float* from, std::int64_t count) {
  emulator::store_bulk(to, from, count);
}
inline void wait_for_number(const std::int32_t* at, std::int32_t value) {
  emulator::wait_for_number(at, value);
}
inline void raise_number(std::int32_t* at) {
  ++*at;
}
inline void end_stores() {
  emulator::end_stores();
}
template <int left, bool read>
void wait_for_stores() {
  emulator::wait_for_stores(left, read);
}
inline void arrive(std::uint64_t* at) {
  emulator::arrive(at);
}
inline void show_barriers() {}
inline void named_barrier(int id, int threads) {
  emulator::named_barrier(id, threads);
}
inline void named_arrive(int id, int threads) {
  emulator::named_arrive(id, threads);
}
template <int count>
void give_up_registers() {
  emulator::set_registers(count);
}
template <int count>
void take_registers() {
  emulator::set_registers(count);
}

#endif

}  // namespace switchyard::gpu
