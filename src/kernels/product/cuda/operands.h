// The products of gemm.h and grouped_matmul.h on a GPU, with arguments that those have checked.
#pragma once

#include "kernels/product/gemm.h"
#include "kernels/product/grouped_matmul.h"

namespace switchyard::gpu {

void gemm(const GemmArgs& args);
// gemm_each multiplies one a with several b in one form; gemm_sum adds all products into one c.
void gemm_each(std::span<const GemmArgs> products);
void gemm_sum(std::span<const GemmArgs> products);
void gmm(const GmmArgs& args);
void gmm_dlhs(const GmmDlhsArgs& args);
void gmm_drhs(const GmmDrhsArgs& args);
void gmm_pair(const GmmPairArgs& args);
void gmm_dlhs_pair(const GmmDlhsPairArgs& args);
void gmm_drhs_pair(const GmmDrhsPairArgs& args);

}  // namespace switchyard::gpu
