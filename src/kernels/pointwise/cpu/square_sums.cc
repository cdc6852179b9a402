// Sums of squares for AVX2 and AVX-512.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/pointwise/cpu/square_sums.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/elementwise_lanes-inl.h"
#include "kernels/cpu/square_sums-inl.h"
#include "kernels/pointwise/elementwise_problem.h"
#include "kernels/registry/simd_rows.h"

#if HWY_TARGET != HWY_SCALAR  // of which nothing is called
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

constexpr std::int64_t kStep = static_cast<std::int64_t>(lanes::kLanes);

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

}  // namespace

void sum_of_squares_simd(DType dtype, const void* a, std::int64_t begin, std::int64_t end, SquareSums& sums) {
  dtype == DType::f32 ? squares(static_cast<const float*>(a) + begin, end - begin, sums)
                      : squares(static_cast<const bfloat16*>(a) + begin, end - begin, sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

using I = std::int64_t;

SWITCHYARD_SIMD_EXPORT(sum_of_squares, (DType dtype, const void* a, I begin, I end, SquareSums& sums),
                       (dtype, a, begin, end, sums))

}  // namespace switchyard::cpu
#endif
