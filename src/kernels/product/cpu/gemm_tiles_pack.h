// Cuts a product's depth and columns, and packs its operands (internal to gemm_tiles.cc).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/tile_pack.h"
#include "kernels/product/cpu/gemm_problem.h"

#if defined(__x86_64__)
SWITCHYARD_TILES_BEGIN
namespace switchyard::cpu::SWITCHYARD_TILES {

constexpr std::int64_t kChunk = 20;    // the most steps, of 32 of depth each, whose A fits in L1
constexpr std::int64_t kSection = 72;  // the most steps whose B fits in L2

inline std::int64_t ceil_div(std::int64_t x, std::int64_t unit) {
  return (x + unit - 1) / unit;
}

// Returns the size of a part when `size` is cut into the fewest even parts of at most `most`.
inline std::int64_t even_part(std::int64_t size, std::int64_t most) {
  return size == 0 ? 0 : ceil_div(size, ceil_div(size, most));
}

// The depth in steps of 32. Each term begins a new step.
class Depth {
 public:
  // `ends` is scratch memory, which the caller keeps while the object lives.
  Depth(const GemmProblem& p, std::vector<std::int64_t>& ends) : ends_(ends) {
    ends.clear();
    for (std::int64_t t = 0; t < p.terms(); ++t) {
      steps += ceil_div(p.term(t).k, 32);
      ends.push_back(steps);
    }
    section = even_part(steps, kSection);
    chunk = even_part(section, kChunk);
  }
  // The term of a step, and the range of the term's steps.
  struct Place {
    std::int64_t term, begin, end;
  };
  Place place_of(std::int64_t step) const {
    if (ends_.size() == 1) return {0, 0, steps};
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), step);
    if (end == ends_.end()) return {0, 0, 0};  // there is no such step
    return {end - ends_.begin(), end == ends_.begin() ? 0 : end[-1], *end};
  }
  // Calls piece(term, first element, steps, steps before) over the steps [begin, end).
  template <typename Piece>
  void each_term(std::int64_t begin, std::int64_t end, const Piece& piece) const {
    for (std::int64_t at = begin; at < end;) {
      const Place place = place_of(at);
      const std::int64_t last = std::min(end, place.end);
      piece(place.term, (at - place.begin) * 32, last - at, at - begin);
      at = last;
    }
  }
  std::int64_t steps = 0, section, chunk;

 private:
  const std::vector<std::int64_t>& ends_;  // of the terms
};

// 32 columns of one of the problem's matrices B.
struct Strip {
  bool next;
  std::int64_t column, columns;
};

// The strips of two matrices take turns.
inline Strip strip_of(const GemmProblem& p, std::int64_t index) {
  const bool next = p.c_next != nullptr && index % 2 == 1;
  const std::int64_t column = (p.c_next != nullptr ? index / 2 : index) * kLines;
  return {next, column, std::min(kLines, p.n - column)};
}

inline Stored stored_a(const GemmTerm& term) {
  return {static_cast<const Word*>(term.a), term.lda, term.a_rows};
}

// Up to 32 rows of A and C.
class Panel {
 public:
  // Has the rows from `row` on, up to row_end.
  Panel(const GemmProblem& p, std::int64_t row, std::int64_t row_end)
      : p_(&p), row_(row), rows_(std::min(kLines, row_end - row)) {}
  std::int64_t rows() const { return rows_; }

  // The addresses of the panel's stored rows, from element `from` of a term on.
  struct Rows {
    const Word* at[kLines];
  };
  Rows stored(std::int64_t term, std::int64_t from) const {
    Rows rows;
    const Stored a = stored_a(p_->term(term));
    for (std::int64_t r = 0; r < rows_; ++r) rows.at[r] = a.row(row_ + r) + from;
    return rows;
  }

  // Packs the steps [begin, end) of A.
  void pack(const Depth& depth, std::int64_t begin, std::int64_t end, Word* out) const {
    depth.each_term(begin, end,
                    [&](std::int64_t t, std::int64_t from, std::int64_t steps, std::int64_t before) {
                      const GemmTerm term = p_->term(t);
                      const std::int64_t count = std::min(32 * steps, term.k - from);
                      Word* const to = out + before * kStepWords;
                      p_->transpose_a ? pack_depth(stored_a(term), row_, rows_, from, count, to)
                                      : pack_lines(stored(t, from).at, rows_, count, to);
                    });
  }

 private:
  const GemmProblem* p_;
  std::int64_t row_, rows_;
};

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

  // Packs the next `count` halves of steps, or as many as remain.
  void pack(std::int64_t count) {
    for (count = std::min(count, left_); count > 0; --count, --left_) {
      fetch();
      const Half half = at(here_);
      Word* const to = out_ + (half.strip * steps_ + half.step) * kStepWords;
      p_->transpose_b
          ? pack_lines_of_b(half.x, half.leading, half.rows, half.columns, to + half.which * kTileWords)
          : pack_depth_of_b(half.x, half.leading, half.rows, half.columns, to + half.which * 256);
      advance(here_);
    }
  }

 private:
  static constexpr std::int64_t kFetchAhead = 16;

  // Half a step: 16 stored rows of 32 elements, fewer at the ends.
  struct Half {
    const Word* x;
    std::int64_t leading, rows, columns, strip, step, which;
  };
  // The order runs along stored rows first.
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
    const Depth::Place in = depth_->place_of(step_ + l);
    const GemmTerm term = p_->term(in.term);
    const std::int64_t from = (step_ + l - in.begin) * 32;
    const auto* b = static_cast<const Word*>(strip.next ? term.b_next : term.b);
    const std::int64_t half = 16 * place.which, depth = term.k - from;
    if (p_->transpose_b) {
      return {b + (strip.column + half) * term.ldb + from,
              term.ldb,
              strip.columns - half,
              depth,
              s,
              l,
              place.which};
    }
    return {b + (from + half) * term.ldb + strip.column,
            term.ldb,
            depth - half,
            strip.columns,
            s,
            l,
            place.which};
  }

  void fetch() {
    if (to_fetch_ == 0) return;
    --to_fetch_;
    const Half half = at(ahead_);
    for (std::int64_t i = 0; i < std::min<std::int64_t>(16, half.rows); ++i)
      _mm_prefetch(half.x + i * half.leading, _MM_HINT_T1);
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
  std::int64_t stride = 0;  // bytes from a step's line to the next step's; 0: nothing to bring

  // Brings a packed panel.
  void packed(const Word* a) {
    for (std::int64_t r = 0; r < kLines; ++r) line[r] = reinterpret_cast<const char*>(a + r * 32);
    stride = 2 * kStepWords;
  }
  // Brings stored rows that will be packed as lines.
  void stored(const Panel& panel, const Depth& depth, std::int64_t begin) {
    const Depth::Place in = depth.place_of(begin);
    const Panel::Rows rows = panel.stored(in.term, (begin - in.begin) * 32);
    stride = 64;
    for (std::int64_t r = 0; r < kLines; ++r)
      line[r] = reinterpret_cast<const char*>(rows.at[std::min(r, panel.rows() - 1)]);
  }
};

}  // namespace switchyard::cpu::SWITCHYARD_TILES
SWITCHYARD_TILES_END
#endif
