#include "kernels/machine/machine_loops_x86.h"

#if defined(__x86_64__)
#include "kernels/cpu/tile_target.h"

#define SWITCHYARD_AVX2 __attribute__((target("avx2,fma")))
#define SWITCHYARD_AVX512 __attribute__((target("avx512f,avx512bw")))
#define SWITCHYARD_DOT __attribute__((target("avx512f,avx512bw,avx512bf16")))

namespace switchyard::cpu {
namespace {

// Twelve chains hide a latency of six cycles at two results a cycle. Not to be folded: the compiler must take
// the values to be read afterwards.
constexpr int kChains = 12;

}  // namespace

SWITCHYARD_AVX2 void fma_avx2(std::int64_t steps) {
  __m256 sum[kChains];
  for (auto& s : sum) s = _mm256_set1_ps(1.0f);
  __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
  asm volatile("" : "+x"(x), "+x"(y));
  for (std::int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) sum[j] = _mm256_fmadd_ps(sum[j], x, y);
  }
  for (auto& s : sum) asm volatile("" : : "x"(s));
}

SWITCHYARD_AVX512 void fma_avx512(std::int64_t steps) {
  __m512 sum[kChains];
  for (auto& s : sum) s = _mm512_set1_ps(1.0f);
  __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
  asm volatile("" : "+v"(x), "+v"(y));
  for (std::int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) sum[j] = _mm512_fmadd_ps(sum[j], x, y);
  }
  for (auto& s : sum) asm volatile("" : : "v"(s));
}

SWITCHYARD_DOT void dot_avx512(std::int64_t steps) {
  __m512 sum[kChains];
  for (auto& s : sum) s = _mm512_set1_ps(1.0f);
  __m512i x = _mm512_set1_epi32(0x3f8c3e99), y = _mm512_set1_epi32(static_cast<int>(0xbe4c3f0cu));
  asm volatile("" : "+v"(x), "+v"(y));
  for (std::int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j)
      sum[j] = _mm512_dpbf16_ps(sum[j], reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y));
  }
  for (auto& s : sum) asm volatile("" : : "v"(s));
}

// Four sums, each from two pairs of operands: a product depends on the one four before it. The operands are
// numbers of both signs with all bits in use, as a real product's: zeros would draw less power.
SWITCHYARD_TILED void tile_products(std::int64_t steps) {
  alignas(64) std::uint16_t operand[4][512];
  std::uint32_t state = 1;
  for (auto& tile : operand) {
    for (auto& word : tile) {
      state = state * 1664525u + 1013904223u;
      word = static_cast<std::uint16_t>(0x3f00u | (state >> 16 & 0x80ffu));  // ±0.5 .. ±2
    }
  }
  const SWITCHYARD_TILES::TileSession tiles;
  SWITCHYARD_TILE_ZERO(0);
  SWITCHYARD_TILE_ZERO(1);
  SWITCHYARD_TILE_ZERO(2);
  SWITCHYARD_TILE_ZERO(3);
  SWITCHYARD_TILE_LOAD(4, operand[0], 64);
  SWITCHYARD_TILE_LOAD(5, operand[1], 64);
  SWITCHYARD_TILE_LOAD(6, operand[2], 64);
  SWITCHYARD_TILE_LOAD(7, operand[3], 64);
  for (std::int64_t i = 0; i < steps; ++i) {
    SWITCHYARD_TILE_PRODUCT(0, 4, 6);
    SWITCHYARD_TILE_PRODUCT(1, 4, 7);
    SWITCHYARD_TILE_PRODUCT(2, 5, 6);
    SWITCHYARD_TILE_PRODUCT(3, 5, 7);
    SWITCHYARD_TILE_PRODUCT(0, 5, 7);
    SWITCHYARD_TILE_PRODUCT(1, 5, 6);
    SWITCHYARD_TILE_PRODUCT(2, 4, 7);
    SWITCHYARD_TILE_PRODUCT(3, 4, 6);
  }
}

SWITCHYARD_AVX2 void copy_avx2(const std::byte* from, std::byte* to, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 128) {
#pragma GCC unroll 4
    for (std::size_t j = 0; j < 128; j += 32)
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + j),
                          _mm256_load_si256(reinterpret_cast<const __m256i*>(from + i + j)));
  }
  _mm_sfence();
}

SWITCHYARD_AVX512 void copy_avx512(const std::byte* from, std::byte* to, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 256) {
#pragma GCC unroll 4
    for (std::size_t j = 0; j < 256; j += 64)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + j), _mm512_load_si512(from + i + j));
  }
  _mm_sfence();
}

SWITCHYARD_AVX2 void update_avx2(std::byte* at, std::size_t bytes) {
  const __m256i flip = _mm256_set1_epi8(0x55);
  for (auto *x = reinterpret_cast<__m256i*>(at), *end = x + bytes / 32; x < end; x += 4) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) _mm256_store_si256(x + j, _mm256_xor_si256(_mm256_load_si256(x + j), flip));
  }
}

SWITCHYARD_AVX512 void update_avx512(std::byte* at, std::size_t bytes) {
  const __m512i flip = _mm512_set1_epi8(0x55);
  for (auto *x = reinterpret_cast<__m512i*>(at), *end = x + bytes / 64; x < end; x += 4) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) _mm512_store_si512(x + j, _mm512_xor_si512(_mm512_load_si512(x + j), flip));
  }
}

SWITCHYARD_AVX2 std::uint64_t read_avx2(const std::byte* from, std::size_t bytes) {
  __m256i sum[8] = {};
  for (std::size_t i = 0; i < bytes; i += 256) {
#pragma GCC unroll 8
    for (std::size_t j = 0; j < 8; ++j)
      sum[j] =
          _mm256_xor_si256(sum[j], _mm256_load_si256(reinterpret_cast<const __m256i*>(from + i + 32 * j)));
  }
  for (int j = 1; j < 8; ++j) sum[0] = _mm256_xor_si256(sum[0], sum[j]);
  return static_cast<std::uint64_t>(_mm256_extract_epi64(sum[0], 0));
}

SWITCHYARD_AVX512 std::uint64_t read_avx512(const std::byte* from, std::size_t bytes) {
  __m512i sum[8] = {};
  for (std::size_t i = 0; i < bytes; i += 512) {
#pragma GCC unroll 8
    for (std::size_t j = 0; j < 8; ++j)
      sum[j] = _mm512_xor_si512(sum[j], _mm512_load_si512(from + i + 64 * j));
  }
  for (int j = 1; j < 8; ++j) sum[0] = _mm512_xor_si512(sum[0], sum[j]);
  return static_cast<std::uint64_t>(_mm512_reduce_add_epi64(sum[0]));
}

SWITCHYARD_TILED void load_tiles(const std::byte* from, std::size_t bytes, int passes) {
  const SWITCHYARD_TILES::TileSession tiles;
  for (int pass = 0; pass < passes; ++pass) {
    for (const std::byte *tile = from, *end = from + bytes; tile < end; tile += 8192) {
      SWITCHYARD_TILE_LOAD(0, tile, 64);
      SWITCHYARD_TILE_LOAD(1, tile + 1024, 64);
      SWITCHYARD_TILE_LOAD(2, tile + 2048, 64);
      SWITCHYARD_TILE_LOAD(3, tile + 3072, 64);
      SWITCHYARD_TILE_LOAD(4, tile + 4096, 64);
      SWITCHYARD_TILE_LOAD(5, tile + 5120, 64);
      SWITCHYARD_TILE_LOAD(6, tile + 6144, 64);
      SWITCHYARD_TILE_LOAD(7, tile + 7168, 64);
    }
  }
}

SWITCHYARD_TILED void store_tiles(std::byte* to, std::size_t bytes, int passes) {
  const SWITCHYARD_TILES::TileSession tiles;
  SWITCHYARD_TILE_ZERO(0);
  SWITCHYARD_TILE_ZERO(1);
  for (int pass = 0; pass < passes; ++pass) {
    for (std::byte *tile = to, *end = to + bytes; tile < end; tile += 2048) {
      SWITCHYARD_TILE_STORE(0, tile, 64);
      SWITCHYARD_TILE_STORE(1, tile + 1024, 64);
    }
  }
}

}  // namespace switchyard::cpu
#endif
