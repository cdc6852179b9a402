// Hopper's instructions that go on beside the threads of an emulated GPU: barriers in shared memory (PTX ISA:
// mbarrier), copies of boxes (cp.async.bulk.tensor), products of a warpgroup (wgmma); and named barriers.
//
// A copy fills its destination with NaN when it begins, and a product its sums: a read that comes too early
// shows. The pace decides when they end: when somebody waits for them, as early as they can, or at random
// moments in any order. Late ends show memory overwritten too early, early ends show missing waits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "emulator/emulator.h"

namespace switchyard::gpu::emulator {

enum class Pace { late, early, random };
// For all runs of this process from now on. At first it is late, or SWITCHYARD_EMULATED_PACE.
void set_pace(Pace pace);

// While true, the copy engine and tensor cores see what threads wrote to shared memory only after
// show_shared() (PTX ISA: fence.proxy.async). It takes time: for one test of each kernel.
void set_proxies_checked(bool checked);
bool proxies_are_checked();

// Up to five dims of a tensor, the first contiguous, and the box of them that is copied at once.
struct Map {
  const void* data = nullptr;
  int element_bytes = 2, rank = 3;
  std::array<std::int64_t, 5> sizes{1, 1, 1, 1, 1}, strides{1, 1, 1, 1, 1};  // strides: elements
  std::array<int, 5> box{1, 1, 1, 1, 1};
  std::int64_t box_bytes() const;
};
using BoxPlace = std::array<std::int64_t, 5>;

void begin_phases(std::uint64_t* barrier, int arrivals);
// One arrival at the barrier that is `barrier` in block `rank`; -1: in the caller's.
void arrive(std::uint64_t* barrier, int rank = -1);
void expect(std::uint64_t* barrier, std::int64_t bytes);  // and one arrival
void wait_for_phase(std::uint64_t* barrier, std::uint32_t parity);
// The arrival of the calling thread's copies (copy_later) that have begun, when they end.
void arrive_with_copies(std::uint64_t* barrier);

// Copies the box to the same place of each block whose bit is set in `blocks`, and tells the barrier there of
// the box's bytes.
void copy_box(void* to, const Map& map, const BoxPlace& at, std::uint64_t* barrier, unsigned blocks);
void copy_bulk(void* to, const void* from, std::size_t bytes, std::uint64_t* barrier);
void store_box(const Map& map, const void* from, const BoxPlace& at);
void add_bulk(float* to, const float* from, std::int64_t count);
void store_bulk(float* to, const float* from, std::int64_t count);
void end_stores();
// Until no more than the last `left` groups of this thread are on their way; `read`: until they are read.
void wait_for_stores(int left, bool read);
void show_shared();
// Blocks run one after the other, so the number must be there by those before.
void wait_for_number(const std::int32_t* at, std::int32_t value);

void named_barrier(int id, int threads);
void named_arrive(int id, int threads);

// sums [64 x columns] = or += a [64 x 16] · b [16 x columns]. matrix_at() says where operands are.
struct TileProduct {
  int columns;
  bool transpose_a, transpose_b, add;
  const std::uint32_t* a_registers;  // null: by `a`
  std::uint64_t a, b;
  float* sums;  // of this thread: columns / 2
};
void begin_multiplying();
void multiply(const TileProduct& product);
void end_multiplying();
void wait_for_products(int left);

void set_registers(int count);

class Machine;

class Async {
 public:
  explicit Async(Machine& machine);
  ~Async();
  void begin();          // of a cluster
  void end();            // checks that nothing is left
  bool advance();        // ends one copy or store; false: there is none
  void maybe_advance();  // at a random pace, now and then
  std::string report();  // of barriers that are waited for

  struct Parts;
  Parts& parts() { return *parts_; }

 private:
  Machine& machine_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace switchyard::gpu::emulator
