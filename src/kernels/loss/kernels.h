// The arguments of the room's small ops as their tables take them,
// and the GPU's implementations. Internal to kernels/loss.
#pragma once

#include "kernels/loss/embedding.h"
#include "kernels/loss/last_tokens.h"
#include "kernels/loss/token_loss.h"

namespace switchyard {

struct CombineLogSumsArgs {
  TensorView parts, lse;
};

struct ScaleInPlaceArgs {
  TensorView x, factor;
};

namespace gpu {
void embedding_lookup(const EmbeddingLookupArgs& args);
void embedding_backward(const EmbeddingBackwardArgs& args);
void last_tokens(const LastTokensArgs& args);
void combine_log_sums(const CombineLogSumsArgs& args);
void loss_coefficients(const LossCoefficientsArgs& args);
void sum_token_loss(const SumTokenLossArgs& args);
void scale_in_place(const ScaleInPlaceArgs& args);
}  // namespace gpu

}  // namespace switchyard
