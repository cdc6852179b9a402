// The parts of both passes of attention in tiles: operands in tile order, products of tiles,
// exponentials and masks (internal to kernels/cpu/attention_*_tiles.cc).
//
// 1. A sequence is cut into strips of 32 positions, and every width (qk_dim, v_dim) is padded with zeros to a
//    multiple of 32. A strip of an operand is `32 * width` words of 1 KB tiles in
//    one of four orders (StripOrder).
// 2. All products make 32 x 32 blocks: four fp32 tiles [row half][column half] of 16 x 16.
// 3. Scores are made transposed, [key][query]: the maximum, sum and constants of a query stay in its lane.
#pragma once

#include "kernels/attention/attention_problem.h"

#if defined(__x86_64__)
#include <algorithm>
#include <limits>
#include <vector>

#include "core/tensor.h"
#include "kernels/cpu/tile_block.h"
#include "kernels/cpu/tile_exp2.h"
#include "kernels/cpu/tile_pack.h"

namespace switchyard::cpu::SWITCHYARD_TILES::attention_tiles {

inline constexpr std::int64_t kStrip = 32;
inline constexpr std::int64_t kTileFloats = 256;  // 16 x 16 fp32
inline constexpr std::int64_t kBlockFloats = 4 * kTileFloats;
// Strips of queries and of keys that are worked on together. 256 positions: an accumulator in L2 is loaded
// and stored once per 8 products, and the operands of both sides at 128 dims with P and dS fill half of L2.
inline constexpr std::int64_t kBlockStrips = 8;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline std::int64_t padded(std::int64_t width) {
  return (width + 31) / 32 * 32;
}
inline std::int64_t strips_of(std::int64_t length) {
  return (length + kStrip - 1) / kStrip;
}

// A buffer of T, 64-byte aligned, uninitialised.
template <typename T>
class Scratch {
 public:
  explicit Scratch(std::int64_t count) : buffer_(static_cast<std::size_t>(count) * sizeof(T)) {}
  T* data() { return reinterpret_cast<T*>(buffer_.data()); }

 private:
  Buffer buffer_;
};

// ---- Packing
// -------------------------------------------------------------------------------------------------------

// Order of a strip's words. "Left" operands have 16 rows of 32 depth elements a tile, "right" ones 16 rows of
// depth pairs for 16 columns.
enum class StripOrder : std::uint8_t {
  left_positions,   // rows are positions, depth is dims:  tiles [width/32][2 halves of the positions]
  left_dims,        // rows are dims, depth is positions:  tiles [width/16]
  right_positions,  // columns are positions, depth dims:  tiles [width/32][2 halves of the positions]
  right_dims,       // columns are dims, depth positions (pairs i, i + 16):  tiles [width/16]
};

// Positions of one head in a tensor [B, length, heads, width]: element (i, d) is x[i * stride + d].
struct HeadRows {
  Word* x;
  std::int64_t stride;
  std::int64_t rows;
  std::int64_t width;
};

// The strip from position `begin` of head `head`.
inline HeadRows strip_rows(const void* x, std::int64_t batch, std::int64_t begin, std::int64_t length,
                           std::int64_t head, std::int64_t heads, std::int64_t width) {
  auto* words = static_cast<Word*>(const_cast<void*>(x));
  return {words + ((batch * length + begin) * heads + head) * width, heads * width,
          std::clamp<std::int64_t>(length - begin, 0, kStrip), width};
}

// 32 dims from `d` of row i; zero past the ends.
SWITCHYARD_TILED_INLINE __m512i dims_of(const HeadRows& s, std::int64_t i, std::int64_t d) {
  if (i >= s.rows) return _mm512_setzero_si512();
  const Word* x = s.x + i * s.stride + d;
  if (s.width - d >= 32) return _mm512_loadu_si512(x);
  return _mm512_maskz_loadu_epi16((1u << (s.width - d)) - 1u, x);
}

// Brings the rows to L2, to be written when kWrite. Rows of one head lie apart, so that the processor's own
// prefetching misses them.
template <bool kWrite = false>
void prefetch_rows(const HeadRows& s) {
  for (std::int64_t i = 0; i < s.rows; ++i) {
    const Word* x = s.x + i * s.stride;
    for (std::int64_t d = 0; d < s.width; d += 32) __builtin_prefetch(x + d, kWrite ? 1 : 0, 2);
  }
}
// How many strips ahead of their use rows are fetched.
inline constexpr std::int64_t kAhead = 2;

// Packs a strip of rows in the given order to out [32 * padded width].
void pack_strip(const HeadRows& s, StripOrder order, Word* out);
// Packs a strip in two orders, reading the rows once.
void pack_strip(const HeadRows& s, StripOrder first_order, Word* first, StripOrder second_order,
                Word* second);

// Stores x^T, rounded: x is [padded width/32] blocks [dim][position]; position i
// is first multiplied by factor[i].
void store_transposed(const float* x, const float* factor, const HeadRows& out);
// Stores factor * x, rounded: x is [padded width/32] blocks [position][dim].
void store_plain(const float* x, float factor, const HeadRows& out);

// ---- Products
// ------------------------------------------------------------------------------------------------------

// A block that is made step by step, its operands' two tiles and its own four being neighbours in memory.
// Operands must stay until the block is closed, and the block is in memory only then. A block is closed by
// the next one, or by `close`.
class OpenBlock {
 public:
  SWITCHYARD_TILED_INLINE void begin(const Word* a, const Word* b, float* c, bool add);
  SWITCHYARD_TILED_INLINE void step(const Word* a, const Word* b);
  SWITCHYARD_TILED_INLINE void close();

 private:
  float* block_ = nullptr;
#if defined(SWITCHYARD_SOFT_TILES)
  static constexpr std::int64_t kMost = 32;
  bool add_ = false;
  std::int64_t count_ = 0;
  StepTiles steps_[kMost];
#endif
};

#if defined(SWITCHYARD_SOFT_TILES)

// Steps are kept until there is no more to come: then the sums need not leave their registers between them.
void OpenBlock::begin(const Word* a, const Word* b, float* c, bool add) {
  close();
  block_ = c;
  add_ = add;
  step(a, b);
}

void OpenBlock::step(const Word* a, const Word* b) {
  if (count_ == kMost) {
    float* const block = block_;
    close();
    block_ = block;
    add_ = true;
  }
  steps_[count_++] = {a, b};
}

void OpenBlock::close() {
  if (block_ == nullptr) return;
  for (std::int64_t quarter = 0; quarter < 4; ++quarter) {
    multiply_eight_rows(
        count_, [&](std::int64_t l) { return steps_[l]; }, quarter, kTileWords, kTileWords,
        {block_, 2 * kTileFloats, kTileFloats, 16}, add_);
  }
  block_ = nullptr;
  count_ = 0;
}

#else

// The block before it is stored meanwhile: its last products take time to finish (measured:
// 15 % on short blocks).
void OpenBlock::begin(const Word* a, const Word* b, float* c, bool add) {
  asm volatile("" ::: "memory");
  if (block_ != nullptr) {
    SWITCHYARD_TILE_STORE(0, block_, 64);
    SWITCHYARD_TILE_STORE(1, block_ + kTileFloats, 64);
  }
  if (add) {
    SWITCHYARD_TILE_LOAD(0, c, 64);
    SWITCHYARD_TILE_LOAD(1, c + kTileFloats, 64);
  } else {
    SWITCHYARD_TILE_ZERO(0);
    SWITCHYARD_TILE_ZERO(1);
  }
  SWITCHYARD_TILE_LOAD(4, a, 64);
  SWITCHYARD_TILE_LOAD(6, b, 64);
  SWITCHYARD_TILE_PRODUCT(0, 4, 6);
  SWITCHYARD_TILE_LOAD(7, b + kTileWords, 64);
  SWITCHYARD_TILE_PRODUCT(1, 4, 7);
  if (block_ != nullptr) {
    SWITCHYARD_TILE_STORE(2, block_ + 2 * kTileFloats, 64);
    SWITCHYARD_TILE_STORE(3, block_ + 3 * kTileFloats, 64);
  }
  if (add) {
    SWITCHYARD_TILE_LOAD(2, c + 2 * kTileFloats, 64);
    SWITCHYARD_TILE_LOAD(3, c + 3 * kTileFloats, 64);
  } else {
    SWITCHYARD_TILE_ZERO(2);
    SWITCHYARD_TILE_ZERO(3);
  }
  SWITCHYARD_TILE_LOAD(5, a + kTileWords, 64);
  SWITCHYARD_TILE_PRODUCT(2, 5, 6);
  SWITCHYARD_TILE_PRODUCT(3, 5, 7);
  block_ = c;
}

void OpenBlock::step(const Word* a, const Word* b) {
  SWITCHYARD_TILE_LOAD(4, a, 64);
  SWITCHYARD_TILE_LOAD(6, b, 64);
  SWITCHYARD_TILE_PRODUCT(0, 4, 6);
  SWITCHYARD_TILE_LOAD(7, b + kTileWords, 64);
  SWITCHYARD_TILE_PRODUCT(1, 4, 7);
  SWITCHYARD_TILE_LOAD(5, a + kTileWords, 64);
  SWITCHYARD_TILE_PRODUCT(2, 5, 6);
  SWITCHYARD_TILE_PRODUCT(3, 5, 7);
}

void OpenBlock::close() {
  if (block_ == nullptr) return;
  SWITCHYARD_TILE_STORE(0, block_, 64);
  SWITCHYARD_TILE_STORE(1, block_ + kTileFloats, 64);
  SWITCHYARD_TILE_STORE(2, block_ + 2 * kTileFloats, 64);
  SWITCHYARD_TILE_STORE(3, block_ + 3 * kTileFloats, 64);
  block_ = nullptr;
}

#endif

// The strips of a block that take part.
struct StripList {
  std::int64_t at[kBlockStrips];
  std::int64_t count = 0;
  void add(std::int64_t strip) { at[count++] = strip; }
};

// c (+)= A . B over the positions of the listed strips (at least one), which are the given words
// apart. c is left open.
SWITCHYARD_TILED_INLINE void multiply_strips(const Word* a, std::int64_t a_strip, const Word* b,
                                             std::int64_t b_strip, const StripList& strips, float* c,
                                             bool add, OpenBlock& open) {
  open.begin(a + strips.at[0] * a_strip, b + strips.at[0] * b_strip, c, add);
  for (std::int64_t i = 1; i < strips.count; ++i) {
    open.step(a + strips.at[i] * a_strip, b + strips.at[i] * b_strip);
  }
}

// Products written down to be run in small portions between vector instructions: the tile unit works while
// the vector units do. Blocks run in the order in which they were added; the last stays open until the next
// one, or `close`.
class TileSteps {
 public:
  // c = A . B over the dims of a strip of each.
  void add_dims(const Word* a, const Word* b, std::int64_t width, float* c) {
    for (std::int64_t d = 0; d < width; d += 32) {
      steps_.push_back({a + d * 32, b + d * 32, d == 0 ? c : nullptr, false});
    }
  }
  // Step `i` of c (+)= A . B.
  void add_step(const Word* a, const Word* b, float* c, bool add, std::int64_t i) {
    steps_.push_back({a, b, i == 0 ? c : nullptr, add});
  }
  void clear() { steps_.clear(); }

  // Portion `i` of `count`; all portions together are all steps.
  SWITCHYARD_TILED_INLINE void run(std::size_t i, std::size_t count) {
    const std::size_t end = (i + 1) * steps_.size() / count;
    for (std::size_t at = i * steps_.size() / count; at < end; ++at) {
      const Step& step = steps_[at];
      if (step.begins != nullptr) {
        open_.begin(step.a, step.b, step.begins, step.add);
      } else {
        open_.step(step.a, step.b);
      }
    }
  }
  SWITCHYARD_TILED void close() { open_.close(); }

 private:
  struct Step {
    const Word* a;
    const Word* b;
    float* begins;  // the block of which it is the first step, or null
    bool add;
  };
  std::vector<Step> steps_;
  OpenBlock open_;
};

// Brings part `part` of `parts` of `count` elements to L2.
template <typename T>
void prefetch_part(const T* x, std::int64_t count, std::int64_t part, std::int64_t parts) {
  constexpr auto kLine = static_cast<std::int64_t>(64 / sizeof(T));
  const std::int64_t end = (part + 1) * count / parts;
  for (std::int64_t i = part * count / parts; i < end; i += kLine) __builtin_prefetch(x + i, 0, 2);
}

// ---- Exponentials
// --------------------------------------------------------------------------------------------------

// While the tile unit is in use, one vector unit of two takes no multiplications, shifts or maxima (measured:
// 0.32 ns each, not 0.15): what can be done with additions, logic and shuffles is.

// 2^x to 3e-6 relative, 2^0 = 1: the polynomial of degree 4 with p(0) = 1 that is nearest to 2^f on [0, 1)
// (weighted least squares repeated until the relative error is level: 2.9e-6).
SWITCHYARD_TILED_INLINE __m512 exp2_vector(__m512 x) {
  return exp2_by(x, 0.0134266907f, 0.052242461f, 0.241280214f, 0.693044843f, 1.0f);
}

// Rounding to bf16 to nearest, ties away from zero, in the upper half of each lane; the
// lower half is left over.
SWITCHYARD_TILED_INLINE __m512i rounded(__m512 x) {
  return _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
}

// Pairs (x[i], y[i]) of the upper halves.
SWITCHYARD_TILED_INLINE __m512i paired(__m512i x, __m512i y) {
  const __m512i down =
      _mm512_broadcast_i32x4(_mm_setr_epi8(2, 3, -1, -1, 6, 7, -1, -1, 10, 11, -1, -1, 14, 15, -1, -1));
  constexpr int kAndOr = 0xea;  // (a & b) | c
  return _mm512_ternarylogic_epi32(_mm512_set1_epi32(-65536), y, _mm512_shuffle_epi8(x, down), kAndOr);
}

// ---- Masks
// ---------------------------------------------------------------------------------------------------------

// Index and segment of every position, padded to whole strips, and which scores exist.
class Masks {
 public:
  explicit Masks(const AttentionSpec& args);

  std::int64_t q_strips() const { return q_strips_; }
  std::int64_t kv_strips() const { return kv_strips_; }
  TileMask of(std::int64_t batch, std::int64_t q_strip, std::int64_t kv_strip) const;
  // Sets the scores of a block [key][query] that do not exist to -infinity.
  void apply(std::int64_t batch, std::int64_t q_strip, std::int64_t kv_strip, float* scores) const;

 private:
  struct Side {
    std::vector<std::int32_t> index, segment;  // [B][strips * 32]
    std::vector<std::int32_t> visible;         // the first place that each sees as a query
    std::vector<TileRange> ranges;             // [B][strips]
  };
  static Side side(std::int64_t batch, std::int64_t length, const std::int32_t* index,
                   const std::int32_t* segment, bool ordered, const KeyWindow& seen);

  const AttentionSpec& args_;
  std::int64_t q_strips_, kv_strips_;
  Side q_, kv_;
};

}  // namespace switchyard::cpu::SWITCHYARD_TILES::attention_tiles
#endif  // x86-64
