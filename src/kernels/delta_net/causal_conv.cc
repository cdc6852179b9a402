#include "kernels/delta_net/causal_conv.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "kernels/cuda/kernels.h"
#include "kernels/delta_net/causal_conv_problem.h"
#include "kernels/registry/simd_list.h"

namespace switchyard {
namespace {

using CausalConvList = ListedRun<CausalConvKernel, CausalConvProblem>;
constexpr CausalConvList kCausalConv[] = {SWITCHYARD_SIMD_LIST(causal_conv)};
constexpr CausalConvList kCausalConvBackward[] = {SWITCHYARD_SIMD_LIST(causal_conv_backward)};

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

void run_on_channels(ThreadPool& pool, const CausalConvProblem& p, CausalConvKernel* kernel) {
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

}  // namespace

void causal_conv(ThreadPool& pool, const CausalConvArgs& a) {
  constexpr const char* kOp = "causal_conv";
  check_conv(kOp, a.x, a.w, a.segments);
  check_as_x(kOp, a.x, a.y);
  const std::int64_t taps = a.w.dim(1);
  CHECK(!a.tail.defined() ||
            (!a.segments.defined() && a.tail.dtype() == a.x.dtype() && a.tail.is_contiguous() &&
             a.tail.shape() == (Shape{a.x.dim(0), taps - 1, a.x.dim(2)})),
        "[{}] tail {} of {} for x {}", kOp, to_string(a.tail.shape()), name_of(a.tail.dtype()),
        to_string(a.x.shape()));
  const double elements = static_cast<double>(a.x.size());
  if (pool.skips({kOp, a.x.dtype(), elements * static_cast<double>(2 * taps + 10),
                  2 * static_cast<double>(a.x.bytes())}))
    return;
  if (a.x.on_gpu()) return gpu::causal_conv(a);
  CausalConvProblem p = conv_problem(a.x, a.w, a.segments);
  p.tail = taps > 1 ? a.tail.kernel_address() : nullptr;
  p.y = a.y.kernel_address();
  run_on_channels(pool, p, choose(kOp, kCausalConv, p));
  if (p.tail != nullptr) move_tail(a, taps);
}

void causal_conv_backward(ThreadPool& pool, const CausalConvBackwardArgs& a) {
  constexpr const char* kOp = "causal_conv_backward";
  check_conv(kOp, a.x, a.w, a.segments);
  check_as_x(kOp, a.x, a.dy);
  check_as_x(kOp, a.x, a.dx);
  CHECK(a.dw.dtype() == DType::f32 && a.dw.shape() == a.w.shape() && a.dw.is_contiguous(),
        "[{}] dw {} for w {}", kOp, to_string(a.dw.shape()), to_string(a.w.shape()));
  const double elements = static_cast<double>(a.x.size());
  if (pool.skips({kOp, a.x.dtype(), elements * static_cast<double>(6 * a.w.dim(1) + 14),
                  3 * static_cast<double>(a.x.bytes())}))
    return;
  if (a.x.on_gpu()) return gpu::causal_conv_backward(a);
  CausalConvProblem p = conv_problem(a.x, a.w, a.segments);
  p.dy = a.dy.kernel_address();
  p.dx = a.dx.kernel_address();
  p.dw = a.dw.kernel_data<float>();
  run_on_channels(pool, p, choose(kOp, kCausalConvBackward, p));
}

}  // namespace switchyard
