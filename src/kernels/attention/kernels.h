// The arguments of the room's small ops as their tables take them,
// and the GPU's implementations. Internal to kernels/attention.
#pragma once

#include "kernels/attention/append_tokens.h"
#include "kernels/attention/attention_sinks.h"
#include "kernels/attention/head_scores.h"
#include "kernels/attention/merge_attention.h"
#include "kernels/attention/rope_tables.h"

namespace switchyard {

struct LargestScoresArgs {
  TensorView top, largest;
};

namespace gpu {
void append_tokens(const AppendTokensArgs& args);
void merge_attention(const MergeAttentionArgs& args);
void apply_sinks(const ApplySinksArgs& args);
void sink_gradients(const SinkGradientsArgs& args);
void largest_scores(const LargestScoresArgs& args);
void scale_columns(const ScaleColumnsArgs& args);
void rope_tables(const RopeTablesArgs& args);
}  // namespace gpu

}  // namespace switchyard
