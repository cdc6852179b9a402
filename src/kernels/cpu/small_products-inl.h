// Products of small fp32 matrices that stay in the caches, and their transposes. Included once per
// instruction set, inside a file that uses hwy/foreach_target.h.
//
// Matrices are rows of floats, each padded to whole vectors: results are written in whole vectors, so what is
// in a row's padding has no meaning.
#include <algorithm>

#include "kernels/cpu/transpose_lanes-inl.h"

#if defined(SWITCHYARD_SMALL_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SWITCHYARD_SMALL_PRODUCTS_INL_H_
#undef SWITCHYARD_SMALL_PRODUCTS_INL_H_
#else
#define SWITCHYARD_SMALL_PRODUCTS_INL_H_
#endif

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

constexpr std::int64_t kVector = static_cast<std::int64_t>(lanes::kLanes);

std::int64_t padded(std::int64_t width) {
  return (width + kVector - 1) / kVector * kVector;
}

struct Matrix {
  float* data = nullptr;
  std::int64_t stride = 0;  // between rows

  float* row(std::int64_t i) const { return data + i * stride; }
  Matrix from_row(std::int64_t i) const { return {row(i), stride}; }
};

// The left operand of a product: element (i, l) is data[i * row + l * depth].
struct Left {
  const float* data;
  std::int64_t row, depth;
};
Left as_is(const Matrix& m) {
  return {m.data, m.stride, 1};
}
Left transposed(const Matrix& m) {
  return {m.data, 1, m.stride};
}

// Which elements of the left matrix are not zero: all, those with l <= i, or those with l >= i.
enum class Part { all, lower, upper };
enum class Into { set, add, subtract };

template <int kRows, int kVectors>
HWY_INLINE void small_tile(const Left& a, std::int64_t first, std::int64_t last, const float* b,
                           std::int64_t b_stride, Into into, float* c, std::int64_t c_stride) {
  const lanes::D d;
  lanes::V sums[kRows][kVectors];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[i][v] = lanes::hn::Zero(d);
  }
  const float* x = a.data + first * a.depth;
  b += first * b_stride;
  for (std::int64_t l = first; l < last; ++l, x += a.depth, b += b_stride) {
    lanes::V right[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) right[v] = lanes::load(b + v * kVector);
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const lanes::V left = lanes::hn::Set(d, x[i * a.row]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[i][v] = lanes::hn::MulAdd(left, right[v], sums[i][v]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* const to = c + i * c_stride + v * kVector;
      if (into == Into::add) sums[i][v] = lanes::hn::Add(lanes::load(to), sums[i][v]);
      if (into == Into::subtract) sums[i][v] = lanes::hn::Sub(lanes::load(to), sums[i][v]);
      lanes::store(sums[i][v], to);
    }
  }
}

template <int kRows>
HWY_INLINE void small_rows(const Left& a, std::int64_t first, std::int64_t last, const Matrix& b,
                           std::int64_t columns, Into into, float* c, std::int64_t c_stride) {
  constexpr int kWide = HWY_MAX_BYTES == 64 ? 4 : 2;
  std::int64_t j = 0;
  for (; j + kWide * kVector <= padded(columns); j += kWide * kVector)
    small_tile<kRows, kWide>(a, first, last, b.data + j, b.stride, into, c + j, c_stride);
  for (; j < columns; j += kVector)
    small_tile<kRows, 1>(a, first, last, b.data + j, b.stride, into, c + j, c_stride);
}

// c[rows, columns] is, or gets more or less by, the product of a [rows, depth] and b [depth, columns].
void small_product(const Left& a, Part part, std::int64_t rows, std::int64_t depth, const Matrix& b,
                   std::int64_t columns, Into into, const Matrix& c) {
  constexpr std::int64_t kAtOnce = 6;
  for (std::int64_t i = 0; i < rows; i += kAtOnce) {
    const std::int64_t count = std::min(kAtOnce, rows - i);
    const Left left{a.data + i * a.row, a.row, a.depth};
    const std::int64_t first = part == Part::upper ? std::min(i, depth) : 0,
                       last = part == Part::lower ? std::min(i + count, depth) : depth;
    float* const to = c.row(i);
    switch (count) {
      case 1:
        small_rows<1>(left, first, last, b, columns, into, to, c.stride);
        break;
      case 2:
        small_rows<2>(left, first, last, b, columns, into, to, c.stride);
        break;
      case 3:
        small_rows<3>(left, first, last, b, columns, into, to, c.stride);
        break;
      case 4:
        small_rows<4>(left, first, last, b, columns, into, to, c.stride);
        break;
      case 5:
        small_rows<5>(left, first, last, b, columns, into, to, c.stride);
        break;
      default:
        small_rows<6>(left, first, last, b, columns, into, to, c.stride);
    }
  }
}

// to [columns, rows] = x [rows, columns] with sides changed.
void small_transpose(const Matrix& x, std::int64_t rows, std::int64_t columns, const Matrix& to) {
  std::int64_t i = 0;
  for (; i + 4 <= rows; i += 4) lanes::transpose_four(x.row(i), x.stride, columns, to.data + i, to.stride);
  for (; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) to.row(j)[i] = x.row(i)[j];
  }
}

// Vectors of `count` floats, whose padding may be read and written.
float small_dot(const float* x, const float* y, std::int64_t count) {
  lanes::V sum = lanes::hn::Zero(lanes::D());
  std::int64_t i = 0;
  for (; i + kVector <= count; i += kVector)
    sum = lanes::hn::MulAdd(lanes::load(x + i), lanes::load(y + i), sum);
  if (i < count) {
    const auto rest = static_cast<std::size_t>(count - i);
    sum = lanes::hn::MulAdd(lanes::load_some(x + i, rest), lanes::load_some(y + i, rest), sum);
  }
  return lanes::hn::GetLane(lanes::hn::SumOfLanes(lanes::D(), sum));
}

// to = x * factor + to * keep.
void small_scale(const float* x, float factor, float keep, std::int64_t count, float* to) {
  const lanes::V f = lanes::hn::Set(lanes::D(), factor), k = lanes::hn::Set(lanes::D(), keep);
  for (std::int64_t i = 0; i < count; i += kVector)
    lanes::store(lanes::hn::MulAdd(lanes::load(x + i), f, lanes::hn::Mul(lanes::load(to + i), k)), to + i);
}

// to = x * factor.
void small_scaled(const float* x, float factor, std::int64_t count, float* to) {
  const lanes::V f = lanes::hn::Set(lanes::D(), factor);
  for (std::int64_t i = 0; i < count; i += kVector)
    lanes::store(lanes::hn::Mul(lanes::load(x + i), f), to + i);
}

// to += x * factor.
void small_add(const float* x, float factor, std::int64_t count, float* to) {
  const lanes::V f = lanes::hn::Set(lanes::D(), factor);
  for (std::int64_t i = 0; i < count; i += kVector)
    lanes::store(lanes::hn::MulAdd(lanes::load(x + i), f, lanes::load(to + i)), to + i);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif  // AVX2 or AVX-512

#endif  // per-target include guard
