#include "kernels/rms_norm.h"

#include <algorithm>
#include <initializer_list>
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
                      static_cast<T*>(p.y) + begin * p.dim, p.rstd + begin, p.whole_dim, given_sums(p, begin),
                      static_cast<double>(p.scale_offset));
}

template <typename T, typename S>
void reference_backward_rows(const RmsNormProblem& p, std::int64_t begin, std::int64_t end, float* dscale) {
  const T* const x = static_cast<const T*>(p.x) + begin * p.dim;
  const T* const dy = static_cast<const T*>(p.dy) + begin * p.dim;
  const S* const scale = static_cast<const S*>(p.scale);
  if (p.pass == RowPass::sum) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t at = (r - begin) * p.dim;
      p.sums[r] = static_cast<float>(
          reference::scaled_dot(x + at, scale, dy + at, p.dim, static_cast<double>(p.scale_offset)));
    }
    return;
  }
  reference::rms_norm_backward(x, scale, p.rstd + begin, dy, end - begin, p.dim,
                               static_cast<T*>(p.dx) + begin * p.dim, dscale, p.whole_dim,
                               given_sums(p, begin), static_cast<double>(p.scale_offset));
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

// Of both passes: x, scale and rstd. `like_x` are the other views of x's dtype and shape.
RmsNormProblem problem_of(const char* op, const TensorView& x, const TensorView& scale,
                          const TensorView& rstd, std::initializer_list<const TensorView*> like_x,
                          const SplitRows* split) {
  CHECK(is_float(x.dtype()) && is_float(scale.dtype()) && x.is_contiguous() && scale.is_contiguous() &&
            rstd.is_contiguous() && x.size() == rstd.size() * scale.size(),
        "[{}] x {} of {}, scale {} of {}, rstd {}", op, to_string(x.shape()), name_of(x.dtype()),
        to_string(scale.shape()), name_of(scale.dtype()), to_string(rstd.shape()));
  for (const TensorView* other : like_x)
    CHECK(other->dtype() == x.dtype() && other->size() == x.size() && other->is_contiguous(),
          "[{}] {} of {} beside x {} of {}", op, to_string(other->shape()), name_of(other->dtype()),
          to_string(x.shape()), name_of(x.dtype()));
  return {.dtype = x.dtype(),
          .scale_dtype = scale.dtype(),
          .dim = scale.size(),
          .eps = 0,
          .x = x.kernel_address(),
          .scale = scale.kernel_address(),
          .y = nullptr,
          .rstd = rstd.kernel_data<float>(),
          .whole_dim = split != nullptr ? split->dim : scale.size()};
}

}  // namespace

void rms_norm(ThreadPool& pool, const RmsNormArgs& args) {
  RmsNormProblem problem = problem_of("rms_norm", args.x, args.scale, args.rstd, {&args.y}, args.split);
  const std::int64_t rows = args.rstd.size();
  const TensorView sums = args.rstd.reshaped({rows});
  if (pool.skips(work_of("rms_norm", problem.dtype, rows, problem.dim, 2))) {
    if (args.split != nullptr) args.split->add_up(sums);
    return;
  }
  problem.eps = args.eps;
  problem.scale_offset = args.scale_offset;
  problem.y = args.y.kernel_address();
  problem.sums = problem.rstd;
  RmsNormRows* run = choose("rms_norm", kForward, problem);
  const std::int64_t grain =
      std::max<std::int64_t>(1, elements_per_piece / std::max<std::int64_t>(problem.dim, 1));
  const auto pass_over_rows = [&](RowPass pass) {
    problem.pass = pass;
    pool.for_range(rows, grain, [&](std::int64_t begin, std::int64_t end) { run(problem, begin, end); });
  };
  if (args.split == nullptr) return pass_over_rows(RowPass::whole);
  pass_over_rows(RowPass::sum);
  args.split->add_up(sums);
  pass_over_rows(RowPass::rest);
}

void rms_norm_backward(ThreadPool& pool, const RmsNormBackwardArgs& args) {
  RmsNormProblem problem =
      problem_of("rms_norm_backward", args.x, args.scale, args.rstd, {&args.dy, &args.dx}, args.split);
  const std::int64_t rows = args.rstd.size(), dim = problem.dim;
  CHECK(args.dscale.size() == dim && args.dscale.is_contiguous(), "[rms_norm_backward] dscale {}, scale {}",
        to_string(args.dscale.shape()), to_string(args.scale.shape()));
  if (pool.skips(work_of("rms_norm_backward", problem.dtype, rows, dim, 3))) {
    if (args.split != nullptr) args.split->add_up(args.rstd.reshaped({rows}));
    return;
  }
  std::vector<float> sums(static_cast<std::size_t>(args.split != nullptr ? rows : 0));
  problem.scale_offset = args.scale_offset;
  problem.dy = args.dy.kernel_address();
  problem.dx = args.dx.kernel_address();
  problem.sums = sums.data();
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
  if (args.split == nullptr) {
    pass_over_rows(RowPass::whole);
  } else {
    pass_over_rows(RowPass::sum);
    args.split->add_up(TensorView::of_host(sums.data(), {rows}));
    pass_over_rows(RowPass::rest);
  }
  float* const dscale = args.dscale.kernel_data<float>();
  std::fill(dscale, dscale + dim, 0.0f);
  for (std::int64_t b = 0; b < blocks; ++b) {
    for (std::int64_t i = 0; i < dim; ++i) dscale[i] += partial[static_cast<std::size_t>(b * dim + i)];
  }
}

}  // namespace switchyard
