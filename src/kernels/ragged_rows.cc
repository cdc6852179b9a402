#include "kernels/ragged_rows.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/dispatch.h"
#include "kernels/ragged_rows_problem.h"

namespace switchyard {
namespace {

using List = Implementation<RaggedRowsKernel, RaggedRows>;

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

template <std::size_t count>
void run(ThreadPool& pool, const char* op, const List (&list)[count], const RaggedRows& problem,
         std::int64_t rows) {
  CHECK(is_float(problem.dtype) && is_float(problem.out_dtype), "{} of {} into {}", op,
        name_of(problem.dtype), name_of(problem.out_dtype));
  CHECK(problem.slots > 0 && problem.m >= 0, "{} with {} slots, {} columns", op, problem.slots, problem.m);
  // Every row is read once and every token's vector written (or read) once.
  const double moved =
      static_cast<double>(problem.end - problem.start + rows) * static_cast<double>(problem.m);
  if (pool.skips({op, problem.dtype, moved, moved * static_cast<double>(size_of(problem.dtype))})) return;
  RaggedRowsKernel* const kernel = choose(op, list, problem);
  // About 64 K elements a piece: long against handing it out, short against the whole.
  const std::int64_t grain =
      std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(1, problem.m * problem.slots));
  pool.for_range(rows, grain, [&](std::int64_t begin, std::int64_t end) { kernel(problem, begin, end); });
}

std::int64_t tokens_of(std::span<const std::int32_t> position, std::int64_t slots) {
  const auto count = static_cast<std::int64_t>(position.size());
  CHECK(slots > 0 && count % slots == 0, "{} positions of {} slots", count, slots);
  return count / slots;
}

}  // namespace

void ragged_gather(ThreadPool& pool, DType dtype, const void* x, std::int64_t m,
                   std::span<const std::int32_t> index, std::int64_t start, std::int64_t end, const float* w,
                   void* out) {
  CHECK(0 <= start && start <= end && end <= static_cast<std::int64_t>(index.size()),
        "[{}, {}) of {} positions", start, end, index.size());
  run(pool, "ragged_gather", kGather,
      {.dtype = dtype,
       .x = x,
       .m = m,
       .index = index,
       .start = start,
       .end = end,
       .w = w,
       .out = out,
       .out_dtype = dtype},
      end - start);
}

void ragged_gather_reduce(ThreadPool& pool, DType dtype, const void* x, std::int64_t m,
                          std::span<const std::int32_t> position, std::int64_t slots, std::int64_t start,
                          std::int64_t end, const float* w, void* out, DType out_dtype) {
  run(pool, "ragged_gather_reduce", kGatherReduce,
      {.dtype = dtype,
       .x = x,
       .m = m,
       .index = position,
       .slots = slots,
       .start = start,
       .end = end,
       .w = w,
       .out = out,
       .out_dtype = out_dtype},
      tokens_of(position, slots));
}

void ragged_row_dot(ThreadPool& pool, DType dtype, const void* dy, const void* x, std::int64_t m,
                    std::span<const std::int32_t> position, std::int64_t slots, std::int64_t start,
                    std::int64_t end, float* dw) {
  run(pool, "ragged_row_dot", kRowDot,
      {.dtype = dtype,
       .x = x,
       .m = m,
       .index = position,
       .slots = slots,
       .start = start,
       .end = end,
       .dy = dy,
       .out = dw},
      tokens_of(position, slots));
}

}  // namespace switchyard
