// Stores the sums of a product, plain or with the gated activation (internal to gemm_tiles.cc).
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/tile_rows.h"
#include "kernels/product/cpu/gemm_tiles_pack.h"

#if defined(__x86_64__)
SWITCHYARD_TILES_BEGIN
namespace switchyard::cpu::SWITCHYARD_TILES {

constexpr std::int64_t kSums = kLines * kLines;  // of the product of two panels

// Stores a whole row of 32. With past_caches, x must be aligned to 64 bytes.
inline void store_whole(float* x, __m512 low, __m512 high, bool past_caches) {
  if (past_caches) {
    _mm512_stream_ps(x, low);
    _mm512_stream_ps(x + 16, high);
  } else {
    _mm512_storeu_ps(x, low);
    _mm512_storeu_ps(x + 16, high);
  }
}
inline void store_whole(bfloat16* x, __m512 low, __m512 high, bool past_caches) {
  const auto words = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  past_caches ? _mm512_stream_si512(reinterpret_cast<__m512i*>(x), words) : _mm512_storeu_si512(x, words);
}

// Returns a row of 32 sums, rounded to bf16.
inline __m512i words_of(const float* low, const float* high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(_mm512_load_ps(high), _mm512_load_ps(low)));
}
inline __m512 low_floats(__m512i words) {
  return widen(_mm512_castsi512_si256(words));
}
inline __m512 high_floats(__m512i words) {
  return widen(_mm512_extracti64x4_epi64(words, 1));
}

// 1 / (1 + exp(-x)) and the rounding of bf16 as in kernels/pointwise/cpu/elementwise.cc, to the bit.
inline __m512 sigmoid(__m512 x) {
  const __m512 limit = _mm512_set1_ps(126.0f), negative_limit = _mm512_set1_ps(-126.0f);
  const __m512 scaled = _mm512_mul_ps(x, _mm512_set1_ps(-1.44269504f));
  const __m512 t = _mm512_max_ps(_mm512_min_ps(scaled, limit), negative_limit);
  const __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(t, n);
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0.00957010191f), f, _mm512_set1_ps(0.0559178603f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.240247448f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693121815f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.999999261f));
  const __m512i exponent = _mm512_slli_epi32(_mm512_cvttps_epi32(n), 23);
  const __m512 e = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), exponent));
  const __m512 y = _mm512_add_ps(_mm512_set1_ps(1.0f), e), guess = _mm512_rcp14_ps(y);
  const __m512 result = _mm512_mul_ps(guess, _mm512_fnmadd_ps(y, guess, _mm512_set1_ps(2.0f)));
  return _mm512_mask_mov_ps(result, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}
inline __m256i rounded_words(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(_mm512_set1_epi32(0x7fff), odd));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __m512i all = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(all, 16));
}
inline __m512i gated(__m512i gate, __m512i up, __m512 weight) {
  const auto half = [weight](__m512 g, __m512 u) {
    return rounded_words(_mm512_mul_ps(_mm512_mul_ps(_mm512_mul_ps(g, sigmoid(g)), u), weight));
  };
  return _mm512_inserti64x4(_mm512_castsi256_si512(half(low_floats(gate), low_floats(up))),
                            half(high_floats(gate), high_floats(up)), 1);
}

// Results too large for the caches are written past the caches, which does not read their lines first.
inline bool worth_streaming(const GemmProblem& p, const void* c, std::int64_t element_bytes) {
  constexpr std::int64_t kLargeBytes = std::int64_t{4} << 20;
  return p.m * p.n * element_bytes > kLargeBytes && p.ldc * element_bytes % 64 == 0 &&
         reinterpret_cast<std::uintptr_t>(c) % 64 == 0;
}

// The place in C of the sums of one strip.
template <typename C>
struct Destination {
  Destination() = default;
  Destination(const GemmProblem& p, std::int64_t row, std::int64_t index) {
    const Strip strip = strip_of(p, index);
    c = static_cast<C*>(strip.next ? p.c_next : p.c) + row * p.ldc + strip.column;
    if (p.bias != nullptr) bias = static_cast<const bfloat16*>(p.bias) + strip.column;
    low = first(strip.columns);
    high = first(strip.columns - 16);
    whole = strip.columns == kLines && bias == nullptr && !p.accumulate;
    past_caches = whole && worth_streaming(p, c, sizeof(C));
  }
  C* c = nullptr;  // of the panel's first row
  const bfloat16* bias = nullptr;
  __mmask16 low = 0, high = 0;
  bool whole = false, past_caches = false;
};

template <typename C>
inline void store_some_of_row(const Destination<C>& d, C* c, bool accumulate, __m512 x, __m512 y) {
  if (d.bias != nullptr) {
    x = _mm512_add_ps(x, load_some(d.bias, d.low));
    y = _mm512_add_ps(y, load_some(d.bias + 16, d.high));
  }
  if (accumulate) {
    x = _mm512_add_ps(x, load_some(c, d.low));
    y = _mm512_add_ps(y, load_some(c + 16, d.high));
  }
  store_some(c, d.low, x);
  store_some(c + 16, d.high, y);
}

// The rows of a panel: [first, first + count) of C.
struct PanelRows {
  std::int64_t first, count;
  // Returns the left 16 sums of row first + r in a strip.
  const float* in(const float* sums, std::int64_t r) const { return sums + r / 16 * 512 + r % 16 * 16; }
};

// Stores some strips of a panel row by row, so that memory is written in long runs.
template <typename C>
inline void store_panel(const GemmProblem& p, const PanelRows& rows, std::int64_t strip_begin,
                        std::int64_t strips, const float* sums) {
  constexpr std::int64_t kAtOnce = 16;
  Destination<C> to[kAtOnce];
  for (std::int64_t begin = 0; begin < strips; begin += kAtOnce, sums += kAtOnce * kSums) {
    const std::int64_t count = std::min(kAtOnce, strips - begin);
    for (std::int64_t s = 0; s < count; ++s) to[s] = Destination<C>(p, rows.first, strip_begin + begin + s);
    for (std::int64_t r = 0; r < rows.count; ++r) {
      const float* from = rows.in(sums, r);
      for (std::int64_t s = 0; s < count; ++s, from += kSums) {
        const __m512 x = _mm512_load_ps(from), y = _mm512_load_ps(from + 256);
        C* const c = to[s].c + r * p.ldc;
        to[s].whole ? store_whole(c, x, y, to[s].past_caches)
                    : store_some_of_row(to[s], c, p.accumulate, x, y);
      }
    }
  }
}

// Stores pairs of strips of C and C_next, and the hidden activation of both.
inline void store_gated_panel(const GemmProblem& p, const PanelRows& rows, std::int64_t strip_begin,
                              std::int64_t strips, const float* sums) {
  struct Target {
    Word *gate, *up, *hidden;
    __mmask32 mask;
    bool past_caches;
  };
  constexpr std::int64_t kAtOnce = 8;
  Target to[kAtOnce];
  for (std::int64_t begin = 0; begin < strips; begin += 2 * kAtOnce, sums += 2 * kAtOnce * kSums) {
    const std::int64_t pairs = std::min(kAtOnce, (strips - begin) / 2);
    for (std::int64_t s = 0; s < pairs; ++s) {
      const Strip strip = strip_of(p, strip_begin + begin + 2 * s);
      const auto at = [&](void* matrix) {
        return static_cast<Word*>(matrix) + rows.first * p.ldc + strip.column;
      };
      to[s] = {at(p.c), at(p.c_next), at(p.hidden), _cvtu32_mask32(0xffffffffu >> (32 - strip.columns)),
               strip.columns == kLines && worth_streaming(p, at(p.c), sizeof(Word)) &&
                   worth_streaming(p, at(p.c_next), sizeof(Word)) &&
                   worth_streaming(p, at(p.hidden), sizeof(Word))};
    }
    for (std::int64_t r = 0; r < rows.count; ++r) {
      const __m512 weight = _mm512_set1_ps(p.row_weights == nullptr ? 1.0f : p.row_weights[rows.first + r]);
      const float* from = rows.in(sums, r);
      for (std::int64_t s = 0; s < pairs; ++s, from += 2 * kSums) {
        const __m512i gate = words_of(from, from + 256);
        const __m512i up = words_of(from + kSums, from + kSums + 256);
        const auto store = [&, at = r * p.ldc](Word* c, __m512i words) {
          to[s].past_caches ? _mm512_stream_si512(reinterpret_cast<__m512i*>(c + at), words)
                            : _mm512_mask_storeu_epi16(c + at, to[s].mask, words);
        };
        store(to[s].gate, gate);
        store(to[s].up, up);
        store(to[s].hidden, gated(gate, up, weight));
      }
    }
  }
}

}  // namespace switchyard::cpu::SWITCHYARD_TILES
SWITCHYARD_TILES_END
#endif
