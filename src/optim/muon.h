// Muon (Jordan et al. 2024): momentum SGD that orthogonalises each matrix of the momentum first.
//
// With g = grad * grad_scale, t = step + 1, for each matrix W of `in` rows and `out` columns separately:
//   m = beta*m + (1-beta)*g
//   d = beta*m/(1-beta^(t+1)) + (1-beta)*g/(1-beta^t)                      Nesterov, bias corrected
//   U = five Newton-Schulz steps of d/(|d| + eps), X = 3.4445 X - 4.775 (XX')X + 2.0315 (XX')^2 X
//   W -= lr * ( scale*U + weight_decay*W )
// scale = sqrt(max(1, out/in)), or consistent_rms*sqrt(max(in, out)), which makes the root mean square of the
// update consistent_rms and lets Muon take the learning rate of AdamW.
//
// The first two lines and the last are elementwise, so flat ranges of a weight can be updated separately;
// only the orthogonalisation needs whole matrices. Arithmetic is in float32;
// results do not depend on the thread count.
#pragma once

#include <cstdint>
#include <optional>

#include "core/dtype.h"
#include "core/tensor.h"
#include "core/thread_pool.h"
#include "kernels/optimizer/weight_update.h"

namespace switchyard {

struct MuonConfig {
  double beta = 0.95;
  double weight_decay = 0;
  double eps = 1e-8;
  std::optional<double> consistent_rms;
  DType mu_dtype = DType::f32;  // type of m
};

// Error(usage) for a momentum decay outside [0, 1) or a negative epsilon.
void check(const MuonConfig& config);

// The terms of step `step`, counted from 0.
MomentumTerms muon_terms(const MuonConfig& config, std::int64_t step);

// `numbers` below: UpdateNumbers where the weights are (kernels/optimizer/update_numbers.h).

// Updates the momentum of a flat range, [count] in mu_dtype, and returns d, f32 [count]; the gradient is f32
// or bf16. In a bad step the momentum stays, and d is 0.
Tensor muon_direction(ThreadPool& pool, const TensorView& numbers, const Tensor& grad,
                      const Tensor& momentum);

// d f32 [matrices, in, out] becomes U in place. A zero matrix stays zero.
void orthogonalize(ThreadPool& pool, double eps, const Tensor& matrices);

// The factor of U, which direction_update takes (kernels/optimizer/weight_update.h).
double muon_scale(const MuonConfig& config, std::int64_t in, std::int64_t out);

}  // namespace switchyard
