// The instructions' effects and encodings follow Intel's Software Developer's Manual, volume 2. Each thread
// has its own tiles, as on the processor. A tile without a configuration, and a tile that a product may not
// have, are refused as the processor would.
//
// A product is not the dot products of AVX512-BF16 one after the other: the even and the odd elements of a
// row's 16 pairs are summed apart, from zero, and added to each other before they are added to the sum.
#include "kernels/cpu/amx_emulation.h"

#if defined(__x86_64__) && defined(__linux__)
#include <immintrin.h>
#include <signal.h>
#include <ucontext.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12, of its own intrinsics
#endif

namespace switchyard::cpu {
namespace {

constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;

struct alignas(64) Tile {
  std::byte row[kRows][kRowBytes] = {};
  int rows = 0, row_bytes = 0;  // 0 while it is not configured
};

// The layout in memory that `ldtilecfg` reads.
struct TileConfig {
  std::uint8_t palette, start_row, reserved[14];
  std::uint16_t row_bytes[16];
  std::uint8_t rows[16];
};

thread_local std::array<Tile, kTiles> tiles;

struct sigaction before;  // what a signal that is not ours goes to

using Registers = greg_t[NGREG];

std::uint64_t read_register(const Registers& registers, int number) {
  static constexpr int kPlaces[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                    REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return static_cast<std::uint64_t>(registers[kPlaces[number]]);
}

// An instruction with a three-byte VEX prefix, of the map 0F38, 128 bits, W0.
struct Instruction {
  enum class Prefix : std::uint8_t { none, x66, xF3, xF2 };

  // False when there is none at `code`.
  bool decode(const std::uint8_t* code, const Registers& registers) {
    if (code[0] != 0xC4 || (code[1] & 0x1F) != 2 || (code[2] & 0x84) != 0) return false;
    const int r = code[1] & 0x80 ? 0 : 8, x = code[1] & 0x40 ? 0 : 8, b = code[1] & 0x20 ? 0 : 8;
    prefix = static_cast<Prefix>(code[2] & 3);
    third = ~(code[2] >> 3) & 15;
    opcode = code[3];
    const int mode = code[4] >> 6, low = code[4] & 7;
    reg = (code[4] >> 3 & 7) + r;
    in_memory = mode != 3;
    rm = low + b;
    length = 5;
    if (!in_memory) return true;
    const bool has_index = low == 4;
    int base = rm;
    if (has_index) {
      const std::uint8_t sib = code[length++];
      base = (sib & 7) + b;
      const int index = (sib >> 3 & 7) + x;
      if (index != 4) stride = read_register(registers, index) << (sib >> 6);
    }
    const bool no_base = mode == 0 && (base & 7) == 5;
    std::int32_t displacement = 0;
    if (mode == 1) {
      displacement = static_cast<std::int8_t>(code[length++]);
    } else if (mode == 2 || no_base) {
      std::memcpy(&displacement, code + length, sizeof displacement);
      length += 4;
    }
    if (!no_base) address = read_register(registers, base);
    if (no_base && !has_index) address = static_cast<std::uint64_t>(registers[REG_RIP] + length);
    address += static_cast<std::uint64_t>(std::int64_t{displacement});
    return true;
  }
  std::byte* row(int i) const {
    return reinterpret_cast<std::byte*>(address + stride * static_cast<std::uint64_t>(i));
  }

  Prefix prefix;
  std::uint8_t opcode;
  bool in_memory;
  int reg, rm, third;  // numbers of registers
  std::uint64_t address = 0, stride = 0;
  int length;
};

bool configured(int tile) {
  return tile < kTiles && tiles[static_cast<std::size_t>(tile)].rows != 0;
}

Tile& tile_of(int tile) {
  return tiles[static_cast<std::size_t>(tile)];
}

bool configure(const std::byte* from) {
  TileConfig config;
  std::memcpy(&config, from, sizeof config);
  if (config.palette > 1 || config.start_row != 0) return false;
  tiles = {};
  if (config.palette == 0) return true;
  for (int i = 0; i < kTiles; ++i) {
    if (config.rows[i] > kRows || config.row_bytes[i] > kRowBytes || config.row_bytes[i] % 4 != 0)
      return false;
    tile_of(i).rows = config.rows[i];
    tile_of(i).row_bytes = config.row_bytes[i];
  }
  return true;
}

void load(Tile& tile, const Instruction& from) {
  std::memset(tile.row, 0, sizeof tile.row);
  for (int i = 0; i < tile.rows; ++i)
    std::memcpy(tile.row[i], from.row(i), static_cast<std::size_t>(tile.row_bytes));
}

void store(const Tile& tile, const Instruction& to) {
  for (int i = 0; i < tile.rows; ++i)
    std::memcpy(to.row(i), tile.row[i], static_cast<std::size_t>(tile.row_bytes));
}

__attribute__((target("avx512f"))) bool multiply(Tile& sum, const Tile& left, const Tile& right) {
  if (sum.rows != left.rows || sum.row_bytes != right.row_bytes || left.row_bytes != 4 * right.rows)
    return false;
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000u));
  for (int i = 0; i < sum.rows; ++i) {
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    for (int pair = 0; pair < right.rows; ++pair) {
      int words;
      std::memcpy(&words, left.row[i] + 4 * pair, sizeof words);
      const __m512i a = _mm512_set1_epi32(words), b = _mm512_load_si512(right.row[pair]);
      even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)),
                             _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), even);
      odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(a, upper)),
                            _mm512_castsi512_ps(_mm512_and_si512(b, upper)), odd);
    }
    _mm512_store_ps(sum.row[i], _mm512_add_ps(_mm512_load_ps(sum.row[i]), _mm512_add_ps(even, odd)));
  }
  return true;
}

// False for what is none of AMX's instructions, and for what the processor would refuse.
bool execute(const Instruction& i) {
  using enum Instruction::Prefix;
  switch (i.opcode) {
    case 0x49:
      if (i.prefix == none && i.in_memory) return i.reg == 0 && configure(i.row(0));
      if (i.in_memory || i.rm != 0) return false;
      if (i.prefix == none && i.reg == 0) {
        tiles = {};
        return true;
      }
      if (i.prefix != xF2 || !configured(i.reg)) return false;
      std::memset(tile_of(i.reg).row, 0, sizeof Tile::row);
      return true;
    case 0x4B:
      if (i.prefix == none || !i.in_memory || !configured(i.reg)) return false;
      i.prefix == xF3 ? store(tile_of(i.reg), i) : load(tile_of(i.reg), i);
      return true;
    case 0x5C: {
      if (i.prefix != xF3 || i.in_memory || i.reg == i.rm || i.reg == i.third || i.rm == i.third)
        return false;
      if (!configured(i.reg) || !configured(i.rm) || !configured(i.third)) return false;
      _mm_setcsr(0x9FC0);  // denormals are zero, to nearest; the signal's return brings the old one back
      return multiply(tile_of(i.reg), tile_of(i.rm), tile_of(i.third));
    }
    default:
      return false;
  }
}

void handle(int, siginfo_t*, void* context) {
  if (!emulate_amx_at(context)) sigaction(SIGILL, &before, nullptr);  // it runs again, and is refused again
}

}  // namespace

bool emulate_amx() {
  if (!__builtin_cpu_supports("avx512f")) return false;
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO;
  return sigaction(SIGILL, &action, &before) == 0;
}

bool emulate_amx_at(void* context) {
  Registers& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  bool any = false;
  for (Instruction i;
       i.decode(reinterpret_cast<const std::uint8_t*>(registers[REG_RIP]), registers) && execute(i);
       any = true, i = {})
    registers[REG_RIP] += i.length;
  return any;
}

}  // namespace switchyard::cpu

#else
namespace switchyard::cpu {

bool emulate_amx() {
  return false;
}

bool emulate_amx_at(void*) {
  return false;
}

}  // namespace switchyard::cpu
#endif
