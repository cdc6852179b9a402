// What kernels of formulas are given, and which there are. Internal to kernels/element.
#pragma once

#include <array>
#include <cstdint>

#include "core/tensor_view.h"

namespace switchyard {

// The most operands and results that a formula has.
constexpr std::size_t kMostOperands = 4, kMostResults = 2;

// Operands and results of a formula, in its order: f32 or bf16, all of one dtype, of as many elements,
// without gaps. A result may be an operand.
struct ElementArgs {
  std::array<const TensorView*, kMostOperands> in{};
  std::array<const TensorView*, kMostResults> out{};  // null: not wanted
  float number = 0;                                   // the formula's own, rounded to the elements' dtype
  // Of a formula with a kRowNumber, where that operand is null: a number for each row (a row is in[0]'s last
  // dim), f32 or of the elements' dtype; null: 1.
  const TensorView* row_number = nullptr;
  const TensorView* sum = nullptr;  // what the formula sums up over each row; null: not wanted
};

// What kernels are given of ElementArgs.
struct Elements {
  DType dtype = DType::f32, row_dtype = DType::f32, sum_dtype = DType::f32;
  std::int64_t rows = 0, columns = 1;  // without numbers and sums of rows each element is a row
  const void* in[kMostOperands] = {};
  void* out[kMostResults] = {};
  const void* row_number = nullptr;
  void* sum = nullptr;
  float number = 0;
};

// Computes rows [begin, end).
using ElementKernel = void(const Elements& elements, std::int64_t begin, std::int64_t end);
using GpuElementKernel = void(const ElementArgs& args);

// The kernels of each formula: name, formula, way, operands, results. The first have one row for all CPUs.
#define SWITCHYARD_PORTABLE_FORMULAS(f)                                   \
  f(clamp, Clamp, Forward, 1, 1) f(clamp_backward, Clamp, Backward, 2, 1) \
      f(soft_cap, SoftCap, Forward, 1, 1) f(soft_cap_backward, SoftCap, Backward, 2, 1)
// These have vectors, and a reference of another text (reference/).
#define SWITCHYARD_VECTOR_FORMULAS(f) \
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
