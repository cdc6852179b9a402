#include "kernels/rms_norm.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "kernels/dispatch.h"
#include "kernels/ref/rms_norm_reference.h"
#include "kernels/rms_norm_problem.h"

namespace switchyard {
namespace {

template <typename T, typename S>
void reference_rows(const RmsNormProblem& p, std::int64_t begin, std::int64_t end) {
  const std::int64_t at = begin * p.dim;
  reference::rms_norm(static_cast<const T*>(p.x) + at, static_cast<const S*>(p.scale), end - begin, p.dim,
                      static_cast<double>(p.eps), static_cast<T*>(p.y) + at, p.rstd + begin);
}

template <typename T, typename S>
void reference_backward_rows(const RmsNormProblem& p, std::int64_t begin, std::int64_t end, float* dscale) {
  const std::int64_t at = begin * p.dim;
  reference::rms_norm_backward(static_cast<const T*>(p.x) + at, static_cast<const S*>(p.scale),
                               p.rstd + begin, static_cast<const T*>(p.dy) + at, end - begin, p.dim,
                               static_cast<T*>(p.dx) + at, dscale);
}

void reference_forward(const RmsNormProblem& p, std::int64_t begin, std::int64_t end) {
  const bool wide_scale = p.scale_dtype == DType::f32;
  if (p.dtype == DType::f32) {
    wide_scale ? reference_rows<float, float>(p, begin, end) : reference_rows<float, bfloat16>(p, begin, end);
  } else {
    wide_scale ? reference_rows<bfloat16, float>(p, begin, end)
               : reference_rows<bfloat16, bfloat16>(p, begin, end);
  }
}

void reference_backward(const RmsNormProblem& p, std::int64_t begin, std::int64_t end, float* dscale) {
  const bool wide_scale = p.scale_dtype == DType::f32;
  if (p.dtype == DType::f32) {
    wide_scale ? reference_backward_rows<float, float>(p, begin, end, dscale)
               : reference_backward_rows<float, bfloat16>(p, begin, end, dscale);
  } else {
    wide_scale ? reference_backward_rows<bfloat16, float>(p, begin, end, dscale)
               : reference_backward_rows<bfloat16, bfloat16>(p, begin, end, dscale);
  }
}

constexpr Implementation<RmsNormRows, RmsNormProblem> kForward[] = {
#if defined(__x86_64__)
    {"avx512", Isa::avx512, cpu::rms_norm_avx512},
    {"avx2", Isa::avx2, cpu::rms_norm_avx2},
#endif
    {"ref", Isa::ref, reference_forward},
};

constexpr Implementation<RmsNormBackwardRows, RmsNormProblem> kBackward[] = {
#if defined(__x86_64__)
    {"avx512", Isa::avx512, cpu::rms_norm_backward_avx512},
    {"avx2", Isa::avx2, cpu::rms_norm_backward_avx2},
#endif
    {"ref", Isa::ref, reference_backward},
};

constexpr std::int64_t elements_per_piece = 1 << 14;  // some microseconds of work
constexpr std::int64_t max_partial_sums = 32;         // bounds the memory of dscale's partial sums

Work work_of(const char* kernel, DType dtype, std::int64_t rows, std::int64_t dim, int passes) {
  const double elements = static_cast<double>(rows * dim);
  return {kernel, dtype, 4 * passes * elements, passes * elements * static_cast<double>(size_of(dtype))};
}

void check_dtypes(DType dtype, DType scale_dtype) {
  CHECK(is_float(dtype) && is_float(scale_dtype), "rms_norm of {} with scale {}", name_of(dtype),
        name_of(scale_dtype));
}

}  // namespace

void rms_norm(ThreadPool& pool, DType dtype, const void* x, const void* scale, DType scale_dtype,
              std::int64_t rows, std::int64_t dim, float eps, void* y, float* rstd) {
  check_dtypes(dtype, scale_dtype);
  if (pool.skips(work_of("rms_norm", dtype, rows, dim, 2))) return;
  const RmsNormProblem problem{dtype, scale_dtype, dim, eps, x, scale, y, rstd, nullptr, nullptr};
  RmsNormRows* run = choose("rms_norm", kForward, problem);
  const std::int64_t grain = std::max<std::int64_t>(1, elements_per_piece / std::max<std::int64_t>(dim, 1));
  pool.for_range(rows, grain, [&](std::int64_t begin, std::int64_t end) { run(problem, begin, end); });
}

void rms_norm_backward(ThreadPool& pool, DType dtype, const void* x, const void* scale, DType scale_dtype,
                       const float* rstd, const void* dy, std::int64_t rows, std::int64_t dim, void* dx,
                       float* dscale) {
  check_dtypes(dtype, scale_dtype);
  if (pool.skips(work_of("rms_norm_backward", dtype, rows, dim, 3))) return;
  RmsNormProblem problem{dtype, scale_dtype, dim, 0, x, scale, nullptr, const_cast<float*>(rstd), dy, dx};
  RmsNormBackwardRows* run = choose("rms_norm_backward", kBackward, problem);
  // The blocks follow from the shape alone, so the order of the sum does not depend on the threads.
  const std::int64_t block =
      std::max(std::max<std::int64_t>(1, elements_per_piece / std::max<std::int64_t>(dim, 1)),
               (rows + max_partial_sums - 1) / max_partial_sums);
  const std::int64_t blocks = (rows + block - 1) / block;
  std::vector<float> partial(static_cast<std::size_t>(blocks * dim));
  pool.for_range(rows, block, [&](std::int64_t begin, std::int64_t end) {
    run(problem, begin, end, partial.data() + begin / block * dim);
  });
  std::fill(dscale, dscale + dim, 0.0f);
  for (std::int64_t b = 0; b < blocks; ++b) {
    for (std::int64_t i = 0; i < dim; ++i) dscale[i] += partial[static_cast<std::size_t>(b * dim + i)];
  }
}

}  // namespace switchyard
