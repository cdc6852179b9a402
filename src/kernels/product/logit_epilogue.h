// The epilogue of a product whose C is logits, which are reduced and not stored (internal to kernels/).
#pragma once

#include <cstdint>

namespace switchyard {

// Running log-sum-exp of some logits of a row: the sum of exp(logit - maximum).
struct RowSum {
  float maximum;
  float sum;
};

// Columns that share a RowSum. A block of columns begins with one.
constexpr std::int64_t kLogitGroup = 1024;

// Forward, where C is null: a RowSum of every group of columns, and the target's logit. Backward: C becomes
// softmax_coefficient * exp(logit - lse) - target_coefficient * [column is the target], rounded.
struct LogitEpilogue {
  const std::int32_t* targets = nullptr;  // [m]
  std::int64_t first_id = 0;              // the target that column 0 is
  RowSum* sums = nullptr;                 // [m, groups]
  float* target_logit = nullptr;          // [m]; stays as it is where the target is no column
  const float* lse = nullptr;             // [m], and the next two
  const float* softmax_coefficient = nullptr;
  const float* target_coefficient = nullptr;
};

}  // namespace switchyard
