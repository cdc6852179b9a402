// The kernels behind weight_update.h, of every device.
// CPU kernels update elements [begin, end) of flat arrays.
#pragma once

#include "kernels/cpu/square_sums.h"
#include "kernels/optimizer/weight_update.h"

namespace switchyard {

// The arguments of weight_update.h as its tables take them; lists have at least one element.
struct AdamArgs {
  TensorView numbers;
  std::span<const AdamArrays> updates;
};
struct DescentArgs {
  TensorView numbers;
  std::span<const DescentArrays> updates;
};
struct MomentumArgs {
  TensorView numbers;
  TensorView grad, momentum, direction;
};
struct DirectionArgs {
  TensorView numbers;
  std::span<const DirectionArrays> updates;
  DirectionFactors factors;
};

struct FlatArray {
  DType dtype = DType::f32;
  void* data = nullptr;
};
struct ConstFlatArray {
  DType dtype = DType::f32;
  const void* data = nullptr;
};

struct AdamProblem {
  AdamTerms terms;
  FlatArray weight;
  ConstFlatArray grad;
  FlatArray mu, nu;
};

struct DescentProblem {
  float rate, grad_scale;
  FlatArray weight;
  ConstFlatArray grad;
};

struct MomentumProblem {
  MomentumTerms terms;
  float grad_scale;
  ConstFlatArray grad;
  FlatArray momentum;
  float* direction;
};

struct DirectionProblem {
  float rate, shrink;
  const float* direction;
  FlatArray weight;
};

// The squares of the new weights are added to `squares`; begin is where the piece, and so the count of the
// interleaved sums, starts.
template <typename Problem>
using UpdateKernel = void(const Problem& problem, std::int64_t begin, std::int64_t end, SquareSums& squares);

namespace ref {
UpdateKernel<AdamProblem> adam;
UpdateKernel<DescentProblem> descent;
UpdateKernel<MomentumProblem> momentum;
UpdateKernel<DirectionProblem> direction;
}  // namespace ref
namespace cpu {
UpdateKernel<AdamProblem> adam_avx2, adam_avx512;
UpdateKernel<DescentProblem> descent_avx2, descent_avx512;
UpdateKernel<MomentumProblem> momentum_avx2, momentum_avx512;
UpdateKernel<DirectionProblem> direction_avx2, direction_avx512;
}  // namespace cpu
namespace gpu {
void adam_update(const AdamArgs& args);
void descent_update(const DescentArgs& args);
void momentum_update(const MomentumArgs& args);
void direction_update(const DirectionArgs& args);
}  // namespace gpu

}  // namespace switchyard
