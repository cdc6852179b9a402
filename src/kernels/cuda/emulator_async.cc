#include "kernels/cuda/emulator_async.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "kernels/cuda/emulator_machine.h"

namespace switchyard::gpu::emulator {
namespace {

constexpr std::uint32_t kUnknownSum = 0x7fc0dead;  // a NaN that no kernel writes
constexpr int kNamedBarriers = 16;

Pace pace_of_environment() {
  const char* const text = std::getenv("SWITCHYARD_EMULATED_PACE");
  if (text == nullptr) return Pace::late;
  const std::string_view word = text;
  if (word == "late") return Pace::late;
  if (word == "early") return Pace::early;
  if (word == "random") return Pace::random;
  fail_usage("[emulator] SWITCHYARD_EMULATED_PACE={}: expected late, early or random", word);
}

std::atomic<Pace>& pace() {
  static std::atomic<Pace> now{pace_of_environment()};
  return now;
}

std::atomic<bool>& checked() {
  static std::atomic<bool> now{std::getenv("SWITCHYARD_EMULATED_PROXY") != nullptr};
  return now;
}

// The 8 bytes of a barrier in shared memory.
struct Phases {
  std::uint16_t expected, pending;  // arrivals of a phase, and those that have not come
  std::int16_t chunks;   // of 16 bytes that have not come; below 0: that came before they were said
  std::uint16_t parity;  // of the phase that goes on
};
constexpr int kChunkBytes = 16;
static_assert(sizeof(Phases) == sizeof(std::uint64_t));

Phases phases_at(const std::uint64_t* barrier) {
  Phases found;
  std::memcpy(&found, barrier, sizeof(found));
  constexpr int kMostArrivals = 8 * 1024;
  CHECK(found.expected > 0 && found.expected <= kMostArrivals && found.pending <= found.expected &&
            found.parity <= 1,
        "[emulator] a barrier that has no beginning, or was overwritten");
  return found;
}

// Ends the phase where all has come.
void put(std::uint64_t* barrier, Phases now) {
  if (now.pending == 0 && now.chunks == 0) {
    now.parity ^= 1;
    now.pending = now.expected;
  }
  std::memcpy(barrier, &now, sizeof(now));
}

std::int16_t chunks_of(int before, std::int64_t bytes) {
  CHECK(bytes % kChunkBytes == 0, "[emulator] {} bytes", bytes);
  const std::int64_t chunks = before + bytes / kChunkBytes;
  CHECK(chunks >= INT16_MIN && chunks <= INT16_MAX, "[emulator] a barrier waits for {} bytes",
        chunks * kChunkBytes);
  return static_cast<std::int16_t>(chunks);
}

void arrive_here(std::uint64_t* barrier, std::int64_t bytes) {
  Phases now = phases_at(barrier);
  CHECK(now.pending > 0, "[emulator] more arrivals at a barrier than it expects");
  --now.pending;
  now.chunks = chunks_of(now.chunks, bytes);
  put(barrier, now);
}

void bytes_have_come(std::uint64_t* barrier, std::int64_t bytes) {
  Phases now = phases_at(barrier);
  now.chunks = chunks_of(now.chunks, -bytes);
  put(barrier, now);
}

std::uint32_t swizzled(std::uint32_t address) {
  return address ^ (address >> 7 & 7) << 4;
}

// A piece of a box that is contiguous in memory and, up to the swizzle, in shared memory.
struct Row {
  std::int64_t offset;      // bytes from the map's data
  std::uint32_t begin;      // bytes from the box's beginning
  int before, inside, all;  // elements: left of the tensor, in it, and of the row
};

template <typename Body>
void for_rows(const Map& map, const BoxPlace& at, const Body& body) {
  const int width = map.box[0];
  const auto clipped = [&](std::int64_t x) { return std::clamp<std::int64_t>(x, 0, map.sizes[0]); };
  const std::int64_t first = clipped(at[0]), last = clipped(at[0] + width);
  std::uint32_t begin = 0;
  std::array<int, 5> i{};
  for (i[4] = 0; i[4] < map.box[4]; ++i[4]) {
    for (i[3] = 0; i[3] < map.box[3]; ++i[3]) {
      for (i[2] = 0; i[2] < map.box[2]; ++i[2]) {
        for (i[1] = 0; i[1] < map.box[1]; ++i[1]) {
          Row row{first * map.element_bytes, begin, 0, static_cast<int>(last - first), width};
          row.before = row.inside > 0 ? static_cast<int>(first - at[0]) : width;
          for (std::size_t d = 1; d < 5; ++d) {
            const std::int64_t place = at[d] + i[d];
            if (place < 0 || place >= map.sizes[d]) row.inside = 0;
            row.offset += place * map.strides[d] * map.element_bytes;
          }
          body(row);
          begin += static_cast<std::uint32_t>(width * map.element_bytes);
        }
      }
    }
  }
}

// Calls body(place in the array, place in the row, bytes) for each 16 bytes of the row.
template <typename Body>
void for_chunks(const SharedArray& array, std::uint32_t address, int bytes, const Body& body) {
  for (int chunk = 0; chunk < bytes; chunk += 16) {
    const std::uint32_t place = swizzled(address + static_cast<std::uint32_t>(chunk)) - array.address;
    const int count = std::min(16, bytes - chunk);
    CHECK(place + static_cast<std::uint32_t>(count) <= array.bytes, "[emulator] a box leaves its array");
    body(place, chunk, count);
  }
}

const std::byte* seen(const SharedArray& array) {
  return array.shown.empty() ? array.memory.get() : array.shown.data();
}

void write_both(SharedArray& array, std::size_t place, const void* from, std::size_t bytes) {
  std::memcpy(array.memory.get() + place, from, bytes);
  if (!array.shown.empty()) std::memcpy(array.shown.data() + place, from, bytes);
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

float element_of(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// The array and address of a matrix in shared memory, and distances, by what matrix_at() made.
struct Operand {
  const SharedArray* array;
  std::uint32_t address, block;

  Operand(Machine& machine, int rank, std::uint64_t made) {
    constexpr std::uint64_t kField = 0x3fff;
    CHECK(made >> 62 == 1 && (made >> 32 & kField) == 8 * 128 / 16,
          "[emulator] a matrix without the 128-byte swizzle");
    address = static_cast<std::uint32_t>(made & kField) * 16;
    block = static_cast<std::uint32_t>(made >> 16 & kField) * 16;
    array = &machine.array_at(rank, address);
  }
  // Element (outer, k): `transposed`: blocks of 64 of the outer dim, which is contiguous in each.
  float at(int outer, int k, bool transposed) const {
    const auto u = [](int x) { return static_cast<std::uint32_t>(x); };
    const std::uint32_t place =
        transposed ? u(outer / 64) * block + u(k) * 128 + u(outer % 64) * 2 : u(outer) * 128 + u(k) * 2;
    const std::uint32_t from = swizzled(address + place) - array->address;
    CHECK(from + 2 <= array->bytes, "[emulator] a matrix leaves its array");
    std::uint16_t bits;
    std::memcpy(&bits, seen(*array) + from, sizeof(bits));
    return element_of(bits);
  }
};

}  // namespace

struct Async::Parts {
  bool is_used = false;                  // by this cluster; most kernels have nothing beside their threads
  std::vector<Beside> beside;            // of each thread of the cluster
  std::vector<std::int64_t> multiplied;  // groups of products that have ended, of each warpgroup
  std::vector<std::array<Named, kNamedBarriers>> named;  // of each block
  std::deque<std::function<void()>> copies;              // on their way
  std::vector<std::uint64_t*> barriers;                  // that have begun
};

namespace {

Async::Parts& parts() {
  Async::Parts& all = machine().async().parts();
  all.is_used = true;
  return all;
}
Beside& mine() {
  return parts().beside[static_cast<std::size_t>(here().index)];
}
std::size_t own_warpgroup() {
  return static_cast<std::size_t>(here().index / kGroupThreads);
}

void begin_copy(std::function<void()> land) {
  if (pace() == Pace::early)
    land();
  else
    parts().copies.push_back(std::move(land));
}

// ---- Products

bool all_have_ended_a_group(std::size_t warpgroup) {
  const auto threads = std::span(parts().beside).subspan(warpgroup * kGroupThreads, kGroupThreads);
  const std::int64_t done = parts().multiplied[warpgroup];
  return std::ranges::all_of(threads, [=](const Beside& t) { return t.ended_groups > done; });
}

// The value of row r of a at depth k, of the registers of the thread that has it.
float of_registers(std::span<const Beside> threads, std::size_t product, int r, int k) {
  const int holder = r / 16 * kLanes + r % 8 * 4 + k % 8 / 2;
  const GivenProduct& given = threads[static_cast<std::size_t>(holder)].products.front()[product];
  const std::uint32_t pair = given.registers[static_cast<std::size_t>(r % 16 / 8 + k / 8 * 2)];
  return element_of(static_cast<std::uint16_t>(pair >> (k % 2 * 16)));
}

// Computes product `product` of the warpgroup's oldest group, and adds it to its threads' sums.
void compute(std::size_t warpgroup, std::size_t product) {
  constexpr int kRows = 64, kDepth = 16;
  const auto threads = std::span(parts().beside).subspan(warpgroup * kGroupThreads, kGroupThreads);
  const GivenProduct& first = threads[0].products.front()[product];
  for (std::size_t t = 0; t < kGroupThreads; ++t) {
    const GivenProduct& given = threads[t].products.front()[product];
    const bool same_a = (given.a_registers == nullptr) == (first.a_registers == nullptr) &&
                        (first.a_registers != nullptr || given.a == first.a);
    CHECK(same_a && given.b == first.b && given.columns == first.columns && given.add == first.add,
          "[emulator] threads of a warpgroup give different products");
  }
  const int rank = static_cast<int>(warpgroup) * kGroupThreads / machine().grid().threads;
  const int columns = first.columns;
  std::vector<float> a(kRows * kDepth), b(static_cast<std::size_t>(kDepth * columns)),
      c(static_cast<std::size_t>(kRows * columns), 0.0f);
  const auto index = [](int row, int width, int column) {
    return static_cast<std::size_t>(row * width + column);
  };
  if (first.a_registers != nullptr) {
    for (int r = 0; r < kRows; ++r) {
      for (int k = 0; k < kDepth; ++k) a[index(r, kDepth, k)] = of_registers(threads, product, r, k);
    }
  } else {
    const Operand operand(machine(), rank, first.a);
    for (int r = 0; r < kRows; ++r) {
      for (int k = 0; k < kDepth; ++k) a[index(r, kDepth, k)] = operand.at(r, k, first.transpose_a);
    }
  }
  const Operand operand(machine(), rank, first.b);
  for (int k = 0; k < kDepth; ++k) {
    for (int n = 0; n < columns; ++n) b[index(k, columns, n)] = operand.at(n, k, first.transpose_b);
  }
  for (int r = 0; r < kRows; ++r) {
    float* const sums = &c[index(r, columns, 0)];
    for (int k = 0; k < kDepth; ++k) {
      const float x = a[index(r, kDepth, k)];
      const float* const y = &b[index(k, columns, 0)];
      for (int n = 0; n < columns; ++n) sums[n] += x * y[n];
    }
  }
  for (int t = 0; t < kGroupThreads; ++t) {
    Beside& thread = threads[static_cast<std::size_t>(t)];
    const GivenProduct& given = thread.products.front()[product];
    Sums& sums = thread.sums.at(given.sums);
    for (int j = 0; j < columns / 2; ++j) {
      const int row = t / kLanes * 16 + t % kLanes / 4 + j / 2 % 2 * 8,
                column = j / 4 * 8 + t % 4 * 2 + j % 2;
      float& sum = sums.values[static_cast<std::size_t>(j)];
      sum = (given.add ? sum : 0.0f) + c[index(row, columns, column)];
    }
  }
}

// Ends the warpgroup's oldest group. Sums that no other product is changing go back to their threads.
void end_oldest_group(std::size_t warpgroup) {
  const auto threads = std::span(parts().beside).subspan(warpgroup * kGroupThreads, kGroupThreads);
  const std::size_t count = threads[0].products.front().size();
  for (const Beside& thread : threads)
    CHECK(thread.products.front().size() == count,
          "[emulator] threads of a warpgroup give different products");
  for (std::size_t i = 0; i < count; ++i) compute(warpgroup, i);
  for (Beside& thread : threads) {
    for (const GivenProduct& given : thread.products.front()) {
      Sums& sums = thread.sums.at(given.sums);
      if (--sums.products > 0) continue;
      for (std::size_t j = 0; j < sums.values.size(); ++j) {
        CHECK(std::bit_cast<std::uint32_t>(given.sums[j]) == kUnknownSum,
              "[emulator] sums were written while a product was on its way");
        given.sums[j] = sums.values[j];
      }
      thread.sums.erase(given.sums);
    }
    thread.products.pop_front();
  }
  ++parts().multiplied[warpgroup];
}

}  // namespace

void set_pace(Pace now) {
  pace() = now;
}
void set_proxies_checked(bool now) {
  checked() = now;
}
bool proxies_are_checked() {
  return checked();
}

std::int64_t Map::box_bytes() const {
  std::int64_t bytes = element_bytes;
  for (const int size : box) bytes *= size;
  return bytes;
}

// ---- Phases

void begin_phases(std::uint64_t* barrier, int arrivals) {
  auto& all = parts().barriers;
  CHECK(std::ranges::find(all, barrier) == all.end(), "[emulator] a barrier begins twice");
  all.push_back(barrier);
  const auto expected = static_cast<std::uint16_t>(arrivals);
  const Phases now{expected, expected, 0, 0};
  std::memcpy(barrier, &now, sizeof(now));
}

void arrive(std::uint64_t* barrier, int rank) {
  arrive_here(rank < 0 ? barrier : static_cast<std::uint64_t*>(machine().cluster_address(barrier, rank)), 0);
}

void expect(std::uint64_t* barrier, std::int64_t bytes) {
  arrive_here(barrier, bytes);
}

void wait_for_phase(std::uint64_t* barrier, std::uint32_t parity) {
  wait_until("a phase of a barrier", [=] { return phases_at(barrier).parity != (parity & 1); });
}

void arrive_with_copies(std::uint64_t* barrier) {
  Thread& thread = machine().current();
  std::vector<Copy> copies = std::exchange(thread.open_group, {});
  for (const Copy& copy : copies) std::memset(copy.to, 0xff, copy.bytes);
  begin_copy([=] {
    for (const Copy& copy : copies) std::memcpy(copy.to, copy.from, copy.bytes);
    arrive_here(barrier, 0);
  });
}

// ---- Copies

void copy_box(void* to, const Map& map, const BoxPlace& at, std::uint64_t* barrier, unsigned blocks) {
  const std::int64_t bytes = map.box_bytes();
  for (int rank = 0; rank < machine().grid().cluster; ++rank) {
    if ((blocks >> rank & 1u) == 0) continue;
    auto* const there = static_cast<std::byte*>(machine().cluster_address(to, rank));
    auto* const told = static_cast<std::uint64_t*>(machine().cluster_address(barrier, rank));
    const SharedArray& array = machine().array_at(rank, there);
    const auto address = array.address + static_cast<std::uint32_t>(there - array.memory.get());
    CHECK(address % 1024 == 0, "[emulator] a box at {:#x} of shared memory, not on 1024 bytes", address);
    CHECK(there + bytes <= array.memory.get() + array.bytes, "[emulator] a box leaves its array");
    std::memset(there, 0xff, static_cast<std::size_t>(bytes));
    begin_copy([=] {
      SharedArray& into = machine().array_at(rank, there);
      for_rows(map, at, [&](const Row& row) {
        std::vector<std::byte> values(static_cast<std::size_t>(row.all * map.element_bytes), std::byte{0});
        if (row.inside > 0)
          std::memcpy(values.data() + row.before * map.element_bytes,
                      static_cast<const std::byte*>(map.data) + row.offset,
                      static_cast<std::size_t>(row.inside * map.element_bytes));
        for_chunks(into, address + row.begin, static_cast<int>(values.size()),
                   [&](std::uint32_t place, int chunk, int count) {
                     write_both(into, place, values.data() + chunk, static_cast<std::size_t>(count));
                   });
      });
      bytes_have_come(told, bytes);
    });
  }
}

void copy_bulk(void* to, const void* from, std::size_t bytes, std::uint64_t* barrier) {
  CHECK(bytes % 16 == 0 && reinterpret_cast<std::uintptr_t>(from) % 16 == 0,
        "[emulator] a copy of {} bytes from {}", bytes, from);
  const int rank = here().rank;
  const SharedArray& array = machine().array_at(rank, to);
  const auto place = static_cast<std::size_t>(static_cast<std::byte*>(to) - array.memory.get());
  CHECK(place % 16 == 0 && place + bytes <= array.bytes, "[emulator] a copy leaves its array");
  std::memset(to, 0xff, bytes);
  begin_copy([=] {
    write_both(machine().array_at(rank, to), place, from, bytes);
    bytes_have_come(barrier, static_cast<std::int64_t>(bytes));
  });
}

namespace {

void begin_store(Store store) {
  mine().open_stores.push_back(std::move(store));
}

}  // namespace

void store_box(const Map& map, const void* from, const BoxPlace& at) {
  const int rank = here().rank;
  const SharedArray& array = machine().array_at(rank, from);
  const auto address =
      array.address + static_cast<std::uint32_t>(static_cast<const std::byte*>(from) - array.memory.get());
  CHECK(address % 1024 == 0, "[emulator] a box at {:#x} of shared memory, not on 1024 bytes", address);
  const auto read = [=] {
    std::vector<std::byte> values(static_cast<std::size_t>(map.box_bytes()));
    const SharedArray& source = machine().array_at(rank, address);
    for_rows(map, at, [&](const Row& row) {
      for_chunks(source, address + row.begin, row.all * map.element_bytes,
                 [&](std::uint32_t place, int chunk, int count) {
                   std::memcpy(values.data() + row.begin + chunk, seen(source) + place,
                               static_cast<std::size_t>(count));
                 });
    });
    return values;
  };
  const auto write = [=](const std::vector<std::byte>& values) {
    for_rows(map, at, [&](const Row& row) {
      if (row.inside == 0) return;
      std::memcpy(const_cast<std::byte*>(static_cast<const std::byte*>(map.data)) + row.offset,
                  values.data() + row.begin + row.before * map.element_bytes,
                  static_cast<std::size_t>(row.inside * map.element_bytes));
    });
  };
  begin_store({read, write, {}});
}

namespace {

// Stores numbers of shared memory by add_to(place, value).
template <typename AddTo>
void begin_bulk_store(float* to, const float* from, std::int64_t count, const AddTo& add_to) {
  const int rank = here().rank;
  const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
  const SharedArray& array = machine().array_at(rank, from);
  const auto place = static_cast<std::size_t>(reinterpret_cast<const std::byte*>(from) - array.memory.get());
  CHECK(place % 16 == 0 && bytes % 16 == 0 && reinterpret_cast<std::uintptr_t>(to) % 16 == 0 &&
            place + bytes <= array.bytes,
        "[emulator] {} bytes are stored", bytes);
  const std::uint32_t address = array.address + static_cast<std::uint32_t>(place);
  const auto read = [=] {
    const SharedArray& source = machine().array_at(rank, address);
    return std::vector<std::byte>(seen(source) + place, seen(source) + place + bytes);
  };
  const auto write = [=](const std::vector<std::byte>& values) {
    for (std::int64_t i = 0; i < count; ++i) {
      float value;
      std::memcpy(&value, values.data() + static_cast<std::size_t>(i) * sizeof(float), sizeof(value));
      add_to(to[i], value);
    }
  };
  begin_store({read, write, {}});
}

}  // namespace

void add_bulk(float* to, const float* from, std::int64_t count) {
  begin_bulk_store(to, from, count, [](float& sum, float value) { sum += value; });
}

void store_bulk(float* to, const float* from, std::int64_t count) {
  begin_bulk_store(to, from, count, [](float& place, float value) { place = value; });
}

void wait_for_number(const std::int32_t* at, std::int32_t value) {
  wait_until("a number that other blocks raise", [=] { return *at == value; });
}

void end_stores() {
  StoreGroup group{std::exchange(mine().open_stores, {})};
  if (pace() == Pace::early) {
    group.write();
    group.stores.clear();
  }
  mine().stores.push_back(std::move(group));
}

void wait_for_stores(int left, bool read) {
  auto& groups = mine().stores;
  const auto ended = std::ssize(groups) - left;
  for (std::ptrdiff_t i = 0; i < ended; ++i) {
    if (read) {
      groups[static_cast<std::size_t>(i)].read();
    } else {
      groups.front().write();
      groups.pop_front();
    }
  }
}

void show_shared() {
  if (!proxies_are_checked()) return;
  for (SharedArray& array : machine().arrays(here().rank))
    std::memcpy(array.shown.data(), array.memory.get(), array.bytes);
}

// ---- Named barriers

namespace {

Named& arrive_at_named(int id, int threads) {
  CHECK(id > 0 && id < kNamedBarriers, "[emulator] a named barrier {}: 1 to {} are free", id,
        kNamedBarriers - 1);
  Named& named = parts().named[static_cast<std::size_t>(here().rank)][static_cast<std::size_t>(id)];
  CHECK(named.came == 0 || named.threads == threads, "[emulator] named barrier {} of {} threads and of {}",
        id, named.threads, threads);
  named.threads = threads;
  if (++named.came == threads) {
    named.came = 0;
    ++named.generation;
  }
  return named;
}

}  // namespace

void named_barrier(int id, int threads) {
  Named& named = arrive_at_named(id, threads);
  if (named.came == 0) return;  // this thread was the last
  wait_until("a named barrier", [&named, before = named.generation] { return named.generation != before; });
}

void named_arrive(int id, int threads) {
  arrive_at_named(id, threads);
}

// ---- Products

void begin_multiplying() {
  mine().multiplies = true;
}

void multiply(const TileProduct& product) {
  Beside& thread = mine();
  CHECK(thread.multiplies, "[emulator] a product without begin_multiplying()");
  CHECK(machine().grid().threads % kGroupThreads == 0, "[emulator] products in a block of {} threads",
        machine().grid().threads);
  GivenProduct given{product, {}};
  if (product.a_registers != nullptr) std::copy_n(product.a_registers, 4, given.registers.begin());
  Sums& sums = thread.sums[product.sums];
  if (sums.products++ == 0) {
    sums.values.assign(product.sums, product.sums + product.columns / 2);
    std::fill_n(product.sums, product.columns / 2, std::bit_cast<float>(kUnknownSum));
  }
  thread.open_products.push_back(given);
}

void end_multiplying() {
  Beside& thread = mine();
  thread.products.push_back(std::exchange(thread.open_products, {}));
  thread.multiplies = false;
  ++thread.ended_groups;
  const std::size_t group = own_warpgroup();
  const bool now = pace() == Pace::early || (pace() == Pace::random && machine().random()() % 2 == 0);
  while (now && all_have_ended_a_group(group)) end_oldest_group(group);
}

void wait_for_products(int left) {
  const std::size_t group = own_warpgroup();
  const std::int64_t wanted = mine().ended_groups - left;
  wait_until("products of its warpgroup", [=] {
    while (parts().multiplied[group] < wanted && all_have_ended_a_group(group)) end_oldest_group(group);
    return parts().multiplied[group] >= wanted;
  });
}

void set_registers(int count) {
  CHECK(count % 8 == 0 && count >= 24 && count <= 240, "[emulator] {} registers a thread", count);
  parts();  // end() looks at registers
  here().registers = count;
}

// ---- The cluster

Async::Async(Machine& of) : machine_(of), parts_(std::make_unique<Parts>()) {
  pace();  // refuses a wrong environment before any thread runs
}
Async::~Async() = default;

void Async::begin() {
  const std::size_t threads = machine_.threads().size();
  const auto blocks = static_cast<std::size_t>(machine_.grid().cluster);
  const bool fits = parts_->beside.size() == threads && parts_->named.size() == blocks;
  if (!std::exchange(parts_->is_used, false) && fits) return;
  parts_->beside.assign(threads, {});
  parts_->multiplied.assign((threads + kGroupThreads - 1) / kGroupThreads, 0);
  parts_->named.assign(blocks, {});
  parts_->copies.clear();
  parts_->barriers.clear();
}

void Async::end() {
  if (!parts_->is_used) return;
  CHECK(parts_->copies.empty(), "[emulator] a block ends before {} of its copies", parts_->copies.size());
  for (const std::uint64_t* barrier : parts_->barriers)
    CHECK(phases_at(barrier).chunks == 0, "[emulator] a block ends with a barrier that waits for {} bytes",
          phases_at(barrier).chunks * kChunkBytes);
  for (Beside& thread : parts_->beside) {
    CHECK(thread.products.empty() && thread.open_products.empty(),
          "[emulator] a block ends with products on their way");
    CHECK(thread.open_stores.empty(), "[emulator] a block ends with stores of no group");
    for (StoreGroup& group : thread.stores) {
      CHECK(group.is_read || group.stores.empty(), "[emulator] a block ends before its stores are read");
      group.write();
    }
  }
  // A block has the registers that it starts with, in units of 8 a thread, of 64 Ki: setmaxnreg moves them
  // among its warps, and waits for ever for more.
  const auto threads = static_cast<int>(machine_.threads().size());
  const int threads_of_block = threads / machine_.grid().cluster,
            registers_of_block = (64 << 10) / threads_of_block / 8 * 8 * threads_of_block;
  int registers = 0, asked = 0;
  for (const Thread& thread : machine_.threads()) {
    registers += thread.here.registers;
    asked += thread.here.registers > 0 ? 1 : 0;
  }
  CHECK(asked == 0 || asked == threads, "[emulator] {} of {} threads say how many registers they have", asked,
        threads);
  CHECK(registers <= registers_of_block * machine_.grid().cluster,
        "[emulator] a cluster's threads ask for {} registers, its blocks have {} each", registers,
        registers_of_block);
}

bool Async::advance() {
  if (!parts_->is_used) return false;
  auto& copies = parts_->copies;
  if (copies.empty()) {
    for (Beside& thread : parts_->beside) {
      for (StoreGroup& group : thread.stores) {
        if (group.is_read) continue;
        group.read();
        return true;
      }
    }
    return false;
  }
  const auto which = machine_.random()() % 3 == 0   ? machine_.random()() % copies.size()
                     : machine_.random()() % 2 == 0 ? 0
                                                    : copies.size() - 1;
  const auto at = copies.begin() + static_cast<std::ptrdiff_t>(which);
  const std::function<void()> land = std::move(*at);
  copies.erase(at);
  land();
  return true;
}

void Async::maybe_advance() {
  if (pace() == Pace::random && machine_.random()() % 4 == 0) advance();
}

std::string Async::report() {
  std::string text;
  for (std::size_t i = 0; i < parts_->barriers.size(); ++i) {
    const Phases now = phases_at(parts_->barriers[i]);
    text += fmt::format("; barrier {}: {} of {} arrivals and {} bytes missing, parity {}", i, now.pending,
                        now.expected, now.chunks * kChunkBytes, now.parity);
  }
  return text;
}

}  // namespace switchyard::gpu::emulator
