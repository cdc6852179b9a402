// Moves of ragged_rows.h for AVX2 and AVX-512, in vectors of columns; tails have the same arithmetic.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/moe/cpu/ragged_rows.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <cstring>
#include <vector>

#include "hwy/highway.h"
#include "kernels/cpu/elementwise_lanes-inl.h"
#include "kernels/moe/ragged_rows_problem.h"
#include "kernels/registry/simd_rows.h"

HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using lanes::V;

constexpr std::int64_t kStep = static_cast<std::int64_t>(lanes::kLanes);

template <typename T>
HWY_INLINE V load_part(const T* x, std::int64_t count) {
  return count >= kStep ? lanes::load(x) : lanes::load_some(x, static_cast<std::size_t>(count));
}

template <typename T>
HWY_INLINE void store_part(V v, T* x, std::int64_t count) {
  count >= kStep ? lanes::store(v, x) : lanes::store_some(v, x, static_cast<std::size_t>(count));
}

template <typename T>
void gather(const RaggedRows& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const T* x = static_cast<const T*>(p.x) + p.index[at] * p.m;
    T* out = static_cast<T*>(p.out) + i * p.m;
    if (p.w == nullptr) {
      if (p.m > 0) std::memcpy(out, x, static_cast<std::size_t>(p.m) * sizeof(T));
      continue;
    }
    const V w = hn::Set(lanes::D(), p.w[at]);
    for (std::int64_t j = 0; j < p.m; j += kStep) {
      store_part(hn::Mul(w, load_part(x + j, p.m - j)), out + j, p.m - j);
    }
  }
}

template <typename T>
struct WeightedRow {
  const T* x;
  float w;
};

template <typename T, typename Out>
void gather_reduce(const RaggedRows& p, std::int64_t begin, std::int64_t end) {
  std::vector<WeightedRow<T>> rows(static_cast<std::size_t>(p.per_token));
  for (std::int64_t t = begin; t < end; ++t) {
    std::size_t count = 0;
    for (std::int64_t assignment = t * p.per_token; assignment < (t + 1) * p.per_token; ++assignment) {
      const std::int64_t position = p.index[static_cast<std::size_t>(assignment)];
      if (position < 0 || position >= p.rows) continue;
      rows[count++] = {static_cast<const T*>(p.x) + position * p.m, p.w == nullptr ? 1.0f : p.w[assignment]};
    }
    Out* out = static_cast<Out*>(p.out) + t * p.m;
    for (std::int64_t j = 0; j < p.m; j += kStep) {
      V sum = hn::Zero(lanes::D());
      for (std::size_t i = 0; i < count; ++i) {
        sum = hn::MulAdd(hn::Set(lanes::D(), rows[i].w), load_part(rows[i].x + j, p.m - j), sum);
      }
      store_part(sum, out + j, p.m - j);
    }
  }
}

template <typename T>
float dot(const T* x, const T* y, std::int64_t m) {
  V even = hn::Zero(lanes::D()), odd = even;
  std::int64_t j = 0;
  for (; j + 2 * kStep <= m; j += 2 * kStep) {
    even = hn::MulAdd(lanes::load(x + j), lanes::load(y + j), even);
    odd = hn::MulAdd(lanes::load(x + j + kStep), lanes::load(y + j + kStep), odd);
  }
  for (; j < m; j += kStep) even = hn::MulAdd(load_part(x + j, m - j), load_part(y + j, m - j), even);
  return hn::GetLane(hn::SumOfLanes(lanes::D(), hn::Add(even, odd)));
}

template <typename T>
void row_dot(const RaggedRows& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t assignment = begin * p.per_token; assignment < end * p.per_token; ++assignment) {
    const std::int64_t position = p.index[static_cast<std::size_t>(assignment)];
    const bool exists = position >= 0 && position < p.rows;
    static_cast<float*>(p.out)[assignment] =
        exists ? dot(static_cast<const T*>(p.dy) + assignment / p.per_token * p.m,
                     static_cast<const T*>(p.x) + position * p.m, p.m)
               : 0.0f;
  }
}

}  // namespace

void ragged_gather_simd(const RaggedRows& p, std::int64_t begin, std::int64_t end) {
  p.dtype == DType::f32 ? gather<float>(p, begin, end) : gather<bfloat16>(p, begin, end);
}

void ragged_gather_reduce_simd(const RaggedRows& p, std::int64_t begin, std::int64_t end) {
  if (p.dtype == DType::f32) {
    p.out_dtype == DType::f32 ? gather_reduce<float, float>(p, begin, end)
                              : gather_reduce<float, bfloat16>(p, begin, end);
  } else {
    p.out_dtype == DType::f32 ? gather_reduce<bfloat16, float>(p, begin, end)
                              : gather_reduce<bfloat16, bfloat16>(p, begin, end);
  }
}

void ragged_row_dot_simd(const RaggedRows& p, std::int64_t begin, std::int64_t end) {
  p.dtype == DType::f32 ? row_dot<float>(p, begin, end) : row_dot<bfloat16>(p, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

using I = std::int64_t;

SWITCHYARD_SIMD_EXPORT(ragged_gather, (const RaggedRows& p, I begin, I end), (p, begin, end))
SWITCHYARD_SIMD_EXPORT(ragged_gather_reduce, (const RaggedRows& p, I begin, I end), (p, begin, end))
SWITCHYARD_SIMD_EXPORT(ragged_row_dot, (const RaggedRows& p, I begin, I end), (p, begin, end))

}  // namespace switchyard::cpu
#endif
