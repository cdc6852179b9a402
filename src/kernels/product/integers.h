// Products of bf16 rows and packed weights (kernels/packed/packed_block.h) whose numbers are integers, of all
// types but fp8. A weight is read once, where it lies, and stays an integer of 16 bits, and so does an input:
//
// 1. A group of 32 inputs of a row is integers times a power of two, the least that keeps them in 16 bits. So
//    inputs of at least 1/128 of the largest magnitude's power of two are exact, and others are off by at
//    most 2^-15 of the largest. A group with an infinity or a NaN gives NaN.
// 2. A group's products are summed in 32 bits, exactly, and scaled in float32, group after group. So a row's
//    result depends neither on the rows beside it nor on the instruction set.
//
// For any number of rows (docs/design/decisions/packed.md: speed). Only with AMX, whose tiles are many times
// faster, do products of more than 32 rows unpack their weights instead.
#pragma once

#include <cstdint>
#include <span>

#include "core/thread_pool.h"
#include "kernels/product/cpu/gemm_problem.h"

namespace switchyard {

// 32 inputs of a row as integers: `pairs` of them, in the order in which the
// kernel takes weights, times `scale`.
struct InputGroup {
  std::int32_t pairs[kGroupInputs / 2];  // two integers of 16 bits
  std::int32_t sums[2];                  // of each half's integers
  float scale;
  float sum() const { return static_cast<float>(sums[0] + sums[1]) * scale; }
};

// How an instruction set multiplies.
struct IntegerGemm {
  // out [row_end - row_begin, k / 32] = rows of A.
  void (*convert)(const GemmProblem& problem, std::int64_t row_begin, std::int64_t row_end, InputGroup* out);
  // The block's packed_a are the groups of its rows.
  GemmBlockKernel* multiply;
};

// The reason not to take a problem; null: taken.
const char* integers_refuse(const GemmProblem& problem);
// Problems that are not refused, of the dtypes of the first.
void run_integers(ThreadPool& pool, std::span<const GemmProblem> problems, const IntegerGemm& gemm);

namespace cpu {
extern const IntegerGemm integers_avx2, integers_avx512, integers_vnni;
}

}  // namespace switchyard
