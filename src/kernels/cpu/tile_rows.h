// Rows of 16 floats, or bf16 as floats, of which only the first may be there. Included by files that work
// between SWITCHYARD_TILES_BEGIN and _END.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/dtype.h"
#include "kernels/cpu/tile_target.h"

#if defined(__x86_64__)
SWITCHYARD_TILES_BEGIN
namespace switchyard::cpu::SWITCHYARD_TILES {

// The first of 16; count may be less than 0 and more than 16.
inline __mmask16 first(std::int64_t count) {
  return static_cast<__mmask16>((1u << std::clamp<std::int64_t>(count, 0, 16)) - 1u);
}

inline __m512 widen(__m256i words) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

inline __m512 load_some(const float* x, __mmask16 mask) {
  return _mm512_maskz_loadu_ps(mask, x);
}
inline __m512 load_some(const bfloat16* x, __mmask16 mask) {
  return widen(_mm256_maskz_loadu_epi16(mask, x));
}
inline void store_some(float* x, __mmask16 mask, __m512 v) {
  _mm512_mask_storeu_ps(x, mask, v);
}
inline void store_some(bfloat16* x, __mmask16 mask, __m512 v) {
  _mm256_mask_storeu_epi16(x, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
}

}  // namespace switchyard::cpu::SWITCHYARD_TILES
SWITCHYARD_TILES_END
#endif
