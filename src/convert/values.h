// Numbers of stored tensors, whatever their type: what they are like, and how two sets of them differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

namespace switchyard {

// Whether elements of a safetensors dtype ("F32") can be read as numbers.
bool is_numeric_dtype(const std::string& dtype);

// Of the finite elements; may be added up over tensors.
struct Statistics {
  std::int64_t finite = 0, non_finite = 0;
  double minimum = std::numeric_limits<double>::infinity();
  double maximum = -std::numeric_limits<double>::infinity();
  double mean = 0, squares = 0;  // squares: sum of squared deviations from the mean

  void add(const Statistics& other);
  double deviation() const;  // standard deviation, 0 without elements
};

// CHECKs that the dtype is numeric.
Statistics statistics_of(const std::string& dtype, std::span<const std::byte> bytes);

struct Difference {
  std::int64_t elements = 0, differing = 0;  // NaN equals NaN, 0 equals -0
  double max_abs = 0;                        // infinity where one is not finite and they differ
  double max_rel = 0;                        // max_abs over the largest finite magnitude of either side
  std::int64_t differing_in_bf16 = 0;        // those that differ still when both are rounded to bfloat16
};

// Element by element, both row-major with the same number of elements. The dtypes may differ; CHECKs that
// both are numeric.
Difference difference_of(const std::string& dtype_a, std::span<const std::byte> a, const std::string& dtype_b,
                         std::span<const std::byte> b);

}  // namespace switchyard
