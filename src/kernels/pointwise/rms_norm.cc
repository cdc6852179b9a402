#include "kernels/pointwise/rms_norm.h"

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "core/error.h"
#include "kernels/pointwise/kernels.h"
#include "kernels/pointwise/reference/rms_norm_reference.h"
#include "kernels/pointwise/rms_norm_problem.h"
#include "kernels/registry/kernel.h"
#include "kernels/registry/simd_rows.h"

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

}  // namespace

namespace ref {

void rms_norm(const RmsNormProblem& p, std::int64_t begin, std::int64_t end) {
  const bool wide_scale = p.scale_dtype == DType::f32;
  if (p.dtype == DType::f32) {
    wide_scale ? reference_rows<float, float>(p, begin, end) : reference_rows<float, bfloat16>(p, begin, end);
  } else {
    wide_scale ? reference_rows<bfloat16, float>(p, begin, end)
               : reference_rows<bfloat16, bfloat16>(p, begin, end);
  }
}

void rms_norm_backward(const RmsNormProblem& p, std::int64_t begin, std::int64_t end, float* dscale) {
  const bool wide_scale = p.scale_dtype == DType::f32;
  if (p.dtype == DType::f32) {
    wide_scale ? reference_backward_rows<float, float>(p, begin, end, dscale)
               : reference_backward_rows<float, bfloat16>(p, begin, end, dscale);
  } else {
    wide_scale ? reference_backward_rows<bfloat16, float>(p, begin, end, dscale)
               : reference_backward_rows<bfloat16, bfloat16>(p, begin, end, dscale);
  }
}

}  // namespace ref

namespace {

constexpr std::int64_t elements_per_piece = 1 << 14;  // some microseconds of work
constexpr std::int64_t max_partial_sums = 32;         // bounds the memory of dscale's partial sums

std::int64_t rows_of_piece(std::int64_t dim) {
  return std::max<std::int64_t>(1, elements_per_piece / std::max<std::int64_t>(dim, 1));
}

// The arguments of both passes: x, scale and rstd.
template <typename Args>
RmsNormProblem problem_of(const Args& args) {
  return {.dtype = args.x.dtype(),
          .scale_dtype = args.scale.dtype(),
          .dim = args.scale.size(),
          .eps = 0,
          .x = args.x.kernel_address(),
          .scale = args.scale.kernel_address(),
          .scale_offset = args.scale_offset,
          .y = nullptr,
          .rstd = args.rstd.template kernel_data<float>(),
          .whole_dim = args.split != nullptr ? args.split->dim : args.scale.size()};
}

template <RmsNormRows* kernel>
void forward(ThreadPool& pool, const RmsNormArgs& args) {
  RmsNormProblem problem = problem_of(args);
  problem.eps = args.eps;
  problem.y = args.y.kernel_address();
  problem.sums = problem.rstd;
  const std::int64_t rows = args.rstd.size();
  const auto pass_over_rows = [&](RowPass pass) {
    problem.pass = pass;
    pool.for_range(rows, rows_of_piece(problem.dim),
                   [&](std::int64_t begin, std::int64_t end) { kernel(problem, begin, end); });
  };
  if (args.split == nullptr) return pass_over_rows(RowPass::whole);
  pass_over_rows(RowPass::sum);
  args.split->add_up(args.rstd.reshaped({rows}));
  pass_over_rows(RowPass::rest);
}

template <RmsNormBackwardRows* kernel>
void backward(ThreadPool& pool, const RmsNormBackwardArgs& args) {
  RmsNormProblem problem = problem_of(args);
  const std::int64_t rows = args.rstd.size(), dim = problem.dim;
  std::vector<float> sums(static_cast<std::size_t>(args.split != nullptr ? rows : 0));
  problem.dy = args.dy.kernel_address();
  problem.dx = args.dx.kernel_address();
  problem.sums = sums.data();
  // The blocks follow from the shape alone, so the order of the sum does not depend on the threads.
  const std::int64_t block = std::max(rows_of_piece(dim), (rows + max_partial_sums - 1) / max_partial_sums);
  const std::int64_t blocks = (rows + block - 1) / block;
  std::vector<float> partial(static_cast<std::size_t>(blocks * dim));
  const auto pass_over_rows = [&](RowPass pass) {
    problem.pass = pass;
    pool.for_range(rows, block, [&](std::int64_t begin, std::int64_t end) {
      kernel(problem, begin, end, partial.data() + begin / block * dim);
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

Work work_of(const TensorView& x, int passes) {
  return {.dtype = x.dtype(),
          .flops = 4 * passes * static_cast<double>(x.size()),
          .bytes = passes * static_cast<double>(x.bytes())};
}

Work forward_work(const RmsNormArgs& args) {
  return work_of(args.x, 2);
}

Work backward_work(const RmsNormBackwardArgs& args) {
  return work_of(args.x, 3);
}

constexpr Implementation<RmsNormArgs> kRmsNormForwards[] = {{"cuda", Gpu::any, gpu::rms_norm},
                                                            SWITCHYARD_SIMD_ROWS(forward, rms_norm)};
constexpr Implementation<RmsNormBackwardArgs> kRmsNormBackwards[] = {
    {"cuda", Gpu::any, gpu::rms_norm_backward}, SWITCHYARD_SIMD_ROWS(backward, rms_norm_backward)};
constexpr Kernel<RmsNormArgs> kRmsNorm{"rms_norm", forward_work, &RmsNormArgs::x, kRmsNormForwards};
constexpr Kernel<RmsNormBackwardArgs> kRmsNormBackward{"rms_norm_backward", backward_work,
                                                       &RmsNormBackwardArgs::x, kRmsNormBackwards};

template <typename Args>
void check(const char* op, const Args& args, std::initializer_list<const TensorView*> like_x) {
  const TensorView &x = args.x, &scale = args.scale, &rstd = args.rstd;
  CHECK(is_float(x.dtype()) && is_float(scale.dtype()) && x.is_contiguous() && scale.is_contiguous() &&
            rstd.is_contiguous() && x.size() == rstd.size() * scale.size(),
        "[{}] x {} of {}, scale {} of {}, rstd {}", op, to_string(x.shape()), name_of(x.dtype()),
        to_string(scale.shape()), name_of(scale.dtype()), to_string(rstd.shape()));
  for (const TensorView* other : like_x)
    CHECK(other->dtype() == x.dtype() && other->size() == x.size() && other->is_contiguous(),
          "[{}] {} of {} beside x {} of {}", op, to_string(other->shape()), name_of(other->dtype()),
          to_string(x.shape()), name_of(x.dtype()));
}

// A plan of CPUs computes nothing, but counts what ranks add up.
template <typename Args>
void add_up_in_plan(const Args& args) {
  if (args.split != nullptr && args.x.is_abstract() && !args.x.on_gpu())
    args.split->add_up(args.rstd.reshaped({args.rstd.size()}));
}

}  // namespace

void rms_norm(ThreadPool& pool, const RmsNormArgs& args) {
  check("rms_norm", args, {&args.y});
  run(pool, kRmsNorm, args);
  add_up_in_plan(args);
}

void rms_norm_backward(ThreadPool& pool, const RmsNormBackwardArgs& args) {
  check("rms_norm_backward", args, {&args.dy, &args.dx});
  CHECK(args.dscale.size() == args.scale.size() && args.dscale.is_contiguous(),
        "[rms_norm_backward] dscale {}, scale {}", to_string(args.dscale.shape()),
        to_string(args.scale.shape()));
  run(pool, kRmsNormBackward, args);
  add_up_in_plan(args);
}

}  // namespace switchyard
