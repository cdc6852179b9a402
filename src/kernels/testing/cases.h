// The cases of all kernels: inputs, outputs, and how far those may be from the reference implementation's.
// `switchyard selftest` and the unit tests run them. A file per family; a new op is one more KernelCases in
// its family's list.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "kernels/testing/poisoned_array.h"

namespace switchyard::selftest {

using Arrays = std::vector<PoisonedArray>;

struct Output {
  const char* name;
  PoisonedArray start;  // what the kernel is given: NaN, or what it adds to or updates
  Bound bound = {};
  double of_largest = 0;  // added to the bound: so much of the largest magnitude that is expected
  // Added to each element's bound where tiles run, which round within: docs/design/numerics.md says how much.
  // May be empty.
  std::vector<double> tile_rounding = {};
};

struct Case {
  DType dtype;
  std::string what;  // shape, groups, seed
  Arrays inputs = {};
  std::vector<Output> outputs = {};
  std::function<void(ThreadPool&, const Arrays& in, Arrays& out)> run = {};
  std::function<void(const Arrays& in, Arrays& out)> reference = {};  // empty: `run` on `ref`
};

struct KernelCases {
  const char* name;   // its function in kernels/
  const char* table;  // the table of its implementations (registry/kernel.h)
  std::vector<Case> (*cases)(std::uint32_t seed);
  bool on_host = false;  // its operands are the host's on every device
};

// Arrays of random numbers, each from a seed of its own.
class Draw {
 public:
  explicit Draw(std::uint32_t seed) : seed_(seed) {}
  PoisonedArray fractions(DType dtype, std::int64_t count, int bits) {
    return PoisonedArray::fractions(dtype, count, seed_++, bits);
  }
  PoisonedArray normal(DType dtype, std::int64_t count, float scale = 1.0f) {
    return PoisonedArray::normal(dtype, count, seed_++, scale);
  }
  std::uint32_t seed() const { return seed_; }  // of the next array

 private:
  std::uint32_t seed_;
};

// The values of a view of the host, in the memory of an array of the case: the view's own where
// that is the host's too.
Tensor beside(const PoisonedArray& array, const TensorView& host);

inline PoisonedArray i32_array(std::span<const std::int32_t> values) {
  PoisonedArray result(DType::i32, static_cast<std::int64_t>(values.size()));
  if (!values.empty()) std::memcpy(result.data(), values.data(), values.size_bytes());
  return result;
}

// Sums of squares: the same bits on every instruction set, and on a device close to them, for it has an
// order of its own. `largest`: no smaller than any.
inline Output square_sums_output(std::int64_t count, double largest) {
  return {"sum of squares",
          PoisonedArray(DType::f64, count),
          {},
          0,
          std::vector<double>(static_cast<std::size_t>(count), 1e-12 * largest)};
}
// Returns the sum of the squares of x, which is f32 or bf16.
inline double squares_of(const PoisonedArray& x) {
  double sum = 0;
  for (std::int64_t i = 0; i < x.size(); ++i) sum += x.value(i) * x.value(i);
  return sum;
}

constexpr DType kFloatTypes[] = {DType::f32, DType::bf16};

// The bound of h = silu(gate) * up * w with values around 1: the gate's exponential is an approximation
// (docs/design/numerics.md), and h is rounded on both sides.
Bound activation_bound(DType dtype);

// The families, each in the file of its name.
std::vector<KernelCases> attention_kernels();
std::vector<KernelCases> attention_sink_kernels();  // and those of heads' scores
std::vector<KernelCases> balance_kernels();
std::vector<KernelCases> cross_entropy_kernels();
std::vector<KernelCases> delta_net_kernels();
std::vector<KernelCases> elementwise_kernels();
std::vector<KernelCases> expert_gate_kernels();
std::vector<KernelCases> embedding_kernels();
std::vector<KernelCases> gemm_kernels();
std::vector<KernelCases> grouped_matmul_kernels();
std::vector<KernelCases> index_kernels();
std::vector<KernelCases> loop_kernels();  // those that are one loop
std::vector<KernelCases> packed_weight_kernels();
std::vector<KernelCases> ragged_rows_kernels();
std::vector<KernelCases> row_adapters_kernels();
std::vector<KernelCases> route_kernels();
std::vector<KernelCases> rope_kernels();  // and its tables
std::vector<KernelCases> router_bias_kernels();
std::vector<KernelCases> row_kernels();  // rms_norm
std::vector<KernelCases> sampling_kernels();
std::vector<KernelCases> step_judge_kernels();
std::vector<KernelCases> token_loss_kernels();
std::vector<KernelCases> vocabulary_kernels();
std::vector<KernelCases> weight_update_kernels();  // and rank_sum

// All of them.
std::vector<KernelCases> kernels();

}  // namespace switchyard::selftest
