#include "kernels/attention/int8_vectors.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/attention/int8_vectors_problem.h"
#include "kernels/registry/simd_rows.h"

namespace switchyard {
namespace {

constexpr std::int64_t kNumbersAtOnce = 1 << 14;

template <Int8VectorsKernel* kernel>
void on_tokens(ThreadPool& pool, const Int8VectorsArgs& args) {
  const TensorView &x = args.x, &values = args.values, &scales = args.scales;
  const Int8VectorsProblem p{.dtype = x.dtype(),
                             .heads = x.dim(1),
                             .dim = x.dim(2),
                             .x = x.kernel_address(),
                             .values = values.kernel_data<std::int8_t>(),
                             .scales = scales.kernel_data<float>(),
                             .of_x = {x.stride(0), x.stride(1)},
                             .of_values = {values.stride(0), values.stride(1)},
                             .of_scales = {scales.stride(0), scales.stride(1)}};
  const std::int64_t grain =
      std::max<std::int64_t>(1, kNumbersAtOnce / std::max<std::int64_t>(1, p.heads * p.dim));
  pool.for_range(x.dim(0), grain, [&](std::int64_t begin, std::int64_t end) { kernel(p, begin, end); });
}

Work work_of(const Int8VectorsArgs& args) {
  return {.dtype = args.x.dtype(),
          .flops = 2 * static_cast<double>(args.x.size()),
          .bytes = static_cast<double>(args.x.bytes() + args.values.bytes() + args.scales.bytes())};
}

constexpr Implementation<Int8VectorsArgs> kTo[] = {{"cuda", Gpu::any, gpu::to_int8},
                                                   SWITCHYARD_SIMD_ROWS(on_tokens, to_int8)};
constexpr Implementation<Int8VectorsArgs> kFrom[] = {{"cuda", Gpu::any, gpu::from_int8},
                                                     SWITCHYARD_SIMD_ROWS(on_tokens, from_int8)};
constexpr Kernel<Int8VectorsArgs> kToInt8{"to_int8", work_of, &Int8VectorsArgs::x, kTo};
constexpr Kernel<Int8VectorsArgs> kFromInt8{"from_int8", work_of, &Int8VectorsArgs::x, kFrom};

void run_checked(ThreadPool& pool, const Kernel<Int8VectorsArgs>& kernel, const Int8VectorsArgs& args) {
  const TensorView &x = args.x, &values = args.values, &scales = args.scales;
  CHECK(x.rank() == 3 && is_float(x.dtype()) && x.stride(2) == 1 && values.shape() == x.shape() &&
            values.dtype() == DType::i8 && values.stride(2) == 1 && scales.dtype() == DType::f32 &&
            scales.shape() == Shape({x.dim(0), x.dim(1)}),
        "[{}] x {} of {}, values {} of {}, scales {} of {}", kernel.name, to_string(x.shape()),
        name_of(x.dtype()), to_string(values.shape()), name_of(values.dtype()), to_string(scales.shape()),
        name_of(scales.dtype()));
  run(pool, kernel, args);
}

}  // namespace

void to_int8(ThreadPool& pool, const Int8VectorsArgs& args) {
  run_checked(pool, kToInt8, args);
}

void from_int8(ThreadPool& pool, const Int8VectorsArgs& args) {
  run_checked(pool, kFromInt8, args);
}

}  // namespace switchyard
