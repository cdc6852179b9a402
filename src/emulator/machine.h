// The parts of the emulated GPU, for its own files: emulator.cc has threads and shared memory, async.cc,
// copies.cc and products.cc what goes on beside threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/fiber.h"
#include "emulator/emulator.h"

namespace switchyard::gpu::emulator {

inline constexpr int kLanes = 32, kGroupThreads = 128;

struct Copy {
  void* to;
  const void* from;
  std::size_t bytes;
};

enum class State { ready, at_barrier, at_cluster_barrier, in_exchange, waiting, done };

struct Thread {
  std::unique_ptr<Fiber> fiber;
  State state = State::done;
  Here here{};
  std::int64_t exchanges = 0;
  std::deque<std::vector<Copy>> groups;  // on their way
  std::vector<Copy> open_group;
  const char* waits_for = "";
  std::function<bool()> is_ready;
};

// Values that the threads of a warp exchange. Two sets take turns, for a thread may give to the next exchange
// before another has read the last.
struct Warp {
  alignas(64) std::byte given[2][kLanes][kExchangeBytes];
};

struct FreeAligned {
  void operator()(std::byte* memory) const;
};

struct SharedArray {
  const void* declaration;
  std::size_t bytes;
  std::uint32_t address;  // as instructions have it
  std::unique_ptr<std::byte[], FreeAligned> memory;
  std::vector<std::byte> shown;  // what the copy engine and tensor cores see of it, where proxies are checked
};

// The copies, products and barriers of a cluster, which go on beside its threads (async.h).
class Async;

// The emulated GPU of one thread of the process.
class Machine {
 public:
  Machine();
  ~Machine();

  void run(const Grid& grid, const std::function<void()>& body);

  Thread& current() { return threads_[static_cast<std::size_t>(current_)]; }
  Thread& thread(int index) { return threads_[static_cast<std::size_t>(index)]; }
  std::span<Thread> threads() { return std::span(threads_).first(count_); }
  Async& async() { return *async_; }
  std::mt19937& random() { return random_; }
  const Grid& grid() const { return grid_; }

  void* shared_array(const void* declaration, std::size_t bytes);
  // The array of block `rank` with this address, of the host or of instructions. CHECKs that there is one.
  SharedArray& array_at(int rank, const void* address);
  SharedArray& array_at(int rank, std::uint32_t address);
  std::vector<SharedArray>& arrays(int rank) { return arrays_[static_cast<std::size_t>(rank)]; }
  void* cluster_address(const void* shared, int rank);

  void wait(State state);
  const void* exchange(const void* mine, std::size_t bytes, int lane);
  const void* exchanged(int lane);

 private:
  SharedArray& made_array(int rank, const void* declaration, std::size_t bytes);
  Warp& warp() { return warps_[static_cast<std::size_t>(current_ / kLanes)]; }
  void grow();
  void begin_cluster(std::int64_t first_block);
  void run_cluster(std::vector<int>& order);
  void end_cluster();
  bool release_warps();
  bool release_barriers();
  bool release_waiting();
  std::string who_waits();

  Grid grid_;
  const std::function<void()>* body_ = nullptr;
  std::size_t count_ = 0;  // threads of a cluster
  int current_ = 0;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<std::vector<SharedArray>> arrays_;  // of each block of the cluster
  std::unique_ptr<Async> async_;
  std::mt19937 random_{1};
  bool ending_ = false;
};

Machine& machine();

}  // namespace switchyard::gpu::emulator
