#include "kernels/gemm.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "kernels/gemm_problem.h"

namespace switchyard {
namespace {

const char* refuse_unless_bf16(const GemmProblem& p) {
  return p.dtype == DType::bf16 ? nullptr : "the operands are not bfloat16";
}

constexpr Implementation<GemmBlockKernel, GemmProblem> kGemmBlocks[] = {
#if defined(__x86_64__)
    {"amx", Isa::amx, cpu::gemm_block_amx, refuse_unless_bf16},
    {"avx512", Isa::avx512, cpu::gemm_block_avx512},
    {"avx2", Isa::avx2, cpu::gemm_block_avx2},
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

std::int64_t count_blocks(std::span<const GemmProblem> problems, std::int64_t rows, std::int64_t columns) {
  std::int64_t count = 0;
  for (const auto& p : problems) count += blocks(p.m, rows) * blocks(p.n, columns);
  return count;
}

// Each block packs its operands once: a packed element is used 512 times in the largest block. Smaller blocks
// only where the threads would not have enough of them to share out evenly. Values do not depend on the block
// size.
std::vector<Task> cut(std::span<const GemmProblem> problems, int threads) {
  constexpr std::int64_t kLargest = 512, kSmallest = 64;
  std::int64_t rows = kLargest, columns = kLargest;
  if (threads > 1) {
    while (columns > kSmallest && count_blocks(problems, rows, columns) < 4 * threads) {
      (rows > columns || rows > 2 * kSmallest ? rows : columns) /= 2;
    }
  }
  std::vector<Task> tasks;
  tasks.reserve(static_cast<std::size_t>(count_blocks(problems, rows, columns)));
  for (const auto& p : problems) {
    for (std::int64_t j = 0; j < p.n; j += columns) {
      for (std::int64_t i = 0; i < p.m; i += rows) {
        tasks.push_back({&p, {i, std::min(i + rows, p.m), j, std::min(j + columns, p.n)}});
      }
    }
  }
  return tasks;
}

Work work_of(const char* op, std::span<const GemmProblem> problems) {
  Work work{op, problems.front().dtype};
  for (const auto& p : problems) {
    const auto m = static_cast<double>(p.m), n = static_cast<double>(p.n), k = static_cast<double>(p.k);
    work.flops += 2 * m * n * k;
    work.bytes += (m * k + k * n) * static_cast<double>(size_of(p.dtype)) +
                  m * n * static_cast<double>(size_of(p.c_dtype)) * (p.accumulate ? 2 : 1);
  }
  return work;
}

const std::byte* advance(const void* x, DType dtype, std::int64_t elements) {
  return static_cast<const std::byte*>(x) + elements * static_cast<std::int64_t>(size_of(dtype));
}

}  // namespace

void run_gemms(ThreadPool& pool, const char* op, std::span<const GemmProblem> problems) {
  if (problems.empty()) return;
  const GemmProblem& first = problems.front();
  if (pool.skips(work_of(op, problems))) return;
  CHECK(is_float(first.dtype) && is_float(first.c_dtype), "{} of {} into {}", op, name_of(first.dtype),
        name_of(first.c_dtype));
  GemmBlockKernel* const kernel = choose(op, kGemmBlocks, first);
  const std::vector<Task> tasks = cut(problems, pool.threads());
  pool.for_range(static_cast<std::int64_t>(tasks.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Task& task = tasks[static_cast<std::size_t>(i)];
      kernel(*task.problem, task.block);
    }
  });
}

void gemm(ThreadPool& pool, const GemmArgs& args) {
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
  run_gemms(pool, "gemm", problems);
}

}  // namespace switchyard
