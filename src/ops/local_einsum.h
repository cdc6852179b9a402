// The local product of einsum: maps labels to GEMM calls, and copies an operand only when no loop of GEMMs
// fits its layout.
#pragma once

#include <string>

#include "autograd/context.h"

namespace switchyard {

struct EinsumSpec {
  std::string a, b, out;
};
EinsumSpec parse_einsum(std::string_view spec);  // CHECKs the form

// The sizes of b's labels. When b is packed, its last contracted label is inputs and its last other label is
// outputs; for these, b.dim(i) counts blocks.
Shape label_sizes_of_b(const EinsumSpec& spec, DType dtype, const Shape& b);

// Einsum of local shards; f32 or bf16 inputs of one dtype, or a packed b; the result has `out_dtype`. CHECKs
// that a packed b has its other labels all before or all after the contracted ones, as [.., in, .., out].
Tensor local_einsum(Context& context, const EinsumSpec& spec, const Tensor& a, const Tensor& b,
                    DType out_dtype);

}  // namespace switchyard
