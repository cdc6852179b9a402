#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/int8_vectors_problem.h"

namespace switchyard::ref {
namespace {

template <typename T>
void vector_to_int8(const T* x, std::int64_t dim, std::int8_t* values, float& scale) {
  float largest = 0;
  for (std::int64_t d = 0; d < dim; ++d) {
    const float size = std::abs(static_cast<float>(x[d]));
    largest = std::isfinite(size) ? std::max(largest, size) : std::numeric_limits<float>::quiet_NaN();
    if (std::isnan(largest)) break;
  }
  scale = largest / kLargestInt8;
  for (std::int64_t d = 0; d < dim; ++d) {
    // The quotient of a subnormal number may be larger than 127.
    const float value = scale > 0 ? std::nearbyint(static_cast<float>(x[d]) / scale) : 0.0f;
    values[d] = static_cast<std::int8_t>(std::clamp(value, -kLargestInt8, kLargestInt8));
  }
}

// body(x, values, scale) of every vector.
template <typename T, typename Body>
void each_int8_vector(const Int8VectorsProblem& p, std::int64_t begin, std::int64_t end, const Body& body) {
  for (std::int64_t t = begin; t < end; ++t) {
    for (std::int64_t h = 0; h < p.heads; ++h)
      body(static_cast<T*>(p.x) + p.of_x.at(t, h), p.values + p.of_values.at(t, h),
           p.scales[p.of_scales.at(t, h)]);
  }
}

template <typename T>
void to_int8_typed(const Int8VectorsProblem& p, std::int64_t begin, std::int64_t end) {
  each_int8_vector<T>(p, begin, end, [&](const T* x, std::int8_t* values, float& scale) {
    vector_to_int8(x, p.dim, values, scale);
  });
}

template <typename T>
void from_int8_typed(const Int8VectorsProblem& p, std::int64_t begin, std::int64_t end) {
  each_int8_vector<T>(p, begin, end, [&](T* x, const std::int8_t* values, float scale) {
    for (std::int64_t d = 0; d < p.dim; ++d) x[d] = static_cast<T>(scale * static_cast<float>(values[d]));
  });
}

}  // namespace

void to_int8(const Int8VectorsProblem& p, std::int64_t begin, std::int64_t end) {
  p.dtype == DType::f32 ? to_int8_typed<float>(p, begin, end) : to_int8_typed<bfloat16>(p, begin, end);
}

void from_int8(const Int8VectorsProblem& p, std::int64_t begin, std::int64_t end) {
  p.dtype == DType::f32 ? from_int8_typed<float>(p, begin, end) : from_int8_typed<bfloat16>(p, begin, end);
}

}  // namespace switchyard::ref
