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

// rope.cu
void rope(const RopeArgs& args);
void rope_tables(const RopeTablesArgs& args);


}  // namespace switchyard::gpu
