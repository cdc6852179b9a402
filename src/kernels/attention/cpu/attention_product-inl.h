// The product of attention's fp32 tiles. Included once per instruction set, inside
// a file that uses hwy/foreach_target.h.
#include "hwy/highway.h"
#include "kernels/cpu/elementwise_lanes-inl.h"

#if defined(SWITCHYARD_ATTENTION_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SWITCHYARD_ATTENTION_PRODUCT_INL_H_
#undef SWITCHYARD_ATTENTION_PRODUCT_INL_H_
#else
#define SWITCHYARD_ATTENTION_PRODUCT_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using lanes::D;
using lanes::V;

constexpr std::int64_t kStep = static_cast<std::int64_t>(lanes::kLanes);
// A register block is kBlockRows rows by a panel of two vectors: 24 sums of 32 registers with AVX-512, 12 of
// 16 with AVX2.
constexpr std::int64_t kPanel = 2 * kStep;
constexpr std::int64_t kBlockRows = HWY_MAX_BYTES >= 64 ? 12 : 6;
// A product's rows are a multiple of it, so that a few blocks of fewer rows, and none of one, make the rest.
constexpr std::int64_t kRowUnit = 4;

// The left operand is read by broadcast, element by element: one of either order will do.
//   rows:    a(i, l) = x[i * stride + l]
//   columns: a(i, l) = x[l * stride + i]
enum class Order : std::uint8_t { rows, columns };

struct Left {
  const float* x;
  std::int64_t stride;
};

// kPanel columns of a matrix, rows `stride` floats apart.
template <typename T>
struct Panel {
  T* x;
  std::int64_t stride;
};

// The start of a product's sums: nothing, C, or C with column j multiplied by factor[j].
enum class Start : std::uint8_t { zero, sum, scaled_sum };

template <std::int64_t rows, Order order, Start start>
HWY_INLINE void product_block(std::int64_t depth, Left a, Panel<const float> b, Panel<float> c,
                              const float* HWY_RESTRICT factor) {
  const D d;
  V left[rows], right[rows];
#pragma GCC unroll 12
  for (std::int64_t i = 0; i < rows; ++i) {
    if constexpr (start == Start::zero) {
      left[i] = right[i] = hn::Zero(d);
    } else {
      left[i] = hn::LoadU(d, c.x + i * c.stride);
      right[i] = hn::LoadU(d, c.x + i * c.stride + kStep);
    }
    if constexpr (start == Start::scaled_sum) {
      left[i] = hn::Mul(left[i], hn::LoadU(d, factor));
      right[i] = hn::Mul(right[i], hn::LoadU(d, factor + kStep));
    }
  }
  // An address reaches three rows (the stride, scaled by one and by two): a pointer a row
  // would not fit the registers.
  const float* row[(rows + 2) / 3];
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < rows; i += 3) row[i / 3] = a.x + i * a.stride;
  for (std::int64_t l = 0; l < depth; ++l, b.x += b.stride) {
    const V b_left = hn::LoadU(d, b.x), b_right = hn::LoadU(d, b.x + kStep);
#pragma GCC unroll 12
    for (std::int64_t i = 0; i < rows; ++i) {
      const V a_i = hn::Set(d, order == Order::rows ? row[i / 3][i % 3 * a.stride] : a.x[i]);
      left[i] = hn::MulAdd(a_i, b_left, left[i]);
      right[i] = hn::MulAdd(a_i, b_right, right[i]);
    }
    if constexpr (order == Order::rows) {
#pragma GCC unroll 4
      for (auto& at : row) ++at;
    } else {
      a.x += a.stride;
    }
  }
#pragma GCC unroll 12
  for (std::int64_t i = 0; i < rows; ++i) {
    hn::StoreU(left[i], d, c.x + i * c.stride);
    hn::StoreU(right[i], d, c.x + i * c.stride + kStep);
  }
}

// C [rows, kPanel] = A [rows, depth] . B [depth, kPanel] plus what `start` says. `rows`
// is a multiple of kRowUnit.
template <Order order, Start start>
HWY_INLINE void product(std::int64_t rows, std::int64_t depth, Left a, Panel<const float> b, Panel<float> c,
                        const float* factor = nullptr) {
  const auto next = [&](std::int64_t done) {
    rows -= done;
    a.x += order == Order::rows ? done * a.stride : done;
    c.x += done * c.stride;
  };
  for (; rows % kBlockRows != 0; next(kRowUnit))
    product_block<kRowUnit, order, start>(depth, a, b, c, factor);
  for (; rows > 0; next(kBlockRows)) product_block<kBlockRows, order, start>(depth, a, b, c, factor);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
