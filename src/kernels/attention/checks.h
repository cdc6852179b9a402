// Checks of arguments that several ops of attention have. Internal to kernels/attention.
#pragma once

#include "core/error.h"
#include "core/tensor_view.h"

namespace switchyard {

// Fails unless the view has the dtype and the shape, and no gaps.
inline void check_view(const char* op, const char* name, const TensorView& x, DType dtype,
                       const Shape& shape) {
  CHECK(x.dtype() == dtype && x.shape() == shape && x.is_contiguous(), "[{}] {} {} of {}, expected {} of {}",
        op, name, to_string(x.shape()), name_of(x.dtype()), to_string(shape), name_of(dtype));
}

// Fails unless the places and the segments that are given have the shapes of q's and k's tokens.
template <typename Args>
void check_masks(const char* op, const Args& args) {
  CHECK(args.q_segment.defined() == args.kv_segment.defined(), "[{}] segments of queries or of keys only",
        op);
  const auto check = [&](const char* name, const TensorView& x, const TensorView& vectors) {
    if (x.defined()) check_view(op, name, x, DType::i32, {vectors.dim(0), vectors.dim(1)});
  };
  check("q_index", args.q_index, args.q);
  if constexpr (requires { args.kv_index; }) check("kv_index", args.kv_index, args.k);
  check("q_segment", args.q_segment, args.q);
  check("kv_segment", args.kv_segment, args.k);
}

}  // namespace switchyard
