// A GPU's blocks of threads on the CPU, for kernels written with kernels/cuda/portable.h.
//
// The threads of a block, or of a cluster of blocks, are fibers that run one after the other until they wait:
// at a barrier, for the other threads of their warp, or for what goes on beside threads (async.h).
// They run in the order that set_order() says, so that what depends on the order of threads shows. Shared
// memory is made anew for each block, filled with NaN, and each array stands between what the address
// sanitizer guards. Threads that wait for what cannot come end the process with a line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace switchyard::gpu::emulator {

struct Grid {
  std::int64_t blocks = 1;
  int blocks_y = 1, blocks_z = 1;
  int threads = 1;
  std::size_t shared_bytes = 0;
  int cluster = 1;  // blocks that run together and reach each other's shared memory: neighbours in x
};

// Runs `thread` for every thread of every block, on the calling thread. It must not throw. While the calling
// thread records a graph (core/graph.h), keeps a copy of `thread` and runs it when the graph is launched.
void run(const Grid& grid, const std::function<void()>& thread);

// Fails where an argument of a kernel, number `number`, has the address of a tensor in host memory, which a
// GPU does not reach. It looks at each 8 bytes, also of structures.
void check_argument(int number, const void* argument, std::size_t bytes);

enum class Order { forward, reverse, random };
// In which threads and blocks run, in all runs of this process that begin from now on. At the start: forward,
// or what SWITCHYARD_EMULATED_ORDER says.
void set_order(Order order);

// ---- For code.h, inside `thread`

// The position of the calling thread in its block and grid.
struct Here {
  int thread, threads;
  std::int64_t block, blocks;
  int block_y, block_z;
  void* dynamic_shared;
  int rank;       // of the block in its cluster
  int index;      // of the thread among those of its cluster
  int registers;  // that setmaxnreg asked for; 0: it did not
};
Here& here();

void* shared_array(const void* declaration, std::size_t bytes);
void barrier();
void cluster_barrier();
// The address in block `rank` of the cluster that is `shared` in this block.
void* cluster_address(const void* shared, int rank);
// The address of shared memory as instructions have it: 18 bits, 1024-byte aligned where it is dynamic.
std::uint32_t shared_address(const void* shared);
// Suspends the thread until `ready` is true; `what` says in a line what it waits for.
void wait_until(const char* what, std::function<bool()> ready);

// Waits for all 32 threads of the warp, which give `bytes` bytes each; returns those of `lane`. They hold
// until the thread's next exchange.
inline constexpr std::size_t kExchangeBytes = 64;
const void* exchange(const void* mine, std::size_t bytes, int lane = 0);
// Returns the value that `lane` passed to the last exchange.
const void* exchanged(int lane);

// Copies of the calling thread that go on while it does: nothing has moved before it waits for them.
void copy_later(void* to, const void* from, std::size_t bytes);
void end_group();
// Until no more than the last `left` groups are on their way.
void wait_for_groups(int left);

}  // namespace switchyard::gpu::emulator
