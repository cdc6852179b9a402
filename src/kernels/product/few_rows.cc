#include "kernels/product/few_rows.h"

#include <atomic>
#include <vector>

#include "core/current_memory.h"
#include "core/tensor.h"
#include "kernels/registry/row_independence.h"

namespace switchyard {
namespace {

constexpr std::int64_t kRowsAtOnce = 8;

// x in whole strips, at least one.
std::int64_t whole_strips(std::int64_t x) {
  return std::max<std::int64_t>(1, blocks_of(x, kGemmStrip)) * kGemmStrip;
}

struct Columns {
  const GemmProblem* problem;
  std::int64_t begin, end;
  double bytes() const { return weight_bytes(*problem, static_cast<double>((end - begin) * problem->k)); }
};

// Problems cut by columns, so that threads end together. Runs of B's stored rows stay long enough for memory.
std::vector<Columns> cut_columns(int threads, std::span<const GemmProblem> problems) {
  constexpr std::int64_t kPiecesOfThread = 2, kUnit = 64, kLeast = 128, kLeastTransposed = 64;
  std::int64_t all = 0;
  for (const auto& p : problems) all += p.n * p.k;
  const std::int64_t wanted = threads == 1 ? all : blocks_of(all, kPiecesOfThread * threads);
  std::vector<Columns> pieces;
  for (const auto& p : problems) {
    const std::int64_t most = std::max<std::int64_t>(1, p.n / (p.transpose_b ? kLeastTransposed : kLeast));
    const std::int64_t count = std::min(most, blocks_of(p.n * p.k, std::max<std::int64_t>(1, wanted)));
    const std::int64_t width = blocks_of(blocks_of(p.n, std::max<std::int64_t>(1, count)), kUnit) * kUnit;
    for (std::int64_t j = 0; j < p.n; j += width) pieces.push_back({&p, j, std::min(j + width, p.n)});
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Columns& x, const Columns& y) { return x.bytes() > y.bytes(); });
  return pieces;
}

// Plain problems with at most kRowsAtOnce rows each. Only where rows must be independent are there more.
std::vector<GemmProblem> cut_rows(std::span<const GemmProblem> problems) {
  std::vector<GemmProblem> few;
  few.reserve(problems.size());
  for (const GemmProblem& p : problems) {
    for (std::int64_t row = 0; row < p.m; row += kRowsAtOnce) {
      GemmProblem& piece = few.emplace_back(p);
      const auto bytes = [&](std::int64_t elements, DType dtype) {
        return row * elements * static_cast<std::int64_t>(size_of(dtype));
      };
      piece.m = std::min(kRowsAtOnce, p.m - row);
      piece.a = static_cast<const std::byte*>(p.a) + bytes(p.lda, p.dtype);
      piece.c = static_cast<std::byte*>(p.c) + bytes(p.ldc, p.c_dtype);
    }
  }
  return few;
}

}  // namespace

void run_columns(ThreadPool& pool, std::span<const GemmProblem> problems, GemmBlockKernel* kernel) {
  const std::vector<GemmProblem> few = cut_rows(problems);
  const std::vector<Columns> pieces = cut_columns(pool.threads(), few);
  pool.for_range(static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Columns& piece = pieces[static_cast<std::size_t>(i)];
      kernel(*piece.problem, {0, piece.problem->m, piece.begin, piece.end});
    }
  });
}

#if defined(__x86_64__)
namespace {

// How B is cut: whole stored rows, so that memory is read in long runs, and sums that are little beside it.
// It follows from the problem alone, and so do the bits of the sums.
struct SliceSize {
  explicit SliceSize(const GemmProblem& p) {
    constexpr std::int64_t kSliceElements = 512 * 1024;
    const std::int64_t in_slice =
        std::max<std::int64_t>(1, kSliceElements / std::max<std::int64_t>(1, p.ldb));
    depth = p.transpose_b ? p.k : whole_strips(std::max(64 * p.m, in_slice));
    columns = p.transpose_b ? whole_strips(in_slice) : p.n;
    slices = p.transpose_b ? 1 : std::max<std::int64_t>(1, blocks_of(p.k, depth));
  }
  std::int64_t depth, columns;
  std::int64_t slices;  // along the depth
};

}  // namespace

// Slices of all problems; whoever finishes a problem's last one adds them up.
void run_slices(ThreadPool& pool, std::span<const GemmProblem> problems) {
  struct Part {
    std::size_t problem;
    cpu::FewRowsSlice slice;
  };
  std::vector<Part> parts;
  std::vector<std::int64_t> sums_before{0};  // of each problem, in floats
  std::vector<std::atomic<std::int64_t>> left(problems.size());
  for (std::size_t i = 0; i < problems.size(); ++i) {
    const GemmProblem& p = problems[i];
    const SliceSize size(p);
    std::int64_t before = sums_before.back();
    for (std::int64_t s = 0; s < size.slices; ++s) {
      for (const bool next : {false, true}) {
        if (next && p.c_next == nullptr) continue;
        for (std::int64_t j = 0; j < p.n; j += size.columns, ++left[i]) {
          const cpu::FewRowsColumns columns{j, std::min(j + size.columns, p.n)};
          const std::int64_t end = std::min((s + 1) * size.depth, p.k);
          parts.push_back({i, {&p, next, s * size.depth, end, columns, before}});
        }
        before += cpu::few_rows_floats(p);
      }
    }
    sums_before.push_back(before);
  }
  const UnchargedScope uncharged;  // scratch, as a thread's
  Buffer buffer(static_cast<std::size_t>(sums_before.back()) * sizeof(float));
  auto* const sums = reinterpret_cast<float*>(buffer.data());
  pool.for_range(static_cast<std::int64_t>(parts.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
      const Part& part = parts[static_cast<std::size_t>(at)];
      cpu::few_rows_sums(part.slice, sums);
      if (left[part.problem].fetch_sub(1) > 1) continue;
      const GemmProblem& p = *part.slice.problem;
      cpu::few_rows_store(p, sums + sums_before[part.problem], SliceSize(p).slices);
    }
  });
}
#endif

namespace {

const char* rows_refuse(const GemmProblem& p, std::int64_t most) {
  if (p.m > most) return "it has more than a few rows";
  return p.m <= 0 ? "it has no rows" : p.transpose_a ? "A is transposed" : nullptr;
}

}  // namespace

const char* slices_refuse(const GemmProblem& p) {
  if (p.packed()) return "the weights are packed";
  if (p.dtype != DType::bf16) return "the operands are not bfloat16";
  if (p.logits != nullptr) return "its results are logits";
  if (rows_are_independent()) return "the slices follow from the number of rows";
  return rows_refuse(p, cpu::few_rows(p));
}

const char* columns_refuse(const GemmProblem& p) {
  if (p.packed()) return "the weights are packed";
  if (takes_gemm_forms(p.dtype)) return "tiles are as fast";
  return p.is_plain() ? rows_refuse(p, kRowsAtOnce) : "it takes plain products only";
}

const char* packed_columns_refuse(const GemmProblem& p) {
  if (!p.packed()) return "the weights are not packed";
  if (rows_are_independent() && !p.transpose_a && p.m > 0)
    return p.transpose_b ? "B is transposed" : nullptr;  // kRowsAtOnce at a time
  return p.transpose_b ? "B is transposed" : rows_refuse(p, kRowsAtOnce);
}

}  // namespace switchyard
