// The GPU's implementation of each op of kernels/: the functions of the op's own header, with arguments that
// it has checked, on memory of one GPU. They give work to the stream and return before it is done. They are
// built for a GPU, or for the emulator (kernels/gpu/code.h).
#pragma once

#include "kernels/attention_problem.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/grouped_matmul.h"
#include "kernels/ragged_rows.h"

namespace switchyard::gpu {

// Kernels that this process has started.
std::int64_t launches();

// ragged_rows.cu
void ragged_gather(const RaggedGatherArgs& args);
void ragged_gather_reduce(const RaggedGatherReduceArgs& args);
void ragged_row_dot(const RaggedRowDotArgs& args);

// attention.cu
void attention(const AttentionProblem& problem);
void attention_backward(const AttentionProblem& problem, const TensorView& q);  // works in memory like q's

// matmul.cu
void gemm(const GemmArgs& args);
void gmm(const GmmArgs& args);
void gmm_dlhs(const GmmDlhsArgs& args);
void gmm_drhs(const GmmDrhsArgs& args);
void gmm_pair(const GmmPairArgs& args);
void gmm_dlhs_pair(const GmmDlhsPairArgs& args);
void gmm_drhs_pair(const GmmDrhsPairArgs& args);

// elementwise.cu
void add(const TensorView& a, const TensorView& b, const TensorView& out);
void add_to_rows(const TensorView& rows, const TensorView& row, const TensorView& out);
void scale(const TensorView& x, float factor, const TensorView& out);
void convert(const TensorView& x, const TensorView& out);  // rows of out may be apart
double sum_of_squares(const TensorView& x);
void swiglu(const SwigluArgs& args);
void swiglu_backward(const SwigluBackwardArgs& args);

}  // namespace switchyard::gpu
