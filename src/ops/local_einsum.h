// The local product of einsum: maps labels to GEMM calls, and copies an operand only when no loop of GEMMs
// fits its layout.
#pragma once

#include <span>
#include <string>
#include <vector>

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
// `onto`, where given, has the result's shape and dtype. The result is added to it, and `onto` is what the
// function returns.
Tensor local_einsum(Context& context, const EinsumSpec& spec, const Tensor& a, const Tensor& b,
                    DType out_dtype, const Tensor& onto = {});

// Einsums of one left operand, each as local_einsum computes it. A label that only `b` has may have a size of
// its own in each. Those that are one GEMM each run together (gemm_each).
std::vector<Tensor> local_einsums(Context& context, const EinsumSpec& spec, const Tensor& a,
                                  std::span<const Tensor> b, DType out_dtype);

// The sum of the einsums of several pairs, one at least, in their order; no b is packed. It is gemm_sum where
// each is one GEMM, else each is rounded. A label that is contracted may have a size of its own in each.
struct EinsumPair {
  Tensor a, b;
};
Tensor local_einsum_sum(Context& context, const EinsumSpec& spec, std::span<const EinsumPair> pairs,
                        DType out_dtype);

}  // namespace switchyard
