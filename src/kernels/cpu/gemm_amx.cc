// bf16 micro-kernel for AMX: 32 x 32 outputs from two tiles of A and two of B.
//
// A tile of A is 16 rows of 32 depth elements. A tile of B is 16 rows, each the pair of depth elements (2r,
// 2r+1) of 16 columns. Packing brings either operand, transposed or not, into that form with vector loads of
// 32 elements: interleaving two depth rows gives pairs by line, a 16 x 16 transpose of 32-bit pairs exchanges
// lines and pairs.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX2 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_amx.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/cpu/gemm_block-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

constexpr std::int64_t kTileElements = 16 * 32;  // bf16 elements of one 1 KB tile

// Up to 32 elements, the rest zero; count may be <= 0.
HWY_INLINE __m512i load_row(const std::uint16_t* x, std::int64_t count) {
  if (count >= 32) return _mm512_loadu_si512(x);
  if (count <= 0) return _mm512_setzero_si512();
  return _mm512_maskz_loadu_epi16((1u << count) - 1u, x);
}

// Rows of 16 32-bit units; out[j][i] = in[i][j].
HWY_INLINE void transpose_16x16(const __m512i (&in)[16], std::uint16_t* out) {
  __m512i s[16], t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    s[i] = _mm512_unpacklo_epi32(in[i], in[i + 1]);
    s[i + 1] = _mm512_unpackhi_epi32(in[i], in[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    t[i] = _mm512_unpacklo_epi64(s[i], s[i + 2]);
    t[i + 1] = _mm512_unpackhi_epi64(s[i], s[i + 2]);
    t[i + 2] = _mm512_unpacklo_epi64(s[i + 1], s[i + 3]);
    t[i + 3] = _mm512_unpackhi_epi64(s[i + 1], s[i + 3]);
  }
  // t[4q + c] holds, in 128-bit lane l, column 4l + c of rows 4q .. 4q+3.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(t[c], t[4 + c], 0x44),
                  high01 = _mm512_shuffle_i32x4(t[c], t[4 + c], 0xee);
    const __m512i low23 = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0x44);
    const __m512i high23 = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0xee);
    _mm512_store_si512(out + 32 * c, _mm512_shuffle_i32x4(low01, low23, 0x88));
    _mm512_store_si512(out + 32 * (4 + c), _mm512_shuffle_i32x4(low01, low23, 0xdd));
    _mm512_store_si512(out + 32 * (8 + c), _mm512_shuffle_i32x4(high01, high23, 0x88));
    _mm512_store_si512(out + 32 * (12 + c), _mm512_shuffle_i32x4(high01, high23, 0xdd));
  }
}

// Pairs (x[i], y[i]) of i = 0..15 and of i = 16..31.
struct Pairs {
  __m512i first;
  __m512i second;
};

HWY_INLINE Pairs interleave(__m512i x, __m512i y) {
  const __m512i low = _mm512_unpacklo_epi16(x, y),
                high = _mm512_unpackhi_epi16(x, y);  // within 128-bit lanes
  const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  return {_mm512_permutex2var_epi64(low, first, high), _mm512_permutex2var_epi64(low, second, high)};
}

// One operand's panel: `lines` valid of 32 lines (rows of A, columns of B) from `x`, `depth` elements each.
struct Panel {
  const std::uint16_t* x;
  std::int64_t lines;
  std::int64_t depth;
  std::int64_t ld;
};

Panel panel_of(const void* x, bool lines_contiguous, std::int64_t ld, std::int64_t line,
               std::int64_t line_end, std::int64_t k_begin, std::int64_t k_end) {
  const std::int64_t offset = lines_contiguous ? k_begin * ld + line : line * ld + k_begin;
  return {static_cast<const std::uint16_t*>(x) + offset, std::min<std::int64_t>(32, line_end - line),
          k_end - k_begin, ld};
}

// Depth row `l` of a panel whose lines are contiguous; zero past the end.
HWY_INLINE __m512i depth_row(const Panel& p, std::int64_t l) {
  return l < p.depth ? load_row(p.x + l * p.ld, p.lines) : _mm512_setzero_si512();
}

// 32 depth elements from `l` of line `i` of a panel whose lines are ld apart; zero past the end.
HWY_INLINE __m512i line_row(const Panel& p, std::int64_t i, std::int64_t l) {
  return i < p.lines ? load_row(p.x + i * p.ld + l, p.depth - l) : _mm512_setzero_si512();
}

void pack_a_contiguous_depth(const Panel& p, std::uint16_t* out) {
  for (std::int64_t l = 0; l < p.depth; l += 32) {
    for (std::int64_t i = 0; i < 32; ++i, out += 32) _mm512_store_si512(out, line_row(p, i, l));
  }
}

void pack_a_contiguous_lines(const Panel& p, std::uint16_t* out) {
  for (std::int64_t l = 0; l < p.depth; l += 32, out += 2 * kTileElements) {
    __m512i first[16], second[16];
    for (int r = 0; r < 16; ++r) {
      const Pairs pairs = interleave(depth_row(p, l + 2 * r), depth_row(p, l + 2 * r + 1));
      first[r] = pairs.first;
      second[r] = pairs.second;
    }
    transpose_16x16(first, out);
    transpose_16x16(second, out + kTileElements);
  }
}

void pack_b_contiguous_lines(const Panel& p, std::uint16_t* out) {
  for (std::int64_t l = 0; l < p.depth; l += 32, out += 2 * kTileElements) {
    for (int r = 0; r < 16; ++r) {
      const Pairs pairs = interleave(depth_row(p, l + 2 * r), depth_row(p, l + 2 * r + 1));
      _mm512_store_si512(out + 32 * r, pairs.first);
      _mm512_store_si512(out + kTileElements + 32 * r, pairs.second);
    }
  }
}

void pack_b_contiguous_depth(const Panel& p, std::uint16_t* out) {
  for (std::int64_t l = 0; l < p.depth; l += 32) {
    for (std::int64_t half = 0; half < 2; ++half, out += kTileElements) {
      __m512i rows[16];
      for (int i = 0; i < 16; ++i) rows[i] = line_row(p, 16 * half + i, l);
      transpose_16x16(rows, out);
    }
  }
}

struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);
// In memory for good: GCC sees only the first bytes of the configuration as read by the instruction.
const TileConfig kTileConfig;

struct AmxKernel {
  using Element = std::uint16_t;
  static constexpr std::int64_t kRows = 32;
  static constexpr std::int64_t kColumns = 32;
  static constexpr std::int64_t kDepthUnit = 32;

  // Configures the thread's tile registers, all 16 rows of 64 bytes, and releases them.
  struct Session {
    __attribute__((target("amx-tile"))) Session() { _tile_loadconfig(&kTileConfig); }
    __attribute__((target("amx-tile"))) ~Session() { _tile_release(); }
  };

  static void pack_a(const GemmProblem& p, std::int64_t row, std::int64_t row_end, std::int64_t k_begin,
                     std::int64_t k_end, Element* out) {
    const Panel panel = panel_of(p.a, p.transpose_a, p.lda, row, row_end, k_begin, k_end);
    p.transpose_a ? pack_a_contiguous_lines(panel, out) : pack_a_contiguous_depth(panel, out);
  }

  static void pack_b(const GemmProblem& p, std::int64_t column, std::int64_t column_end, std::int64_t k_begin,
                     std::int64_t k_end, Element* out) {
    const Panel panel = panel_of(p.b, !p.transpose_b, p.ldb, column, column_end, k_begin, k_end);
    p.transpose_b ? pack_b_contiguous_depth(panel, out) : pack_b_contiguous_lines(panel, out);
  }

  __attribute__((target("amx-tile,amx-bf16"))) static void multiply(std::int64_t depth, const Element* a,
                                                                    const Element* b, bool add, float* tile) {
    constexpr int kTileStride = 64, kSumStride = 128;  // bytes
    float* const lower = tile + 16 * kColumns;
    if (add) {
      _tile_loadd(0, tile, kSumStride);
      _tile_loadd(1, tile + 16, kSumStride);
      _tile_loadd(2, lower, kSumStride);
      _tile_loadd(3, lower + 16, kSumStride);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    for (std::int64_t l = 0; l < depth; l += 32, a += 2 * kTileElements, b += 2 * kTileElements) {
      _tile_loadd(4, a, kTileStride);
      _tile_loadd(6, b, kTileStride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b + kTileElements, kTileStride);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a + kTileElements, kTileStride);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, tile, kSumStride);
    _tile_stored(1, tile + 16, kSumStride);
    _tile_stored(2, lower, kSumStride);
    _tile_stored(3, lower + 16, kSumStride);
  }
};

}  // namespace

void gemm_block_amx(const GemmProblem& problem, const GemmBlock& block) {
  compute_block<AmxKernel>(problem, block);
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif  // HWY_AVX3

#if HWY_ONCE
namespace switchyard::cpu {

void gemm_block_amx(const GemmProblem& problem, const GemmBlock& block) {
  N_AVX3::gemm_block_amx(problem, block);
}

}  // namespace switchyard::cpu
#endif
#endif  // x86-64
