// bf16 products of tiles: one block of C at a time, 32 x 32 outputs from two tiles of A and two of B.
//
// What bounds it with AMX, measured on one core: a tile product takes 5.2 ns, a tile from L1 2.5 ns, from L2
// 6 ns, from further 30 ns; a step (32 x 32 x 32) of products alone 21 ns, with loads from L1 and data that
// is not zero 27 ns, with one operand from L2 33 ns, with both 40 ns. A cache line from memory takes 5 ns in
// a long run, 15 ns and more when it stands alone. So:
// 1. The block's rows of A are packed once. They may be more than L2 holds, since they are read in long runs.
// 2. A wide piece of B, some strips of 32 columns, is packed into L2 and used for all rows of A. It is read
// in
//    runs as long as it is wide, a little between products, while the piece before it is multiplied. (Packing
//    all of B beforehand gained nothing: it is read and written once more.)
// 3. For every 32 rows, kChunk steps of A are in L1 while the strips of B pass, read with the streaming tile
//    load, which leaves L1 alone. The sums of the strips wait in L1 and L2.
// 4. A depth over kSection steps is cut into sections, and the sums of all rows wait in memory. One so deep
//    that the block's rows of A would be more than kPackedWords is cut into passes of sections, each over all
//    strips: the sums of the whole block wait.
// Sections and chunks follow from the depth alone, so an element's sum has one order whatever the block.
#include <algorithm>

#include "kernels/cpu/thread_scratch.h"
#include "kernels/cpu/tile_block.h"
#include "kernels/cpu/tile_pack.h"
#include "kernels/gemm_problem.h"

#if defined(__x86_64__)
SWITCHYARD_TILES_BEGIN
namespace switchyard::cpu::SWITCHYARD_TILES {
namespace {

constexpr std::int64_t kSums = kLines * kLines;  // of the product of two panels
constexpr std::int64_t kChunk = 20;              // most steps of 32 of depth whose A is in L1
constexpr std::int64_t kSection = 72;            // most steps of depth whose B is in L2
#if defined(SWITCHYARD_SOFT_TILES)
constexpr std::int64_t kWideWords = 192 * 1024;  // of a piece of B; two are in L2, here of 1 MB
#else
constexpr std::int64_t kWideWords = 384 * 1024;  // of 2 MB
#endif
constexpr std::int64_t kPackedWords = 8 * 1024 * 1024;  // most of A, in whole sections: 16 MB
constexpr std::int64_t kNearStrips = 8;                 // whose sums stay in L1 and L2 from chunk to chunk

std::int64_t ceil_div(std::int64_t x, std::int64_t unit) {
  return (x + unit - 1) / unit;
}

// `size` in the fewest even parts of at most `most`: the size of one.
std::int64_t even_part(std::int64_t size, std::int64_t most) {
  return size == 0 ? 0 : ceil_div(size, ceil_div(size, most));
}

// The depth in steps of 32; the second operands' follows the first's.
struct Depth {
  explicit Depth(const GemmProblem& p)
      : k(p.k),
        segment(ceil_div(p.k, 32)),
        steps(segment * (p.a_next == nullptr ? 1 : 2)),
        section(even_part(steps, kSection)),
        chunk(even_part(section, kChunk)) {}
  // Calls piece(second operands?, first element, elements, steps before) over the steps [begin, end).
  template <typename Piece>
  void each_segment(std::int64_t begin, std::int64_t end, const Piece& piece) const {
    for (std::int64_t at = begin; at < end;) {
      const bool next = at >= segment;
      const std::int64_t first = at - (next ? segment : 0);
      const std::int64_t last = std::min(first + end - at, segment);
      piece(next, first * 32, std::min(last * 32, k) - first * 32, at - begin);
      at += last - first;
    }
  }
  std::int64_t k, segment, steps, section, chunk;
};

// 32 columns of one of the problem's matrices B.
struct Strip {
  bool next;
  std::int64_t column, columns;
};

// Where there are two matrices, they take turns.
Strip strip_of(const GemmProblem& p, std::int64_t index) {
  const bool next = p.c_next != nullptr && index % 2 == 1;
  const std::int64_t column = (p.c_next != nullptr ? index / 2 : index) * kLines;
  return {next, column, std::min(kLines, p.n - column)};
}

Stored stored_a(const GemmProblem& p, bool next) {
  return {static_cast<const Word*>(next ? p.a_next : p.a), p.lda, p.a_rows};
}

// The steps [begin, end) of one panel of rows.
void pack_a(const GemmProblem& p, const Depth& depth, std::int64_t begin, std::int64_t end, std::int64_t row,
            std::int64_t rows, Word* out) {
  depth.each_segment(begin, end, [&](bool next, std::int64_t from, std::int64_t count, std::int64_t before) {
    const Stored a = stored_a(p, next);
    Word* to = out + before * kStepWords;
    p.transpose_a ? pack_depth(a, row, rows, from, count, to) : pack_lines(a, row, rows, from, count, to);
  });
}

// Packs the steps [begin, end) of some strips of B, one strip after the other, half a step at a time and in
// the order in which they are stored.
class PackB {
 public:
  PackB() = default;
  PackB(const GemmProblem& p, const Depth& depth, std::int64_t strip_begin, std::int64_t strip_end,
        std::int64_t begin, std::int64_t end, Word* out)
      : p_(&p),
        depth_(&depth),
        out_(out),
        strip_(strip_begin),
        strips_(strip_end - strip_begin),
        step_(begin),
        steps_(end - begin),
        left_(2 * strips_ * steps_),
        to_fetch_(left_) {
    for (std::int64_t i = 0; i < kFetchAhead; ++i) fetch();
  }

  std::int64_t left() const { return left_; }

  // Of what is left.
  void pack(std::int64_t count) {
    for (count = std::min(count, left_); count > 0; --count, --left_) {
      fetch();
      const Half half = at(here_);
      Word* const to = out_ + (half.strip * steps_ + half.step) * kStepWords;
      p_->transpose_b
          ? pack_lines_of_b(half.x, p_->ldb, half.rows, half.columns, to + half.which * kTileWords)
          : pack_depth_of_b(half.x, p_->ldb, half.rows, half.columns, to + half.which * 256);
      advance(here_);
    }
  }

 private:
  static constexpr std::int64_t kFetchAhead = 16;

  // Half a step: 16 stored rows of 32 elements, fewer at the ends.
  struct Half {
    const Word* x;
    std::int64_t rows, columns, strip, step, which;
  };
  // Along stored rows first.
  struct Place {
    std::int64_t outer = 0, which = 0, inner = 0;
  };
  void advance(Place& place) const {
    if (++place.inner < (p_->transpose_b ? steps_ : strips_)) return;
    place.inner = 0;
    if (++place.which < 2) return;
    place.which = 0;
    ++place.outer;
  }

  Half at(const Place& place) const {
    const std::int64_t s = p_->transpose_b ? place.outer : place.inner;
    const std::int64_t l = p_->transpose_b ? place.inner : place.outer;
    const Strip strip = strip_of(*p_, strip_ + s);
    const bool next = step_ + l >= depth_->segment;
    const std::int64_t from = (step_ + l - (next ? depth_->segment : 0)) * 32;
    const auto* b = static_cast<const Word*>(next || strip.next ? p_->b_next : p_->b);
    const std::int64_t half = 16 * place.which, depth = p_->k - from;
    if (p_->transpose_b) {
      return {b + (strip.column + half) * p_->ldb + from, strip.columns - half, depth, s, l, place.which};
    }
    return {b + (from + half) * p_->ldb + strip.column, depth - half, strip.columns, s, l, place.which};
  }

  void fetch() {
    if (to_fetch_ == 0) return;
    --to_fetch_;
    const Half half = at(ahead_);
    for (std::int64_t i = 0; i < std::min<std::int64_t>(16, half.rows); ++i)
      _mm_prefetch(half.x + i * p_->ldb, _MM_HINT_T1);
    advance(ahead_);
  }

  const GemmProblem* p_ = nullptr;
  const Depth* depth_ = nullptr;
  Word* out_ = nullptr;
  std::int64_t strip_ = 0, strips_ = 0, step_ = 0, steps_ = 0, left_ = 0, to_fetch_ = 0;
  Place here_, ahead_;
};

// Memory to be brought to L2 while a panel is multiplied: 32 cache lines for every step of its depth.
struct Upcoming {
  const char* line[kLines];
  std::int64_t stride = 0;  // bytes from a step's line to the next one's; 0: nothing to bring

  // Of a packed panel.
  void packed(const Word* a) {
    for (std::int64_t r = 0; r < kLines; ++r) line[r] = reinterpret_cast<const char*>(a + r * 32);
    stride = 2 * kStepWords;
  }
  // Of stored rows that will be packed as lines.
  void stored(const GemmProblem& p, const Depth& depth, std::int64_t begin, std::int64_t row,
              std::int64_t rows) {
    const bool next = begin >= depth.segment;
    const Stored a = stored_a(p, next);
    const std::int64_t from = (begin - (next ? depth.segment : 0)) * 32;
    stride = 64;
    for (std::int64_t r = 0; r < kLines; ++r) {
      line[r] = reinterpret_cast<const char*>(a.row(row + std::min(r, rows - 1)) + from);
    }
  }
};

__mmask16 first(std::int64_t count) {
  return static_cast<__mmask16>((1u << std::clamp<std::int64_t>(count, 0, 16)) - 1u);
}

__m512 load_some(const float* x, __mmask16 mask) {
  return _mm512_maskz_loadu_ps(mask, x);
}
__m512 load_some(const bfloat16* x, __mmask16 mask) {
  const __m256i words = _mm256_maskz_loadu_epi16(mask, x);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}
void store_some(float* x, __mmask16 mask, __m512 v) {
  _mm512_mask_storeu_ps(x, mask, v);
}
void store_some(bfloat16* x, __mmask16 mask, __m512 v) {
  _mm256_mask_storeu_epi16(x, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
}

// A whole row of 32. Past the caches, x must be aligned to 64 bytes.
void store_whole(float* x, __m512 low, __m512 high, bool past_caches) {
  if (past_caches) {
    _mm512_stream_ps(x, low);
    _mm512_stream_ps(x + 16, high);
  } else {
    _mm512_storeu_ps(x, low);
    _mm512_storeu_ps(x + 16, high);
  }
}
void store_whole(bfloat16* x, __m512 low, __m512 high, bool past_caches) {
  const auto words = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  past_caches ? _mm512_stream_si512(reinterpret_cast<__m512i*>(x), words) : _mm512_storeu_si512(x, words);
}

// A row of 32 rounded sums.
__m512i words_of(const float* low, const float* high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(_mm512_load_ps(high), _mm512_load_ps(low)));
}
__m512 low_floats(__m512i words) {
  const __m256i half = _mm512_castsi512_si256(words);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
__m512 high_floats(__m512i words) {
  const __m256i half = _mm512_extracti64x4_epi64(words, 1);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// 1 / (1 + exp(-x)) and the rounding of bf16 as in kernels/cpu/elementwise.cc, to the bit.
__m512 sigmoid(__m512 x) {
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
__m256i rounded_words(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(_mm512_set1_epi32(0x7fff), odd));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __m512i all = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(all, 16));
}
__m512i gated(__m512i gate, __m512i up, __m512 weight) {
  const auto half = [weight](__m512 g, __m512 u) {
    return rounded_words(_mm512_mul_ps(_mm512_mul_ps(_mm512_mul_ps(g, sigmoid(g)), u), weight));
  };
  return _mm512_inserti64x4(_mm512_castsi256_si512(half(low_floats(gate), low_floats(up))),
                            half(high_floats(gate), high_floats(up)), 1);
}

// Results that the caches cannot hold are written past them: their lines are not read first.
bool worth_streaming(const GemmProblem& p, const void* c, std::int64_t element_bytes) {
  constexpr std::int64_t kLargeBytes = std::int64_t{4} << 20;
  return p.m * p.n * element_bytes > kLargeBytes && p.ldc * element_bytes % 64 == 0 &&
         reinterpret_cast<std::uintptr_t>(c) % 64 == 0;
}

// Where the sums of one strip go.
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
void store_some_of_row(const Destination<C>& d, C* c, bool accumulate, __m512 x, __m512 y) {
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

// Stores `rows` rows of C from `row` on, some strips: row by row, so that memory is written in long runs.
template <typename C>
void store_panel(const GemmProblem& p, std::int64_t row, std::int64_t rows, std::int64_t strip_begin,
                 std::int64_t strips, const float* sums) {
  constexpr std::int64_t kAtOnce = 16;
  Destination<C> to[kAtOnce];
  for (std::int64_t begin = 0; begin < strips; begin += kAtOnce, sums += kAtOnce * kSums) {
    const std::int64_t count = std::min(kAtOnce, strips - begin);
    for (std::int64_t s = 0; s < count; ++s) to[s] = Destination<C>(p, row, strip_begin + begin + s);
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* from = sums + (r / 16) * 512 + (r % 16) * 16;
      for (std::int64_t s = 0; s < count; ++s, from += kSums) {
        const __m512 x = _mm512_load_ps(from), y = _mm512_load_ps(from + 256);
        C* const c = to[s].c + r * p.ldc;
        to[s].whole ? store_whole(c, x, y, to[s].past_caches)
                    : store_some_of_row(to[s], c, p.accumulate, x, y);
      }
    }
  }
}

// The same for pairs of strips of C and C_next, and of both the hidden activation.
void store_gated_panel(const GemmProblem& p, std::int64_t row, std::int64_t rows, std::int64_t strip_begin,
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
      const auto at = [&](void* matrix) { return static_cast<Word*>(matrix) + row * p.ldc + strip.column; };
      to[s] = {at(p.c), at(p.c_next), at(p.hidden), _cvtu32_mask32(0xffffffffu >> (32 - strip.columns)),
               strip.columns == kLines && worth_streaming(p, at(p.c), sizeof(Word)) &&
                   worth_streaming(p, at(p.c_next), sizeof(Word)) &&
                   worth_streaming(p, at(p.hidden), sizeof(Word))};
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      const __m512 weight = _mm512_set1_ps(p.row_weights == nullptr ? 1.0f : p.row_weights[row + r]);
      const float* from = sums + (r / 16) * 512 + (r % 16) * 16;
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

struct Scratch {
  ThreadScratch a, b, sums;
};

Scratch& scratch() {
  thread_local Scratch s;
  return s;
}

class Block {
 public:
  Block(const GemmProblem& p, const GemmBlock& block)
      : p_(p),
        block_(block),
        depth_(p),
        panels_(ceil_div(block.row_end - block.row_begin, kLines)),
        first_strip_(block.column_begin / kLines),
        end_strip_(ceil_div(block.column_end, kLines)) {
    const std::int64_t section = std::max<std::int64_t>(1, depth_.section);
    wide_ = std::max<std::int64_t>(1, kWideWords / (section * kStepWords));
    if (depth_.chunk < depth_.section) wide_ = std::min(wide_, kNearStrips);
    if (p.c_next != nullptr) wide_ = std::max<std::int64_t>(2, wide_ / 2 * 2);  // strips in pairs
    pass_ = std::max<std::int64_t>(1, kPackedWords / (panels_ * section * kStepWords)) * section;
    pass_ = std::min(pass_, depth_.steps);
    auto& memory = scratch();
    a_ = memory.a.at_least<Word>(panels_ * pass_ * kStepWords);
    b_[0] = memory.b.at_least<Word>(2 * wide_ * section * kStepWords);
    b_[1] = b_[0] + wide_ * section * kStepWords;
    sums_ = memory.sums.at_least<float>(waiting_strips() * waiting_panels() * kSums);
  }

  void compute() {
    Piece piece{first_strip_, 0, 0};
    PackB packing = packing_of(piece, 0);
    for (int buffer = 0;; buffer = 1 - buffer) {
      packing.pack(packing.left());  // what is left of it
      const Piece next = after(piece);
      packing = next.strip < end_strip_ ? packing_of(next, 1 - buffer) : PackB();
      multiply(piece, b_[buffer], packing);
      if (next.strip >= end_strip_) return;
      piece = next;
    }
  }

 private:
  // Some strips of B, wide_ or fewer, and one section of the depth, of the pass from step `pass` on.
  struct Piece {
    std::int64_t strip, step, pass;
  };
  std::int64_t pass_end(const Piece& piece) const { return std::min(piece.pass + pass_, depth_.steps); }
  std::int64_t strip_end(const Piece& piece) const { return std::min(piece.strip + wide_, end_strip_); }
  std::int64_t step_end(const Piece& piece) const {
    return std::min(piece.step + depth_.section, pass_end(piece));
  }
  // Sections inside, then strips; past the last strip when there is no more.
  Piece after(const Piece& piece) const {
    if (step_end(piece) < pass_end(piece)) return {piece.strip, step_end(piece), piece.pass};
    if (strip_end(piece) < end_strip_) return {strip_end(piece), piece.pass, piece.pass};
    if (pass_end(piece) < depth_.steps) return {first_strip_, pass_end(piece), pass_end(piece)};
    return {end_strip_, 0, 0};
  }
  PackB packing_of(const Piece& piece, int buffer) const {
    return {p_, depth_, piece.strip, strip_end(piece), piece.step, step_end(piece), b_[buffer]};
  }

  // Whose sums are in memory at a time, in pieces of wide_ strips.
  std::int64_t waiting_strips() const {
    return pass_ < depth_.steps ? ceil_div(end_strip_ - first_strip_, wide_) * wide_ : wide_;
  }
  std::int64_t waiting_panels() const { return depth_.section < depth_.steps ? panels_ : 1; }

  // A panel of A from the piece's first step on.
  Word* a_of(std::int64_t panel, const Piece& piece) const {
    return a_ + (panel * pass_ + piece.step - piece.pass) * kStepWords;
  }
  std::int64_t row(std::int64_t panel) const { return block_.row_begin + panel * kLines; }
  std::int64_t rows(std::int64_t panel) const { return std::min(kLines, block_.row_end - row(panel)); }
  float* sums_of(std::int64_t panel, const Piece& piece) const {
    const std::int64_t before = pass_ < depth_.steps ? (piece.strip - first_strip_) / wide_ : 0;
    return sums_ + (before * panels_ + (waiting_panels() == 1 ? 0 : panel)) * wide_ * kSums;
  }

  // All rows of a piece whose B is packed, and meanwhile the packing of the next one's.
  void multiply(const Piece& piece, const Word* b, PackB& packing) {
    const std::int64_t end = step_end(piece), strips = strip_end(piece) - piece.strip;
    packed_ = 0;
    to_pack_ = packing.left();
    packed_every_ = panels_ * strips * (end - piece.step);
    bool unpacked = piece.strip == first_strip_;
    if (unpacked && p_.transpose_a) {  // panels are neighbours in memory: all of a step, then the next step
      for (std::int64_t l = piece.step; l < end; ++l) {
        for (std::int64_t i = 0; i < panels_; ++i)
          pack_a(p_, depth_, l, l + 1, row(i), rows(i), a_of(i, piece) + (l - piece.step) * kStepWords);
      }
      unpacked = false;
    }
    Upcoming upcoming;
    for (std::int64_t i = 0; i < panels_; ++i) {
      if (unpacked) pack_a(p_, depth_, piece.step, end, row(i), rows(i), a_of(i, piece));
      upcoming.stride = 0;
      if (i + 1 < panels_ && unpacked) upcoming.stored(p_, depth_, piece.step, row(i + 1), rows(i + 1));
      if (i + 1 < panels_ && !unpacked) upcoming.packed(a_of(i + 1, piece));
      multiply_panel(i, piece, b, upcoming, packing);
      if (end == depth_.steps) store(i, piece);
    }
  }

  void multiply_panel(std::int64_t i, const Piece& piece, const Word* b, const Upcoming& upcoming,
                      PackB& packing) {
    const std::int64_t strips = strip_end(piece) - piece.strip, depth = step_end(piece) - piece.step;
    const std::int64_t fetches = upcoming.stride == 0 ? 0 : ceil_div(kLines, strips);
    std::int64_t l = 0;
    do {
      const std::int64_t steps = std::min(depth_.chunk, depth - l);
      for (std::int64_t s = 0; s < strips; ++s) {
        const char* const* line = upcoming.line + std::min(s * fetches, kLines - fetches);
        const auto meanwhile = [&](std::int64_t step) {
          for (std::int64_t f = 0; f < fetches; ++f)
            _mm_prefetch(line[f] + (l + step) * upcoming.stride, _MM_HINT_T1);
          for (packed_ += to_pack_; packed_ >= packed_every_; packed_ -= packed_every_) packing.pack(1);
        };
        multiply_block<true>(steps, {a_of(i, piece) + l * kStepWords, kStepWords, kTileWords},
                             {b + (s * depth + l) * kStepWords, kStepWords, kTileWords},
                             {sums_of(i, piece) + s * kSums, 512, 256, 16}, piece.step + l > 0, meanwhile);
      }
      l += depth_.chunk;
    } while (l < depth);
  }

  void store(std::int64_t i, const Piece& piece) const {
    const auto run = p_.hidden != nullptr       ? store_gated_panel
                     : p_.c_dtype == DType::f32 ? store_panel<float>
                                                : store_panel<bfloat16>;
    run(p_, row(i), rows(i), piece.strip, strip_end(piece) - piece.strip, sums_of(i, piece));
  }

  const GemmProblem& p_;
  const GemmBlock& block_;
  const Depth depth_;
  const std::int64_t panels_;
  const std::int64_t first_strip_, end_strip_;
  std::int64_t wide_;  // strips whose B is in L2
  std::int64_t pass_;  // most steps whose A is packed
  Word *a_, *b_[2];
  // to_pack_ halves of a step of B are packed in packed_every_ steps of products; packed_ is what is due.
  std::int64_t to_pack_ = 0, packed_every_ = 1, packed_ = 0;
  float* sums_;  // pieces of strips: [panel][strip], see waiting_strips
};

}  // namespace

void gemm_block(const GemmProblem& p, const GemmBlock& block) {
  const TileSession session;
  Block(p, block).compute();
  _mm_sfence();  // after streamed rows
}

}  // namespace switchyard::cpu::SWITCHYARD_TILES
SWITCHYARD_TILES_END
#endif  // x86-64
