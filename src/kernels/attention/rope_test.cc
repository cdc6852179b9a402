#include "kernels/attention/rope.h"

#include <gtest/gtest.h>

#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

using kernel_test::Array;

struct Angles {
  explicit Angles(std::int64_t count) : cos(DType::f32, count), sin(DType::f32, count) {
    for (std::int64_t i = 0; i < count; ++i) {
      cos.set(i, std::cos(0.7f * static_cast<float>(i)));
      sin.set(i, std::sin(0.7f * static_cast<float>(i)));
    }
  }
  Array cos, sin;
};

TEST(Rope, MayRotateInPlace) {
  const Shape shape{5, 3, 40}, table{5, 20};
  const Angles angles(5 * 20);
  ThreadPool pool(3);
  for (const Isa isa : kernel_test::every_isa()) {
    const ScopedIsa cap(isa);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const bool interleaved : {false, true}) {
        const Array x = Array::normal(dtype, num_elements(shape), 1);
        Array apart = x, in_place = x;
        for (Array* y : {&apart, &in_place})
          rope(pool, {(y == &apart ? x : *y).view(shape), y->view(shape), angles.cos.view(table),
                      angles.sin.view(table), interleaved});
        EXPECT_EQ(in_place, apart) << name_of(isa);
        EXPECT_FALSE(in_place == x);
      }
    }
  }
}

TEST(Rope, QuarterTurnIsExact) {
  Array x = Array::integers(DType::bf16, 8, 1), y(DType::bf16, 8);
  const float zeros[] = {0, 0, 0, 0}, ones[] = {1, 1, 1, 1};
  const TensorView cos = TensorView::of_host(zeros, {1, 4}), sin = TensorView::of_host(ones, {1, 4});
  const Shape shape{1, 1, 8};
  ThreadPool pool(1);
  rope(pool, {x.view(shape), y.view(shape), cos, sin, false, false});
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(y.at(i), -x.at(i + 4)) << i;
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(y.at(i + 4), x.at(i)) << i;
  rope(pool, {x.view(shape), y.view(shape), cos, sin, true, false});
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(y.at(2 * i), -x.at(2 * i + 1)) << i;
}

// <rope(x), y> = <x, inverse(y)>: the inverse is the gradient, and it rotates back.
TEST(Rope, InverseIsTheAdjointAndRotatesBack) {
  for (bool interleaved : {false, true}) {
    const Array x = Array::normal(DType::f32, 3 * 2 * 8, 1), y = Array::normal(DType::f32, 3 * 2 * 8, 2);
    Angles angles(3 * 4);
    Array turned(DType::f32, x.size()), back(DType::f32, x.size());
    ThreadPool pool(1);
    const auto rotate = [&](const Array& from, const Array& to, bool inverse) {
      const Shape shape{3, 2, 8}, table{3, 4};
      rope(pool, {from.view(shape), to.view(shape), angles.cos.view(table), angles.sin.view(table),
                  interleaved, inverse});
    };
    rotate(x, turned, false);
    rotate(y, back, true);
    double left = 0, right = 0;
    for (std::int64_t i = 0; i < x.size(); ++i) {
      left += static_cast<double>(turned.at(i)) * static_cast<double>(y.at(i));
      right += static_cast<double>(x.at(i)) * static_cast<double>(back.at(i));
    }
    EXPECT_NEAR(left, right, 1e-5);
    rotate(turned, back, true);
    EXPECT_TRUE(kernel_test::near(back, x, 0, 1e-6f));
  }
}

}  // namespace
}  // namespace switchyard
