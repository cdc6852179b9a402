// The local product behind einsum: labels to GEMM calls, copying an operand only when no loop of GEMMs fits
// its layout.
#pragma once

#include <string>

#include "autograd/context.h"

namespace switchyard {

struct EinsumSpec {
  std::string a, b, out;
};
EinsumSpec parse_einsum(std::string_view spec);  // CHECKs the form

// The sizes of b's labels. Where b is packed, its last contracted label is inputs and its last other label is
// outputs, of which b.dim(i) counts blocks.
Shape label_sizes_of_b(const EinsumSpec& spec, DType dtype, const Shape& b);

// out = einsum of local blocks; f32 or bf16 inputs of one dtype, or a packed b; result in `out_dtype`. CHECKs
// that a packed b has its other labels before the contracted ones, or the other way, as [.., in, .., out].
Tensor local_einsum(Context& context, const EinsumSpec& spec, const Tensor& a, const Tensor& b,
                    DType out_dtype);

}  // namespace switchyard
