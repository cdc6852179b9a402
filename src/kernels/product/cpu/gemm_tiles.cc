// bf16 products of tiles: one block of C at a time, 32 x 32 outputs from two tiles of A and two of B.
//
// The limits of AMX, measured on one core: a tile product takes 5.2 ns, a tile load from L1 2.5 ns, from L2
// 6 ns, from further 30 ns; a step (32 x 32 x 32) of products alone 21 ns, with loads from L1 and data that
// is not zero 27 ns, with one operand from L2 33 ns, with both 40 ns. A cache line from memory takes 5 ns in
// a long run, 15 ns and more by itself. So:
// 1. The block's rows of A are packed once. They may be more than L2 holds, since they are read in long runs.
// 2. A wide piece of B, some strips of 32 columns, is packed into L2 and used for all rows of A. It is read
//    in runs as long as it is wide, a little between products, while the piece before it is multiplied.
//    (Packing all of B beforehand gained nothing: it is read and written once more.)
// 3. For every 32 rows, kChunk steps of A are in L1 while the strips of B pass, read with the streaming tile
//    load, which leaves L1 alone. The sums of the strips wait in L1 and L2.
// 4. A depth over kSection steps is cut into sections, and the sums of all rows wait in memory. One so deep
//    that the block's rows of A would be more than kPackedWords is cut into passes of sections, each over all
//    strips: the sums of the whole block wait.
// A sum takes its depth in order however it is cut, so its bits do not depend on the block.
#include <algorithm>
#include <vector>

#include "kernels/cpu/thread_scratch.h"
#include "kernels/cpu/tile_block.h"
#include "kernels/product/cpu/gemm_tiles_logits.h"
#include "kernels/product/cpu/gemm_tiles_pack.h"
#include "kernels/product/cpu/gemm_tiles_store.h"

#if defined(__x86_64__)
SWITCHYARD_TILES_BEGIN
namespace switchyard::cpu::SWITCHYARD_TILES {
namespace {

#if defined(SWITCHYARD_SOFT_TILES) || defined(SWITCHYARD_AMX_COSTS)
constexpr std::int64_t kWideWords = 192 * 1024;  // of a piece of B; two are in L2, here of 1 MB
#else
constexpr std::int64_t kWideWords = 384 * 1024;  // of 2 MB
#endif
constexpr std::int64_t kPackedWords = 4 * 1024 * 1024;  // most of A, in whole sections: 8 MB
constexpr std::int64_t kNearStrips = 8;                 // whose sums stay in L1 and L2 from chunk to chunk

struct Scratch {
  ThreadScratch a, b, sums, lanes;
  std::vector<std::int64_t> term_ends;
};

Scratch& scratch() {
  thread_local Scratch s;
  return s;
}

std::int64_t panels_of(const GemmBlock& rows) {
  return ceil_div(rows.row_end - rows.row_begin, kLines);
}

class Block {
 public:
  Block(const GemmProblem& p, const GemmBlock& block)
      : p_(p),
        block_(block),
        depth_(p, scratch().term_ends),
        panels_(panels_of(block)),
        first_strip_(block.column_begin / kLines),
        end_strip_(ceil_div(block.column_end, kLines)) {
    const std::int64_t section = std::max<std::int64_t>(1, depth_.section);
    wide_ = std::max<std::int64_t>(1, kWideWords / (section * kStepWords));
    if (depth_.chunk < depth_.section) wide_ = std::min(wide_, kNearStrips);
    if (p.c_next != nullptr) wide_ = std::max<std::int64_t>(2, wide_ / 2 * 2);  // strips in pairs
    pass_ = std::max<std::int64_t>(1, kPackedWords / (panels_ * section * kStepWords)) * section;
    pass_ = block.packed_a != nullptr ? depth_.steps : std::min(pass_, depth_.steps);
    auto& memory = scratch();
    a_ = block.packed_a != nullptr ? static_cast<Word*>(const_cast<void*>(block.packed_a))
                                   : memory.a.at_least<Word>(panels_ * pass_ * kStepWords);
    b_[0] = memory.b.at_least<Word>(2 * wide_ * section * kStepWords);
    b_[1] = b_[0] + wide_ * section * kStepWords;
    const std::int64_t floats = waiting_strips() * waiting_panels() * kSums;
    sums_ = memory.sums.at_least<float>(floats);
    if (p.logits != nullptr) lanes_ = memory.lanes.at_least<LogitLanes>(panels_ * kLines);
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
  Panel panel(std::int64_t i) const { return {p_, block_.row_begin + i * kLines, block_.row_end}; }
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
    bool unpacked = piece.strip == first_strip_ && block_.packed_a == nullptr;
    if (unpacked && p_.transpose_a) {  // panels are neighbours in memory: all of a step, then the next step
      for (std::int64_t l = piece.step; l < end; ++l) {
        for (std::int64_t i = 0; i < panels_; ++i)
          panel(i).pack(depth_, l, l + 1, a_of(i, piece) + (l - piece.step) * kStepWords);
      }
      unpacked = false;
    }
    Upcoming upcoming;
    for (std::int64_t i = 0; i < panels_; ++i) {
      if (unpacked) panel(i).pack(depth_, piece.step, end, a_of(i, piece));
      upcoming.stride = 0;
      if (i + 1 < panels_ && unpacked) upcoming.stored(panel(i + 1), depth_, piece.step);
      if (i + 1 < panels_ && !unpacked) upcoming.packed(a_of(i + 1, piece));
      multiply_panel(i, piece, b, upcoming, packing);
      if (end == depth_.steps) store(i, piece);
    }
  }

  // The pairs of a step's depth that are not padding.
  std::int64_t pairs_of(std::int64_t step) const {
    const Depth::Place in = depth_.place_of(step);
    return std::min<std::int64_t>(16, ceil_div(p_.term(in.term).k - (step - in.begin) * 32, 2));
  }

  void multiply_panel(std::int64_t i, const Piece& piece, const Word* b, const Upcoming& upcoming,
                      PackB& packing) {
    const std::int64_t strips = strip_end(piece) - piece.strip, depth = step_end(piece) - piece.step;
    const std::int64_t fetches = upcoming.stride == 0 ? 0 : ceil_div(kLines, strips);
    std::int64_t l = 0;
    do {
      const std::int64_t steps = std::min(depth_.chunk, depth - l);
      const BlockUse use{panel(i).rows(), pairs_of(piece.step + l + steps - 1)};
      for (std::int64_t s = 0; s < strips; ++s) {
        const char* const* line = upcoming.line + std::min(s * fetches, kLines - fetches);
        const auto meanwhile = [&](std::int64_t step) {
          for (std::int64_t f = 0; f < fetches; ++f)
            _mm_prefetch(line[f] + (l + step) * upcoming.stride, _MM_HINT_T1);
          for (packed_ += to_pack_; packed_ >= packed_every_; packed_ -= packed_every_) packing.pack(1);
        };
        float* const sums = sums_of(i, piece) + s * kSums;
        multiply_block<true>(steps, {a_of(i, piece) + l * kStepWords, kStepWords, kTileWords},
                             {b + (s * depth + l) * kStepWords, kStepWords, kTileWords}, {sums, 512, 256, 16},
                             piece.step + l > 0, use, meanwhile);
      }
      l += steps;
    } while (l < depth);
  }

  void store(std::int64_t i, const Piece& piece) const {
    const PanelRows rows{block_.row_begin + i * kLines, panel(i).rows()};
    const std::int64_t strips = strip_end(piece) - piece.strip;
    if (p_.logits != nullptr && p_.c == nullptr) {
      return add_logits(p_, rows, piece.strip, strips, sums_of(i, piece), lanes_ + i * kLines);
    }
    const auto run = p_.logits != nullptr       ? store_logit_gradients
                     : p_.hidden != nullptr     ? store_gated_panel
                     : p_.c_dtype == DType::f32 ? store_panel<float>
                                                : store_panel<bfloat16>;
    run(p_, rows, piece.strip, strips, sums_of(i, piece));
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
  float* sums_;                  // pieces of strips: [panel][strip], see waiting_strips
  LogitLanes* lanes_ = nullptr;  // of the block's rows
};

Depth depth_of(const GemmProblem& p) {
  return {p, scratch().term_ends};
}

std::size_t packed_bytes(const GemmProblem& p, const GemmBlock& rows) {
  const std::int64_t words = panels_of(rows) * depth_of(p).steps * kStepWords;
  return words <= kPackedWords ? static_cast<std::size_t>(words) * sizeof(Word) : 0;
}

// Panels; of a transposed A steps, of which all panels are neighbours in memory.
std::int64_t packed_parts(const GemmProblem& p, const GemmBlock& rows) {
  return p.transpose_a ? depth_of(p).steps : panels_of(rows);
}

void pack_part(const GemmProblem& p, const GemmBlock& rows, std::int64_t part, void* out) {
  const Depth depth = depth_of(p);
  auto* const words = static_cast<Word*>(out);
  const auto panel = [&](std::int64_t i) { return Panel(p, rows.row_begin + i * kLines, rows.row_end); };
  const auto at = [&](std::int64_t i, std::int64_t step) {
    return words + (i * depth.steps + step) * kStepWords;
  };
  if (!p.transpose_a) return panel(part).pack(depth, 0, depth.steps, at(part, 0));
  for (std::int64_t i = 0; i < panels_of(rows); ++i) panel(i).pack(depth, part, part + 1, at(i, part));
}

}  // namespace

constexpr GemmRowPacking row_packing{packed_bytes, packed_parts, pack_part};

void gemm_block(const GemmProblem& p, const GemmBlock& block) {
  const TileSession session;
  Block(p, block).compute();
  _mm_sfence();  // after streamed rows
}

}  // namespace switchyard::cpu::SWITCHYARD_TILES
SWITCHYARD_TILES_END
#endif  // x86-64
