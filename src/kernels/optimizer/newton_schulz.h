// Muon's work on matrices beside products: the start of the Newton-Schulz iteration, and its polynomial.
// (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.)
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// Divides each matrix of x [matrices, rows, columns] f32, which has no gaps, by its Frobenius norm plus eps;
// one that is zero stays so.
void normalize_matrices(ThreadPool& pool, double eps, const TensorView& x);

// gram = 3.4445 I - 4.775 gram + 2.0315 square for each [side, side] of [matrices, side, side] f32, without
// gaps. Five steps with these coefficients bring singular values of (0, 1] near 1.
void newton_schulz_polynomial(ThreadPool& pool, const TensorView& square, const TensorView& gram);

}  // namespace switchyard
