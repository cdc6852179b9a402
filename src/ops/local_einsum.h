// The local product behind einsum: labels to GEMM calls, copying an operand only when no loop of GEMMs fits
// its layout.
#pragma once

#include <string>

#include "core/tensor.h"
#include "core/thread_pool.h"

namespace switchyard {

struct EinsumSpec {
  std::string a, b, out;
};
EinsumSpec parse_einsum(std::string_view spec);  // CHECKs the form

// out = einsum of local blocks; f32 or bf16 inputs of one dtype, result in `out_dtype`.
Tensor local_einsum(ThreadPool& pool, const EinsumSpec& spec, const Tensor& a, const Tensor& b,
                    DType out_dtype);

// out[i...] = x[...] with dims in the order `order` (dim j of the result is dim order[j] of x).
Tensor permute(ThreadPool& pool, const Tensor& x, const std::vector<std::size_t>& order);

}  // namespace switchyard
