// Functions that several dispatch strategies share.
#pragma once

#include <string_view>
#include <vector>

#include "moe/dispatch/dispatch.h"

namespace switchyard {

// The mesh's expert axes (rule activation_exp), and those of them that also split the tokens of x.
Axes expert_axes(const Context& context, std::int64_t experts);
Axes shared_axes(const Sharding& x, const Axes& axes);

// ---- Sparse strategies

// Returns x, or its num_moe_emb_chunks chunks of the last dim.
std::vector<Array> chunks_of(Context& context, const DispatchCall& call);

// The weights as the sparse strategies use them: experts split over the expert axes, H over the axes of
// activation_mlp_moe that are free, gathered over every other axis.
MoeWeights gather_expert_weights(Context& context, const DispatchCall& call);

// Sharding of y's partial sums: tokens as given, partial over the axes that split H and over `also`.
Sharding partial_output(const Sharding& tokens, const MoeWeights& local, const Axes& also);

// A rank's rows over its balanced share of all rows of its expert-parallel group of `ranks`; 0 without rows.
double over_balanced_share(std::int64_t rows, std::int64_t all, std::int64_t ranks);

// ---- Strategies of einsums over whole tensors

// Layout of the experts' activations [E,B,S or C,H]; `length` is the logical name of the third dim.
Sharding activation_sharding(const Context& context, const DispatchCall& call, const Shape& shape,
                             std::string_view length);

// The experts' activation of gate and up [E,B,S or C,H], laid out as `layout`, times weights [E,B,S or C].
Array activation(Context& context, const DispatchCall& call, const Array& gate, const Array& up,
                 const Array& weights, const Sharding& layout);

}  // namespace switchyard
