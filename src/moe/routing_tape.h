// RoutingTape: choices of experts from outside the router, recorded in one run and replayed in another.
//
// Training on texts that another engine made wants the experts that made them (routing/step_routing.h). And
// two layouts of one model round differently; where two experts nearly tie, rounding may turn the choice, and
// all that follows differs for no reason of the layout. A comparison replays one run's choices in the others.
#pragma once

#include "autograd/context.h"
#include "moe/moe.h"

namespace switchyard {

class RoutingTape {
 public:
  virtual ~RoutingTape() = default;
  // This rank's block of the choices to make, i32 [B,S,K] laid out as the tokens of `logits`, of the host or
  // the device; undefined when the router is to choose, as it is for tokens whose first one is -1.
  // `step` counts batches, and their first row is `first_row` of the step's.
  virtual Tensor replay(const Context& context, std::int64_t step, std::int64_t layer, std::int64_t first_row,
                        const ArrayInfo& logits) = 0;
  // False where some slots of its choices are kUnusedChoice (kernels/moe/route.h) and go to no expert.
  virtual bool uses_all_slots() const { return true; }
  // What the router saw, and the choices made: `logits` f32 [B,S,E], `bias` f32 [E] or undefined.
  virtual void record(Context& context, std::int64_t step, std::int64_t layer, std::int64_t first_row,
                      const Array& logits, const Array& bias, const Routing& routing) = 0;
};

}  // namespace switchyard
