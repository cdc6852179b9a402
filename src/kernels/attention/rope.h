// Rotary position embedding (Su et al. 2021): rotates pairs of the last dim by an angle per token and pair.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// For every token t, head h and pair i < dim/2 of x with values (a, b):
//   y = (a cos - b sin, b cos + a sin), and with `inverse`: (a cos + b sin, b cos - a sin),
//   which is also the gradient.
// The pair is (x[i], x[i + dim/2]), or (x[2i], x[2i+1]) when `interleaved`; y keeps the layout of x. Elements
// beside the views are not touched: they may be a slice of wider heads.
struct RopeArgs {
  TensorView x;         // [tokens, heads, dim] f32 or bf16; dim is even, elements of a head are neighbours
  TensorView y;         // as x, with x's strides; may be x
  TensorView cos, sin;  // [tokens, dim/2] f32 without gaps, any attention scaling (mscale) folded in
  bool interleaved = false;
  bool inverse = false;
};
void rope(ThreadPool& pool, const RopeArgs& args);

}  // namespace switchyard
