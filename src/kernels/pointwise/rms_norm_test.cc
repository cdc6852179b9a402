#include "kernels/pointwise/rms_norm.h"

#include <gtest/gtest.h>

#include "kernels/pointwise/reference/rms_norm_reference.h"
#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

using kernel_test::Array;

constexpr float kEpsilon = 1e-5f;

std::vector<double> doubles(const Array& x) {
  std::vector<double> result;
  for (std::int64_t i = 0; i < x.size(); ++i) result.push_back(static_cast<double>(x.at(i)));
  return result;
}

Array array_of(const std::vector<double>& x) {
  Array result(DType::f32, static_cast<std::int64_t>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i)
    result.set(static_cast<std::int64_t>(i), static_cast<float>(x[i]));
  return result;
}

struct Outputs {
  Array y, rstd, dx, dscale;
  bool operator==(const Outputs&) const = default;
};

Outputs run(const Array& x, const Array& scale, const Array& dy, std::int64_t rows, std::int64_t dim,
            int threads) {
  ThreadPool pool(threads);
  Outputs o{Array(x.dtype(), x.size()), Array(DType::f32, rows), Array(x.dtype(), x.size()),
            Array(DType::f32, dim)};
  const Shape shape{rows, dim};
  rms_norm(pool, {x.view(shape), scale.view(), kEpsilon, o.y.view(shape), o.rstd.view()});
  rms_norm_backward(
      pool, {x.view(shape), scale.view(), o.rstd.view(), dy.view(shape), o.dx.view(shape), o.dscale.view()});
  return o;
}

void compare(DType dtype, DType scale_dtype, std::int64_t rows, std::int64_t dim) {
  const Array x = Array::normal(dtype, rows * dim, 1), scale = Array::normal(scale_dtype, dim, 2);
  const Array dy = Array::normal(dtype, rows * dim, 3);
  const auto x_d = doubles(x), scale_d = doubles(scale), dy_d = doubles(dy);
  std::vector<double> y(x_d.size()), rstd(static_cast<std::size_t>(rows)), dx(x_d.size()),
      dscale(scale_d.size());
  reference::rms_norm(x_d.data(), scale_d.data(), rows, dim, static_cast<double>(kEpsilon), y.data(),
                      rstd.data());
  reference::rms_norm_backward(x_d.data(), scale_d.data(), rstd.data(), dy_d.data(), rows, dim, dx.data(),
                               dscale.data());
  for (Isa isa : kernel_test::every_isa()) {
    const ScopedIsa cap(isa);
    SCOPED_TRACE(std::string(name_of(isa)) + " " + std::to_string(rows) + " x " + std::to_string(dim));
    const Outputs found = run(x, scale, dy, rows, dim, 1);
    const float loose = dtype == DType::bf16 ? 1.0f / 250 : 2e-6f;
    EXPECT_TRUE(kernel_test::near(found.y, array_of(y), loose, 1e-6f));
    EXPECT_TRUE(kernel_test::near(found.rstd, array_of(rstd), 1e-6f, 0));
    EXPECT_TRUE(kernel_test::near(found.dx, array_of(dx), loose, 1e-4f));
    EXPECT_TRUE(kernel_test::near(found.dscale, array_of(dscale), 1e-5f, 1e-4f));
    EXPECT_EQ(run(x, scale, dy, rows, dim, 3), found);
  }
}

TEST(RmsNorm, EveryPathEqualsTheReferenceForAnyNumberOfThreads) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (DType scale_dtype : {DType::f32, DType::bf16}) {
      for (std::int64_t rows : {0, 1, 5, 700}) {
        for (std::int64_t dim : {1, 7, 64, 83}) compare(dtype, scale_dtype, rows, dim);
      }
    }
  }
}

TEST(RmsNorm, InPlaceGivesTheSame) {
  for (Isa isa : kernel_test::every_isa()) {
    const ScopedIsa cap(isa);
    Array x = Array::normal(DType::bf16, 5 * 37, 1), dy = Array::normal(DType::bf16, 5 * 37, 3);
    const Array scale = Array::normal(DType::f32, 37, 2);
    Outputs apart = run(x, scale, dy, 5, 37, 1);
    ThreadPool pool(1);
    rms_norm_backward(pool,
                      {x.view(), scale.view(), apart.rstd.view(), dy.view(), dy.view(), apart.dscale.view()});
    EXPECT_TRUE(kernel_test::same(dy, apart.dx));
    rms_norm(pool, {x.view(), scale.view(), kEpsilon, x.view(), apart.rstd.view()});
    EXPECT_TRUE(kernel_test::same(x, apart.y));
  }
}

TEST(RmsNorm, ReferenceGradientIsTheFiniteDifference) {
  constexpr std::int64_t kRows = 4, kDim = 6;
  auto x = doubles(Array::normal(DType::f32, kRows * kDim, 1)),
       scale = doubles(Array::normal(DType::f32, kDim, 2));
  const auto dy = doubles(Array::normal(DType::f32, kRows * kDim, 3));
  std::vector<double> y(x.size()), rstd(kRows), dx(x.size()), dscale(kDim);
  const auto loss = [&] {
    reference::rms_norm(x.data(), scale.data(), kRows, kDim, 1e-5, y.data(), rstd.data());
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  loss();
  reference::rms_norm_backward(x.data(), scale.data(), rstd.data(), dy.data(), kRows, kDim, dx.data(),
                               dscale.data());
  const auto check = [&](std::vector<double>& values, const std::vector<double>& gradient) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double kept = values[i];
      values[i] = kept + 1e-5;
      const double above = loss();
      values[i] = kept - 1e-5;
      EXPECT_NEAR((above - loss()) / 2e-5, gradient[i], 1e-7);
      values[i] = kept;
    }
  };
  check(x, dx);
  check(scale, dscale);
}

}  // namespace
}  // namespace switchyard
