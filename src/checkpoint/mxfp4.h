// 4-bit weights in the published form of gpt-oss: a stack of matrices [E, out, in] in groups of 32 inputs
// (OCP Microscaling Formats 1.0, MXFP4) is stored as
//   NAME_blocks U8 [E, out, in / 32, 16]: byte j has input 2j in its low and 2j + 1 in its high bits, as e2m1
//   NAME_scales U8 [E, out, in / 32]: e, where a weight is 2^(e - 127) · e2m1
#pragma once

#include <optional>
#include <string>

#include "checkpoint/safetensors.h"

namespace switchyard {

struct Mxfp4Stack {
  SafetensorsFile::Entry blocks, scales;

  std::int64_t inputs() const { return blocks.shape[2] * 32; }
  Shape shape() const { return {blocks.shape[0], blocks.shape[1], inputs()}; }  // [E, out, in]
};

// The difference from the format above, in words; empty when the stack can be read.
std::string mxfp4_problem(const Mxfp4Stack& stack);

// The index, among groups [begin, end) of the stack, of the first group with the exponent 255, which
// represents no number.
std::optional<std::int64_t> mxfp4_infinite_scale(const Mxfp4Stack& stack, std::int64_t begin,
                                                 std::int64_t end);

// Matrices [begin, end) of a stack without a problem, in `dtype`, f32 or bf16: bfloat16 holds each value
// exactly, except those below its exponent range.
Tensor mxfp4_matrices(const Mxfp4Stack& stack, std::int64_t begin, std::int64_t end, DType dtype);

// Some rows of a matrix as blocks of packed_mxfp4 [in / 32, count / 16] (kernels/packed/packed_block.h);
// their count must be a multiple of 16 (CHECK).
Tensor mxfp4_blocks(const Mxfp4Stack& stack, const StackRows& rows);

}  // namespace switchyard
