#include "kernels/attention/int8_vectors.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/attention/int8_vectors_problem.h"
#include "kernels/cuda/kernels.h"
#include "kernels/registry/simd_list.h"

namespace switchyard {
namespace {

constexpr std::int64_t kInt8NumbersOfPiece = 1 << 14;

constexpr ListedRun<Int8VectorsRun, Int8VectorsProblem> kToInt8[] = {SWITCHYARD_SIMD_LIST(to_int8)};
constexpr ListedRun<Int8VectorsRun, Int8VectorsProblem> kFromInt8[] = {SWITCHYARD_SIMD_LIST(from_int8)};

template <std::size_t count>
void run_int8_vectors(ThreadPool& pool, const char* op,
                      const ListedRun<Int8VectorsRun, Int8VectorsProblem> (&list)[count],
                      const Int8VectorsArgs& args, void (*on_gpu)(const Int8VectorsArgs&)) {
  const TensorView &x = args.x, &values = args.values, &scales = args.scales;
  CHECK(x.rank() == 3 && is_float(x.dtype()) && x.stride(2) == 1 && values.shape() == x.shape() &&
            values.dtype() == DType::i8 && values.stride(2) == 1 && scales.dtype() == DType::f32 &&
            scales.shape() == Shape({x.dim(0), x.dim(1)}),
        "[{}] x {} of {}, values {} of {}, scales {} of {}", op, to_string(x.shape()), name_of(x.dtype()),
        to_string(values.shape()), name_of(values.dtype()), to_string(scales.shape()),
        name_of(scales.dtype()));
  const double bytes = static_cast<double>(x.bytes() + values.bytes() + scales.bytes());
  if (pool.skips({op, x.dtype(), 2 * static_cast<double>(x.size()), bytes}) || x.size() == 0) return;
  if (x.on_gpu()) return on_gpu(args);
  const Int8VectorsProblem p{.dtype = x.dtype(),
                             .heads = x.dim(1),
                             .dim = x.dim(2),
                             .x = x.kernel_address(),
                             .values = values.kernel_data<std::int8_t>(),
                             .scales = scales.kernel_data<float>(),
                             .of_x = {x.stride(0), x.stride(1)},
                             .of_values = {values.stride(0), values.stride(1)},
                             .of_scales = {scales.stride(0), scales.stride(1)}};
  Int8VectorsRun* const run = choose(op, list, p);
  const std::int64_t grain = std::max<std::int64_t>(1, kInt8NumbersOfPiece / (p.heads * p.dim));
  pool.for_range(x.dim(0), grain, [&](std::int64_t begin, std::int64_t end) { run(p, begin, end); });
}

}  // namespace

void to_int8(ThreadPool& pool, const Int8VectorsArgs& args) {
  run_int8_vectors(pool, "to_int8", kToInt8, args, gpu::to_int8);
}

void from_int8(ThreadPool& pool, const Int8VectorsArgs& args) {
  run_int8_vectors(pool, "from_int8", kFromInt8, args, gpu::from_int8);
}

}  // namespace switchyard
