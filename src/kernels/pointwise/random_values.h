// Random numbers of core/rng.h, drawn where they are wanted: the first values of weights.
#pragma once

#include <optional>

#include "core/rng_normal.h"
#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// Sets each element of `to`, which is the block at `start` of an array of shape `whole`, to factor · the draw
// from `range` at the element's index in that array; without a range, to the factor. Bits depend neither on
// the block nor on the device: products and sums are rounded one by one, and bf16 is rounded from f32.
struct RandomValuesArgs {
  TensorView to;  // f32 or bf16, without gaps
  Shape whole, start;
  RngKey key = {};
  std::optional<NormalRange> range = {};
  float factor = 1;
};
void random_values(ThreadPool& pool, const RandomValuesArgs& args);

}  // namespace switchyard
