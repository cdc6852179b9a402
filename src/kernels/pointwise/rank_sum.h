// The sum over ranks of arrays of one length: what collectives add with.
//
// f32 or bf16; out[i] = inputs[0][i] + inputs[1][i] + ..., added from left to right in fp32 and rounded once,
// to nearest even, so the bits are the same on every instruction set. One pass: every input is read once.
// bf16 inputs may have a float32 sum, not the other way round. `out` overlaps no
// input. On the calling thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/dtype.h"

namespace switchyard {

void rank_sum(DType dtype, std::span<const void* const> inputs, DType out_dtype, void* out,
              std::int64_t count);

struct RankSumProblem {
  DType dtype;
  std::span<const void* const> inputs;
  DType out_dtype;
  void* out;
  std::int64_t begin, end;  // elements to do
};
using RankSumKernel = void(const RankSumProblem& problem);

namespace ref {
RankSumKernel rank_sum;
}
namespace cpu {
RankSumKernel rank_sum_avx2, rank_sum_avx512;
}

namespace gpu {
// On a GPU that has all arrays, as collectives take it: out[i·run + j] = Σ over the inputs, in order, of
// input[begin + i·stride + j] for i·run + j < count. Types and rounding are those of sum_in_order
// (parallel/comm/reduce.h). At most 64 inputs.
struct RankSum {
  std::string_view type;
  std::span<const void* const> inputs;
  std::int64_t begin = 0, run = 0, stride = 0, count = 0;  // elements
  void* out = nullptr;
};
void sum_in_order(const RankSum& sum);
}  // namespace gpu

}  // namespace switchyard
