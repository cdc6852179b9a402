#include "kernels/optimizer/newton_schulz.h"

#include <algorithm>
#include <cmath>

#include "kernels/optimizer/newton_schulz_kernels.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

void check_matrices(const char* op, const TensorView& x) {
  CHECK(x.rank() == 3 && x.dtype() == DType::f32 && x.is_contiguous(), "[{}] {} of {}", op,
        to_string(x.shape()), name_of(x.dtype()));
}

void normalize_in_turn(ThreadPool& pool, const NormalizeArgs& args) {
  for (std::int64_t i = 0; i < args.x.dim(0); ++i) {
    const TensorView matrix = args.x.rows(i, i + 1);
    const double norm = std::sqrt(sum_of_squares(pool, matrix)) + args.eps;
    if (norm > 0) scale(pool, matrix, static_cast<float>(1 / norm), matrix);
  }
}

void polynomial_of_rows(ThreadPool& pool, const PolynomialArgs& args) {
  if (args.gram.size() == 0) return;
  const std::int64_t side = args.gram.dim(2);
  float* const all = args.gram.kernel_data<float>();
  const float* const squares = args.square.kernel_data<float>();
  pool.for_range(args.gram.dim(0) * side, std::max<std::int64_t>(1, 16384 / side),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) {
                     float* const g = all + row * side;
                     const float* const s = squares + row * side;
                     for (std::int64_t i = 0; i < side; ++i) g[i] = args.cubic * g[i] + args.quintic * s[i];
                     g[row % side] += args.linear;
                   }
                 });
}

Work normalize_work(const NormalizeArgs& args) {
  return {.flops = 3 * static_cast<double>(args.x.size()), .bytes = 3 * static_cast<double>(args.x.bytes())};
}

Work polynomial_work(const PolynomialArgs& args) {
  const auto elements = static_cast<double>(args.gram.size());
  return {.flops = 3 * elements, .bytes = 12 * elements};
}

constexpr Implementation<NormalizeArgs> kNormalizes[] = {{"cuda", Gpu::any, gpu::normalize_matrices},
                                                         {"portable", Isa::ref, normalize_in_turn}};
constexpr Implementation<PolynomialArgs> kPolynomials[] = {{"cuda", Gpu::any, gpu::newton_schulz_polynomial},
                                                           {"portable", Isa::ref, polynomial_of_rows}};
constexpr Kernel<NormalizeArgs> kNormalize{"normalize_matrices", normalize_work, &NormalizeArgs::x,
                                           kNormalizes};
constexpr Kernel<PolynomialArgs> kPolynomial{"newton_schulz_polynomial", polynomial_work,
                                             &PolynomialArgs::gram, kPolynomials};

}  // namespace

void normalize_matrices(ThreadPool& pool, double eps, const TensorView& x) {
  check_matrices("normalize_matrices", x);
  run(pool, kNormalize, {eps, x});
}

void newton_schulz_polynomial(ThreadPool& pool, const TensorView& square, const TensorView& gram) {
  constexpr float kLinear = 3.4445f, kCubic = -4.775f, kQuintic = 2.0315f;
  check_matrices("newton_schulz_polynomial", gram);
  CHECK(square.shape() == gram.shape() && square.is_contiguous() && gram.dim(1) == gram.dim(2),
        "[newton_schulz_polynomial] {} and {}", to_string(square.shape()), to_string(gram.shape()));
  run(pool, kPolynomial, {kLinear, kCubic, kQuintic, square, gram});
}

}  // namespace switchyard
