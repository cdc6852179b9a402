// The reference implementation of ragged_rows.h.
#include "kernels/moe/ragged_rows_problem.h"
#include "kernels/pointwise/reference/elementwise_access.h"

namespace switchyard::ref {

void ragged_gather(const RaggedRows& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    const auto position = static_cast<std::size_t>(i);
    const float w = p.w == nullptr ? 1.0f : p.w[position];
    for (std::int64_t j = 0; j < p.m; ++j) {
      put(p.out, p.dtype, i * p.m + j, w * at(p.x, p.dtype, p.index[position] * p.m + j));
    }
  }
}

void ragged_gather_reduce(const RaggedRows& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    for (std::int64_t j = 0; j < p.m; ++j) {
      float sum = 0;
      for (std::int64_t assignment = t * p.per_token; assignment < (t + 1) * p.per_token; ++assignment) {
        const std::int64_t position = p.index[static_cast<std::size_t>(assignment)];
        if (position < 0 || position >= p.rows) continue;
        sum += (p.w == nullptr ? 1.0f : p.w[assignment]) * at(p.x, p.dtype, position * p.m + j);
      }
      put(p.out, p.out_dtype, t * p.m + j, sum);
    }
  }
}

void ragged_row_dot(const RaggedRows& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t assignment = begin * p.per_token; assignment < end * p.per_token; ++assignment) {
    const std::int64_t position = p.index[static_cast<std::size_t>(assignment)], t = assignment / p.per_token;
    float sum = 0;
    for (std::int64_t j = 0; j < p.m && position >= 0 && position < p.rows; ++j) {
      sum += at(p.dy, p.dtype, t * p.m + j) * at(p.x, p.dtype, position * p.m + j);
    }
    static_cast<float*>(p.out)[assignment] = sum;
  }
}

}  // namespace switchyard::ref
