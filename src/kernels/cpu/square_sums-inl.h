// Squares of whole blocks of two vectors, for square_sums.h. Included once
// per instruction set, after elementwise_lanes-inl.h.
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/elementwise_lanes-inl.h"
#include "kernels/cpu/square_sums.h"

#if defined(SWITCHYARD_SQUARE_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SWITCHYARD_SQUARE_SUMS_INL_H_
#undef SWITCHYARD_SQUARE_SUMS_INL_H_
#else
#define SWITCHYARD_SQUARE_SUMS_INL_H_
#endif

#if HWY_TARGET != HWY_SCALAR  // of which nothing is called
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace lanes {

// The sums of SquareSums, in registers and in the order in which vectors have them. `pairs`: blocks come as
// even and odd elements, else as two halves. A round of all sums is one block on AVX-512, two on AVX2.
template <bool pairs>
class BlockSquares {
 public:
  static constexpr std::int64_t kBlock = 2 * static_cast<std::int64_t>(kLanes);
  static constexpr std::int64_t kBlocks = SquareSums::kCount / kBlock;

  BlockSquares() {
    for (Sum& sum : sums_) sum = hn::Zero(Doubles());
  }

  // `block` of a round.
  template <std::int64_t block>
  HWY_INLINE void add(Split s) {
    add_vector(s.even, sums_ + 4 * block);
    add_vector(s.odd, sums_ + 4 * block + 2);
  }

  void add_to(SquareSums& squares) const {
    constexpr auto lanes = static_cast<std::int64_t>(kLanes);
    alignas(64) double sums[SquareSums::kCount];
    for (std::int64_t i = 0; i < 4 * kBlocks; ++i) hn::StoreU(sums_[i], Doubles(), sums + i * lanes / 2);
    for (std::int64_t i = 0; i < SquareSums::kCount; ++i) {
      const std::int64_t in_block = i % kBlock;
      const std::int64_t element = pairs ? 2 * (in_block % lanes) + in_block / lanes : in_block;
      squares.sums[i - in_block + element] += sums[i];
    }
  }

 private:
  using Doubles = hn::Repartition<double, D>;
  using Sum = hn::Vec<Doubles>;

  static HWY_INLINE void add_vector(V v, Sum* sums) {
    const hn::Half<D> half;
    const Sum lower = hn::PromoteTo(Doubles(), hn::LowerHalf(half, v));
    const Sum upper = hn::PromoteTo(Doubles(), hn::UpperHalf(half, v));
    sums[0] = hn::MulAdd(lower, lower, sums[0]);
    sums[1] = hn::MulAdd(upper, upper, sums[1]);
  }

  Sum sums_[4 * kBlocks];
};

// Calls body(i, block) for the blocks of the whole rounds of [begin, end), `block` of a round being a
// constant; returns where they end.
template <typename Squares, typename Body>
HWY_INLINE std::int64_t for_rounds(std::int64_t begin, std::int64_t end, const Body& body) {
  std::int64_t i = begin;
  for (; i + SquareSums::kCount <= end; i += SquareSums::kCount) {
    body(i, std::integral_constant<std::int64_t, 0>());
    if constexpr (Squares::kBlocks == 2) body(i + Squares::kBlock, std::integral_constant<std::int64_t, 1>());
  }
  return i;
}

}  // namespace lanes
}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard
