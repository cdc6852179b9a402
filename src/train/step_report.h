// StepReport: the results of a training step, one block of the device's memory, in parts. A rank fills the
// block while it issues the step, and the host reads it once. Where a step has several ranks, sums and loads
// become those of the whole run on the way.
#pragma once

#include <cstdint>
#include <vector>

#include "autograd/context.h"
#include "kernels/optimizer/step_judge.h"

namespace switchyard {

class StepReport {
 public:
  struct Sizes {
    std::int64_t places = 0, slots = 0;  // of the updater's squares (train/update.h)
    std::int64_t kinds = 0, losses = 0;  // places of losses (LossPlace, then layers); losses of a kind
    std::int64_t layers = 0, passes = 0, experts = 0;
  };
  StepReport() = default;
  // All parts are 0 at first.
  StepReport(const Memory& memory, const Sizes& sizes);

  const Sizes& sizes() const { return sizes_; }
  Tensor squares() const { return part(DType::f64, {sizes_.places, sizes_.slots}, 0); }  // of gradients
  // f64 [places + 1]: sums of the gradients' squares by place, then the loss as ranks say it (spoken_loss).
  Tensor totals() const { return part(DType::f64, {sizes_.places + 1}, 1); }
  Tensor losses() const { return part(DType::f32, {sizes_.kinds, sizes_.losses}, 2); }
  Tensor loss_sums() const { return part(DType::f64, {sizes_.kinds}, 3); }
  Tensor is_good() const { return part(DType::f32, {1}, 4); }
  Tensor weights() const { return part(DType::f64, {sizes_.places}, 5); }  // their squares, after the update
  // i32 [layers * passes, experts]: rows of each expert, of the MoE layers in order, pass after pass.
  Tensor loads() const { return part(DType::i32, {sizes_.layers * sizes_.passes, sizes_.experts}, 6); }
  // Returns the same parts in memory of the host, by one copy.
  StepReport on_host(Context& context) const;

 private:
  Tensor part(DType dtype, const Shape& shape, std::size_t number) const;
  std::vector<std::size_t> offsets() const;  // of the parts, and their end

  Sizes sizes_;
  Tensor block_;
};

}  // namespace switchyard
