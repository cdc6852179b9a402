// The GPU's implementation of each op of kernels/: the functions of the op's own header, with arguments that
// it has checked, on memory of one GPU. They give work to the stream and return before it is done. They are
// built for a GPU, or for the emulator (kernels/gpu/code.h).
#pragma once

#include "kernels/attention_problem.h"
#include "kernels/attention_sinks.h"
#include "kernels/balance.h"
#include "kernels/causal_conv.h"
#include "kernels/clamp.h"
#include "kernels/cross_entropy.h"
#include "kernels/decode_attention.h"
#include "kernels/delta_gates.h"
#include "kernels/dense_weights.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/expert_gate.h"
#include "kernels/gated_delta.h"
#include "kernels/gemm.h"
#include "kernels/grouped_matmul.h"
#include "kernels/head_scores.h"
#include "kernels/index_keys.h"
#include "kernels/index_loss.h"
#include "kernels/index_problem.h"
#include "kernels/int8_vectors.h"
#include "kernels/last_tokens.h"
#include "kernels/newton_schulz.h"
#include "kernels/packed_weights.h"
#include "kernels/plan_rows.h"
#include "kernels/ragged_rows.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/rope_tables.h"
#include "kernels/route.h"
#include "kernels/sigmoid_gate.h"
#include "kernels/round_to_e5m2.h"
#include "kernels/soft_cap.h"
#include "kernels/strided_copy.h"
#include "kernels/sum_over_dim.h"
#include "kernels/token_loss.h"
#include "kernels/weight_update.h"

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

// expert_gate.cu
void expert_gate(const ExpertGateArgs& args);
void expert_gate_backward(const ExpertGateBackwardArgs& args);
void sum_groups(const SumGroupsArgs& args);
void add_group_rows(const AddGroupRowsArgs& args);
void group_row_products(const GroupRowProductsArgs& args);

// attention_sinks.cu
void apply_sinks(const ApplySinksArgs& args);
void sink_gradients(const SinkGradientsArgs& args);

// decode_attention.cu
void decode_attention(const DecodeAttentionArgs& args);

// int8_vectors.cu
void to_int8(const Int8VectorsArgs& args);
void from_int8(const Int8VectorsArgs& args);

// head_scores.cu
void largest_scores(const TensorView& top, const TensorView& largest);
void scale_columns(const ScaleColumnsArgs& args);

// index_keys.cu
void index_scores(const IndexScoresArgs& args, const IndexSizes& sizes, const SeenKeys& seen);
void index_scores_backward(const IndexScoresBackwardArgs& args, const IndexSizes& sizes);
void choose_keys(const ChooseKeysArgs& args);
void subtract_mean(const TensorView& x, const TensorView& y);

// index_loss.cu
void head_shares(const HeadSharesArgs& args, const IndexSizes& sizes, const SeenKeys& seen);
void index_loss(const IndexLossArgs& args);
void index_loss_backward(const IndexLossBackwardArgs& args);

// tokens.cu
void dense_weights(const DenseWeightsArgs& args);
void dense_weights_backward(const DenseWeightsBackwardArgs& args);
void last_tokens(const LastTokensArgs& args);

// elementwise.cu
void add(const TensorView& a, const TensorView& b, const TensorView& out);
void add_to_rows(const TensorView& rows, const TensorView& row, const TensorView& out);
void scale(const TensorView& x, float factor, const TensorView& out);
void convert(const TensorView& x, const TensorView& out);  // rows of out may be apart
void swiglu(const SwigluArgs& args);
void swiglu_backward(const SwigluBackwardArgs& args);

// square_sums.cu
void sums_of_squares(std::span<const SquareSumArgs> args);

// rms_norm.cu
void rms_norm(const RmsNormArgs& args);
void rms_norm_backward(const RmsNormBackwardArgs& args);

// rope.cu
void rope(const RopeArgs& args);
void rope_tables(const RopeTablesArgs& args);

// sigmoid_gate.cu
void sigmoid_gate(const SigmoidGateArgs& args);
void sigmoid_gate_backward(const SigmoidGateBackwardArgs& args);

// delta_gates.cu
void delta_gates(const DeltaGatesArgs& args);
void delta_gates_backward(const DeltaGatesBackwardArgs& args);

// causal_conv.cu
void causal_conv(const CausalConvArgs& args);
void causal_conv_backward(const CausalConvBackwardArgs& args);

// gated_delta.cu; they go token by token, in no chunks
void gated_delta(const GatedDeltaArgs& args);
void gated_delta_backward(const GatedDeltaBackwardArgs& args);

// packed_weights.cu
void unpack_weights(const UnpackArgs& args);

// embedding.cu
void embedding_lookup(const EmbeddingLookupArgs& args);
void embedding_backward(const EmbeddingBackwardArgs& args);

// round_to_e5m2.cu
void round_to_e5m2(const RoundToE5m2Args& args);

// clamp.cu
void clamp(float bound, const TensorView& x, const TensorView& out);
void clamp_backward(float bound, const TensorView& x, const TensorView& dout, const TensorView& dx);

// soft_cap.cu
void soft_cap(float cap, const TensorView& x, const TensorView& out);
void soft_cap_backward(float cap, const TensorView& out, const TensorView& dout, const TensorView& dx);

// sum_over_dim.cu
void sum_over_dim(const TensorView& x, std::size_t dim, const TensorView& out);

// strided_copy.cu
void strided_copy(const TensorView& from, const TensorView& to);  // at least one element

// token_loss.cu
void combine_log_sums(const TensorView& parts, const TensorView& lse);
void loss_coefficients(const LossCoefficientsArgs& args);
void sum_token_loss(const SumTokenLossArgs& args);
void scale_in_place(const TensorView& x, const TensorView& factor);

// cross_entropy.cu
void linear_cross_entropy(const LinearCrossEntropyArgs& args);
void linear_cross_entropy_backward(const LinearCrossEntropyBackwardArgs& args);
void linear_cross_entropy_with_gradients(const LossGradientsArgs& args);
std::int64_t loss_rows_at_once(const CrossEntropyLogits& logits);

// weight_update.cu
void adam_update(const AdamTerms& terms, std::span<const AdamArrays> updates);
void descent_update(float rate, float grad_scale, std::span<const DescentArrays> updates);
void momentum_update(const MomentumTerms& terms, const TensorView& grad, const TensorView& momentum,
                     const TensorView& direction);
void direction_update(float rate, float shrink, const DirectionArrays& update);

// newton_schulz.cu
void normalize_matrices(double eps, const TensorView& x);
// gram = linear I + cubic gram + quintic square
struct PolynomialFactors {
  float linear, cubic, quintic;
};
void newton_schulz_polynomial(const PolynomialFactors& factors, const TensorView& square,
                              const TensorView& gram);

}  // namespace switchyard::gpu
