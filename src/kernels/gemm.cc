#include "kernels/gemm.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/memory_account.h"
#include "core/tensor.h"
#include "kernels/gemm_few_rows.h"
#include "kernels/gemm_problem.h"

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

std::int64_t blocks(std::int64_t size, std::int64_t block) {
  return (size + block - 1) / block;
}

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

// Of the problem and those that share its B.
std::int64_t rows_of(const GemmProblem& p) {
  std::int64_t rows = 0;
  for (const GemmProblem* one = &p; one != nullptr; one = one->same_b) rows += one->m;
  return rows;
}

// All work over the largest block's: how many blocks the threads have to share out at least.
std::int64_t even_blocks(std::span<const GemmProblem> problems, const BlockSize& size) {
  std::int64_t all = 0, largest = 1;
  for (const auto& p : problems) {
    const std::int64_t rows = rows_of(p);
    all += products_of(rows, p.columns(), p);
    largest =
        std::max(largest, products_of(std::min(size.rows, rows), std::min(size.columns, p.columns()), p));
  }
  return all / largest;
}

// x in whole strips, at least one.
std::int64_t in_strips(std::int64_t x) {
  return std::max<std::int64_t>(1, blocks(x, kGemmStrip)) * kGemmStrip;
}

BlockSize block_size(std::span<const GemmProblem> problems, bool tiles, int threads) {
  BlockSize size = tiles ? kLargestTiles : kLargest;
  const BlockSize least = tiles ? kSmallestTiles : kSmallest;
  std::int64_t most_rows = 0, most_columns = 0, depth = 1;
  for (const auto& p : problems) {
    most_rows = std::max(most_rows, rows_of(p));
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
      size.columns = blocks(size.columns / 2, unit) * unit;
  }
  return size;
}

std::vector<Task> cut(std::span<const GemmProblem> problems, bool tiles, int threads) {
  const BlockSize most = block_size(problems, tiles, threads);
  std::vector<Task> tasks;
  for (const auto& p : problems) {
    // Even blocks: the last one of a problem is not a small rest.
    const std::int64_t all = rows_of(p);
    const std::int64_t rows = in_strips(blocks(all, std::max<std::int64_t>(1, blocks(all, most.rows))));
    for (std::int64_t j = 0; j < p.columns(); j += most.columns) {
      for (std::int64_t i = 0; i < all; i += rows) {
        tasks.push_back({&p, {i, std::min(i + rows, all), j, std::min(j + most.columns, p.columns())}});
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
    work.bytes += (m * k + k * n * products) * static_cast<double>(size_of(p.dtype)) +
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

bool takes_tiles(GemmBlockKernel* kernel) {
  return packing_of(kernel) != nullptr;
}

}  // namespace

bool takes_gemm_forms(DType dtype) {
  return dtype == DType::bf16 && active_isa() >= Isa::avx512_bf16;
}

namespace {

void run_blocks(ThreadPool& pool, int threads, std::span<const GemmProblem> problems,
                GemmBlockKernel* kernel) {
  if (problems.empty()) return;
  const std::vector<Task> tasks = cut(problems, takes_tiles(kernel), threads);
  pool.for_range(static_cast<std::int64_t>(tasks.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Task& task = tasks[static_cast<std::size_t>(i)];
      kernel(*task.problem, task.block);
    }
  });
}

// One large product: all threads pack some rows of A together, and then share out the columns. So each
// element of A and, but for many rows, of B is packed once. False, with nothing done, where that does not
// pay or does not fit.
bool run_one(ThreadPool& pool, int threads, const GemmProblem& p, GemmBlockKernel* kernel) {
  constexpr std::int64_t kWorthwhile = std::int64_t{1} << 27;  // products of two elements
  const GemmRowPacking* const packing = packing_of(kernel);
  if (packing == nullptr || threads == 1 || products_of(rows_of(p), p.columns(), p) < kWorthwhile)
    return false;
  const std::int64_t all = rows_of(p), columns = p.columns(), unit = p.column_unit();
  const std::int64_t rows = in_strips(blocks(all, blocks(all, kLargestTiles.rows)));
  // Enough parts for threads to end together, which are not so small that a kernel's start shows.
  constexpr std::int64_t kColumnsOfPart = 512;
  const std::int64_t small = std::min(kColumnsOfPart, blocks(columns, 2 * threads));
  const std::int64_t wanted = std::max({kSmallestTiles.columns, small, blocks(columns, 8 * threads)});
  const std::int64_t part = blocks(wanted, unit) * unit;
  if (blocks(columns, part) < 2 * threads) return false;
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
    each(blocks(columns, part), [&](std::int64_t i) {
      GemmBlock some = block;
      some.column_begin = i * part;
      some.column_end = std::min(some.column_begin + part, columns);
      kernel(p, some);
    });
  }
  return true;
}

}  // namespace

namespace {

// `threads` is what the blocks are cut for.
void run(ThreadPool& pool, int threads, const char* op, std::span<const GemmProblem> problems) {
  const GemmProblem& first = problems.front();
  CHECK(first.is_plain() || takes_gemm_forms(first.dtype), "{} of a form that its kernel does not take", op);
  CHECK(is_float(first.dtype) && is_float(first.c_dtype), "{} of {} into {}", op, name_of(first.dtype),
        name_of(first.c_dtype));
  GemmBlockKernel* const kernel = choose(op, kGemmBlocks, first);
  if (std::any_of(problems.begin(), problems.end(), has_few_rows)) {
    std::vector<GemmProblem> few, others;
    for (const auto& p : problems) (has_few_rows(p) ? few : others).push_back(p);
    run_few_rows(pool, threads, few);
    run_blocks(pool, threads, others, kernel);
    return;
  }
  if (problems.size() == 1 && run_one(pool, threads, first, kernel)) return;
  run_blocks(pool, threads, problems, kernel);
}

using Problems = std::span<const GemmProblem>;

// The problems of all partners, whose number of problems is the same.
std::vector<Problems> problems_of(std::span<const void* const> shown) {
  std::vector<Problems> all;
  for (const void* of_one : shown) all.push_back(*static_cast<const Problems*>(of_one));
  return all;
}

bool same_right_operands(const GemmProblem& x, const GemmProblem& y) {
  bool same = x.terms() == y.terms();
  for (std::int64_t t = 0; same && t < x.terms(); ++t) {
    const GemmTerm of_x = x.term(t), of_y = y.term(t);
    same = of_x.k == of_y.k && of_x.b == of_y.b && of_x.b_next == of_y.b_next;
  }
  return same;
}

bool same_rows(const std::int32_t* x, const std::int32_t* y, std::int64_t count) {
  return x == y || (x != nullptr && y != nullptr && std::equal(x, x + count, y));
}

// And as many columns, as deep.
bool same_left_operands(const GemmProblem& x, const GemmProblem& y) {
  bool same = x.terms() == y.terms() && x.m == y.m && x.n == y.n && x.lda == y.lda && x.ldb == y.ldb;
  for (std::int64_t t = 0; same && t < x.terms(); ++t) {
    const GemmTerm of_x = x.term(t), of_y = y.term(t);
    same = of_x.k == of_y.k && of_x.a == of_y.a &&
           same_rows(of_x.a_rows, of_y.a_rows, x.transpose_a ? of_x.k : x.m);
  }
  return same;
}

// A panel's rows are lines of one A where that is transposed.
bool may_follow(const GemmProblem& p) {
  return !p.transpose_a || p.m % kGemmStrip == 0;
}

// The same product, of which one result is enough.
bool same_product(const GemmProblem& x, const GemmProblem& y) {
  return !y.accumulate && y.hidden == nullptr && x.bias == y.bias && same_left_operands(x, y) &&
         same_right_operands(x, y);
}

// Problems of partners with what joins them.
struct Linked {
  struct Copy {
    const GemmProblem *of, *to;
  };
  std::vector<GemmProblem> firsts;
  std::vector<GemmProblem> others;  // what the firsts are linked to
  std::vector<Copy> copies;         // to those that are not computed themselves
};

void copy_results(ThreadPool& pool, std::span<const Linked::Copy> copies) {
  for (const auto& [of, to] : copies) {
    const auto copy = [&, rows = to->m, n = to->n](const void* from, std::int64_t ld, void* c) {
      pool.for_range(rows, 1 + 32768 / (1 + n), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r)
          std::memcpy(const_cast<std::byte*>(advance(c, to->c_dtype, r * to->ldc)),
                      advance(from, to->c_dtype, r * ld), static_cast<std::size_t>(n) * size_of(to->c_dtype));
      });
    };
    copy(of->c, of->ldc, to->c);
    if (to->c_next != nullptr) copy(of->c_next, of->ldc, to->c_next);
  }
}

// The i-th problems of all that may go together are linked: those with the same A side by side, of the rest
// those with the same B one below the other. Of those that are the same one is computed.
Linked link(std::span<const Problems> all) {
  Linked linked;
  linked.firsts.reserve(all.size() * all.front().size());
  linked.others.reserve(linked.firsts.capacity());  // none moves
  std::vector<const GemmProblem*> left;
  const auto take = [&](const auto& joins, const auto& to) {
    for (const GemmProblem*& p : left) {
      if (p != nullptr && !has_few_rows(*p) && joins(*p)) to(*std::exchange(p, nullptr));
    }
  };
  const auto take_others = [&](const auto& joins) {
    const std::size_t begin = linked.others.size();
    take(joins, [&](const GemmProblem& p) { linked.others.push_back(p); });
    return std::span(linked.others).subspan(begin);
  };
  for (std::size_t i = 0; i < all.front().size(); ++i) {
    left.clear();
    for (const Problems of_one : all) {
      if (of_one[i].m > 0) left.push_back(&of_one[i]);
    }
    for (std::size_t at = 0; at < left.size(); ++at) {
      if (left[at] == nullptr) continue;
      linked.firsts.push_back(*std::exchange(left[at], nullptr));
      GemmProblem& first = linked.firsts.back();
      if (has_few_rows(first)) continue;
      take([&](const GemmProblem& p) { return same_product(first, p); },
           [&](const GemmProblem& p) {
             linked.copies.push_back({&first, &p});
           });
      first.beside = take_others([&](const GemmProblem& p) { return same_left_operands(first, p); });
      if (!first.beside.empty() || !may_follow(first)) continue;
      GemmProblem* last = &first;
      for (GemmProblem& next : take_others(
               [&](const GemmProblem& p) { return may_follow(p) && same_right_operands(first, p); })) {
        last->same_b = &next;
        last = &next;
      }
    }
  }
  return linked;
}

}  // namespace

void run_gemms(ThreadPool& pool, const char* op, Problems problems, Partners* partners) {
  if (problems.empty() || pool.skips(work_of(op, problems))) return;
  if (partners == nullptr) return run(pool, pool.threads(), op, problems);
  partners->meet(&problems, [&](std::span<const void* const> shown) {
    const Linked linked = link(problems_of(shown));
    if (linked.firsts.empty()) return;
    run(pool, pool.cores(), op, linked.firsts);
    copy_results(pool, linked.copies);
  });
}

void run_summed_gemms(ThreadPool& pool, const char* op, Problems problems, Partners& partners) {
  if (problems.empty() || pool.skips(work_of(op, problems))) return;
  partners.meet(&problems, [&](std::span<const void* const> shown) {
    const auto all = problems_of(shown);
    std::vector<GemmProblem> sums(all.front().begin(), all.front().end());
    std::vector<GemmTerm> terms;
    terms.reserve(all.size() * sums.size());  // none moves
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const std::size_t begin = terms.size();
      for (std::size_t partner = 1; partner < all.size(); ++partner) terms.push_back(all[partner][i].term(0));
      sums[i].more = std::span(terms).subspan(begin);
      sums[i].terms_apart = true;
    }
    run(pool, pool.cores(), op, sums);
  });
}

void gemm(ThreadPool& pool, const GemmArgs& args, Partners* partners) {
  CHECK(args.batch >= 0 && args.m >= 0 && args.n >= 0 && args.k >= 0, "batch {}, m {}, n {}, k {}",
        args.batch, args.m, args.n, args.k);
  std::vector<GemmProblem> problems(static_cast<std::size_t>(args.batch));
  for (std::int64_t i = 0; i < args.batch; ++i) {
    GemmProblem& p = problems[static_cast<std::size_t>(i)];
    p = {.m = args.m,
         .n = args.n,
         .k = args.k,
         .dtype = args.dtype,
         .a = advance(args.a, args.dtype, i * args.stride_a),
         .transpose_a = args.transpose_a,
         .lda = args.lda,
         .b = advance(args.b, args.dtype, i * args.stride_b),
         .transpose_b = args.transpose_b,
         .ldb = args.ldb,
         .c = const_cast<std::byte*>(advance(args.c, args.c_dtype, i * args.stride_c)),
         .c_dtype = args.c_dtype,
         .ldc = args.ldc,
         .accumulate = args.accumulate};
  }
  run_gemms(pool, "gemm", problems, partners);
}

}  // namespace switchyard
