// Sums of an array over one of its dims.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// out = the sum of x over dim `dim`, which is not the last. x and out are f32 or bf16, of one dtype; out has
// x's shape without the dim, and no gaps; elements of x's last dim are neighbours. Terms are added in fp32 in
// their order, and rounded once. Bit-identical for any number of threads.
void sum_over_dim(ThreadPool& pool, const TensorView& x, std::size_t dim, const TensorView& out);

}  // namespace switchyard
