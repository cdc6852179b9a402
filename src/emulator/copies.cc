#include <algorithm>
#include <vector>

#include "core/error.h"
#include "emulator/async_parts.h"

namespace switchyard::gpu::emulator {
namespace {

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

void write_both(SharedArray& array, std::size_t place, const void* from, std::size_t bytes) {
  std::memcpy(array.memory.get() + place, from, bytes);
  if (!array.shown.empty()) std::memcpy(array.shown.data() + place, from, bytes);
}

void begin_copy(std::function<void()> land) {
  if (pace() == Pace::early)
    land();
  else
    parts().copies.push_back(std::move(land));
}

}  // namespace

Phases phases_at(const std::uint64_t* barrier) {
  Phases found;
  std::memcpy(&found, barrier, sizeof(found));
  constexpr int kMostArrivals = 8 * 1024;
  CHECK(found.expected > 0 && found.expected <= kMostArrivals && found.pending <= found.expected &&
            found.parity <= 1,
        "[emulator] a barrier that has no beginning, or was overwritten");
  return found;
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

}  // namespace switchyard::gpu::emulator
