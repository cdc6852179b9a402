// The adapters of rows, where each token of a batch may have one of several. A token's number is 0 without an
// adapter, and 1 .. n for the adapters. Views have no gaps. Bit-identical for any number of threads.
#pragma once

#include <cstdint>

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// Keeps of each row the columns of its token's adapter: out[i, c] = x[i, c] where c / rank + 1 is the number
// of row i's token, else 0.
struct KeepAdapterArgs {
  TensorView x;         // [rows, n·rank] f32 or bf16; each token has rows / T rows, which follow each other
  TensorView adapters;  // [T] i32, each in [0, n]
  std::int64_t rank;
  TensorView out;  // as x
};
void keep_adapter(ThreadPool& pool, const KeepAdapterArgs& args);

// Parts each expert into one for each number: out[t, k] = ids[t, k] · numbers + adapters[t], or -1 where
// that is -1.
struct PartExpertsArgs {
  TensorView ids;        // [T, K] i32; -1: no expert
  TensorView adapters;   // [T] i32, each in [0, numbers)
  std::int64_t numbers;  // n + 1
  TensorView out;        // [T, K] i32
};
void part_experts(ThreadPool& pool, const PartExpertsArgs& args);

// The rows of each whole expert: out[e] = the sum of its parts' sizes.
struct JoinExpertsArgs {
  TensorView sizes;  // [E, numbers] i32
  TensorView out;    // [E] i32
};
void join_experts(ThreadPool& pool, const JoinExpertsArgs& args);

}  // namespace switchyard
