#include <algorithm>
#include <bit>
#include <span>
#include <vector>

#include "core/error.h"
#include "emulator/async_parts.h"

namespace switchyard::gpu::emulator {
namespace {

constexpr std::uint32_t kUnknownSum = 0x7fc0dead;  // a NaN that no kernel writes

std::size_t own_warpgroup() {
  return static_cast<std::size_t>(here().index / kGroupThreads);
}

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

}  // namespace switchyard::gpu::emulator
