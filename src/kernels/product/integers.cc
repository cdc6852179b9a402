#include "kernels/product/integers.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "core/current_memory.h"
#include "core/tensor.h"
#include "kernels/registry/row_independence.h"

namespace switchyard {
namespace {

std::int64_t groups_of_row(const GemmProblem& p) {
  return p.k / kGroupInputs;
}

// Rows of A of all problems as integers.
class IntegerRows {
 public:
  IntegerRows(ThreadPool& pool, const IntegerGemm& gemm, std::span<const GemmProblem> problems) {
    std::vector<Part> parts;
    std::int64_t groups = 0;
    first_.reserve(problems.size());
    for (std::size_t i = 0; i < problems.size(); ++i) {
      const GemmProblem& p = problems[i];
      // gmm_pair lists the products of all gates, then those of all up-projections: the same rows twice.
      const std::size_t half = problems.size() / 2;
      if (half > 0 && i >= half && have_same_rows(p, problems[i - half])) {
        first_.push_back(first_[i - half]);
        continue;
      }
      first_.push_back(groups);
      for (std::int64_t row = 0; row < p.m; row += kRowsOfPart)
        parts.push_back({&p, row, std::min(row + kRowsOfPart, p.m), groups + row * groups_of_row(p)});
      groups += p.m * groups_of_row(p);
    }
    const UnchargedScope uncharged;  // scratch, as a thread's
    buffer_.emplace(static_cast<std::size_t>(groups) * sizeof(InputGroup));
    groups_ = reinterpret_cast<InputGroup*>(buffer_->data());
    const auto convert = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const Part& part = parts[static_cast<std::size_t>(i)];
        gemm.convert(*part.problem, part.row_begin, part.row_end, groups_ + part.first);
      }
    };
    const auto count = static_cast<std::int64_t>(parts.size());
    // A few groups take less time than waking threads does.
    if (groups <= kFewGroups)
      convert(0, count);
    else
      pool.for_range(count, 1, convert);
  }

  // Returns the groups of the i-th problem's rows from `row` on.
  const InputGroup* of(std::size_t i, const GemmProblem& p, std::int64_t row) const {
    return groups_ + first_[i] + row * groups_of_row(p);
  }

 private:
  static constexpr std::int64_t kRowsOfPart = 16, kFewGroups = 512;
  struct Part {
    const GemmProblem* problem;
    std::int64_t row_begin, row_end, first;
  };

  static bool have_same_rows(const GemmProblem& x, const GemmProblem& y) {
    return x.a == y.a && x.m == y.m && x.lda == y.lda && x.k == y.k;
  }

  std::vector<std::int64_t> first_;  // of each problem's first row
  std::optional<Buffer> buffer_;
  InputGroup* groups_ = nullptr;
};

struct Piece {
  std::size_t problem;
  GemmBlock block;
  double cost;
};

// Cuts problems so that threads end together. A kernel makes integers of a weight once for all rows of a
// piece, at most kMostRows; a piece has kLeastColumns at least, so that memory is read in long runs.
std::vector<Piece> cut_pieces(int threads, std::span<const GemmProblem> problems) {
  constexpr std::int64_t kPiecesOfThread = 2, kLeastColumns = 128, kUnit = 64, kMostRows = 128;
  constexpr double kReading = 3;  // a weight costs as much as the products of so many rows with it
  const auto cost_of = [&](const GemmProblem& p, std::int64_t rows, std::int64_t columns) {
    return static_cast<double>(columns) * static_cast<double>(p.k) * (static_cast<double>(rows) + kReading);
  };
  double all = 0;
  for (const auto& p : problems) all += cost_of(p, p.m, p.n);
  const double wanted = threads == 1 ? all : all / static_cast<double>(kPiecesOfThread * threads);
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    const GemmProblem& p = problems[i];
    const std::int64_t rows = blocks_of(p.m, blocks_of(p.m, kMostRows));
    const std::int64_t most = std::max<std::int64_t>(1, p.n / kLeastColumns);
    const auto count =
        std::clamp<std::int64_t>(static_cast<std::int64_t>(cost_of(p, rows, p.n) / wanted + 0.99), 1, most);
    const std::int64_t width = blocks_of(blocks_of(p.n, count), kUnit) * kUnit;
    for (std::int64_t row = 0; row < p.m; row += rows) {
      for (std::int64_t j = 0; j < p.n; j += width) {
        const GemmBlock block{row, std::min(row + rows, p.m), j, std::min(j + width, p.n)};
        pieces.push_back({i, block, cost_of(p, block.row_end - row, block.column_end - j)});
      }
    }
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Piece& x, const Piece& y) { return x.cost > y.cost; });
  return pieces;
}

}  // namespace

const char* integers_refuse(const GemmProblem& p) {
  constexpr std::int64_t kRowsOfAmx = 32;
  if (!p.packed()) return "the weights are not packed";
  if (p.weight_dtype == DType::packed_fp8) return "numbers of fp8 are no integers";
  if (p.dtype != DType::bf16) return "the rows are not bfloat16";
  if (p.transpose_b) return "B is transposed";
  if (p.m <= 0) return "it has no rows";
  if (rows_are_independent()) return nullptr;
  return active_isa() == Isa::amx && p.m > kRowsOfAmx ? "AMX is faster for more than 32 rows" : nullptr;
}

void run_integers(ThreadPool& pool, std::span<const GemmProblem> problems, const IntegerGemm& gemm) {
  const IntegerRows rows(pool, gemm, problems);
  const std::vector<Piece> pieces = cut_pieces(pool.threads(), problems);
  pool.for_range(static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
      const Piece& piece = pieces[static_cast<std::size_t>(at)];
      const GemmProblem& p = problems[piece.problem];
      GemmBlock block = piece.block;
      block.packed_a = rows.of(piece.problem, p, block.row_begin);
      gemm.multiply(p, block);
    }
  });
}

}  // namespace switchyard
