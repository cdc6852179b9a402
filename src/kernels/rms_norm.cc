#include "kernels/rms_norm.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "kernels/dispatch.h"
#include "kernels/ref/rms_norm_reference.h"
#include "kernels/rms_norm_problem.h"

namespace switchyard {
namespace {

const float* given_sums(const RmsNormProblem& p, std::int64_t begin) {
  return p.pass == RowPass::rest ? p.sums + begin : nullptr;
}

template <typename T, typename S>
void reference_rows(const RmsNormProblem& p, std::int64_t begin, std::int64_t end) {
  const T* const x = static_cast<const T*>(p.x) + begin * p.dim;
  if (p.pass == RowPass::sum) {
    for (std::int64_t r = begin; r < end; ++r)
      p.sums[r] = static_cast<float>(reference::square_sum(x + (r - begin) * p.dim, p.dim));
    return;
  }
  reference::rms_norm(x, static_cast<const S*>(p.scale), end - begin, p.dim, static_cast<double>(p.eps),
                      static_cast<T*>(p.y) + begin * p.dim, p.rstd + begin, p.whole_dim,
                      given_sums(p, begin));
}

template <typename T, typename S>
void reference_backward_rows(const RmsNormProblem& p, std::int64_t begin, std::int64_t end, float* dscale) {
  const T* const x = static_cast<const T*>(p.x) + begin * p.dim;
  const T* const dy = static_cast<const T*>(p.dy) + begin * p.dim;
  const S* const scale = static_cast<const S*>(p.scale);
  if (p.pass == RowPass::sum) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t at = (r - begin) * p.dim;
      p.sums[r] = static_cast<float>(reference::scaled_dot(x + at, scale, dy + at, p.dim));
    }
    return;
  }
  reference::rms_norm_backward(x, scale, p.rstd + begin, dy, end - begin, p.dim,
                               static_cast<T*>(p.dx) + begin * p.dim, dscale, p.whole_dim,
                               given_sums(p, begin));
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
              std::int64_t rows, std::int64_t dim, float eps, void* y, float* rstd, const SplitRows* split) {
  check_dtypes(dtype, scale_dtype);
  if (pool.skips(work_of("rms_norm", dtype, rows, dim, 2))) {
    if (split != nullptr) split->add_up(rstd);
    return;
  }
  RmsNormProblem problem{.dtype = dtype,
                         .scale_dtype = scale_dtype,
                         .dim = dim,
                         .eps = eps,
                         .x = x,
                         .scale = scale,
                         .y = y,
                         .rstd = rstd,
                         .whole_dim = split != nullptr ? split->dim : dim,
                         .sums = rstd};
  RmsNormRows* run = choose("rms_norm", kForward, problem);
  const std::int64_t grain = std::max<std::int64_t>(1, elements_per_piece / std::max<std::int64_t>(dim, 1));
  const auto pass_over_rows = [&](RowPass pass) {
    problem.pass = pass;
    pool.for_range(rows, grain, [&](std::int64_t begin, std::int64_t end) { run(problem, begin, end); });
  };
  if (split == nullptr) return pass_over_rows(RowPass::whole);
  pass_over_rows(RowPass::sum);
  split->add_up(rstd);
  pass_over_rows(RowPass::rest);
}

void rms_norm_backward(ThreadPool& pool, DType dtype, const void* x, const void* scale, DType scale_dtype,
                       const float* rstd, const void* dy, std::int64_t rows, std::int64_t dim, void* dx,
                       float* dscale, const SplitRows* split) {
  check_dtypes(dtype, scale_dtype);
  if (pool.skips(work_of("rms_norm_backward", dtype, rows, dim, 3))) {
    if (split != nullptr) split->add_up(dscale);
    return;
  }
  std::vector<float> sums(static_cast<std::size_t>(split != nullptr ? rows : 0));
  RmsNormProblem problem{.dtype = dtype,
                         .scale_dtype = scale_dtype,
                         .dim = dim,
                         .eps = 0,
                         .x = x,
                         .scale = scale,
                         .y = nullptr,
                         .rstd = const_cast<float*>(rstd),
                         .dy = dy,
                         .dx = dx,
                         .whole_dim = split != nullptr ? split->dim : dim,
                         .sums = sums.data()};
  RmsNormBackwardRows* run = choose("rms_norm_backward", kBackward, problem);
  // The blocks follow from the shape alone, so the order of the sum does not depend on the threads.
  const std::int64_t block =
      std::max(std::max<std::int64_t>(1, elements_per_piece / std::max<std::int64_t>(dim, 1)),
               (rows + max_partial_sums - 1) / max_partial_sums);
  const std::int64_t blocks = (rows + block - 1) / block;
  std::vector<float> partial(static_cast<std::size_t>(blocks * dim));
  const auto pass_over_rows = [&](RowPass pass) {
    problem.pass = pass;
    pool.for_range(rows, block, [&](std::int64_t begin, std::int64_t end) {
      run(problem, begin, end, partial.data() + begin / block * dim);
    });
  };
  if (split == nullptr) {
    pass_over_rows(RowPass::whole);
  } else {
    pass_over_rows(RowPass::sum);
    split->add_up(sums.data());
    pass_over_rows(RowPass::rest);
  }
  std::fill(dscale, dscale + dim, 0.0f);
  for (std::int64_t b = 0; b < blocks; ++b) {
    for (std::int64_t i = 0; i < dim; ++i) dscale[i] += partial[static_cast<std::size_t>(b * dim + i)];
  }
}

}  // namespace switchyard
