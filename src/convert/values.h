// Statistics and differences of stored tensors' numbers, whatever their types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

namespace switchyard {

// True when elements of a safetensors dtype ("F32") can be read as numbers.
bool is_numeric_dtype(const std::string& dtype);

// Statistics of the finite elements; those of several tensors can be added up.
struct Statistics {
  std::int64_t finite = 0, non_finite = 0;
  double minimum = std::numeric_limits<double>::infinity();
  double maximum = -std::numeric_limits<double>::infinity();
  double mean = 0, squares = 0;  // squares: sum of squared deviations from the mean

  void add(const Statistics& other);
  double deviation() const;  // standard deviation, 0 without elements
};

// Statistics of a tensor. CHECKs that the dtype is numeric.
Statistics statistics_of(const std::string& dtype, std::span<const std::byte> bytes);

struct Difference {
  std::int64_t elements = 0, differing = 0;  // NaN equals NaN, 0 equals -0
  double max_abs = 0;                        // infinity where two elements differ and one is not finite
  double max_rel = 0;                        // max_abs over the largest finite magnitude of either side
  std::int64_t differing_in_bf16 = 0;        // elements that differ even when both are rounded to bfloat16
};

// Compares element by element; both are row-major with the same number
// of elements. Dtypes may differ; CHECKs that both are numeric.
Difference difference_of(const std::string& dtype_a, std::span<const std::byte> a, const std::string& dtype_b,
                         std::span<const std::byte> b);

}  // namespace switchyard
