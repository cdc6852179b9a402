// The building block of every tile kernel: 32 x 32 sums (+)= A . B, with A two tiles of rows and B two tiles
// of columns for each step of 32 of depth. A sum takes its depth in order, so its bits do not depend on how a
// depth is cut into calls.
//
// With AMX the sums are four tile registers. With AVX512-BF16 they are eight rows of 32 at a time in vector
// registers for all the steps: tile by tile, sums would be loaded and stored 32 times as often (measured on
// Zen 4: 98 % of what dot products in registers reach, against 75 %).
#pragma once

#include "kernels/cpu/tile_target.h"

#if defined(__x86_64__)
SWITCHYARD_TILES_BEGIN
namespace switchyard::cpu::SWITCHYARD_TILES {

// Tiles of one operand: words from a step to the next, and from a step's first tile to its second.
struct BlockOperand {
  const std::uint16_t* x;
  std::int64_t step;
  std::int64_t second;
};

// Four tiles of sums: floats from the upper to the lower ones and from left to right, and from row to row.
struct BlockSums {
  float* x;
  std::int64_t lower;
  std::int64_t right;
  std::int64_t row;
};

// The part of a block that is not padding: its first rows, and the first pairs of its last step's depth.
// Only this part need be multiplied; sums of the other rows may be left as they are.
struct BlockUse {
  std::int64_t rows = 32;
  std::int64_t last_pairs = 16;
};

#if defined(SWITCHYARD_SOFT_TILES)

// The first tiles of a step.
struct StepTiles {
  const std::uint16_t *a, *b;
};

// Eight rows of a block: its first, second ... quarter. step(l) gives the tiles of a step.
template <typename Step>
SWITCHYARD_TILED_INLINE void multiply_eight_rows(std::int64_t steps, const Step& step, std::int64_t quarter,
                                                 std::int64_t a_second, std::int64_t b_second, BlockSums c,
                                                 bool add, std::int64_t last_pairs = 16) {
  float* const sums = c.x + quarter / 2 * c.lower + quarter % 2 * 8 * c.row;
  const std::int64_t a_row = quarter / 2 * a_second + quarter % 2 * 8 * 32;
  __m512 left[8], right[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    left[i] = add ? _mm512_load_ps(sums + i * c.row) : _mm512_setzero_ps();
    right[i] = add ? _mm512_load_ps(sums + i * c.row + c.right) : _mm512_setzero_ps();
  }
  for (std::int64_t l = 0; l < steps; ++l) {
    const StepTiles tiles = step(l);
    const std::uint16_t *const a = tiles.a + a_row, *const b = tiles.b;
    const std::int64_t pairs = l + 1 < steps ? 16 : last_pairs;
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      const auto b_left = reinterpret_cast<__m512bh>(_mm512_load_si512(b + 32 * pair));
      const auto b_right = reinterpret_cast<__m512bh>(_mm512_load_si512(b + b_second + 32 * pair));
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        int words;
        __builtin_memcpy(&words, a + 32 * i + 2 * pair, sizeof words);
        const auto both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(words));
        left[i] = _mm512_dpbf16_ps(left[i], both, b_left);
        right[i] = _mm512_dpbf16_ps(right[i], both, b_right);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    _mm512_store_ps(sums + i * c.row, left[i]);
    _mm512_store_ps(sums + i * c.row + c.right, right[i]);
  }
}

#else

// One step. kStreamB: B's tiles must not push A's out of L1. kLower: multiplies A's second tile, too.
template <bool kStreamB, bool kLower>
SWITCHYARD_TILED_INLINE void multiply_step(const std::uint16_t* a, std::int64_t a_second,
                                           const std::uint16_t* b, std::int64_t b_second) {
  if constexpr (kStreamB) {
    SWITCHYARD_TILE_STREAM_LOAD(6, b, 64);
  } else {
    SWITCHYARD_TILE_LOAD(6, b, 64);
  }
  SWITCHYARD_TILE_LOAD(4, a, 64);
  SWITCHYARD_TILE_PRODUCT(0, 4, 6);
  if constexpr (kLower) {
    SWITCHYARD_TILE_LOAD(5, a + a_second, 64);
    SWITCHYARD_TILE_PRODUCT(2, 5, 6);
  }
  if constexpr (kStreamB) {
    SWITCHYARD_TILE_STREAM_LOAD(7, b + b_second, 64);
  } else {
    SWITCHYARD_TILE_LOAD(7, b + b_second, 64);
  }
  SWITCHYARD_TILE_PRODUCT(1, 4, 7);
  if constexpr (kLower) SWITCHYARD_TILE_PRODUCT(3, 5, 7);
}

template <bool kStreamB, bool kLower, typename Between>
SWITCHYARD_TILED_INLINE void multiply_steps(std::int64_t steps, BlockOperand a, BlockOperand b, BlockSums c,
                                            bool add, const Between& between) {
  asm volatile("" ::: "memory");  // GCC's tile loads do not tell the compiler that they read memory
  const std::int64_t row_bytes = 4 * c.row;
  if (add) {
    SWITCHYARD_TILE_LOAD(0, c.x, row_bytes);
    SWITCHYARD_TILE_LOAD(1, c.x + c.right, row_bytes);
    if constexpr (kLower) {
      SWITCHYARD_TILE_LOAD(2, c.x + c.lower, row_bytes);
      SWITCHYARD_TILE_LOAD(3, c.x + c.lower + c.right, row_bytes);
    }
  } else {
    SWITCHYARD_TILE_ZERO(0);
    SWITCHYARD_TILE_ZERO(1);
    if constexpr (kLower) {
      SWITCHYARD_TILE_ZERO(2);
      SWITCHYARD_TILE_ZERO(3);
    }
  }
  for (std::int64_t l = 0; l < steps; ++l, a.x += a.step, b.x += b.step) {
    multiply_step<kStreamB, kLower>(a.x, a.second, b.x, b.second);
    between(l);
  }
  SWITCHYARD_TILE_STORE(0, c.x, row_bytes);
  SWITCHYARD_TILE_STORE(1, c.x + c.right, row_bytes);
  if constexpr (kLower) {
    SWITCHYARD_TILE_STORE(2, c.x + c.lower, row_bytes);
    SWITCHYARD_TILE_STORE(3, c.x + c.lower + c.right, row_bytes);
  }
}

#endif

// Multiplies a block over `steps` steps of depth; `add`: adds the sums to those in c. Calls between(l) once
// for every step, which may do other work meanwhile.
template <bool kStreamB, typename Between>
SWITCHYARD_TILED_INLINE void multiply_block(std::int64_t steps, BlockOperand a, BlockOperand b, BlockSums c,
                                            bool add, BlockUse use, const Between& between) {
#if defined(SWITCHYARD_SOFT_TILES)
  for (std::int64_t quarter = 0; quarter * 8 < use.rows; ++quarter) {
    const auto step = [&](std::int64_t l) {
      if (quarter == 0) between(l);
      return StepTiles{a.x + l * a.step, b.x + l * b.step};
    };
    multiply_eight_rows(steps, step, quarter, a.second, b.second, c, add, use.last_pairs);
  }
#else
  if (use.rows > 16)
    multiply_steps<kStreamB, true>(steps, a, b, c, add, between);
  else
    multiply_steps<kStreamB, false>(steps, a, b, c, add, between);
#endif
}

template <bool kStreamB>
SWITCHYARD_TILED_INLINE void multiply_block(std::int64_t steps, BlockOperand a, BlockOperand b, BlockSums c,
                                            bool add) {
  multiply_block<kStreamB>(steps, a, b, c, add, {}, [](std::int64_t) {});
}

// A block whose sums start at zero and are stored later, so that other work runs while the tile unit works.
// Until store(), no other block may be multiplied, and the operands must stay.
class HeldBlock {
 public:
#if defined(SWITCHYARD_SOFT_TILES)
  SWITCHYARD_TILED_INLINE void multiply(std::int64_t steps, BlockOperand a, BlockOperand b) {
    steps_ = steps;
    a_ = a;
    b_ = b;
  }
  SWITCHYARD_TILED_INLINE void store(BlockSums c) {
    multiply_block<false>(steps_, a_, b_, c, false);
  }

 private:
  std::int64_t steps_ = 0;
  BlockOperand a_{}, b_{};
#else
  SWITCHYARD_TILED_INLINE void multiply(std::int64_t steps, BlockOperand a, BlockOperand b) {
    asm volatile("" ::: "memory");
    SWITCHYARD_TILE_ZERO(0);
    SWITCHYARD_TILE_ZERO(1);
    SWITCHYARD_TILE_ZERO(2);
    SWITCHYARD_TILE_ZERO(3);
    for (std::int64_t l = 0; l < steps; ++l, a.x += a.step, b.x += b.step)
      multiply_step<false, true>(a.x, a.second, b.x, b.second);
  }
  SWITCHYARD_TILED_INLINE void store(BlockSums c) {
    SWITCHYARD_TILE_STORE(0, c.x, 4 * c.row);
    SWITCHYARD_TILE_STORE(1, c.x + c.right, 4 * c.row);
    SWITCHYARD_TILE_STORE(2, c.x + c.lower, 4 * c.row);
    SWITCHYARD_TILE_STORE(3, c.x + c.lower + c.right, 4 * c.row);
  }
#endif
};

}  // namespace switchyard::cpu::SWITCHYARD_TILES
SWITCHYARD_TILES_END
#endif
