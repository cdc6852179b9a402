#include "kernels/attention/int8_vectors.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

using kernel_test::Array;

struct Sizes {
  std::int64_t tokens, heads, dim;
};

const Sizes kSizes[] = {{0, 2, 8}, {1, 1, 1}, {3, 2, 7}, {5, 3, 16}, {4, 1, 33}, {150, 2, 128}};

// Vectors of `dim` numbers among those of `width`, from `column` on.
TensorView some_columns(const Array& x, const Sizes& s, std::int64_t width, std::int64_t column) {
  return x.view({s.tokens, s.heads, width}).slice(2, column, s.dim);
}

struct Converted {
  Array values, scales, back;
};

Converted there_and_back(const Sizes& s, const Array& x, int threads) {
  ThreadPool pool(threads);
  Converted c{Array(DType::i8, s.tokens * s.heads * (s.dim + 2)), Array(DType::f32, s.tokens * s.heads),
              Array(x.dtype(), x.size())};
  const Int8VectorsArgs args{.x = some_columns(x, s, s.dim + 1, 1),
                             .values = some_columns(c.values, s, s.dim + 2, 2),
                             .scales = c.scales.view({s.tokens, s.heads})};
  to_int8(pool, args);
  from_int8(pool, {some_columns(c.back, s, s.dim + 1, 1), args.values, args.scales});
  return c;
}

TEST(Int8Vectors, EveryIsaGivesTheTwinsBits) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (std::size_t i = 0; i < std::size(kSizes); ++i) {
      const Sizes& s = kSizes[i];
      const Array x = Array::normal(dtype, s.tokens * s.heads * (s.dim + 1), 7);
      const Converted reference = [&] {
        const ScopedIsa cap(Isa::ref);
        return there_and_back(s, x, 1);
      }();
      for (const Isa isa : kernel_test::every_isa()) {
        const ScopedIsa cap(isa);
        SCOPED_TRACE(std::string(name_of(isa)) + ", sizes " + std::to_string(i));
        for (const int threads : {1, 3}) {
          const Converted found = there_and_back(s, x, threads);
          EXPECT_EQ(found.values, reference.values);  // what stands beside them too
          EXPECT_EQ(found.scales, reference.scales);
          EXPECT_EQ(found.back, reference.back);
        }
      }
    }
  }
}

// Half a step off at most, and the largest number of a vector is what it was.
TEST(Int8Vectors, AreNear) {
  const Sizes s{40, 2, 33};
  const Array x = Array::normal(DType::f32, s.tokens * s.heads * (s.dim + 1), 9);
  const Converted c = there_and_back(s, x, 1);
  for (std::int64_t v = 0; v < s.tokens * s.heads; ++v) {
    float largest = 0;
    for (std::int64_t d = 0; d < s.dim; ++d) {
      const std::int64_t at = v * (s.dim + 1) + 1 + d;
      largest = std::max(largest, std::abs(x.at(at)));
      EXPECT_LE(std::abs(x.at(at) - c.back.at(at)), c.scales.at(v) * 0.50001f);
    }
    EXPECT_EQ(c.scales.at(v), largest / 127);
  }
}

TEST(Int8Vectors, TiesZerosAndWhatIsNotFinite) {
  const float inf = std::numeric_limits<float>::infinity(), tiny = std::numeric_limits<float>::denorm_min();
  const std::vector<float> numbers[] = {{127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -127, 126.5f, 3},
                                        {0, 0, -0.0f, 0, 0, 0, 0, 0, 0},
                                        {1, 2, 3, 4, 5, 6, 7, std::nanf(""), 9},
                                        {1, -inf, 3, 4, 5, 6, 7, 8, 9},
                                        {tiny, -70 * tiny, 100 * tiny, 0, 0, 0, 0, 0, 0}};
  const std::vector<float> expected[] = {{127, 0, 2, 2, 0, -2, -127, 126, 3},
                                         std::vector<float>(9),
                                         std::vector<float>(9),
                                         std::vector<float>(9),
                                         {1, -70, 100, 0, 0, 0, 0, 0, 0}};
  for (const Isa isa : kernel_test::every_isa()) {
    const ScopedIsa cap(isa);
    SCOPED_TRACE(name_of(isa));
    for (std::size_t n = 0; n < std::size(numbers); ++n) {
      SCOPED_TRACE(n);
      Array x(DType::f32, 10);
      for (std::int64_t i = 0; i < 9; ++i) x.set(i + 1, numbers[n][static_cast<std::size_t>(i)]);
      const Converted c = there_and_back({1, 1, 9}, x, 1);
      for (std::int64_t i = 0; i < 9; ++i) {
        EXPECT_EQ(c.values.value(i + 2), expected[n][static_cast<std::size_t>(i)]) << i;
        EXPECT_EQ(std::isnan(c.back.at(i + 1)), n == 2 || n == 3) << i;
      }
      EXPECT_EQ(c.scales.at(0) == 0, n == 1);
    }
  }
}

}  // namespace
}  // namespace switchyard
