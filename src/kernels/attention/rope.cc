#include "kernels/attention/rope.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/attention/reference/rope_reference.h"
#include "kernels/attention/rope_problem.h"
#include "kernels/cuda/kernels.h"
#include "kernels/registry/dispatch.h"

namespace switchyard {
namespace {

constexpr std::int64_t elements_per_piece = 1 << 14;

template <typename T>
void reference_typed(const RopeProblem& p, std::int64_t begin, std::int64_t end) {
  const std::int64_t at = begin * p.token_stride, angle = begin * (p.dim / 2);
  reference::rope(static_cast<const T*>(p.x) + at, static_cast<T*>(p.y) + at, end - begin, p.heads, p.dim,
                  p.token_stride, p.head_stride, p.cos + angle, p.sin + angle, p.interleaved, p.inverse);
}

void reference_tokens(const RopeProblem& p, std::int64_t begin, std::int64_t end) {
  p.dtype == DType::f32 ? reference_typed<float>(p, begin, end) : reference_typed<bfloat16>(p, begin, end);
}

constexpr ListedRun<RopeTokens, RopeProblem> kRope[] = {
#if defined(__x86_64__)
    {"avx512", Isa::avx512, cpu::rope_avx512},
    {"avx2", Isa::avx2, cpu::rope_avx2},
#endif
    {"ref", Isa::ref, reference_tokens},
};

}  // namespace

void rope(ThreadPool& pool, const RopeArgs& args) {
  const TensorView &x = args.x, &y = args.y;
  CHECK(x.rank() == 3 && is_float(x.dtype()) && x.dim(2) % 2 == 0 && x.stride(2) == 1 &&
            y.dtype() == x.dtype() && y.shape() == x.shape() && y.strides() == x.strides(),
        "[rope] {} of {} with strides {} into {} of {} with strides {}", to_string(x.shape()),
        name_of(x.dtype()), to_string(x.strides()), to_string(y.shape()), name_of(y.dtype()),
        to_string(y.strides()));
  const std::int64_t tokens = x.dim(0), heads = x.dim(1), dim = x.dim(2);
  for (const TensorView* table : {&args.cos, &args.sin})
    CHECK(table->size() == tokens * (dim / 2) && table->is_contiguous(), "[rope] a table {} for x {}",
          to_string(table->shape()), to_string(x.shape()));
  const double rotated = static_cast<double>(x.size());
  if (pool.skips({"rope", x.dtype(), 3 * rotated, 2 * rotated * static_cast<double>(size_of(x.dtype()))}))
    return;
  if (x.on_gpu()) return gpu::rope(args);
  const std::int64_t grain =
      std::max<std::int64_t>(1, elements_per_piece / std::max<std::int64_t>(1, heads * dim));
  const RopeProblem p{.dtype = x.dtype(),
                      .x = x.kernel_address(),
                      .y = y.kernel_address(),
                      .heads = heads,
                      .dim = dim,
                      .token_stride = x.stride(0),
                      .head_stride = x.stride(1),
                      .cos = args.cos.kernel_data<float>(),
                      .sin = args.sin.kernel_data<float>(),
                      .interleaved = args.interleaved,
                      .inverse = args.inverse};
  RopeTokens* const run = choose("rope", kRope, p);
  pool.for_range(tokens, grain, [&](std::int64_t begin, std::int64_t end) { run(p, begin, end); });
}

}  // namespace switchyard
