#include "kernels/pointwise/sigmoid_gate.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/pointwise/kernels.h"
#include "kernels/pointwise/sigmoid_gate_problem.h"
#include "kernels/registry/kernel.h"
#include "kernels/registry/simd_rows.h"

namespace switchyard {
namespace {

std::int64_t rows_of_gate(const TensorView& x) {
  const std::int64_t columns = x.shape().back();
  return columns == 0 ? 0 : x.size() / columns;
}

bool has_gate_of_row(const TensorView& x, const TensorView& gate) {
  return gate.size() == rows_of_gate(x) && gate.shape().back() == 1;
}

SigmoidGateProblem problem_of(const TensorView& x, const TensorView& gate) {
  return {.dtype = x.dtype(),
          .columns = x.shape().back(),
          .one_a_row = has_gate_of_row(x, gate),
          .x = x.kernel_address(),
          .gate = gate.kernel_address()};
}

void on_rows(ThreadPool& pool, const TensorView& x, const SigmoidGateProblem& p, SigmoidGateKernel* kernel) {
  constexpr std::int64_t kElementsOfPiece = 16384;
  pool.for_range(rows_of_gate(x),
                 std::max<std::int64_t>(1, kElementsOfPiece / std::max<std::int64_t>(1, p.columns)),
                 [&](std::int64_t begin, std::int64_t end) { kernel(p, begin, end); });
}

template <SigmoidGateKernel* kernel>
void forward(ThreadPool& pool, const SigmoidGateArgs& args) {
  SigmoidGateProblem p = problem_of(args.x, args.gate);
  p.out = args.out.kernel_address();
  on_rows(pool, args.x, p, kernel);
}

template <SigmoidGateKernel* kernel>
void backward(ThreadPool& pool, const SigmoidGateBackwardArgs& args) {
  SigmoidGateProblem p = problem_of(args.x, args.gate);
  p.dout = args.dout.kernel_address();
  p.dx = args.dx.kernel_address();
  p.dgate = args.dgate.kernel_address();
  on_rows(pool, args.x, p, kernel);
}

template <typename Args>
Work work_of(const Args& args) {
  return {.dtype = args.x.dtype(),
          .flops = 10 * static_cast<double>(args.x.size()),
          .bytes = 3 * static_cast<double>(args.x.bytes())};
}

constexpr Implementation<SigmoidGateArgs> kSigmoidGateForwards[] = {
    {"cuda", Gpu::any, gpu::sigmoid_gate}, SWITCHYARD_SIMD_ROWS(forward, sigmoid_gate)};
constexpr Implementation<SigmoidGateBackwardArgs> kSigmoidGateBackwards[] = {
    {"cuda", Gpu::any, gpu::sigmoid_gate_backward}, SWITCHYARD_SIMD_ROWS(backward, sigmoid_gate_backward)};
constexpr Kernel<SigmoidGateArgs> kSigmoidGate{"sigmoid_gate", work_of<SigmoidGateArgs>, &SigmoidGateArgs::x,
                                               kSigmoidGateForwards};
constexpr Kernel<SigmoidGateBackwardArgs> kSigmoidGateBackward{
    "sigmoid_gate_backward", work_of<SigmoidGateBackwardArgs>, &SigmoidGateBackwardArgs::x,
    kSigmoidGateBackwards};

void check(const char* op, const TensorView& x, const TensorView& gate,
           std::initializer_list<const TensorView*> like_x) {
  CHECK(is_float(x.dtype()) && gate.dtype() == x.dtype() &&
            (has_gate_of_row(x, gate) || gate.size() == x.size()) && x.is_contiguous() &&
            gate.is_contiguous(),
        "[{}] x {} of {}, gate {} of {}", op, to_string(x.shape()), name_of(x.dtype()),
        to_string(gate.shape()), name_of(gate.dtype()));
  for (const TensorView* other : like_x)
    CHECK(other->dtype() == x.dtype() && other->size() == x.size() && other->is_contiguous(),
          "[{}] {} beside x {}", op, to_string(other->shape()), to_string(x.shape()));
}

}  // namespace

void sigmoid_gate(ThreadPool& pool, const SigmoidGateArgs& args) {
  check("sigmoid_gate", args.x, args.gate, {&args.out});
  run(pool, kSigmoidGate, args);
}

void sigmoid_gate_backward(ThreadPool& pool, const SigmoidGateBackwardArgs& args) {
  check("sigmoid_gate_backward", args.x, args.gate, {&args.dout, &args.dx});
  CHECK(args.dgate.dtype() == args.gate.dtype() && args.dgate.size() == args.gate.size() &&
            args.dgate.is_contiguous(),
        "[sigmoid_gate_backward] dgate {} for gate {}", to_string(args.dgate.shape()),
        to_string(args.gate.shape()));
  run(pool, kSigmoidGateBackward, args);
}

}  // namespace switchyard
