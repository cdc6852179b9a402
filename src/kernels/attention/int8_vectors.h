// Vectors in 8 bits with a scale each, as a cache of keys and values keeps them: a number is scale · int8.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// A token has `heads` vectors of D numbers. Strides are any, but a vector's numbers are neighbours.
struct Int8VectorsArgs {
  TensorView x;       // [tokens,heads,D] f32 or bf16
  TensorView values;  // [tokens,heads,D] i8
  TensorView scales;  // [tokens,heads] f32
};

// scales = max|x| / 127 of each vector, values = x / scale rounded to nearest even, -127 to 127: all of it in
// float32, the same bits on every instruction set. A vector of zeros has the scale 0, and one with a number
// that is not finite the scale NaN; both have zeros as values. `x` is read.
void to_int8(ThreadPool& pool, const Int8VectorsArgs& args);

// x = scale · value, rounded once to x's dtype; `x` is written.
void from_int8(ThreadPool& pool, const Int8VectorsArgs& args);

}  // namespace switchyard
