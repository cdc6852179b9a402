// QK-clip (Kimi K2) as the reference does it: when a head's largest attention score in a step exceeds the
// threshold, the head's query and key weights shrink after the step's update.
//
// With m the head's largest score in this step's forward passes, over the batch and over all layers of a
// stack (the dense layers, those with experts, and each prediction layer alone), s = min(1, threshold / (m +
// 1e-6)). In attention.wq_b and attention.wkv_b the head's columns that are not rotated are multiplied by √s,
// and the rotated columns of wq_b by s. The keys' rotated part, shared by all heads, and values stay.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "autograd/context.h"
#include "models/model_config.h"
#include "ops/attention.h"

namespace switchyard {

// [stack][head]: the largest scores in a step; -inf where there is none.
using StackScores = std::vector<std::vector<float>>;

// The number of the stack that a layer belongs to, from 0.
std::size_t stack_of(const ModelConfig& model, std::int64_t layer);

// The scores from this rank's forward passes of a step, combined over all ranks. Collective, with one read
// from the device; the same on all ranks.
StackScores largest_scores_of_stacks(Context& context, const ModelConfig& model,
                                     std::span<const HeadScores> scores);

// The largest of all scores, or -inf.
double largest_of(const StackScores& scores);

// The factor s for each head of a layer.
std::vector<float> clip_factors(std::span<const float> scores, double threshold);

// The factor for each element of a row of a weight [.., heads, width], from its heads' `factors`:
// attention.wq_b for queries, else attention.wkv_b. [heads * width]
std::vector<float> clip_columns(const ModelConfig& model, bool queries, std::span<const float> factors);

}  // namespace switchyard
