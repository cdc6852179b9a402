// The ops of the gated delta net (Yang et al. 2024): a short convolution, gates and the delta rule, for
// training and for generation. The sequence is whole on every rank; batch and heads may be split.
#pragma once

#include "autograd/op.h"
#include "ops/layer_cache.h"

namespace switchyard {

// How a gated delta net computes.
struct DeltaOptions {
  std::int64_t chunk = 64;
  bool unit_vectors = true;
  float scale = 1;  // factor of the queries
};

// silu of a causal convolution of each channel, within segments (kernels/delta_net/causal_conv.h): x
// [B,S,N,D], w [N,D,K], segments i32 [B,S] -> [B,S,N,D]. w is resharded to the layout of x's heads.
Array causal_conv(Context& context, const Array& x, const Array& w, const Array& segments);

// Logarithms of decays, and strengths, f32 [B,S,N], from a, b [B,S,N]. rate, bias [N] f32
// (kernels/delta_net/delta_gates.h) are resharded to the layout of a's heads.
struct DeltaGates {
  Array g, beta;
};
DeltaGates delta_gates(Context& context, const Array& a, const Array& b, const Array& rate,
                       const Array& bias);

// The gated delta rule within segments (kernels/delta_net/gated_delta.h): q, k [B,S,Nk,D], v [B,S,N,Dv] ->
// [B,S,N,Dv]. Heads of q and k are split as those of v, or whole.
Array gated_delta(Context& context, const Array& q, const Array& k, const Array& v, const DeltaGates& gates,
                  const Array& segments, const DeltaOptions& options);

// Both ops for generation: each continues from the state number `state` of the cache's slots, and stores the
// state for the next call there: a convolution the last inputs of this rank's heads, [slots,K-1,N,D], the
// rule f32 [slots,N,D,Dv]. An empty slot starts from zeros. Padding gives zeros. No gradients. The rule goes
// token by token in a call of drafts, as it does in calls of one token, so that the state has the same bits.
Array causal_conv(Context& context, LayerCache& cache, std::size_t state, const Array& x, const Array& w,
                  const TokenPlaces& places);
Array gated_delta(Context& context, LayerCache& cache, std::size_t state, const Array& q, const Array& k,
                  const Array& v, const DeltaGates& gates, const TokenPlaces& places,
                  const DeltaOptions& options);

}  // namespace switchyard
