// Sums over ranks for AVX2 and AVX-512. Two vectors at a time, of all inputs, are added in registers; bf16
// goes as its even and odd elements.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/pointwise/cpu/rank_sum.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/elementwise_lanes-inl.h"
#include "kernels/pointwise/rank_sum.h"
#include "kernels/registry/simd_rows.h"

#if HWY_TARGET != HWY_SCALAR  // of which nothing is called
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using lanes::Split;

constexpr std::int64_t kStep = static_cast<std::int64_t>(lanes::kLanes), kBlock = 2 * kStep;

template <typename T, typename Out>
void sum(const RankSumProblem& p) {
  constexpr bool kPairs = std::is_same_v<T, bfloat16>;
  Out* const out = static_cast<Out*>(p.out);
  std::int64_t i = p.begin;
  for (; i + kBlock <= p.end; i += kBlock) {
    Split s = lanes::load_block<kPairs>(static_cast<const T*>(p.inputs[0]) + i);
    for (std::size_t r = 1; r < p.inputs.size(); ++r) {
      const Split x = lanes::load_block<kPairs>(static_cast<const T*>(p.inputs[r]) + i);
      s.even = hn::Add(s.even, x.even);
      s.odd = hn::Add(s.odd, x.odd);
    }
    if constexpr (kPairs) {
      lanes::store_pairs(s, out + i);
    } else {
      lanes::store(s.even, out + i);
      lanes::store(s.odd, out + i + kStep);
    }
  }
  RankSumProblem rest = p;
  rest.begin = i;
  ref::rank_sum(rest);
}

}  // namespace

void rank_sum_simd(const RankSumProblem& p) {
  if (p.dtype == DType::f32)
    sum<float, float>(p);
  else if (p.out_dtype == DType::f32)
    sum<bfloat16, float>(p);
  else
    sum<bfloat16, bfloat16>(p);
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

SWITCHYARD_SIMD_EXPORT(rank_sum, (const RankSumProblem& p), (p))

}  // namespace switchyard::cpu
#endif
