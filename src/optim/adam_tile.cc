// Highway rather than a plain loop: the square root's errno keeps compilers from vectorising it.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/adam_tile.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "optim/adam_tile.h"

HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void widen_tile_simd(const std::uint16_t* from, float* to) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> d32;
  const hn::Rebind<std::uint16_t, decltype(d)> d16;
  for (std::int64_t i = 0; i < kAdamTile; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, from + i)));
    hn::StoreU(hn::BitCast(d, bits), d, to + i);
  }
}

void narrow_tile_simd(const float* from, std::uint16_t* to) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::RebindToSigned<decltype(d)> d32;
  const hn::Rebind<std::uint16_t, decltype(d)> d16;
  for (std::int64_t i = 0; i < kAdamTile; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    const auto value = hn::LoadU(d, from + i);
    const auto bits = hn::BitCast(du, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto even = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
    const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
    const auto word = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), quiet, even);
    // At most 65535, so the saturating conversion keeps every bit.
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(d32, hn::ShiftRight<16>(word))), d16, to + i);
  }
}

void adam_tile_simd(const AdamTerms& terms, float* weight, const float* grad, float* mu, float* nu) {
  const hn::ScalableTag<float> d;
  for (std::int64_t i = 0; i < kAdamTile; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    const auto w = hn::LoadU(d, weight + i);
    const auto g = hn::Mul(hn::LoadU(d, grad + i), hn::Set(d, terms.grad_scale));
    const auto m =
        hn::MulAdd(hn::Set(d, terms.mu_decay), hn::LoadU(d, mu + i), hn::Mul(hn::Set(d, terms.mu_gain), g));
    const auto v = hn::MulAdd(hn::Set(d, terms.nu_decay), hn::LoadU(d, nu + i),
                              hn::Mul(hn::Set(d, terms.nu_gain), hn::Mul(g, g)));
    const auto root = hn::Sqrt(hn::MulAdd(v, hn::Set(d, terms.nu_correction), hn::Set(d, terms.eps_root)));
    const auto mean =
        hn::MulAdd(hn::Set(d, terms.grad_share), g, hn::Mul(m, hn::Set(d, terms.mu_correction)));
    const auto direction = hn::Div(mean, hn::Add(root, hn::Set(d, terms.eps)));
    const auto update = hn::MulAdd(hn::Set(d, terms.weight_decay), w, direction);
    hn::StoreU(hn::NegMulAdd(hn::Set(d, terms.learning_rate), update, w), d, weight + i);
    hn::StoreU(m, d, mu + i);
    hn::StoreU(v, d, nu + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace switchyard {

HWY_EXPORT(adam_tile_simd);
HWY_EXPORT(widen_tile_simd);
HWY_EXPORT(narrow_tile_simd);

void adam_tile(const AdamTerms& terms, float* weight, const float* grad, float* mu, float* nu) {
  HWY_DYNAMIC_DISPATCH(adam_tile_simd)(terms, weight, grad, mu, nu);
}

void widen_tile(const bfloat16* from, float* to) {
  HWY_DYNAMIC_DISPATCH(widen_tile_simd)(&from->bits, to);
}
void narrow_tile(const float* from, bfloat16* to) {
  HWY_DYNAMIC_DISPATCH(narrow_tile_simd)(from, &to->bits);
}

}  // namespace switchyard
#endif
