// The optimizers' elementwise parts for AVX2 and AVX-512.
//
// Arrays go by in blocks of two vectors. Where one of them is bf16, a block is loaded as its even and its odd
// elements, which takes one instruction an element pair in either direction, where widening and narrowing
// would take three; float32 arrays beside it are then interleaved. A block with a NaN in its new weights
// (which is where every NaN ends up) is left to the reference, so that rounding need not look for them.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/optimizer/cpu/weight_update.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/elementwise_lanes-inl.h"
#include "kernels/cpu/square_sums-inl.h"
#include "kernels/optimizer/weight_update_problem.h"
#include "kernels/registry/simd_rows.h"

#if HWY_TARGET != HWY_SCALAR  // of which nothing is called
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using lanes::D;
using lanes::load_block;
using lanes::Split;
using lanes::V;

constexpr std::int64_t kStep = static_cast<std::int64_t>(lanes::kLanes), kBlock = 2 * kStep;

template <typename... T>
constexpr bool kPairs = (std::is_same_v<T, bfloat16> || ...);

// Rounded to bf16, which nearest-even rounding of the bits is for everything but NaN.
HWY_INLINE V rounded(V v) {
  const hn::RebindToUnsigned<D> wide;
  const auto bits = hn::BitCast(wide, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(wide, 1));
  const auto sum = hn::Add(hn::Add(bits, hn::Set(wide, 0x7fff)), odd);
  return hn::BitCast(D(), hn::And(sum, hn::Set(wide, 0xffff0000u)));
}

// Stores a block without NaN and returns what it became.
template <bool pairs, typename T>
HWY_INLINE Split store_block(Split s, T* x) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    const hn::RebindToUnsigned<D> wide;
    const Split r{rounded(s.even), rounded(s.odd)};
    const auto even = hn::ShiftRight<16>(hn::BitCast(wide, r.even));
    hn::StoreU(hn::Or(even, hn::BitCast(wide, r.odd)), wide, reinterpret_cast<std::uint32_t*>(x));
    return r;
  } else if constexpr (pairs) {
    lanes::store_pairs(s, x);
    return s;
  } else {
    lanes::store(s.even, x);
    lanes::store(s.odd, x + kStep);
    return s;
  }
}

HWY_INLINE bool has_nan(Split s) {
  return !hn::AllFalse(D(), hn::Or(hn::IsNaN(s.even), hn::IsNaN(s.odd)));
}

// Calls block(i, place in the round) for whole blocks. `slow` does the rest, and blocks that are refused.
template <typename Block, typename Slow>
HWY_INLINE void for_blocks(std::int64_t begin, std::int64_t end, const Block& block, const Slow& slow) {
  const std::int64_t done =
      lanes::for_rounds<lanes::BlockSquares<true>>(begin, end, [&](std::int64_t i, auto place) HWY_ATTR {
        if (!block(i, place)) slow(i, i + kBlock);
      });
  if (done < end) slow(done, end);
}

// Runs the reference on [from, to) of a piece. The squares continue the piece's sums at element `from`.
template <typename Problem>
void run_slow(UpdateKernel<Problem>* reference, const Problem& p, std::int64_t piece, std::int64_t from,
              std::int64_t to, SquareSums& squares) {
  SquareSums part;
  reference(p, from, to, part);
  constexpr std::int64_t n = SquareSums::kCount;
  for (std::int64_t i = 0; i < std::min(n, to - from); ++i)
    squares.sums[(from - piece + i) % n] += part.sums[i];
}

// One Adam step of a vector.
struct Adam {
  explicit Adam(const AdamTerms& terms)
      : grad_scale(hn::Set(D(), terms.grad_scale)),
        mu_decay(hn::Set(D(), terms.mu_decay)),
        mu_gain(hn::Set(D(), terms.mu_gain)),
        nu_decay(hn::Set(D(), terms.nu_decay)),
        nu_gain(hn::Set(D(), terms.nu_gain)),
        mu_correction(hn::Set(D(), terms.mu_correction)),
        nu_correction(hn::Set(D(), terms.nu_correction)),
        grad_share(hn::Set(D(), terms.grad_share)),
        eps(hn::Set(D(), terms.eps)),
        eps_root(hn::Set(D(), terms.eps_root)),
        learning_rate(hn::Set(D(), terms.learning_rate)),
        weight_decay(hn::Set(D(), terms.weight_decay)) {}

  HWY_INLINE void operator()(V& w, V grad, V& m, V& v) const {
    const V g = hn::Mul(grad, grad_scale);
    m = hn::MulAdd(mu_decay, m, hn::Mul(mu_gain, g));
    v = hn::MulAdd(nu_decay, v, hn::Mul(nu_gain, hn::Mul(g, g)));
    const V root = hn::Sqrt(hn::MulAdd(v, nu_correction, eps_root));
    const V mean = hn::MulAdd(grad_share, g, hn::Mul(m, mu_correction));
    const V update = hn::MulAdd(weight_decay, w, hn::Div(mean, hn::Add(root, eps)));
    w = hn::NegMulAdd(learning_rate, update, w);
  }

  const V grad_scale, mu_decay, mu_gain, nu_decay, nu_gain, mu_correction, nu_correction, grad_share, eps,
      eps_root, learning_rate, weight_decay;
};

template <typename W, typename G, typename M, typename N>
void adam_of(const AdamProblem& p, std::int64_t begin, std::int64_t end, SquareSums& squares) {
  constexpr bool pairs = kPairs<W, G, M, N>;
  W* const weight = static_cast<W*>(p.weight.data);
  const G* const grad = static_cast<const G*>(p.grad.data);
  M* const mu = static_cast<M*>(p.mu.data);
  N* const nu = static_cast<N*>(p.nu.data);
  const Adam adam(p.terms);
  lanes::BlockSquares<pairs> sums;
  const auto block = [&](std::int64_t i, auto place) HWY_ATTR {
    Split w = load_block<pairs>(weight + i), m = load_block<pairs>(mu + i), v = load_block<pairs>(nu + i);
    const Split g = load_block<pairs>(grad + i);
    adam(w.even, g.even, m.even, v.even);
    adam(w.odd, g.odd, m.odd, v.odd);
    if (pairs && has_nan(w)) return false;
    store_block<pairs>(m, mu + i);
    store_block<pairs>(v, nu + i);
    sums.template add<place.value>(store_block<pairs>(w, weight + i));
    return true;
  };
  for_blocks(begin, end, block,
             [&](std::int64_t from, std::int64_t to) { run_slow(ref::adam, p, begin, from, to, squares); });
  sums.add_to(squares);
}

template <typename W, typename G>
void descent_of(const DescentProblem& p, std::int64_t begin, std::int64_t end, SquareSums& squares) {
  constexpr bool pairs = kPairs<W, G>;
  W* const weight = static_cast<W*>(p.weight.data);
  const G* const grad = static_cast<const G*>(p.grad.data);
  const V rate = hn::Set(D(), p.rate), scale = hn::Set(D(), p.grad_scale);
  lanes::BlockSquares<pairs> sums;
  const auto block = [&](std::int64_t i, auto place) HWY_ATTR {
    Split w = load_block<pairs>(weight + i);
    const Split g = load_block<pairs>(grad + i);
    w.even = hn::NegMulAdd(rate, hn::Mul(g.even, scale), w.even);
    w.odd = hn::NegMulAdd(rate, hn::Mul(g.odd, scale), w.odd);
    if (pairs && has_nan(w)) return false;
    sums.template add<place.value>(store_block<pairs>(w, weight + i));
    return true;
  };
  for_blocks(begin, end, block, [&](std::int64_t from, std::int64_t to) {
    run_slow(ref::descent, p, begin, from, to, squares);
  });
  sums.add_to(squares);
}

template <typename G, typename M>
void momentum_of(const MomentumProblem& p, std::int64_t begin, std::int64_t end, SquareSums& squares) {
  constexpr bool pairs = kPairs<G, M>;
  const G* const grad = static_cast<const G*>(p.grad.data);
  M* const momentum = static_cast<M*>(p.momentum.data);
  const MomentumTerms& t = p.terms;
  const V scale = hn::Set(D(), p.grad_scale), decay = hn::Set(D(), t.decay), gain = hn::Set(D(), t.gain);
  const V of_momentum = hn::Set(D(), t.of_momentum), of_gradient = hn::Set(D(), t.of_gradient);
  const auto step = [&](V grad_part, V& m) HWY_ATTR {
    const V g = hn::Mul(grad_part, scale);
    m = hn::MulAdd(decay, m, hn::Mul(gain, g));
    return hn::MulAdd(of_gradient, g, hn::Mul(of_momentum, m));
  };
  const auto block = [&](std::int64_t i, auto) HWY_ATTR {
    Split m = load_block<pairs>(momentum + i);
    const Split g = load_block<pairs>(grad + i);
    const V even = step(g.even, m.even), odd = step(g.odd, m.odd);
    if (pairs && has_nan({even, odd})) return false;
    store_block<pairs>(m, momentum + i);
    store_block<pairs>({even, odd}, p.direction + i);
    return true;
  };
  for_blocks(begin, end, block, [&](std::int64_t from, std::int64_t to) {
    run_slow(ref::momentum, p, begin, from, to, squares);
  });
}

template <typename W>
void direction_of(const DirectionProblem& p, std::int64_t begin, std::int64_t end, SquareSums& squares) {
  constexpr bool pairs = kPairs<W>;
  W* const weight = static_cast<W*>(p.weight.data);
  const V rate = hn::Set(D(), p.rate), shrink = hn::Set(D(), p.shrink);
  lanes::BlockSquares<pairs> sums;
  const auto step = [&](V w, V direction)
                        HWY_ATTR { return hn::Sub(w, hn::MulAdd(rate, direction, hn::Mul(shrink, w))); };
  const auto block = [&](std::int64_t i, auto place) HWY_ATTR {
    Split w = load_block<pairs>(weight + i);
    const Split d = load_block<pairs>(p.direction + i);
    w = {step(w.even, d.even), step(w.odd, d.odd)};
    if (pairs && has_nan(w)) return false;
    sums.template add<place.value>(store_block<pairs>(w, weight + i));
    return true;
  };
  for_blocks(begin, end, block, [&](std::int64_t from, std::int64_t to) {
    run_slow(ref::direction, p, begin, from, to, squares);
  });
  sums.add_to(squares);
}

// Calls body(T()) with the C++ type of a dtype.
template <typename Body>
void with_type(DType dtype, const Body& body) {
  if (dtype == DType::f32)
    body(float());
  else
    body(bfloat16());
}

}  // namespace

void adam_simd(const AdamProblem& p, std::int64_t begin, std::int64_t end, SquareSums& squares) {
  with_type(p.weight.dtype, [&](auto w) {
    with_type(p.grad.dtype, [&](auto g) {
      with_type(p.mu.dtype, [&](auto m) {
        with_type(p.nu.dtype, [&](auto n) {
          adam_of<decltype(w), decltype(g), decltype(m), decltype(n)>(p, begin, end, squares);
        });
      });
    });
  });
}

void descent_simd(const DescentProblem& p, std::int64_t begin, std::int64_t end, SquareSums& squares) {
  with_type(p.weight.dtype, [&](auto w) {
    with_type(p.grad.dtype, [&](auto g) { descent_of<decltype(w), decltype(g)>(p, begin, end, squares); });
  });
}

void momentum_simd(const MomentumProblem& p, std::int64_t begin, std::int64_t end, SquareSums& squares) {
  with_type(p.grad.dtype, [&](auto g) {
    with_type(p.momentum.dtype,
              [&](auto m) { momentum_of<decltype(g), decltype(m)>(p, begin, end, squares); });
  });
}

void direction_simd(const DirectionProblem& p, std::int64_t begin, std::int64_t end, SquareSums& squares) {
  with_type(p.weight.dtype, [&](auto w) { direction_of<decltype(w)>(p, begin, end, squares); });
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

using I = std::int64_t;

SWITCHYARD_SIMD_EXPORT(adam, (const AdamProblem& p, I begin, I end, SquareSums& squares),
                       (p, begin, end, squares))
SWITCHYARD_SIMD_EXPORT(descent, (const DescentProblem& p, I begin, I end, SquareSums& squares),
                       (p, begin, end, squares))
SWITCHYARD_SIMD_EXPORT(momentum, (const MomentumProblem& p, I begin, I end, SquareSums& squares),
                       (p, begin, end, squares))
SWITCHYARD_SIMD_EXPORT(direction, (const DirectionProblem& p, I begin, I end, SquareSums& squares),
                       (p, begin, end, squares))

}  // namespace switchyard::cpu
#endif
