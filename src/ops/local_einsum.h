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

// out = einsum of local blocks; f32 or bf16 inputs of one dtype, result in `out_dtype`.
Tensor local_einsum(Context& context, const EinsumSpec& spec, const Tensor& a, const Tensor& b,
                    DType out_dtype);

}  // namespace switchyard
