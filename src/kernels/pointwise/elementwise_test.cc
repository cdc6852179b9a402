#include "kernels/pointwise/elementwise.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <string>
#include <utility>

#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

using kernel_test::Array;
using kernel_test::every_isa;
using kernel_test::near;
using kernel_test::same;

constexpr DType kDTypes[] = {DType::f32, DType::bf16};
constexpr std::int64_t kSizes[] = {0, 1, 7, 8, 16, 33, 1000};

TEST(Elementwise, FlatOperationsAreExactOnEveryIsa) {
  ThreadPool pool(1);
  for (const Isa isa : every_isa()) {
    const ScopedIsa cap(isa);
    for (const DType dtype : kDTypes) {
      for (const std::int64_t n : kSizes) {
        const Array a = Array::integers(dtype, n, 1, 10), b = Array::integers(dtype, n, 2, 10);
        Array sum(dtype, n), scaled(dtype, n), in_place = a;
        Array total = Array::integers(DType::f32, n, 3, 1000), expected_total = total;
        Array expected_sum(dtype, n), expected_scaled(dtype, n);
        for (std::int64_t i = 0; i < n; ++i) {
          expected_sum.set(i, a.at(i) + b.at(i));
          expected_scaled.set(i, a.at(i) * 0.5f);
          expected_total.set(i, total.at(i) + a.at(i));
        }
        add(pool, a.view(), b.view(), sum.view());
        add(pool, in_place.view(), b.view(), in_place.view());
        scale(pool, a.view(), 0.5f, scaled.view());
        add(pool, total.view(), a.view(), total.view());
        const std::string what = fmt::format("{} {} n {}", name_of(isa), name_of(dtype), n);
        EXPECT_TRUE(same(sum, expected_sum)) << what;
        EXPECT_TRUE(same(in_place, expected_sum)) << what;
        EXPECT_TRUE(same(scaled, expected_scaled)) << what;
        EXPECT_TRUE(same(total, expected_total)) << what;
      }
    }
  }
}

TEST(Elementwise, ConversionRoundsLikeTheScalarTypeForAwkwardBits) {
  ThreadPool pool(1);
  std::mt19937 generator(3);
  std::vector<float> x = {0.0f,
                          -0.0f,
                          1e-40f,
                          3.4e38f,
                          std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(),
                          std::bit_cast<float>(0x7f800001u),
                          std::bit_cast<float>(0xffffffffu),
                          std::bit_cast<float>(0x3f808000u),
                          std::bit_cast<float>(0x3f818000u)};
  for (int i = 0; i < 1000; ++i) x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(generator())));
  const auto n = static_cast<std::int64_t>(x.size());
  for (const Isa isa : every_isa()) {
    const ScopedIsa cap(isa);
    std::vector<bfloat16> narrow(x.size());
    std::vector<float> wide(x.size());
    convert(pool, TensorView::of_host(x.data(), {n}), TensorView::of_host(narrow.data(), {n}));
    convert(pool, TensorView::of_host(narrow.data(), {n}), TensorView::of_host(wide.data(), {n}));
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(narrow[i].bits, bfloat16(x[i]).bits) << name_of(isa) << " " << i;
      ASSERT_EQ(std::isnan(x[i]), std::isnan(wide[i]));
      if (!std::isnan(wide[i])) {
        ASSERT_EQ(wide[i], static_cast<float>(narrow[i]));
      }
    }
  }
}

TEST(Elementwise, ConvertsRowsIntoWiderOnes) {
  const std::int64_t rows = 5, n = 37, stride = 50;
  const Array x = Array::normal(DType::f32, rows * n, 1);
  ThreadPool pool(2);
  for (const Isa isa : every_isa()) {
    const ScopedIsa cap(isa);
    Array out = Array::normal(DType::bf16, rows * stride, 2), expected = out;
    convert(pool, x.view({rows, n}), TensorView::of_host(DType::bf16, out.data(), {rows, n}, {stride, 1}));
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < n; ++i) expected.set(r * stride + i, x.at(r * n + i));
    }
    EXPECT_EQ(out, expected) << name_of(isa);
  }
}

TEST(Elementwise, SumOfSquaresHasTheSameBitsOnEveryIsaAndThreadCount) {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t n : {0, 1, 9, 1000, 200003}) {
      const Array x = Array::normal(dtype, n, 1);
      ThreadPool one(1), three(3);
      double expected = 0;
      {
        const ScopedIsa cap(Isa::ref);
        expected = sum_of_squares(one, x.view());
      }
      for (const Isa isa : every_isa()) {
        const ScopedIsa cap(isa);
        EXPECT_EQ(sum_of_squares(one, x.view()), expected) << name_of(isa);
        EXPECT_EQ(sum_of_squares(three, x.view()), expected) << name_of(isa);
      }
    }
  }
}

struct Swiglu {
  Array h, dgate, dup, dw;
};

Swiglu run_swiglu(DType dtype, std::int64_t rows, std::int64_t cols, bool weighted, int threads) {
  ThreadPool pool(threads);
  const Array gate = Array::normal(dtype, rows * cols, 1, 4.0f), up = Array::normal(dtype, rows * cols, 2);
  const Array dh = Array::normal(dtype, rows * cols, 3);
  Array w = Array::normal(DType::f32, rows, 4);
  Swiglu r{Array(dtype, rows * cols), Array(dtype, rows * cols), Array(dtype, rows * cols),
           Array(DType::f32, rows)};
  const Shape shape{rows, cols};
  const TensorView weights = weighted ? w.view() : TensorView();
  swiglu(pool, {gate.view(shape), up.view(shape), weights, r.h.view(shape)});
  if (!weighted) std::fill_n(r.dw.floats(), rows, 0.0f);
  swiglu_backward(pool, {gate.view(shape), up.view(shape), weights, dh.view(shape), r.dgate.view(shape),
                         r.dup.view(shape), r.dw.view()});
  return r;
}

TEST(Swiglu, EveryIsaIsNearRefAndTheSameForAnyNumberOfThreads) {
  for (const DType dtype : kDTypes) {
    const float relative = dtype == DType::f32 ? 1e-5f : 8e-3f;
    for (const auto& [rows, cols] :
         {std::pair<std::int64_t, std::int64_t>{0, 5}, {3, 0}, {1, 1}, {5, 33}, {400, 100}}) {
      for (const bool weighted : {false, true}) {
        Swiglu expected = [&, r = rows, c = cols] {
          const ScopedIsa cap(Isa::ref);
          return run_swiglu(dtype, r, c, weighted, 1);
        }();
        for (const Isa isa : every_isa()) {
          const ScopedIsa cap(isa);
          const Swiglu found = run_swiglu(dtype, rows, cols, weighted, 1);
          EXPECT_TRUE(near(found.h, expected.h, relative, 1e-6f)) << name_of(isa);
          EXPECT_TRUE(near(found.dgate, expected.dgate, relative, 1e-5f)) << name_of(isa);
          EXPECT_TRUE(near(found.dup, expected.dup, relative, 1e-6f)) << name_of(isa);
          EXPECT_TRUE(near(found.dw, expected.dw, 1e-4f, 1e-4f)) << name_of(isa);
          const Swiglu again = run_swiglu(dtype, rows, cols, weighted, 3);
          EXPECT_TRUE(found.h == again.h && found.dgate == again.dgate && found.dup == again.dup &&
                      found.dw == again.dw);
        }
      }
    }
  }
}

TEST(Swiglu, ExtremeGatesStayFinite) {
  ThreadPool pool(1);
  const float gate[] = {-1e30f, -200.0f, -89.0f, 89.0f, 200.0f, 1e30f}, up[] = {1, 1, 1, 1, 1, 1},
              dh[] = {1, 1, 1, 1, 1, 1};
  for (const Isa isa : every_isa()) {
    const ScopedIsa cap(isa);
    float h[6], dgate[6], dup[6];
    const auto row = [](const float* x) { return TensorView::of_host(x, {1, 6}); };
    swiglu(pool, {row(gate), row(up), {}, row(h)});
    swiglu_backward(pool, {row(gate), row(up), {}, row(dh), row(dgate), row(dup), {}});
    for (int i = 0; i < 6; ++i) {
      const float expected = gate[i] > 0 ? gate[i] : 0.0f;
      EXPECT_NEAR(h[i], expected, std::abs(gate[i]) * 1e-6f) << name_of(isa);
      EXPECT_NEAR(dgate[i], gate[i] > 0 ? 1.0f : 0.0f, 1e-6f) << name_of(isa);
      EXPECT_EQ(dup[i], h[i]) << name_of(isa);
    }
  }
}

// Derivatives of the reference against central differences of its definition in double.
TEST(Swiglu, RefGradientEqualsFiniteDifference) {
  const ScopedIsa cap(Isa::ref);
  ThreadPool pool(1);
  const auto h = [](double g, double u, double w) { return g / (1.0 + std::exp(-g)) * u * w; };
  for (const float g : {-3.0f, -0.5f, 0.0f, 0.7f, 4.0f}) {
    const float u = 1.3f, w = 0.8f, dh = 1.0f, step = 1e-3f;
    float dgate = 0, dup = 0, dw = 0;
    const auto one = [](const float& x) { return TensorView::of_host(&x, {1}); };
    swiglu_backward(pool, {one(g), one(u), one(w), one(dh), one(dgate), one(dup), one(dw)});
    const double gd = static_cast<double>(g), ud = static_cast<double>(u), wd = static_cast<double>(w),
                 s = static_cast<double>(step);
    EXPECT_NEAR(dgate, (h(gd + s, ud, wd) - h(gd - s, ud, wd)) / (2 * s), 1e-5);
    EXPECT_NEAR(dup, h(gd, 1, wd), 1e-5);
    EXPECT_NEAR(dw, h(gd, ud, 1), 1e-5);
  }
}

}  // namespace
}  // namespace switchyard
