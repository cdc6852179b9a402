// The arguments of formulas' kernels, and the list of formulas. Internal to kernels/.
#pragma once

#include <array>
#include <cstdint>

#include "core/tensor_view.h"

namespace switchyard {

// The most operands and results that a formula has.
constexpr std::size_t kMostOperands = 4, kMostResults = 2;

// Operands and results of a formula, in its order: f32 or bf16, of as many elements, without gaps. All are of
// one dtype, but where the formula says which operands have that of the results. A result may be an operand.
struct ElementArgs {
  std::array<const TensorView*, kMostOperands> in{};
  // Null: not wanted. The first is needed, and its rows may be apart.
  std::array<const TensorView*, kMostResults> out{};
  float number = 0;  // the formula's own
  // A number for each row, where the formula's kRowNumber is null among the operands (a row is the last dim
  // of the first result), f32 or of the elements' dtype; null: 1.
  const TensorView* row_number = nullptr;
  const TensorView* sum = nullptr;  // what the formula sums up over each row; null: not wanted
  unsigned shared = 0;              // bits of the operands that are one row, which is that of all
  bool has_two_dtypes = false;
};

// ElementArgs as kernels take them. Element i of row r is at r · columns + i + r · shift.
struct ElementArray {
  void* data = nullptr;
  std::int64_t shift = 0;
};
struct Elements {
  // The dtypes of the last operand and of the first result.
  DType dtype = DType::f32, out_dtype = DType::f32;
  DType row_dtype = DType::f32, sum_dtype = DType::f32;
  bool by_rows = false;  // else each element is a row
  std::int64_t rows = 0, columns = 1;
  ElementArray in[kMostOperands] = {}, out[kMostResults] = {};
  const void* row_number = nullptr;
  void* sum = nullptr;
  float number = 0;
};

// Computes rows [begin, end).
using ElementKernel = void(const Elements& elements, std::int64_t begin, std::int64_t end);
using GpuElementKernel = void(const ElementArgs& args);

// The kernels of each formula: name, formula, way, operands, results. The first have one row for all CPUs.
#define SWITCHYARD_PORTABLE_FORMULAS(f)                                                 \
  f(clamp, Clamp, Forward, 1, 1) f(clamp_backward, Clamp, Backward, 2, 1)               \
      f(soft_cap, SoftCap, Forward, 1, 1) f(soft_cap_backward, SoftCap, Backward, 2, 1) \
          f(softplus_gate, SoftplusGate, Forward, 2, 1)                                 \
              f(softplus_gate_backward, SoftplusGate, Backward, 3, 2)
// These have vectors, and a reference of another text (reference/).
#define SWITCHYARD_VECTOR_FORMULAS(f)                                                          \
  f(add, Add, Forward, 2, 1) f(scale, Scale, Forward, 1, 1) f(convert, Convert, Forward, 1, 1) \
      f(swiglu, Swiglu, Forward, 3, 1) f(swiglu_backward, Swiglu, Backward, 4, 2)              \
          f(sigmoid_gate, SigmoidGate, Forward, 2, 1) f(sigmoid_gate_backward, SigmoidGate, Backward, 3, 2)

#define SWITCHYARD_DECLARE(name, ...) ElementKernel name;
#define SWITCHYARD_DECLARE_VECTORS(name, ...) ElementKernel name##_avx2, name##_avx512;
#define SWITCHYARD_DECLARE_GPU(name, ...) GpuElementKernel name;
namespace portable {
SWITCHYARD_PORTABLE_FORMULAS(SWITCHYARD_DECLARE)
}  // namespace portable
namespace ref {
SWITCHYARD_VECTOR_FORMULAS(SWITCHYARD_DECLARE)
}  // namespace ref
namespace cpu {
SWITCHYARD_VECTOR_FORMULAS(SWITCHYARD_DECLARE_VECTORS)
}  // namespace cpu
namespace gpu {
SWITCHYARD_PORTABLE_FORMULAS(SWITCHYARD_DECLARE_GPU)
SWITCHYARD_VECTOR_FORMULAS(SWITCHYARD_DECLARE_GPU)
}  // namespace gpu
#undef SWITCHYARD_DECLARE
#undef SWITCHYARD_DECLARE_VECTORS
#undef SWITCHYARD_DECLARE_GPU

// The addresses are those of the operands' device.
Elements elements_of(const ElementArgs& args);

}  // namespace switchyard
