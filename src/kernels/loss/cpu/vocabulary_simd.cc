// Passes over a vocabulary's logits for AVX2 and AVX-512.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/loss/cpu/vocabulary_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numbers>

#include "hwy/highway.h"
#include "kernels/loss/vocabulary_problem.h"
#include "kernels/registry/simd_rows.h"

#if HWY_TARGET != HWY_SCALAR  // of which nothing is called
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Doubles = hn::ScalableTag<double>;
using Halves = hn::Rebind<float, Doubles>;
using Wholes = hn::RebindToUnsigned<Doubles>;
using Ids = hn::RebindToUnsigned<Floats>;
constexpr std::size_t kFloats = hn::MaxLanes(Floats()), kDoubles = hn::MaxLanes(Doubles());
static_assert(kLogitBlock % kFloats == 0 && kFloats <= kIdsRoom);

// Weighs logits as the reference implementation does, operation by operation.
class WeightLanes {
 public:
  explicit WeightLanes(const LogitWeightsProblem& p)
      : top_(hn::Set(d_, static_cast<double>(p.top))), factor_(hn::Set(d_, p.factor)), scale_(p.scale) {}

  hn::Vec<Wholes> operator()(const float* logits) const {
    const auto logit = hn::PromoteTo(d_, hn::LoadU(Halves(), logits));
    const auto x = hn::IfThenZeroElse(hn::Eq(logit, top_), hn::Mul(hn::Sub(logit, top_), factor_));
    const auto rounded = hn::MulAdd(x, hn::Set(d_, std::numbers::log2e), hn::Set(d_, kRounds));
    const auto k = hn::Sub(rounded, hn::Set(d_, kRounds));
    const auto r = hn::NegMulAdd(k, hn::Set(d_, kLn2Low), hn::NegMulAdd(k, hn::Set(d_, kLn2High), x));
    auto near_one = hn::Set(d_, kExpTerms[0]);
    for (std::size_t i = 1; i < std::size(kExpTerms); ++i)
      near_one = hn::MulAdd(near_one, r, hn::Set(d_, kExpTerms[i]));
    // The last bits of `rounded` hold k; those above are of kRounds, which a shift leaves behind.
    const Wholes w;
    const auto exponent =
        hn::Add(hn::BitCast(w, rounded), hn::Set(w, static_cast<std::uint64_t>(scale_ + 1023)));
    const auto power = hn::BitCast(d_, hn::ShiftLeft<52>(exponent));
    const auto whole = hn::BitCast(w, hn::MulAdd(near_one, power, hn::Set(d_, kWholes)));
    const auto weight = hn::Sub(whole, hn::Set(w, std::bit_cast<std::uint64_t>(kWholes)));
    return hn::IfThenElseZero(hn::RebindMask(w, hn::Gt(x, hn::Set(d_, kLeastExponent))), weight);
  }

 private:
  Doubles d_;
  hn::Vec<Doubles> top_, factor_;
  int scale_;
};

float largest_of_block(const float* logits) {
  const Floats d;
  auto most = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (std::size_t i = 0; i < kLogitBlock; i += kFloats) {
    const auto x = hn::LoadU(d, logits + i);
    most = hn::IfThenElse(hn::Gt(x, most), x, most);
  }
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

}  // namespace

void logit_block_maxima_simd(const LogitMaximaProblem& p) {
  const std::size_t whole = p.logits.size() / kLogitBlock;
  for (std::size_t b = 0; b < whole; ++b) p.maxima[b] = largest_of_block(p.logits.data() + b * kLogitBlock);
  ref::logit_block_maxima({p.logits.subspan(whole * kLogitBlock), p.maxima + whole});
}

std::uint64_t logit_weights_simd(const LogitWeightsProblem& p) {
  const WeightLanes weigh(p);
  const Wholes w;
  auto sum = hn::Zero(w), other_sum = hn::Zero(w);
  std::size_t i = 0;
  for (; i + 2 * kDoubles <= p.logits.size(); i += 2 * kDoubles) {
    const auto first = weigh(p.logits.data() + i), second = weigh(p.logits.data() + i + kDoubles);
    if (p.weights != nullptr) {
      hn::StoreU(first, w, p.weights + i);
      hn::StoreU(second, w, p.weights + i + kDoubles);
    }
    sum = hn::Add(sum, first);
    other_sum = hn::Add(other_sum, second);
  }
  LogitWeightsProblem rest = p;
  rest.logits = p.logits.subspan(i);
  if (p.weights != nullptr) rest.weights = p.weights + i;
  return hn::GetLane(hn::SumOfLanes(w, hn::Add(sum, other_sum))) + ref::logit_weights(rest);
}

std::size_t logits_from_simd(const LogitsFromProblem& p) {
  const Floats d;
  const Ids u;
  const auto least = hn::Set(d, p.least);
  std::size_t count = 0, i = 0;
  for (; i + kFloats <= p.logits.size(); i += kFloats) {
    const auto in = hn::Ge(hn::LoadU(d, p.logits.data() + i), least);
    if (hn::AllFalse(d, in)) continue;
    const auto ids = hn::Iota(u, static_cast<std::uint32_t>(i));
    hn::StoreU(hn::Compress(ids, hn::RebindMask(u, in)), u, p.ids + count);
    count += hn::CountTrue(d, in);
  }
  for (; i < p.logits.size(); ++i) {
    if (p.logits[i] >= p.least) p.ids[count++] = static_cast<std::uint32_t>(i);
  }
  return count;
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

SWITCHYARD_SIMD_EXPORT(logit_block_maxima, (const LogitMaximaProblem& p), (p))

std::uint64_t logit_weights_avx2(const LogitWeightsProblem& p) {
  return N_AVX2::logit_weights_simd(p);
}
std::uint64_t logit_weights_avx512(const LogitWeightsProblem& p) {
  return N_AVX3::logit_weights_simd(p);
}
std::size_t logits_from_avx2(const LogitsFromProblem& p) {
  return N_AVX2::logits_from_simd(p);
}
std::size_t logits_from_avx512(const LogitsFromProblem& p) {
  return N_AVX3::logits_from_simd(p);
}

}  // namespace switchyard::cpu
#endif
