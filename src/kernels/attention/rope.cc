#include "kernels/attention/rope.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/attention/rope_problem.h"
#include "kernels/registry/simd_rows.h"

namespace switchyard {
namespace {

constexpr std::int64_t kElementsAtOnce = 1 << 14;

template <RopeTokens* kernel>
void on_tokens(ThreadPool& pool, const RopeArgs& args) {
  const TensorView& x = args.x;
  const RopeProblem p{.dtype = x.dtype(),
                      .x = x.kernel_address(),
                      .y = args.y.kernel_address(),
                      .heads = x.dim(1),
                      .dim = x.dim(2),
                      .token_stride = x.stride(0),
                      .head_stride = x.stride(1),
                      .cos = args.cos.kernel_data<float>(),
                      .sin = args.sin.kernel_data<float>(),
                      .interleaved = args.interleaved,
                      .inverse = args.inverse};
  const std::int64_t grain =
      std::max<std::int64_t>(1, kElementsAtOnce / std::max<std::int64_t>(1, p.heads * p.dim));
  pool.for_range(x.dim(0), grain, [&](std::int64_t begin, std::int64_t end) { kernel(p, begin, end); });
}

Work work_of(const RopeArgs& args) {
  const double rotated = static_cast<double>(args.x.size());
  return {.dtype = args.x.dtype(),
          .flops = 3 * rotated,
          .bytes = 2 * rotated * static_cast<double>(size_of(args.x.dtype()))};
}

constexpr Implementation<RopeArgs> kRopes[] = {{"cuda", Gpu::any, gpu::rope},
                                               SWITCHYARD_SIMD_ROWS(on_tokens, rope)};
constexpr Kernel<RopeArgs> kRope{"rope", work_of, &RopeArgs::x, kRopes};

}  // namespace

void rope(ThreadPool& pool, const RopeArgs& args) {
  const TensorView &x = args.x, &y = args.y;
  CHECK(x.rank() == 3 && is_float(x.dtype()) && x.dim(2) % 2 == 0 && x.stride(2) == 1 &&
            y.dtype() == x.dtype() && y.shape() == x.shape() && y.strides() == x.strides(),
        "[rope] {} of {} with strides {} into {} of {} with strides {}", to_string(x.shape()),
        name_of(x.dtype()), to_string(x.strides()), to_string(y.shape()), name_of(y.dtype()),
        to_string(y.strides()));
  for (const TensorView* table : {&args.cos, &args.sin})
    CHECK(table->size() == x.dim(0) * (x.dim(2) / 2) && table->is_contiguous(), "[rope] a table {} for x {}",
          to_string(table->shape()), to_string(x.shape()));
  run(pool, kRope, args);
}

}  // namespace switchyard
