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

void adam_tile_simd(const AdamTerms& terms, float* weight, const float* grad, float* mu, float* nu) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> d;
  for (std::int64_t i = 0; i < kAdamTile; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    const auto w = hn::LoadU(d, weight + i);
    const auto g = hn::Mul(hn::LoadU(d, grad + i), hn::Set(d, terms.grad_scale));
    const auto m =
        hn::MulAdd(hn::Set(d, terms.mu_decay), hn::LoadU(d, mu + i), hn::Mul(hn::Set(d, terms.mu_gain), g));
    const auto v = hn::MulAdd(hn::Set(d, terms.nu_decay), hn::LoadU(d, nu + i),
                              hn::Mul(hn::Set(d, terms.nu_gain), hn::Mul(g, g)));
    const auto root = hn::Sqrt(hn::MulAdd(v, hn::Set(d, terms.nu_correction), hn::Set(d, terms.eps_root)));
    const auto direction =
        hn::Div(hn::Mul(m, hn::Set(d, terms.mu_correction)), hn::Add(root, hn::Set(d, terms.eps)));
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

void adam_tile(const AdamTerms& terms, float* weight, const float* grad, float* mu, float* nu) {
  HWY_DYNAMIC_DISPATCH(adam_tile_simd)(terms, weight, grad, mu, nu);
}

}  // namespace switchyard
#endif
