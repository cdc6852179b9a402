// Copies, stores and products go on beside the threads of a cluster. These parts are for the emulator's own
// files: copies.cc has barriers in shared memory, copies and stores, products.cc the products of warpgroups,
// async.cc the pace and the end of all.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "emulator/async.h"
#include "emulator/machine.h"

namespace switchyard::gpu::emulator {

inline constexpr int kNamedBarriers = 16;
inline constexpr int kChunkBytes = 16;  // in which barriers count the bytes of copies

Pace pace();

// The 8 bytes of a barrier in shared memory.
struct Phases {
  std::uint16_t expected, pending;  // arrivals of a phase, and those that have not come
  std::int16_t chunks;   // of 16 bytes that have not come; below 0: that came before they were said
  std::uint16_t parity;  // of the phase that goes on
};
static_assert(sizeof(Phases) == sizeof(std::uint64_t));

// Returns a barrier's phases. CHECKs that it has begun.
Phases phases_at(const std::uint64_t* barrier);

// Returns where the 128-byte swizzle puts an address.
inline std::uint32_t swizzled(std::uint32_t address) {
  return address ^ (address >> 7 & 7) << 4;
}

// Returns what the copy engine and tensor cores see of an array.
inline const std::byte* seen(const SharedArray& array) {
  return array.shown.empty() ? array.memory.get() : array.shown.data();
}

struct Store {
  std::function<std::vector<std::byte>()> read;
  std::function<void(const std::vector<std::byte>&)> write;
  std::vector<std::byte> data;
};

struct StoreGroup {
  std::vector<Store> stores;
  bool is_read = false;

  void read() {
    if (std::exchange(is_read, true)) return;
    for (Store& store : stores) store.data = store.read();
  }
  void write() {
    read();
    for (const Store& store : stores) store.write(store.data);
  }
};

struct Sums {
  std::vector<float> values;
  int products = 0;
};

struct GivenProduct : TileProduct {
  std::array<std::uint32_t, 4> registers{};
};

// The copies and products that one thread began.
struct Beside {
  std::vector<Store> open_stores;
  std::deque<StoreGroup> stores;
  std::vector<GivenProduct> open_products;
  std::deque<std::vector<GivenProduct>> products;
  std::map<float*, Sums> sums;  // of products on their way, by where the thread has them
  std::int64_t ended_groups = 0;
  bool multiplies = false;
};

struct Named {
  int threads = 0, came = 0;
  std::int64_t generation = 0;
};

struct Async::Parts {
  bool is_used = false;                  // by this cluster; most kernels have nothing beside their threads
  std::vector<Beside> beside;            // of each thread of the cluster
  std::vector<std::int64_t> multiplied;  // groups of products that have ended, of each warpgroup
  std::vector<std::array<Named, kNamedBarriers>> named;  // of each block
  std::deque<std::function<void()>> copies;              // on their way
  std::vector<std::uint64_t*> barriers;                  // that have begun
};

inline Async::Parts& parts() {
  Async::Parts& all = machine().async().parts();
  all.is_used = true;
  return all;
}
inline Beside& mine() {
  return parts().beside[static_cast<std::size_t>(here().index)];
}

}  // namespace switchyard::gpu::emulator
