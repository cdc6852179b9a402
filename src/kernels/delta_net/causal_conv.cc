#include "kernels/delta_net/causal_conv.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "kernels/delta_net/causal_conv_problem.h"
#include "kernels/delta_net/kernels.h"
#include "kernels/registry/kernel.h"
#include "kernels/registry/simd_rows.h"

namespace switchyard {
namespace {

void check_conv(const char* op, const TensorView& x, const TensorView& w, const TensorView& segments) {
  CHECK(x.rank() == 3 && is_float(x.dtype()) && x.is_contiguous() && w.rank() == 2 && w.dim(0) == x.dim(2) &&
            w.dim(1) >= 1 && w.dim(1) <= kMostConvTaps && w.dtype() == DType::f32 && w.is_contiguous(),
        "[{}] x {} of {}, w {} of {}", op, to_string(x.shape()), name_of(x.dtype()), to_string(w.shape()),
        name_of(w.dtype()));
  CHECK(!segments.defined() || (segments.dtype() == DType::i32 && segments.is_contiguous() &&
                                segments.shape() == (Shape{x.dim(0), x.dim(1)})),
        "[{}] segments {} for {}", op, to_string(segments.shape()), to_string(x.shape()));
}

void check_as_x(const char* op, const TensorView& x, const TensorView& other) {
  CHECK(other.dtype() == x.dtype() && other.shape() == x.shape() && other.is_contiguous(),
        "[{}] {} of {} beside x {}", op, to_string(other.shape()), name_of(other.dtype()),
        to_string(x.shape()));
}

CausalConvProblem conv_problem(const TensorView& x, const TensorView& w, const TensorView& segments) {
  CausalConvProblem p;
  p.dtype = x.dtype();
  p.batch = x.dim(0);
  p.length = x.dim(1);
  p.channels = x.dim(2);
  p.taps = w.dim(1);
  p.x = x.kernel_address();
  p.w = w.kernel_data<float>();
  p.segments = segments.kernel_data<std::int32_t>();
  return p;
}

void on_channels(ThreadPool& pool, const CausalConvProblem& p, CausalConvKernel* kernel) {
  const std::int64_t blocks = (p.channels + kConvChannels - 1) / kConvChannels;
  pool.for_range(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    kernel(p, begin * kConvChannels, std::min(p.channels, end * kConvChannels));
  });
}

// The last taps - 1 tokens of what was before and x.
void move_tail(const CausalConvArgs& a, std::int64_t taps) {
  const std::size_t row = static_cast<std::size_t>(a.x.dim(2)) * size_of(a.x.dtype());
  const std::int64_t kept = taps - 1, length = a.x.dim(1);
  std::vector<std::byte> tail(static_cast<std::size_t>(kept) * row);
  for (std::int64_t b = 0; b < a.x.dim(0); ++b) {
    std::byte* const old = a.tail.kernel_address() + static_cast<std::size_t>(b * kept) * row;
    const std::byte* const x = a.x.kernel_address() + static_cast<std::size_t>(b * length) * row;
    for (std::int64_t i = 0; i < kept; ++i) {
      const std::int64_t s = length - kept + i;  // among the tokens of x
      std::memcpy(
          tail.data() + static_cast<std::size_t>(i) * row,
          s >= 0 ? x + static_cast<std::size_t>(s) * row : old + static_cast<std::size_t>(kept + s) * row,
          row);
    }
    std::memcpy(old, tail.data(), tail.size());
  }
}

template <CausalConvKernel* kernel>
void forward(ThreadPool& pool, const CausalConvArgs& args) {
  CausalConvProblem p = conv_problem(args.x, args.w, args.segments);
  p.tail = p.taps > 1 ? args.tail.kernel_address() : nullptr;
  p.y = args.y.kernel_address();
  on_channels(pool, p, kernel);
  if (p.tail != nullptr) move_tail(args, p.taps);
}

template <CausalConvKernel* kernel>
void backward(ThreadPool& pool, const CausalConvBackwardArgs& args) {
  CausalConvProblem p = conv_problem(args.x, args.w, args.segments);
  p.dy = args.dy.kernel_address();
  p.dx = args.dx.kernel_address();
  p.dw = args.dw.kernel_data<float>();
  on_channels(pool, p, kernel);
}

Work forward_work(const CausalConvArgs& args) {
  return {.dtype = args.x.dtype(),
          .flops = static_cast<double>(args.x.size()) * static_cast<double>(2 * args.w.dim(1) + 10),
          .bytes = 2 * static_cast<double>(args.x.bytes())};
}

Work backward_work(const CausalConvBackwardArgs& args) {
  return {.dtype = args.x.dtype(),
          .flops = static_cast<double>(args.x.size()) * static_cast<double>(6 * args.w.dim(1) + 14),
          .bytes = 3 * static_cast<double>(args.x.bytes())};
}

constexpr Implementation<CausalConvArgs> kCausalConvForwards[] = {{"cuda", Gpu::any, gpu::causal_conv},
                                                                  SWITCHYARD_SIMD_ROWS(forward, causal_conv)};
constexpr Implementation<CausalConvBackwardArgs> kCausalConvBackwards[] = {
    {"cuda", Gpu::any, gpu::causal_conv_backward}, SWITCHYARD_SIMD_ROWS(backward, causal_conv_backward)};
constexpr Kernel<CausalConvArgs> kCausalConv{"causal_conv", forward_work, &CausalConvArgs::x,
                                             kCausalConvForwards};
constexpr Kernel<CausalConvBackwardArgs> kCausalConvBackward{
    "causal_conv_backward", backward_work, &CausalConvBackwardArgs::x, kCausalConvBackwards};

}  // namespace

void causal_conv(ThreadPool& pool, const CausalConvArgs& args) {
  constexpr const char* kOp = "causal_conv";
  check_conv(kOp, args.x, args.w, args.segments);
  check_as_x(kOp, args.x, args.y);
  CHECK(!args.tail.defined() ||
            (!args.segments.defined() && args.tail.dtype() == args.x.dtype() && args.tail.is_contiguous() &&
             args.tail.shape() == (Shape{args.x.dim(0), args.w.dim(1) - 1, args.x.dim(2)})),
        "[{}] tail {} of {} for x {}", kOp, to_string(args.tail.shape()), name_of(args.tail.dtype()),
        to_string(args.x.shape()));
  run(pool, kCausalConv, args);
}

void causal_conv_backward(ThreadPool& pool, const CausalConvBackwardArgs& args) {
  constexpr const char* kOp = "causal_conv_backward";
  check_conv(kOp, args.x, args.w, args.segments);
  check_as_x(kOp, args.x, args.dy);
  check_as_x(kOp, args.x, args.dx);
  CHECK(args.dw.dtype() == DType::f32 && args.dw.shape() == args.w.shape() && args.dw.is_contiguous(),
        "[{}] dw {} for w {}", kOp, to_string(args.dw.shape()), to_string(args.w.shape()));
  run(pool, kCausalConvBackward, args);
}

}  // namespace switchyard
