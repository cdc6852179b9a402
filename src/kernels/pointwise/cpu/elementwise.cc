// Flat operations and the gated activation for AVX2 and AVX-512.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/pointwise/cpu/elementwise.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <type_traits>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/elementwise_lanes-inl.h"
#include "kernels/cpu/sigmoid_lanes-inl.h"
#include "kernels/cpu/square_sums-inl.h"
#include "kernels/pointwise/elementwise_problem.h"
#include "kernels/registry/simd_rows.h"

#if HWY_TARGET != HWY_SCALAR  // of which nothing is called
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using lanes::D;
using lanes::sigmoid;
using lanes::V;

using lanes::load_part;
using lanes::store_part;
constexpr std::int64_t kStep = lanes::kStep;

struct Add {
  HWY_INLINE V operator()(V a, V b) const { return hn::Add(a, b); }
};
template <typename Op, typename A, typename B, typename Out>
void binary(const FlatProblem& p, std::int64_t begin, std::int64_t end) {
  const A* a = static_cast<const A*>(p.a);
  const B* b = static_cast<const B*>(p.b);
  Out* out = static_cast<Out*>(p.out);
  for (std::int64_t i = begin; i < end; i += kStep) {
    store_part(Op()(load_part(a + i, end - i), load_part(b + i, end - i)), out + i, end - i);
  }
}

template <typename T, typename Out>
void scaled(const FlatProblem& p, std::int64_t begin, std::int64_t end) {
  const T* a = static_cast<const T*>(p.a);
  Out* out = static_cast<Out*>(p.out);
  const V factor = hn::Set(D(), p.factor);
  for (std::int64_t i = begin; i < end; i += kStep) {
    store_part(hn::Mul(load_part(a + i, end - i), factor), out + i, end - i);
  }
}

// bf16 as even and odd elements, float32 as it lies.
template <typename T>
void squares(const T* x, std::int64_t count, SquareSums& sums) {
  constexpr bool pairs = std::is_same_v<T, bfloat16>;
  using Squares = lanes::BlockSquares<pairs>;
  Squares blocks;
  std::int64_t i = lanes::for_rounds<Squares>(0, count, [&](std::int64_t j, auto block) HWY_ATTR {
    if constexpr (pairs)
      blocks.template add<block.value>(lanes::load_pairs(x + j));
    else
      blocks.template add<block.value>({lanes::load(x + j), lanes::load(x + j + kStep)});
  });
  blocks.add_to(sums);
  for (; i < count; ++i) {
    const double value = static_cast<double>(static_cast<float>(x[i]));
    sums.sums[i % SquareSums::kCount] += value * value;
  }
}

template <typename T>
void forward(const SwigluProblem& p, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const T* gate = static_cast<const T*>(p.gate) + row * p.cols;
    const T* up = static_cast<const T*>(p.up) + row * p.cols;
    T* h = static_cast<T*>(p.h) + row * p.cols;
    const V w = hn::Set(D(), p.w == nullptr ? 1.0f : p.w[row]);
    for (std::int64_t j = 0; j < p.cols; j += kStep) {
      const V g = load_part(gate + j, p.cols - j), u = load_part(up + j, p.cols - j);
      store_part(hn::Mul(hn::Mul(hn::Mul(g, sigmoid(g, T())), u), w), h + j, p.cols - j);
    }
  }
}

template <typename T>
void backward(const SwigluProblem& p, std::int64_t row_begin, std::int64_t row_end) {
  const V one = hn::Set(D(), 1.0f);
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const T* gate = static_cast<const T*>(p.gate) + row * p.cols;
    const T* up = static_cast<const T*>(p.up) + row * p.cols;
    const T* dh = static_cast<const T*>(p.dh) + row * p.cols;
    T* dgate = static_cast<T*>(p.dgate) + row * p.cols;
    T* dup = static_cast<T*>(p.dup) + row * p.cols;
    const V w = hn::Set(D(), p.w == nullptr ? 1.0f : p.w[row]);
    V dw = hn::Zero(D());
    for (std::int64_t j = 0; j < p.cols; j += kStep) {
      const std::int64_t left = p.cols - j;
      const V g = load_part(gate + j, left), u = load_part(up + j, left), d = load_part(dh + j, left);
      const V s = sigmoid(g, T()), silu = hn::Mul(g, s), weighted = hn::Mul(d, w);
      dw = hn::MulAdd(hn::Mul(d, silu), u, dw);
      const V slope = hn::Mul(s, hn::MulAdd(g, hn::Sub(one, s), one));
      store_part(hn::Mul(weighted, silu), dup + j, left);
      store_part(hn::Mul(hn::Mul(weighted, u), slope), dgate + j, left);
    }
    if (p.dw != nullptr) p.dw[row] = hn::GetLane(hn::SumOfLanes(D(), dw));
  }
}

}  // namespace

void add_simd(const FlatProblem& p, std::int64_t begin, std::int64_t end) {
  if (p.dtype == DType::f32) {
    binary<Add, float, float, float>(p, begin, end);
  } else if (p.out_dtype == DType::f32) {
    binary<Add, float, bfloat16, float>(p, begin, end);
  } else {
    binary<Add, bfloat16, bfloat16, bfloat16>(p, begin, end);
  }
}

void scale_simd(const FlatProblem& p, std::int64_t begin, std::int64_t end) {
  if (p.dtype == DType::f32) {
    p.out_dtype == DType::f32 ? scaled<float, float>(p, begin, end) : scaled<float, bfloat16>(p, begin, end);
  } else {
    p.out_dtype == DType::f32 ? scaled<bfloat16, float>(p, begin, end)
                              : scaled<bfloat16, bfloat16>(p, begin, end);
  }
}

// 1 · x is x: the factor of a conversion changes nothing.
void convert_simd(const FlatProblem& p, std::int64_t begin, std::int64_t end) {
  scale_simd(p, begin, end);
}

void sum_of_squares_simd(DType dtype, const void* a, std::int64_t begin, std::int64_t end, SquareSums& sums) {
  dtype == DType::f32 ? squares(static_cast<const float*>(a) + begin, end - begin, sums)
                      : squares(static_cast<const bfloat16*>(a) + begin, end - begin, sums);
}

void swiglu_simd(const SwigluProblem& p, std::int64_t begin, std::int64_t end) {
  p.dtype == DType::f32 ? forward<float>(p, begin, end) : forward<bfloat16>(p, begin, end);
}

void swiglu_backward_simd(const SwigluProblem& p, std::int64_t begin, std::int64_t end) {
  p.dtype == DType::f32 ? backward<float>(p, begin, end) : backward<bfloat16>(p, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

using I = std::int64_t;

SWITCHYARD_SIMD_EXPORT(add, (const FlatProblem& p, I begin, I end), (p, begin, end))
SWITCHYARD_SIMD_EXPORT(scale, (const FlatProblem& p, I begin, I end), (p, begin, end))
SWITCHYARD_SIMD_EXPORT(convert, (const FlatProblem& p, I begin, I end), (p, begin, end))
SWITCHYARD_SIMD_EXPORT(sum_of_squares, (DType dtype, const void* a, I begin, I end, SquareSums& sums),
                       (dtype, a, begin, end, sums))
SWITCHYARD_SIMD_EXPORT(swiglu, (const SwigluProblem& p, I begin, I end), (p, begin, end))
SWITCHYARD_SIMD_EXPORT(swiglu_backward, (const SwigluProblem& p, I begin, I end), (p, begin, end))

}  // namespace switchyard::cpu
#endif
