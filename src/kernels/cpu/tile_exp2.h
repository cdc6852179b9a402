// Exponentials in the vectors of tile kernels.
#pragma once

#include "kernels/cpu/tile_target.h"

#if defined(__x86_64__)
SWITCHYARD_TILES_BEGIN
namespace switchyard::cpu::SWITCHYARD_TILES {

inline constexpr float kLog2E = 1.44269504f;

// 2^x = 2^floor(x) p(x - floor(x)), with p the polynomial of these coefficients, the highest first; 0 for
// -inf and below the range of a float, NaN for NaN.
template <typename... Lower>
SWITCHYARD_TILED_INLINE __m512 exp2_by(__m512 x, float highest, Lower... lower) {
  const __m512 f = _mm512_reduce_ps(x, 0x09);  // x - floor(x), exact
  __m512 p = _mm512_set1_ps(highest);
  ((p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(lower))), ...);
  return _mm512_scalef_ps(p, x);
}

// To 1e-7 relative: the minimax polynomial of degree 5 on [0, 1) (Remez, relative error 7.5e-8).
SWITCHYARD_TILED_INLINE __m512 exp2_vector(__m512 x) {
  return exp2_by(x, 0.00187757669f, 0.00898933969f, 0.0558263175f, 0.240153611f, 0.693153083f, 0.99999994f);
}

}  // namespace switchyard::cpu::SWITCHYARD_TILES
SWITCHYARD_TILES_END
#endif
