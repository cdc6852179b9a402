// AMX's instructions give what the manual says: the processor's where it has them,
// else the emulation's.
#include "kernels/cpu/amx_emulation.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <csignal>
#include <cstring>

#include "kernels/cpu/tile_target.h"
#include "kernels/registry/isa.h"

#if defined(__x86_64__) && !defined(SWITCHYARD_AMX_COSTS)
namespace switchyard::cpu::SWITCHYARD_TILES {
namespace {

constexpr std::int64_t kTileRows = 16;

bool has_instructions() {
  static const bool has = machine_isa() == Isa::amx || (machine_isa() == Isa::avx512_bf16 && emulate_amx());
  return has;
}

#define SKIP_WITHOUT_AMX() \
  if (!has_instructions()) GTEST_SKIP() << "this machine has neither AMX nor what emulates it"

using Words = std::array<std::uint16_t, kTileRows * 32>;
using Floats = std::array<float, kTileRows * 16>;

std::uint16_t bf16_bits(float x) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
}

// A tile of left operands whose rows all are `row`, 32 of depth.
Words rows_of(const std::array<float, 32>& row) {
  Words words;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = bf16_bits(row[i % 32]);
  return words;
}

SWITCHYARD_TILED __attribute__((noinline)) Floats product(const Words& left, const Words& right, float sum) {
  Floats sums;
  sums.fill(sum);
  const TileSession tiles;
  asm volatile("" ::: "memory");
  SWITCHYARD_TILE_LOAD(3, sums.data(), 64);
  SWITCHYARD_TILE_LOAD(4, left.data(), 64);
  SWITCHYARD_TILE_STREAM_LOAD(7, right.data(), 64);
  SWITCHYARD_TILE_PRODUCT(3, 4, 7);
  SWITCHYARD_TILE_STORE(3, sums.data(), 64);
  return sums;
}

TEST(Amx, ProductsMatchByHand) {
  SKIP_WITHOUT_AMX();
  Words left, right;  // left[i][k] = i - k, right[k][j] = 2k + j in pairs of k
  Floats expected;
  for (std::int64_t i = 0; i < kTileRows; ++i) {
    for (std::int64_t k = 0; k < 32; ++k)
      left[static_cast<std::size_t>(32 * i + k)] = bf16_bits(static_cast<float>(i - k));
  }
  for (std::int64_t k = 0; k < 32; ++k) {
    for (std::int64_t j = 0; j < 16; ++j)
      right[static_cast<std::size_t>(32 * (k / 2) + 2 * j + k % 2)] =
          bf16_bits(static_cast<float>(2 * k + j));
  }
  for (std::int64_t i = 0; i < kTileRows; ++i) {
    for (std::int64_t j = 0; j < 16; ++j) {
      std::int64_t sum = 5;
      for (std::int64_t k = 0; k < 32; ++k) sum += (i - k) * (2 * k + j);
      expected[static_cast<std::size_t>(16 * i + j)] = static_cast<float>(sum);
    }
  }
  EXPECT_EQ(product(left, right, 5), expected);
}

// Rounded after each pair, 2^24 + 1 + 1 stays 2^24.
TEST(Amx, EvenAndOddElementsAreSummedApart) {
  SKIP_WITHOUT_AMX();
  std::array<float, 32> row{};
  row[0] = 0x1p24f;
  row[1] = 1;
  row[3] = 1;
  std::array<float, 32> ones;
  ones.fill(1);
  EXPECT_EQ(product(rows_of(row), rows_of(ones), 0)[17], 0x1p24f + 2);
}

TEST(Amx, DenormalsAreZero) {
  SKIP_WITHOUT_AMX();
  std::array<float, 32> tiny{}, large{}, ones;
  tiny[0] = 0x1p-130f;
  large[0] = 0x1p100f;
  ones.fill(1);
  EXPECT_EQ(product(rows_of(tiny), rows_of(large), 0)[0], 0.0f);
  tiny[0] = 0x1p-64f;
  large[0] = 0x1p-64f;
  EXPECT_EQ(product(rows_of(tiny), rows_of(large), 0)[0], 0.0f);
}

SWITCHYARD_TILED __attribute__((noinline)) void copy_tile(const std::byte* from, std::int64_t from_stride,
                                                          std::byte* to, std::int64_t to_stride) {
  const TileSession tiles;
  asm volatile("" ::: "memory");
  SWITCHYARD_TILE_LOAD(2, from, from_stride);
  SWITCHYARD_TILE_ZERO(1);
  SWITCHYARD_TILE_STORE(2, to, to_stride);
  SWITCHYARD_TILE_STORE(1, to + 16 * to_stride, 64);
}

TEST(Amx, RowsAreAStrideApart) {
  SKIP_WITHOUT_AMX();
  std::array<std::byte, 16 * 200> from;
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 256);
  std::array<std::byte, 16 * 100 + 1024 + 1> to;
  to.fill(std::byte{1});
  copy_tile(from.data() + 3, 150, to.data(), 100);
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::size_t row = i / 100, column = i % 100;
    const std::byte expected = i >= 1600     ? std::byte{i < 2624 ? std::uint8_t{0} : std::uint8_t{1}}
                               : column < 64 ? from[3 + row * 150 + column]
                                             : std::byte{1};
    ASSERT_EQ(to[i], expected) << i;
  }
}

SWITCHYARD_TILED __attribute__((noinline)) void zero_without_configuration() {
  asm volatile("tilerelease" ::: "memory");
  SWITCHYARD_TILE_ZERO(0);
}

TEST(AmxDeathTest, OtherInstructionsAreRefused) {
  SKIP_WITHOUT_AMX();
  EXPECT_EXIT(zero_without_configuration(), testing::KilledBySignal(SIGILL), "");
  EXPECT_EXIT(__builtin_trap(), testing::KilledBySignal(SIGILL), "");
}

}  // namespace
}  // namespace switchyard::cpu::SWITCHYARD_TILES
#endif
