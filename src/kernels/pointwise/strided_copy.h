// Copies between views of any strides: transposing, cutting, joining and padding blocks of arrays.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// to[i...] = from[i...] for views of one dtype and shape, each with strides of its own (elements). A stride
// of 0 in `from` repeats what is there. The views must not overlap. Bit-identical for any number of threads.
void strided_copy(ThreadPool& pool, const TensorView& from, const TensorView& to);

}  // namespace switchyard
