// Load balance over the global batch, on any mesh.
#pragma once

#include <span>
#include <vector>

#include "autograd/op.h"
#include "moe/moe.h"

namespace switchyard {

// The auxiliary loss of one layer, [] f32, whole on every rank: weight · E² · mean over sequences and experts
// of density · prob. density: an expert's share of a sequence's choices (DeepSeek-V3, eq. 18). prob: its mean
// share of the scores. logits f32 [B,S,E], segments i32 [B,S] (0 = padding, not counted). BalanceRule has
// variants; `bias` is read only under its `biased`.
Array balance_loss(Context& context, const MoeConfig& config, const MoeExecution& execution,
                   const Array& logits, const Array& bias, const Routing& routing, const Array& segments);

// Local assignments per expert, i32 [E], of tokens whose segment is not 0 (of all under count_padding).
Tensor count_rows(Context& context, const MoeConfig& config, const MoeExecution& execution, const Tensor& ids,
                  const Tensor& segments);

// Fills `rows` of each load from the counts on the device, in one transfer (read_back).
void read_loads(Context& context, std::span<LayerLoad> loads);

// Loss-free balance (Wang et al. 2024): the increment of each
// expert's bias, rate · sign(mean load − load) with sign(0) = 0.
std::vector<float> bias_increment(std::span<const double> rows_per_expert, double rate);

}  // namespace switchyard
