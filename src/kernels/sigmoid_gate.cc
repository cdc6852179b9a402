#include "kernels/sigmoid_gate.h"

#include <algorithm>
#include <functional>

#include "core/error.h"
#include "kernels/gpu/kernels.h"
#include "kernels/sigmoid_gate_problem.h"
#include "kernels/simd_list.h"

namespace switchyard {
namespace {

using SigmoidGateList = Implementation<SigmoidGateKernel, SigmoidGateProblem>;
constexpr SigmoidGateList kSigmoidGate[] = {SWITCHYARD_SIMD_LIST(sigmoid_gate)};
constexpr SigmoidGateList kSigmoidGateBackward[] = {SWITCHYARD_SIMD_LIST(sigmoid_gate_backward)};

// Checks one pass and runs it: `on_gpu` where it is a GPU's. `like_x` and dgate are the pass's other views.
void run_sigmoid_gate(ThreadPool& pool, const char* op, const auto& list, const TensorView& x,
                      const TensorView& gate, std::initializer_list<const TensorView*> like_x,
                      const std::function<void()>& on_gpu, const auto& set) {
  const std::int64_t columns = x.shape().back(), rows = columns == 0 ? 0 : x.size() / columns;
  const bool one = gate.size() == rows && gate.shape().back() == 1;
  CHECK(is_float(x.dtype()) && gate.dtype() == x.dtype() && (one || gate.size() == x.size()) &&
            x.is_contiguous() && gate.is_contiguous(),
        "[{}] x {} of {}, gate {} of {}", op, to_string(x.shape()), name_of(x.dtype()),
        to_string(gate.shape()), name_of(gate.dtype()));
  for (const TensorView* other : like_x)
    CHECK(other->dtype() == x.dtype() && other->size() == x.size() && other->is_contiguous(),
          "[{}] {} beside x {}", op, to_string(other->shape()), to_string(x.shape()));
  const double elements = static_cast<double>(x.size());
  if (pool.skips({op, x.dtype(), 10 * elements, 3 * static_cast<double>(x.bytes())})) return;
  if (x.on_gpu()) return on_gpu();
  SigmoidGateProblem p;
  p.dtype = x.dtype();
  p.columns = columns;
  p.one_a_row = one;
  p.x = x.kernel_address();
  p.gate = gate.kernel_address();
  set(p);
  SigmoidGateKernel* const kernel = choose(op, list, p);
  constexpr std::int64_t kElementsOfPiece = 16384;
  pool.for_range(rows, std::max<std::int64_t>(1, kElementsOfPiece / std::max<std::int64_t>(1, columns)),
                 [&](std::int64_t begin, std::int64_t end) { kernel(p, begin, end); });
}

}  // namespace

void sigmoid_gate(ThreadPool& pool, const SigmoidGateArgs& a) {
  run_sigmoid_gate(
      pool, "sigmoid_gate", kSigmoidGate, a.x, a.gate, {&a.out}, [&] { gpu::sigmoid_gate(a); },
      [&](SigmoidGateProblem& p) { p.out = a.out.kernel_address(); });
}

void sigmoid_gate_backward(ThreadPool& pool, const SigmoidGateBackwardArgs& a) {
  CHECK(a.dgate.dtype() == a.gate.dtype() && a.dgate.size() == a.gate.size() && a.dgate.is_contiguous(),
        "[sigmoid_gate_backward] dgate {} for gate {}", to_string(a.dgate.shape()),
        to_string(a.gate.shape()));
  run_sigmoid_gate(
      pool, "sigmoid_gate_backward", kSigmoidGateBackward, a.x, a.gate, {&a.dout, &a.dx},
      [&] { gpu::sigmoid_gate_backward(a); },
      [&](SigmoidGateProblem& p) {
        p.dout = a.dout.kernel_address();
        p.dx = a.dx.kernel_address();
        p.dgate = a.dgate.kernel_address();
      });
}

}  // namespace switchyard
