// The GPU's implementation of each op of kernels/: the functions of the op's own header, with arguments that
// it has checked, on memory of one GPU. They give work to the stream and return before it is done. They are
// built for a GPU, or for the emulator (kernels/cuda/portable.h).
#pragma once

#include "kernels/attention/attention_problem.h"
#include "kernels/attention/attention_sinks.h"
#include "kernels/attention/decode_attention.h"
#include "kernels/attention/head_scores.h"
#include "kernels/attention/index_keys.h"
#include "kernels/attention/index_loss.h"
#include "kernels/attention/index_problem.h"
#include "kernels/attention/int8_vectors.h"
#include "kernels/attention/rope.h"
#include "kernels/attention/rope_tables.h"
#include "kernels/delta_net/causal_conv.h"
#include "kernels/delta_net/delta_gates.h"
#include "kernels/delta_net/gated_delta.h"
#include "kernels/loss/cross_entropy.h"
#include "kernels/loss/embedding.h"
#include "kernels/loss/last_tokens.h"
#include "kernels/loss/token_loss.h"

namespace switchyard::gpu {

// Kernels that this process has started.
std::int64_t launches();

// attention.cu; they work in memory like that of `like`
void attention(const AttentionProblem& problem, const TensorView& like);
void attention_backward(const AttentionProblem& problem, const TensorView& like);

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
void last_tokens(const LastTokensArgs& args);

// rope.cu
void rope(const RopeArgs& args);
void rope_tables(const RopeTablesArgs& args);

// delta_gates.cu
void delta_gates(const DeltaGatesArgs& args);
void delta_gates_backward(const DeltaGatesBackwardArgs& args);

// causal_conv.cu
void causal_conv(const CausalConvArgs& args);
void causal_conv_backward(const CausalConvBackwardArgs& args);

// gated_delta.cu; they go token by token, in no chunks
void gated_delta(const GatedDeltaArgs& args);
void gated_delta_backward(const GatedDeltaBackwardArgs& args);

// embedding.cu
void embedding_lookup(const EmbeddingLookupArgs& args);
void embedding_backward(const EmbeddingBackwardArgs& args);

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

}  // namespace switchyard::gpu
