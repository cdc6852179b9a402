#include "kernels/moe/ragged_rows.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/moe/kernels.h"
#include "kernels/moe/ragged_rows_problem.h"
#include "kernels/registry/simd_rows.h"

namespace switchyard {
namespace {

std::span<const std::int32_t> indices_of(const TensorView& view) {
  return {view.kernel_data<std::int32_t>(), static_cast<std::size_t>(view.size())};
}

// Runs the kernel for rows [0, count) of its result.
void on_rows(ThreadPool& pool, RaggedRowsKernel* kernel, const RaggedRows& problem, std::int64_t count) {
  // About 64 K elements a piece: long against handing it out, short against the whole.
  const std::int64_t grain =
      std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(1, problem.m * problem.per_token));
  pool.for_range(count, grain, [&](std::int64_t begin, std::int64_t end) { kernel(problem, begin, end); });
}

template <RaggedRowsKernel* kernel>
void gather(ThreadPool& pool, const RaggedGatherArgs& args) {
  const std::int64_t rows = args.index.size();
  on_rows(pool, kernel,
          {.dtype = args.x.dtype(),
           .x = args.x.kernel_address(),
           .m = args.x.dim(1),
           .index = indices_of(args.index),
           .rows = rows,
           .w = args.w.kernel_data<float>(),
           .out = args.out.kernel_address(),
           .out_dtype = args.x.dtype()},
          rows);
}

template <RaggedRowsKernel* kernel>
void gather_reduce(ThreadPool& pool, const RaggedGatherReduceArgs& args) {
  on_rows(pool, kernel,
          {.dtype = args.x.dtype(),
           .x = args.x.kernel_address(),
           .m = args.x.dim(1),
           .index = indices_of(args.position),
           .per_token = args.position.dim(1),
           .rows = args.x.dim(0),
           .w = args.w.kernel_data<float>(),
           .out = args.out.kernel_address(),
           .out_dtype = args.out.dtype()},
          args.position.dim(0));
}

template <RaggedRowsKernel* kernel>
void row_dot(ThreadPool& pool, const RaggedRowDotArgs& args) {
  on_rows(pool, kernel,
          {.dtype = args.x.dtype(),
           .x = args.x.kernel_address(),
           .m = args.x.dim(1),
           .index = indices_of(args.position),
           .per_token = args.position.dim(1),
           .rows = args.x.dim(0),
           .dy = args.dy.kernel_address(),
           .out = args.dw.kernel_data<float>()},
          args.position.dim(0));
}

// Every row is read once, and every token's vector written (or read) once: `vectors` in all.
Work work_of(const TensorView& x, std::int64_t vectors) {
  const double moved = static_cast<double>(vectors) * static_cast<double>(x.dim(1));
  return {.dtype = x.dtype(), .flops = moved, .bytes = moved * static_cast<double>(size_of(x.dtype()))};
}

Work gather_work(const RaggedGatherArgs& args) {
  return work_of(args.x, 2 * args.index.size());
}

template <typename Args>
Work positions_work(const Args& args) {
  return work_of(args.x, args.x.dim(0) + args.position.dim(0));
}

constexpr Implementation<RaggedGatherArgs> kGathers[] = {{"cuda", Gpu::any, gpu::ragged_gather},
                                                         SWITCHYARD_SIMD_ROWS(gather, ragged_gather)};
constexpr Implementation<RaggedGatherReduceArgs> kGatherReduces[] = {
    {"cuda", Gpu::any, gpu::ragged_gather_reduce}, SWITCHYARD_SIMD_ROWS(gather_reduce, ragged_gather_reduce)};
constexpr Implementation<RaggedRowDotArgs> kRowDots[] = {{"cuda", Gpu::any, gpu::ragged_row_dot},
                                                         SWITCHYARD_SIMD_ROWS(row_dot, ragged_row_dot)};
constexpr Kernel<RaggedGatherArgs> kGather{"ragged_gather", gather_work, &RaggedGatherArgs::x, kGathers};
constexpr Kernel<RaggedGatherReduceArgs> kGatherReduce{"ragged_gather_reduce", positions_work,
                                                       &RaggedGatherReduceArgs::x, kGatherReduces};
constexpr Kernel<RaggedRowDotArgs> kRowDot{"ragged_row_dot", positions_work, &RaggedRowDotArgs::x, kRowDots};

void check_rows(const char* op, const TensorView& x) {
  CHECK(x.rank() == 2 && is_float(x.dtype()) && x.is_contiguous(), "[{}] rows are {} {}", op,
        name_of(x.dtype()), to_string(x.shape()));
}

// Checks the numbers of each assignment: `indices` [tokens, per_token],
// and `weights` f32 of that shape or undefined.
void check_assignments(const char* op, const TensorView& indices, const TensorView& weights) {
  CHECK(indices.rank() <= 2 && indices.rank() > 0 && indices.is_contiguous(), "[{}] indices are {}", op,
        to_string(indices.shape()));
  CHECK(!weights.defined() ||
            (weights.dtype() == DType::f32 && weights.shape() == indices.shape() && weights.is_contiguous()),
        "[{}] weights are {} {}, indices {}", op, name_of(weights.dtype()), to_string(weights.shape()),
        to_string(indices.shape()));
}

}  // namespace

void ragged_gather(ThreadPool& pool, const RaggedGatherArgs& args) {
  const char* const op = "ragged_gather";
  check_rows(op, args.x);
  check_rows(op, args.out);
  check_assignments(op, args.index, args.w);
  const std::int64_t rows = args.index.size(), m = args.x.dim(1);
  CHECK(args.out.dtype() == args.x.dtype() && args.out.shape() == (Shape{rows, m}),
        "[{}] {} indices of {} {} into {} {}", op, rows, name_of(args.x.dtype()), to_string(args.x.shape()),
        name_of(args.out.dtype()), to_string(args.out.shape()));
  run(pool, kGather, args);
}

void ragged_gather_reduce(ThreadPool& pool, const RaggedGatherReduceArgs& args) {
  const char* const op = "ragged_gather_reduce";
  check_rows(op, args.x);
  check_rows(op, args.out);
  check_assignments(op, args.position, args.w);
  const std::int64_t m = args.x.dim(1);
  CHECK(args.position.rank() == 2 && args.out.shape() == (Shape{args.position.dim(0), m}),
        "[{}] {} at {} into {}", op, to_string(args.x.shape()), to_string(args.position.shape()),
        to_string(args.out.shape()));
  run(pool, kGatherReduce, args);
}

void ragged_row_dot(ThreadPool& pool, const RaggedRowDotArgs& args) {
  const char* const op = "ragged_row_dot";
  check_rows(op, args.dy);
  check_rows(op, args.x);
  check_assignments(op, args.position, args.dw);
  const std::int64_t m = args.x.dim(1);
  CHECK(args.dw.defined() && args.position.rank() == 2 && args.dy.dtype() == args.x.dtype() &&
            args.dy.shape() == (Shape{args.position.dim(0), m}),
        "[{}] {} {} and {} {} at {}", op, name_of(args.dy.dtype()), to_string(args.dy.shape()),
        name_of(args.x.dtype()), to_string(args.x.shape()), to_string(args.position.shape()));
  run(pool, kRowDot, args);
}

}  // namespace switchyard
