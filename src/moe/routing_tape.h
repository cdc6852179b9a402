// RoutingTape: choices of experts from outside the router, and of keys from outside an indexer, recorded in
// one run and replayed in another.
//
// Training on texts from another engine wants the experts that produced the texts (routing/step_routing.h).
// Also, two layouts of a model round differently. Where two experts nearly tie, rounding may flip the choice,
// and everything after differs. So a comparison of layouts replays one layout's choices in the others.
#pragma once

#include "autograd/context.h"
#include "moe/moe.h"

namespace switchyard {

class RoutingTape {
 public:
  virtual ~RoutingTape() = default;
  // This rank's block of the choices to make, i32 [B,S,K] laid out as the tokens of `logits`, on host or
  // device. Undefined when the router is to choose, as it is for tokens whose first choice is -1; a slot of
  // kUnusedChoice (kernels/moe/route.h), and padding whatever it says, go to no expert. `step`
  // counts batches; the block's first row is `first_row` of that step's batch.
  virtual Tensor replay(const Context& context, std::int64_t step, std::int64_t layer, std::int64_t first_row,
                        const ArrayInfo& logits) = 0;
  // Records the router's input and the choices: `logits` f32 [B,S,E], `bias` f32 [E] or undefined.
  virtual void record(Context& context, std::int64_t step, std::int64_t layer, std::int64_t first_row,
                      const Array& logits, const Array& bias, const Routing& routing) = 0;

  // The keys that a layer's indexer is to choose: this rank's block of i32 [B,S,words], a bit for each key
  // (kernels/attention/index_keys.h), on the host and laid out as the tokens of `queries`. Undefined when the
  // indexer is to choose.
  virtual Tensor replay_keys(const Context&, std::int64_t /*layer*/, const ArrayInfo& /*queries*/) {
    return {};
  }
  // Records how far the indexer is from the replayed keys: the ties of replayed_keys() (ops/indexer.h).
  virtual void record_keys(const Context&, std::int64_t /*layer*/, const ArrayInfo& /*queries*/,
                           const Tensor& /*ties*/) {}
};

}  // namespace switchyard
