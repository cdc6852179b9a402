// Products by blocks of C, which the threads share out.
#include "kernels/product/blocks.h"

#include <algorithm>
#include <vector>

#include "core/current_memory.h"
#include "core/tensor.h"
#include "kernels/cpu/thread_scratch.h"
#include "kernels/packed/packed_weights.h"

namespace switchyard {
namespace {

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

const std::byte* advance(const void* x, DType dtype, std::int64_t elements) {
  return static_cast<const std::byte*>(x) + elements * static_cast<std::int64_t>(size_of(dtype));
}

// Calls a kernel for dense weights with the unpacked weights of a block, a piece of columns of C at a time,
// so that what is unpacked is still in a cache when it is read.
void run_unpacked(const GemmProblem& p, const GemmBlock& block, BlockRowsKernel* unpack,
                  GemmBlockKernel* kernel) {
  static thread_local cpu::ThreadScratch memory;
  constexpr std::int64_t kPieceBytes = 512 * 1024;
  const auto element = static_cast<std::int64_t>(size_of(p.dtype)), inputs = block_inputs(p.weight_dtype);
  const std::int64_t unit = p.transpose_b ? inputs : 64;
  const std::int64_t most = std::max(unit, kPieceBytes / element / p.k / unit * unit);
  const std::int64_t columns = std::min(most, block.column_end - block.column_begin);
  std::byte* const unpacked = memory.at_least<std::byte>(columns * p.k * element);
  GemmProblem dense = p;
  dense.weight_dtype = p.dtype;
  dense.b = unpacked;
  for (std::int64_t j = block.column_begin; j < block.column_end; j += columns) {
    const std::int64_t here = std::min(columns, block.column_end - j);
    // Columns of C are columns of blocks, or rows of them where B is transposed.
    const std::int64_t first = p.transpose_b ? j / inputs * p.ldb : j / kBlockOutputs;
    dense.n = here;
    dense.ldb = p.transpose_b ? p.k : here;
    const BlockRows rows{.packed = p.weight_dtype,
                         .blocks = const_cast<std::byte*>(advance(p.b, p.weight_dtype, first)),
                         .stride = p.ldb,
                         .columns = dense.ldb / kBlockOutputs,
                         .dtype = p.dtype,
                         .dense = unpacked,
                         .leading = dense.ldb};
    unpack(rows, 0, (p.transpose_b ? here : p.k) / inputs);
    dense.c = const_cast<std::byte*>(advance(p.c, p.c_dtype, j));
    dense.bias = p.bias == nullptr ? nullptr : advance(p.bias, p.dtype, j);
    kernel(dense, {block.row_begin, block.row_end, 0, here});
  }
}

// One large product: all threads pack some rows of A together, and then share out the columns. So each
// element of A and, but for many rows, of B is packed once. False, with nothing done, where that does not
// pay or does not fit.
bool run_one(ThreadPool& pool, const GemmProblem& p, GemmBlockKernel* kernel, const GemmRowPacking* packing) {
  constexpr std::int64_t kWorthwhile = std::int64_t{1} << 27;  // products of two elements
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

}  // namespace

void run_blocks(ThreadPool& pool, std::span<const GemmProblem> problems, GemmBlockKernel* kernel,
                const GemmRowPacking* packing) {
  const GemmProblem& first = problems.front();
  if (problems.size() == 1 && run_one(pool, first, kernel, packing)) return;
  const std::vector<Task> tasks = cut(problems, packing != nullptr, pool.threads());
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

}  // namespace switchyard
