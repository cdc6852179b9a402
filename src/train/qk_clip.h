// QK-clip (Kimi K2), as the reference does it: where a head's largest attention score of a step passed the
// threshold, its weights of queries and keys shrink after the step's update.
//
// Of the scores m of a head in this step's forward passes, over the batch and over all layers of one stack
// (the dense layers, those with experts, and each prediction layer by itself), s = min(1, threshold / (m +
// 1e-6)). The head's columns that are not rotated, of attention.wq_b and attention.wkv_b, are multiplied by
// √s, the rotated ones of wq_b by s; keys' rotated part, which all heads share, and values stay.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "autograd/context.h"
#include "models/model_config.h"
#include "ops/attention.h"

namespace switchyard {

// [stack][head]: the largest scores of a step; -inf where there is none.
using StackScores = std::vector<std::vector<float>>;

// Which stack a layer is of, from 0 on.
std::size_t stack_of(const ModelConfig& model, std::int64_t layer);

// From what this rank's forward passes of a step left. Collective, and one look at the device; alike on all
// ranks.
StackScores largest_scores_of_stacks(Context& context, const ModelConfig& model,
                                     std::span<const HeadScores> scores);

// The largest of all, or -inf.
double largest_of(const StackScores& scores);

// The factors of a layer's heads: s.
std::vector<float> clip_factors(std::span<const float> scores, double threshold);

// By what each element of a row of a weight [.., heads, width] is multiplied, `factors` being its heads':
// attention.wq_b, or else attention.wkv_b. [heads * width]
std::vector<float> clip_columns(const ModelConfig& model, bool queries, std::span<const float> factors);

}  // namespace switchyard
