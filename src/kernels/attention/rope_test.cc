#include "kernels/attention/rope.h"

#include <gtest/gtest.h>

#include "kernels/attention/reference/rope_reference.h"
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

template <typename T>
void compare(DType dtype, std::int64_t tokens, std::int64_t heads, std::int64_t dim) {
  for (bool interleaved : {false, true}) {
    for (bool inverse : {false, true}) {
      for (int threads : {1, 3}) {
        // A slice of a head three elements wider, behind two elements of something else.
        const std::int64_t head_stride = dim + 3, token_stride = heads * head_stride + 1;
        const Array x = Array::normal(dtype, tokens * token_stride + 2, 1);
        Angles angles(tokens * dim / 2);
        Array found = x, expected = x;
        ThreadPool pool(threads);
        const auto heads_of = [&](const Array& a) {
          return a.view().block(2, {tokens, heads, dim}, {token_stride, head_stride, 1});
        };
        const TensorView cos = angles.cos.view({tokens, dim / 2}), sin = angles.sin.view({tokens, dim / 2});
        rope(pool, {heads_of(x), heads_of(found), cos, sin, interleaved, inverse});
        reference::rope(static_cast<const T*>(x.data()) + 2, static_cast<T*>(expected.data()) + 2, tokens,
                        heads, dim, token_stride, head_stride, angles.cos.floats(), angles.sin.floats(),
                        interleaved, inverse);
        EXPECT_TRUE(kernel_test::near(found, expected, dtype == DType::bf16 ? 1.0f / 128 : 0, 1e-6f));
        Array in_place = x;
        rope(pool, {heads_of(in_place), heads_of(in_place), cos, sin, interleaved, inverse});
        EXPECT_EQ(in_place, found);
      }
    }
  }
}

TEST(Rope, EqualsTheReferenceAndLeavesTheRestAlone) {
  for (Isa isa : kernel_test::every_isa()) {
    const ScopedIsa cap(isa);
    SCOPED_TRACE(name_of(isa));
    for (std::int64_t tokens : {0, 1, 5}) {
      for (std::int64_t heads : {1, 3}) {
        for (std::int64_t dim : {0, 2, 10, 40, 64}) {
          compare<float>(DType::f32, tokens, heads, dim);
          compare<bfloat16>(DType::bf16, tokens, heads, dim);
        }
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
