#include "kernels/newton_schulz.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise.h"
#include "kernels/gpu/kernels.h"

namespace switchyard {
namespace {

constexpr float kLinear = 3.4445f, kCubic = -4.775f, kQuintic = 2.0315f;

void check_matrices(const char* op, const TensorView& x) {
  CHECK(x.rank() == 3 && x.dtype() == DType::f32 && x.is_contiguous(), "[{}] {} of {}", op,
        to_string(x.shape()), name_of(x.dtype()));
}

}  // namespace

void normalize_matrices(ThreadPool& pool, double eps, const TensorView& x) {
  check_matrices("normalize_matrices", x);
  if (x.on_gpu()) return gpu::normalize_matrices(eps, x);
  for (std::int64_t i = 0; i < x.dim(0); ++i) {
    const TensorView matrix = x.rows(i, i + 1);
    const double norm = std::sqrt(sum_of_squares(pool, matrix)) + eps;
    if (norm > 0) scale(pool, matrix, static_cast<float>(1 / norm), matrix);
  }
}

void newton_schulz_polynomial(ThreadPool& pool, const TensorView& square, const TensorView& gram) {
  check_matrices("newton_schulz_polynomial", gram);
  CHECK(square.shape() == gram.shape() && square.is_contiguous() && gram.dim(1) == gram.dim(2),
        "[newton_schulz_polynomial] {} and {}", to_string(square.shape()), to_string(gram.shape()));
  const auto elements = static_cast<double>(gram.size());
  if (pool.skips({"newton_schulz_polynomial", DType::f32, 3 * elements, 12 * elements}) || gram.size() == 0)
    return;
  if (gram.on_gpu()) return gpu::newton_schulz_polynomial({kLinear, kCubic, kQuintic}, square, gram);
  const std::int64_t side = gram.dim(2);
  float* const all = gram.kernel_data<float>();
  const float* const squares = square.kernel_data<float>();
  pool.for_range(gram.dim(0) * side, std::max<std::int64_t>(1, 16384 / side),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) {
                     float* const g = all + row * side;
                     const float* const s = squares + row * side;
                     for (std::int64_t i = 0; i < side; ++i) g[i] = kCubic * g[i] + kQuintic * s[i];
                     g[row % side] += kLinear;
                   }
                 });
}

}  // namespace switchyard
