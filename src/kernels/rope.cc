#include "kernels/rope.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/dispatch.h"
#include "kernels/ref/rope_reference.h"
#include "kernels/rope_problem.h"

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

constexpr Implementation<RopeTokens, RopeProblem> kRope[] = {
#if defined(__x86_64__)
    {"avx512", Isa::avx512, cpu::rope_avx512},
    {"avx2", Isa::avx2, cpu::rope_avx2},
#endif
    {"ref", Isa::ref, reference_tokens},
};

}  // namespace

void rope(ThreadPool& pool, DType dtype, const void* x, void* y, std::int64_t tokens, std::int64_t heads,
          std::int64_t dim, std::int64_t token_stride, std::int64_t head_stride, const float* cos,
          const float* sin, bool interleaved, bool inverse) {
  CHECK(is_float(dtype), "rope of {}", name_of(dtype));
  CHECK(dim % 2 == 0, "rope dim {} is odd", dim);
  const double rotated = static_cast<double>(tokens * heads * dim);
  if (pool.skips({"rope", dtype, 3 * rotated, 2 * rotated * static_cast<double>(size_of(dtype))})) return;
  const std::int64_t grain =
      std::max<std::int64_t>(1, elements_per_piece / std::max<std::int64_t>(1, heads * dim));
  const RopeProblem p{dtype, x, y, heads, dim, token_stride, head_stride, cos, sin, interleaved, inverse};
  RopeTokens* const run = choose("rope", kRope, p);
  pool.for_range(tokens, grain, [&](std::int64_t begin, std::int64_t end) { run(p, begin, end); });
}

}  // namespace switchyard
