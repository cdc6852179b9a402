#include "kernels/moe/ragged_rows.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/cuda/kernels.h"
#include "kernels/moe/ragged_rows_problem.h"
#include "kernels/registry/dispatch.h"

namespace switchyard {
namespace {

using List = ListedRun<RaggedRowsKernel, RaggedRows>;

constexpr List kGather[] = {
#if defined(__x86_64__)
    {"avx512", Isa::avx512, cpu::ragged_gather_avx512},
    {"avx2", Isa::avx2, cpu::ragged_gather_avx2},
#endif
    {"ref", Isa::ref, ref::ragged_gather},
};

constexpr List kGatherReduce[] = {
#if defined(__x86_64__)
    {"avx512", Isa::avx512, cpu::ragged_gather_reduce_avx512},
    {"avx2", Isa::avx2, cpu::ragged_gather_reduce_avx2},
#endif
    {"ref", Isa::ref, ref::ragged_gather_reduce},
};

constexpr List kRowDot[] = {
#if defined(__x86_64__)
    {"avx512", Isa::avx512, cpu::ragged_row_dot_avx512},
    {"avx2", Isa::avx2, cpu::ragged_row_dot_avx2},
#endif
    {"ref", Isa::ref, ref::ragged_row_dot},
};

// The problem for output rows [0, count).
template <std::size_t n>
void run_ragged(ThreadPool& pool, const char* op, const List (&list)[n], const RaggedRows& problem,
                std::int64_t count) {
  // Every row is read once and every token's vector written (or read) once.
  const double moved = static_cast<double>(problem.rows + count) * static_cast<double>(problem.m);
  if (pool.skips({op, problem.dtype, moved, moved * static_cast<double>(size_of(problem.dtype))})) return;
  RaggedRowsKernel* const kernel = choose(op, list, problem);
  // About 64 K elements a piece: long against handing it out, short against the whole.
  const std::int64_t grain =
      std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(1, problem.m * problem.slots));
  pool.for_range(count, grain, [&](std::int64_t begin, std::int64_t end) { kernel(problem, begin, end); });
}

void check_rows(const char* op, const TensorView& x) {
  CHECK(x.rank() == 2 && is_float(x.dtype()) && x.is_contiguous(), "[{}] rows are {} {}", op,
        name_of(x.dtype()), to_string(x.shape()));
}

// Of each (token, slot) pair: `indices` i32 [tokens, slots] and `weights`, or undefined, f32 of that shape.
void check_slots(const char* op, const TensorView& indices, const TensorView& weights) {
  CHECK(indices.rank() <= 2 && indices.rank() > 0 && indices.is_contiguous(), "[{}] indices are {}", op,
        to_string(indices.shape()));
  CHECK(!weights.defined() ||
            (weights.dtype() == DType::f32 && weights.shape() == indices.shape() && weights.is_contiguous()),
        "[{}] weights are {} {}, indices {}", op, name_of(weights.dtype()), to_string(weights.shape()),
        to_string(indices.shape()));
}

std::span<const std::int32_t> indices_of(const TensorView& view) {
  return {view.kernel_data<std::int32_t>(), static_cast<std::size_t>(view.size())};
}

}  // namespace

void ragged_gather(ThreadPool& pool, const RaggedGatherArgs& args) {
  const char* const op = "ragged_gather";
  check_rows(op, args.x);
  check_rows(op, args.out);
  check_slots(op, args.index, args.w);
  const std::int64_t rows = args.index.size(), m = args.x.dim(1);
  CHECK(args.out.dtype() == args.x.dtype() && args.out.shape() == (Shape{rows, m}),
        "[{}] {} indices of {} {} into {} {}", op, rows, name_of(args.x.dtype()), to_string(args.x.shape()),
        name_of(args.out.dtype()), to_string(args.out.shape()));
  if (args.x.on_gpu()) return gpu::ragged_gather(args);
  run_ragged(pool, op, kGather,
             {.dtype = args.x.dtype(),
              .x = args.x.kernel_address(),
              .m = m,
              .index = indices_of(args.index),
              .rows = rows,
              .w = args.w.kernel_data<float>(),
              .out = args.out.kernel_address(),
              .out_dtype = args.x.dtype()},
             rows);
}

void ragged_gather_reduce(ThreadPool& pool, const RaggedGatherReduceArgs& args) {
  const char* const op = "ragged_gather_reduce";
  check_rows(op, args.x);
  check_rows(op, args.out);
  check_slots(op, args.position, args.w);
  const std::int64_t m = args.x.dim(1);
  CHECK(args.position.rank() == 2 && args.out.shape() == (Shape{args.position.dim(0), m}),
        "[{}] {} at {} into {}", op, to_string(args.x.shape()), to_string(args.position.shape()),
        to_string(args.out.shape()));
  if (args.x.on_gpu()) return gpu::ragged_gather_reduce(args);
  run_ragged(pool, op, kGatherReduce,
             {.dtype = args.x.dtype(),
              .x = args.x.kernel_address(),
              .m = m,
              .index = indices_of(args.position),
              .slots = args.position.dim(1),
              .rows = args.x.dim(0),
              .w = args.w.kernel_data<float>(),
              .out = args.out.kernel_address(),
              .out_dtype = args.out.dtype()},
             args.position.dim(0));
}

void ragged_row_dot(ThreadPool& pool, const RaggedRowDotArgs& args) {
  const char* const op = "ragged_row_dot";
  check_rows(op, args.dy);
  check_rows(op, args.x);
  check_slots(op, args.position, args.dw);
  const std::int64_t m = args.x.dim(1);
  CHECK(args.dw.defined() && args.position.rank() == 2 && args.dy.dtype() == args.x.dtype() &&
            args.dy.shape() == (Shape{args.position.dim(0), m}),
        "[{}] {} {} and {} {} at {}", op, name_of(args.dy.dtype()), to_string(args.dy.shape()),
        name_of(args.x.dtype()), to_string(args.x.shape()), to_string(args.position.shape()));
  if (args.x.on_gpu()) return gpu::ragged_row_dot(args);
  run_ragged(pool, op, kRowDot,
             {.dtype = args.x.dtype(),
              .x = args.x.kernel_address(),
              .m = m,
              .index = indices_of(args.position),
              .slots = args.position.dim(1),
              .rows = args.x.dim(0),
              .dy = args.dy.kernel_address(),
              .out = args.dw.kernel_data<float>()},
             args.position.dim(0));
}

}  // namespace switchyard
