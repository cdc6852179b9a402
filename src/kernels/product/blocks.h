// Products by blocks of C: the driver of kernels that compute one block.
#pragma once

#include "kernels/product/cpu/gemm_problem.h"

namespace switchyard {

// Computes problems of one form by `kernel`. `packing`: how it packs rows of A for several blocks, or null.
void run_blocks(ThreadPool& pool, std::span<const GemmProblem> problems, GemmBlockKernel* kernel,
                const GemmRowPacking* packing = nullptr);

}  // namespace switchyard
