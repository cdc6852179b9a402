#include "kernels/gemm.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "core/current_memory.h"
#include "core/error.h"
#include "core/tensor.h"
#include "kernels/cpu/thread_scratch.h"
#include "kernels/gemm_few_rows.h"
#include "kernels/gemm_integers.h"
#include "kernels/gemm_problem.h"
#include "kernels/gpu/kernels.h"
#include "kernels/packed_weights.h"

namespace switchyard {
namespace {

const char* refuse_unless_bf16(const GemmProblem& p) {
  return p.dtype == DType::bf16 ? nullptr : "the operands are not bfloat16";
}

const char* refuse_forms(const GemmProblem& p) {
  return p.is_plain() ? nullptr : "it takes plain products only";
}

constexpr Implementation<GemmBlockKernel, GemmProblem> kGemmBlocks[] = {
#if defined(__x86_64__)
    {"amx", Isa::amx, cpu::amx_tiles::gemm_block, refuse_unless_bf16},
    {"avx512_bf16", Isa::avx512_bf16, cpu::soft_tiles::gemm_block, refuse_unless_bf16},
    {"avx512", Isa::avx512, cpu::gemm_block_avx512, refuse_forms},
    {"avx2", Isa::avx2, cpu::gemm_block_avx2, refuse_forms},
#endif
    {"ref", Isa::ref, ref::gemm_block},
};

struct Task {
  const GemmProblem* problem;
  GemmBlock block;
};

// The largest block, and the smallest that is worth having where the threads would not have enough of them to
// share out evenly. Values do not depend on the block size.
struct BlockSize {
  std::int64_t rows, columns;
};

// A packed element is used once for every column (row) of the block.
constexpr BlockSize kLargest{512, 512}, kSmallest{64, 64};
// Kernels of tiles pack a block's rows once, and B for all of them. Where the depth is so large that they
// pack the rows a part at a time, the sums of the whole block wait in memory.
constexpr BlockSize kLargestTiles{2048, std::int64_t{1} << 30}, kSmallestTiles{64, 128};
constexpr std::int64_t kDeep = 4096, kColumnsOfDeep = 2048;

// In products of an element of A and one of B; a problem without depth still writes its result.
std::int64_t products_of(std::int64_t rows, std::int64_t columns, const GemmProblem& p) {
  return rows * columns * (p.depth() + 1);
}

// All work over the largest block's: how many blocks the threads have to share out at least.
std::int64_t even_blocks(std::span<const GemmProblem> problems, const BlockSize& size) {
  std::int64_t all = 0, largest = 1;
  for (const auto& p : problems) {
    all += products_of(p.m, p.columns(), p);
    largest =
        std::max(largest, products_of(std::min(size.rows, p.m), std::min(size.columns, p.columns()), p));
  }
  return all / largest;
}

// x in whole strips, at least one.
std::int64_t in_strips(std::int64_t x) {
  return std::max<std::int64_t>(1, blocks_of(x, kGemmStrip)) * kGemmStrip;
}

BlockSize block_size(std::span<const GemmProblem> problems, bool tiles, int threads) {
  BlockSize size = tiles ? kLargestTiles : kLargest;
  const BlockSize least = tiles ? kSmallestTiles : kSmallest;
  std::int64_t most_rows = 0, most_columns = 0, depth = 1;
  for (const auto& p : problems) {
    most_rows = std::max(most_rows, p.m);
    most_columns = std::max(most_columns, p.columns());
    depth = std::max(depth, p.depth());
  }
  if (tiles && depth > kDeep) size.columns = kColumnsOfDeep;
  size.rows = std::min(size.rows, in_strips(most_rows));
  size.columns = std::min(size.columns, in_strips(most_columns));
  if (threads == 1) return size;
  const std::int64_t unit = problems.front().column_unit();
  const std::int64_t least_columns = std::max(least.columns, unit);
  while (even_blocks(problems, size) < (tiles ? 2 : 4) * threads) {
    const bool rows = size.rows / 2 >= least.rows, columns = size.columns / 2 >= least_columns;
    if (!rows && !columns) break;
    const bool by_rows = rows && (!columns || size.rows >= size.columns);
    if (by_rows)
      size.rows = in_strips(size.rows / 2);
    else
      size.columns = blocks_of(size.columns / 2, unit) * unit;
  }
  return size;
}

std::vector<Task> cut(std::span<const GemmProblem> problems, bool tiles, int threads) {
  const BlockSize most = block_size(problems, tiles, threads);
  std::vector<Task> tasks;
  for (const auto& p : problems) {
    // Even blocks: the last one of a problem is not a small rest.
    const std::int64_t rows = in_strips(blocks_of(p.m, std::max<std::int64_t>(1, blocks_of(p.m, most.rows))));
    for (std::int64_t j = 0; j < p.columns(); j += most.columns) {
      for (std::int64_t i = 0; i < p.m; i += rows) {
        tasks.push_back({&p, {i, std::min(i + rows, p.m), j, std::min(j + most.columns, p.columns())}});
      }
    }
  }
  // The largest first: the threads end together.
  const auto products = [](const Task& t) {
    return products_of(t.block.row_end - t.block.row_begin, t.block.column_end - t.block.column_begin,
                       *t.problem);
  };
  std::stable_sort(tasks.begin(), tasks.end(),
                   [&](const Task& x, const Task& y) { return products(x) > products(y); });
  return tasks;
}

Work work_of(const char* op, std::span<const GemmProblem> problems) {
  Work work{op, problems.front().dtype};
  for (const auto& p : problems) {
    const auto m = static_cast<double>(p.m), n = static_cast<double>(p.n), k = static_cast<double>(p.depth());
    const double products = p.b_next == nullptr ? 1 : 2,
                 cs = (p.c_next == nullptr ? 1 : 2) + (p.hidden == nullptr ? 0 : 1);
    work.flops += 2 * m * n * k * products;
    work.bytes += m * k * static_cast<double>(size_of(p.dtype)) + weight_bytes(p, k * n * products) +
                  m * n * cs * static_cast<double>(size_of(p.c_dtype)) * (p.accumulate ? 2 : 1);
  }
  return work;
}

const std::byte* advance(const void* x, DType dtype, std::int64_t elements) {
  return static_cast<const std::byte*>(x) + elements * static_cast<std::int64_t>(size_of(dtype));
}

// How the kernel packs rows, or null where it does not.
const GemmRowPacking* packing_of([[maybe_unused]] GemmBlockKernel* kernel) {
#if defined(__x86_64__)
  if (kernel == cpu::amx_tiles::gemm_block) return &cpu::amx_tiles::row_packing;
  if (kernel == cpu::soft_tiles::gemm_block) return &cpu::soft_tiles::row_packing;
#endif
  return nullptr;
}

// Calls a kernel for dense weights with those of a block, unpacked a piece of columns at a time, so that what
// is unpacked is still in a cache when it is read.
void run_unpacked(const GemmProblem& p, const GemmBlock& block, BlockRowsKernel* unpack,
                  GemmBlockKernel* kernel) {
  static thread_local cpu::ThreadScratch memory;
  constexpr std::int64_t kPieceBytes = 512 * 1024;
  const auto element = static_cast<std::int64_t>(size_of(p.dtype));
  const std::int64_t most = std::max<std::int64_t>(64, kPieceBytes / element / p.k / 64 * 64);
  const std::int64_t columns = std::min(most, block.column_end - block.column_begin);
  std::byte* const unpacked = memory.at_least<std::byte>(columns * p.k * element);
  GemmProblem dense = p;
  dense.weight_dtype = p.dtype;
  dense.b = unpacked;
  for (std::int64_t j = block.column_begin; j < block.column_end; j += columns) {
    const std::int64_t here = std::min(columns, block.column_end - j);
    const auto* const first = static_cast<const std::byte*>(p.b) +
                              j / kBlockOutputs * static_cast<std::int64_t>(size_of(p.weight_dtype));
    const BlockRows rows{.packed = p.weight_dtype,
                         .blocks = const_cast<std::byte*>(first),
                         .stride = p.ldb,
                         .columns = here / kBlockOutputs,
                         .dtype = p.dtype,
                         .dense = unpacked,
                         .leading = here};
    unpack(rows, 0, p.k / block_inputs(p.weight_dtype));
    dense.n = dense.ldb = here;
    dense.c = const_cast<std::byte*>(advance(p.c, p.c_dtype, j));
    dense.bias = p.bias == nullptr ? nullptr : advance(p.bias, p.dtype, j);
    kernel(dense, {block.row_begin, block.row_end, 0, here});
  }
}

bool takes_tiles(GemmBlockKernel* kernel) {
  return packing_of(kernel) != nullptr;
}

}  // namespace

bool takes_gemm_forms(DType dtype) {
  return dtype == DType::bf16 && active_isa() >= Isa::avx512_bf16;
}

namespace {

void run_blocks(ThreadPool& pool, std::span<const GemmProblem> problems, GemmBlockKernel* kernel) {
  if (problems.empty()) return;
  const std::vector<Task> tasks = cut(problems, takes_tiles(kernel), pool.threads());
  const GemmProblem& first = problems.front();
  const bool unpacks = first.packed() && kernel != ref::gemm_block;  // which reads blocks itself
  BlockRowsKernel* const unpack = unpacks ? unpack_kernel(first.weight_dtype, first.dtype) : nullptr;
  pool.for_range(static_cast<std::int64_t>(tasks.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Task& task = tasks[static_cast<std::size_t>(i)];
      if (unpack != nullptr)
        run_unpacked(*task.problem, task.block, unpack, kernel);
      else
        kernel(*task.problem, task.block);
    }
  });
}

// One large product: all threads pack some rows of A together, and then share out the columns. So each
// element of A and, but for many rows, of B is packed once. False, with nothing done, where that does not
// pay or does not fit.
bool run_one(ThreadPool& pool, const GemmProblem& p, GemmBlockKernel* kernel) {
  constexpr std::int64_t kWorthwhile = std::int64_t{1} << 27;  // products of two elements
  const GemmRowPacking* const packing = packing_of(kernel);
  const int threads = pool.threads();
  if (packing == nullptr || p.packed() || threads == 1 || products_of(p.m, p.columns(), p) < kWorthwhile)
    return false;
  const std::int64_t all = p.m, columns = p.columns(), unit = p.column_unit();
  const std::int64_t rows = in_strips(blocks_of(all, blocks_of(all, kLargestTiles.rows)));
  // Enough parts for threads to end together, which are not so small that a kernel's start shows.
  constexpr std::int64_t kColumnsOfPart = 512;
  const std::int64_t small = std::min(kColumnsOfPart, blocks_of(columns, 2 * threads));
  const std::int64_t wanted = std::max({kSmallestTiles.columns, small, blocks_of(columns, 8 * threads)});
  const std::int64_t part = blocks_of(wanted, unit) * unit;
  if (blocks_of(columns, part) < 2 * threads) return false;
  const std::size_t bytes = packing->bytes(p, {0, std::min(rows, all), 0, columns});
  if (bytes == 0) return false;
  const UnchargedScope uncharged;  // scratch, as a thread's
  Buffer packed(bytes);
  for (std::int64_t row = 0; row < all; row += rows) {
    const GemmBlock block{row, std::min(row + rows, all), 0, columns, packed.data()};
    const auto each = [&](std::int64_t count, const auto& body) {
      pool.for_range(count, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) body(i);
      });
    };
    each(packing->parts(p, block), [&](std::int64_t i) { packing->pack(p, block, i, packed.data()); });
    each(blocks_of(columns, part), [&](std::int64_t i) {
      GemmBlock some = block;
      some.column_begin = i * part;
      some.column_end = std::min(some.column_begin + part, columns);
      kernel(p, some);
    });
  }
  return true;
}

void run(ThreadPool& pool, const char* op, std::span<const GemmProblem> problems) {
  const GemmProblem& first = problems.front();
  if (first.packed()) {
    CHECK(first.is_plain() && !first.transpose_a && !first.transpose_b &&
              first.k % block_inputs(first.weight_dtype) == 0 && first.n % kBlockOutputs == 0,
          "{} of {} weights [{}, {}]", op, name_of(first.weight_dtype), first.k, first.n);
  }
  CHECK(first.is_plain() || takes_gemm_forms(first.dtype), "{} of a form that its kernel does not take", op);
  CHECK(is_float(first.dtype) && is_float(first.c_dtype), "{} of {} into {}", op, name_of(first.dtype),
        name_of(first.c_dtype));
  if (std::all_of(problems.begin(), problems.end(), takes_integers)) return run_integers(pool, problems);
  GemmBlockKernel* const kernel = choose(op, kGemmBlocks, first);
  if (std::any_of(problems.begin(), problems.end(),
                  [](const auto& p) { return has_few_rows(p) || takes_integers(p); })) {
    std::vector<GemmProblem> integers, few, others;
    for (const auto& p : problems)
      (takes_integers(p) ? integers : has_few_rows(p) ? few : others).push_back(p);
    if (!integers.empty()) run_integers(pool, integers);
    if (!few.empty()) run_few_rows(pool, few);
    run_blocks(pool, others, kernel);
    return;
  }
  if (problems.size() == 1 && run_one(pool, first, kernel)) return;
  run_blocks(pool, problems, kernel);
}

}  // namespace

void run_gemms(ThreadPool& pool, const char* op, std::span<const GemmProblem> problems) {
  if (problems.empty() || pool.skips(work_of(op, problems))) return;
  run(pool, op, problems);
}

namespace {

// A view of two or three dims as [batch, rows, columns].
struct Matrices {
  explicit Matrices(const TensorView& x) : dtype(x.dtype()), first(x.device_address()) {
    CHECK(x.rank() == 2 || x.rank() == 3, "a matrix of {} dims", x.rank());
    const std::size_t row = x.rank() - 2;
    rows = x.dim(row), columns = x.dim(row + 1), leading = x.stride(row);
    if (x.rank() == 3) batch = x.dim(0), stride = x.stride(0);
    CHECK(columns <= 1 || x.stride(row + 1) == 1, "elements of a row are {} apart", x.stride(row + 1));
  }
  std::byte* at(std::int64_t i) const { return const_cast<std::byte*>(advance(first, dtype, i * stride)); }
  std::int64_t inputs() const { return is_packed(dtype) ? rows * block_inputs(dtype) : rows; }
  std::int64_t outputs() const { return is_packed(dtype) ? columns * kBlockOutputs : columns; }
  DType dtype;
  std::byte* first;
  std::int64_t batch = 1, rows, columns, leading, stride = 0;
};

}  // namespace

namespace {

thread_local GemmsTogether* together = nullptr;

}  // namespace

GemmsTogether::GemmsTogether(ThreadPool& pool) : pool_(pool) {
  CHECK(together == nullptr, "products wait for another scope already");
  together = this;
}

GemmsTogether::~GemmsTogether() {
  together = nullptr;
}

// Those that one kernel computes: of the same types and form.
bool GemmsTogether::take(std::span<const GemmProblem> problems) {
  const auto form = [](const GemmProblem& p) {
    return std::tuple(p.k, p.dtype, p.weight_dtype, p.c_dtype, p.transpose_b);
  };
  for (const GemmProblem& p : problems) {
    const GemmProblem& first = waiting_.empty() ? p : waiting_.front();
    if (p.accumulate || p.m > kFewRowsPacked || !(takes_integers(p) || has_few_rows(p)) ||
        form(p) != form(first))
      return false;
  }
  waiting_.insert(waiting_.end(), problems.begin(), problems.end());
  return true;
}

void GemmsTogether::run() {
  run_gemms(pool_, "gemm", waiting_);
  waiting_.clear();
}

void gemm(ThreadPool& pool, const GemmArgs& args) {
  const Matrices a(args.a), b(args.b), c(args.c);
  const std::int64_t m = c.rows, n = c.columns, k = args.transpose_a ? a.rows : a.columns;
  CHECK((is_packed(b.dtype) || a.dtype == b.dtype) && a.batch == c.batch && b.batch == c.batch,
        "[gemm] {} of {}, {} of {}, into {}", a.batch, name_of(a.dtype), b.batch, name_of(b.dtype), c.batch);
  CHECK((args.transpose_a ? a.columns : a.rows) == m && (args.transpose_b ? b.columns : b.inputs()) == k &&
            (args.transpose_b ? b.rows : b.outputs()) == n,
        "[gemm] {}x{} and {}x{} into {}x{}", a.rows, a.columns, b.rows, b.columns, m, n);
  if (args.c.on_gpu()) return gpu::gemm(args);
  std::vector<GemmProblem> problems(static_cast<std::size_t>(c.batch));
  for (std::int64_t i = 0; i < c.batch; ++i) {
    problems[static_cast<std::size_t>(i)] = {.m = m,
                                             .n = n,
                                             .k = k,
                                             .dtype = a.dtype,
                                             .a = a.at(i),
                                             .transpose_a = args.transpose_a,
                                             .lda = a.leading,
                                             .b = b.at(i),
                                             .transpose_b = args.transpose_b,
                                             .ldb = b.leading,
                                             .weight_dtype = b.dtype,
                                             .c = c.at(i),
                                             .c_dtype = c.dtype,
                                             .ldc = c.leading,
                                             .accumulate = args.accumulate};
  }
  if (together == nullptr || !together->take(problems)) run_gemms(pool, "gemm", problems);
}

}  // namespace switchyard
