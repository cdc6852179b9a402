// The choices of a case's reference: experts of routers, keys of indexers. verify replays them, as one choice
// between two that nearly tie changes everything behind it, and compares our own choices with them.
#pragma once

#include <map>
#include <memory>

#include "models/families/hub_tensors.h"
#include "models/model_config.h"
#include "moe/routing_tape.h"
#include "verify/gather.h"

namespace switchyard {

struct ReferenceChoices {
  std::map<std::int64_t, Tensor> experts;  // by layer: i32 [B,S,K]
  std::map<std::int64_t, Tensor> keys;     // by layer: i32 [B,S,words], kernels/attention/index_keys.h
  bool any() const { return !experts.empty() || !keys.empty(); }
};

// Reads router.<layer>.indices; and indexer.<layer>.keys, or else .chosen, of a case of `shape` [B,S].
// Error(usage) for tensors that are no choices of this model.
ReferenceChoices read_choices(const HubWeights& stored, const ModelConfig& model, const Shape& shape);

// A tape for one rank that replays them. It puts in the gather, for each layer,
//   ties.<layer>      f32 [B,S]: tie_width() of the experts
//   key_ties.<layer>  f32 [B,S,2]: the ties of replayed_keys()
std::shared_ptr<RoutingTape> replay_of(std::shared_ptr<const ReferenceChoices> choices,
                                       const ModelConfig& model, Gather& gather);

// The keys in a list of them that queries see, those up to their own: a query that sees fewer keys than it
// may choose has others in its list, which attention hides. i32 [B,S,K] with -1 behind them.
Tensor visible_of(const Tensor& listed);

// How a layer's own choices differ from those replayed.
struct Ties {
  std::int64_t different = 0, choices = 0;
  double widest = 0;
};
Ties expert_ties(const Tensor& ties);
// In keys; `replayed`: the bits.
Ties key_ties(const Tensor& ties, const Tensor& replayed);

}  // namespace switchyard
