// The GPU's implementation of each op of kernels/: the functions of the op's own header, with arguments that
// it has checked, on memory of one GPU. They give work to the stream and return before it is done. They are
// built for a GPU, or for the emulator (kernels/gpu/code.h).
#pragma once

#include "kernels/attention_problem.h"
#include "kernels/balance.h"
#include "kernels/dense_weights.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/grouped_matmul.h"
#include "kernels/last_tokens.h"
#include "kernels/plan_rows.h"
#include "kernels/ragged_rows.h"
#include "kernels/route.h"

namespace switchyard::gpu {

// Kernels that this process has started.
std::int64_t launches();

// ragged_rows.cu
void ragged_gather(const RaggedGatherArgs& args);
void ragged_gather_reduce(const RaggedGatherReduceArgs& args);
void ragged_row_dot(const RaggedRowDotArgs& args);

// attention.cu; they work in memory like that of `like`
void attention(const AttentionProblem& problem, const TensorView& like);
void attention_backward(const AttentionProblem& problem, const TensorView& like);

// matmul.cu
void gemm(const GemmArgs& args);
void gmm(const GmmArgs& args);
void gmm_dlhs(const GmmDlhsArgs& args);
void gmm_drhs(const GmmDrhsArgs& args);
void gmm_pair(const GmmPairArgs& args);
void gmm_dlhs_pair(const GmmDlhsPairArgs& args);
void gmm_drhs_pair(const GmmDrhsPairArgs& args);

// route.cu; ids that are drawn come as choices
void route(const RouteArgs& args);
void route_backward(const RouteBackwardArgs& args);

// plan_rows.cu
void count_ids(const TensorView& ids, std::int64_t first, const TensorView& counts);
void plan_rows(const PlanRowsArgs& args);
void plan_places(const PlanPlacesArgs& args);

// balance.cu
void balance_statistics(const BalanceStatisticsArgs& args);
void balance_loss_value(const BalanceLossArgs& args);
void balance_loss_backward(const BalanceBackwardArgs& args);
void count_choices(const CountChoicesArgs& args);

// tokens.cu
void dense_weights(const DenseWeightsArgs& args);
void dense_weights_backward(const DenseWeightsBackwardArgs& args);
void last_tokens(const LastTokensArgs& args);

// elementwise.cu
void add(const TensorView& a, const TensorView& b, const TensorView& out);
void add_to_rows(const TensorView& rows, const TensorView& row, const TensorView& out);
void scale(const TensorView& x, float factor, const TensorView& out);
void convert(const TensorView& x, const TensorView& out);  // rows of out may be apart
double sum_of_squares(const TensorView& x);
void swiglu(const SwigluArgs& args);
void swiglu_backward(const SwigluBackwardArgs& args);

}  // namespace switchyard::gpu
