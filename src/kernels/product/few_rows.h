// Products of few rows, as in decoding: reading B is all the work, so every element of it is read once, where
// it lies, in long runs. Two ways:
// 1. By columns: an element's sum is made at once, in fp32, in the order of the depth. For plain products
//    of f32 and bf16; bit for bit what the blocks of kernels/product/cpu/gemm_vectors.cc give.
// 2. By slices: parts of the depth make sums that are added up in their order when all are there. bf16 with
//    AVX-512, for all forms but logits; for the problems that tiles would take.
// Packed weights go by columns, if the products are none of integers (kernels/product/integers.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/product/cpu/gemm_problem.h"

namespace switchyard {

// Reasons not to take a problem; null: taken.
const char* slices_refuse(const GemmProblem& problem);
const char* columns_refuse(const GemmProblem& problem);
const char* packed_columns_refuse(const GemmProblem& problem);

// Problems that are not refused, of the dtypes and the form of the first.
void run_slices(ThreadPool& pool, std::span<const GemmProblem> problems);
void run_columns(ThreadPool& pool, std::span<const GemmProblem> problems, GemmBlockKernel* kernel);

namespace cpu {

// By columns: blocks of all rows.
GemmBlockKernel gemm_few_rows_avx2;         // f32 and bf16
GemmBlockKernel gemm_few_rows_avx512;       // f32 and bf16
GemmBlockKernel gemm_few_rows_packed_avx2;  // f32 and bf16 rows, packed weights
GemmBlockKernel gemm_few_rows_packed_avx512;

// By slices: at most few_rows(problem) rows of an A that is not transposed, bf16, AVX-512. `sums` is one
// buffer for all slices.
constexpr std::int64_t kFewRows = 8, kFewRowsTransposed = 2;
// Tiles take the same time for one row and for eight, and read B in short runs, which costs more the longer
// its stored rows are (measured on Zen 4: equal at four rows of A where B's are of 768 or 1408, and at eight
// where they are of 14336).
inline std::int64_t few_rows(const GemmProblem& p) {
  constexpr std::int64_t kLongRow = 4096;
  return p.transpose_b ? kFewRowsTransposed : p.ldb >= kLongRow ? kFewRows : kFewRows / 2;
}
struct FewRowsColumns {
  std::int64_t begin, end;  // begin a multiple of 32
};
struct FewRowsSlice {
  const GemmProblem* problem;
  bool next;                            // of C_next
  std::int64_t depth_begin, depth_end;  // of every term
  FewRowsColumns columns;
  std::int64_t sums;  // where its matrix's begin: few_rows_floats, of all columns
};
// Floats that the sums of one matrix take.
inline std::int64_t few_rows_floats(const GemmProblem& p) {
  return (p.n + kGemmStrip - 1) / kGemmStrip * kGemmStrip * p.m;
}
void few_rows_sums(const FewRowsSlice& slice, float* sums);
// C, C_next and hidden from sums [slices][C, C_next][few_rows_floats].
void few_rows_store(const GemmProblem& problem, const float* sums, std::int64_t slices);
}  // namespace cpu

}  // namespace switchyard
