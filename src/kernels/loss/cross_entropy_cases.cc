// Projection with cross-entropy. The reference implementation computes in double and does not round the
// gradients of the logits, which the others round to the operands' dtype before they multiply them.
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <random>

#include "kernels/loss/cross_entropy.h"
#include "kernels/registry/isa.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {
namespace {

struct LossShape {
  std::int64_t rows, emb, vocab;
  float soft_cap = 0;
  std::int64_t vocab_begin = 0;
};

constexpr LossShape kLossShapes[] = {
    {0, 30, 17},
    {1, 1, 1},
    {1, 64, 600, 0, 300},
    {33, 30, 0},
    {33, 70, 17, 0, 8},
    {33, 64, 600, 0, 300},  // about a third of the targets on each side of the columns
    {290, 33, 290},
    {20, 8, 100, 2.5f, 10},
    {5, 300, 50},
    {33, 160, 600, 0, 300},
    {290, 132, 700},          // wide enough to keep exponentials on AMX, in two blocks of rows
    {5, 520, 50},             // wider than the fused kernels take
    {530, 4, 2060},           // several blocks of rows and columns
    {70, 544, 2100, 0, 900},  // the same, wide
    {2070, 513, 40},          // wide, with several blocks of rows
    {33, 4, 10300},           // more than eight chunks (cpu/cross_entropy_tiles_pack.h)
};
// Hopper's kernels of narrow models take these.
constexpr LossShape kNarrowShapes[] = {
    {200, 128, 392, 0, 40},    // one piece of the vocabulary
    {70, 64, 1160, 2.5f, 10},  // two
    {1100, 64, 136},           // two pieces of the rows
};

struct LossData {
  LossData(const LossShape& s, DType dtype, bool vocab_major, std::uint32_t seed);
  LossShape shape;
  DType dtype;
  bool vocab_major;
  std::vector<std::int32_t> targets;
  PoisonedArray hidden, weight;
};

LossData::LossData(const LossShape& s, DType type, bool major, std::uint32_t seed)
    : shape(s),
      dtype(type),
      vocab_major(major),
      hidden(PoisonedArray::normal(type, s.rows * s.emb, seed)),
      weight(PoisonedArray::normal(type, s.vocab * s.emb, seed + 1,
                                   1.5f / std::sqrt(static_cast<float>(s.emb)))) {
  std::mt19937 generator(seed);
  const auto span = static_cast<std::uint32_t>(s.vocab + 2 * s.vocab_begin + 1);
  for (std::int64_t r = 0; r < s.rows; ++r)
    targets.push_back(static_cast<std::int32_t>(generator() % span) - (s.vocab_begin == 0 ? 1 : 0));
}

using SharedLoss = std::shared_ptr<const LossData>;

Shape weight_shape(const LossData& d) {
  return d.vocab_major ? Shape{d.shape.vocab, d.shape.emb} : Shape{d.shape.emb, d.shape.vocab};
}

CrossEntropyLogits logits_of(const LossData& d, const Arrays& in) {
  return {.hidden = in[0].view({d.shape.rows, d.shape.emb}),
          .weight = in[1].view(weight_shape(d)),
          .weight_vocab_major = d.vocab_major,
          .targets = in[2].view(),
          .vocab_begin = d.shape.vocab_begin,
          .logit_soft_cap = d.shape.soft_cap};
}

Case loss_forward_case(const SharedLoss& d, std::uint32_t) {
  const PoisonedArray row(DType::f32, d->shape.rows);
  return {d->dtype,
          "",
          {d->hidden, d->weight, i32_array(d->targets)},
          {{"lse", row, {2e-6, 2e-6}}, {"target_logit", row, {2e-6, 2e-5}}},
          [d](ThreadPool& pool, const Arrays& in, Arrays& out) {
            linear_cross_entropy(pool, {logits_of(*d, in), out[0].view(), out[1].view()});
          }};
}

// The last output, or nothing.
template <bool frozen_weight>
TensorView weight_gradient(const LossData& d, Arrays& out) {
  return frozen_weight ? TensorView() : out.back().view(weight_shape(d));
}

// lse is the reference implementation's, so that a wrong forward does not hide a wrong backward pass.
template <bool frozen_weight>
Case loss_backward_case(const SharedLoss& d, std::uint32_t seed) {
  Draw draw(seed);
  PoisonedArray lse(DType::f32, d->shape.rows), target_logit = lse;
  Arrays inputs{d->hidden, d->weight, i32_array(d->targets), draw.normal(DType::f32, d->shape.rows),
                draw.normal(DType::f32, d->shape.rows)};
  {
    const ScopedIsa ref(Isa::ref);
    ThreadPool pool(1);
    linear_cross_entropy(pool, {logits_of(*d, inputs), lse.view(), target_logit.view()});
  }
  inputs.push_back(std::move(lse));
  // Each rounding of a bf16 gradient is at most 2^-8 of it.
  const double of_largest = d->dtype == DType::bf16 ? 1e-2 : 5e-6;
  Case c{d->dtype,
         "",
         std::move(inputs),
         {{"dhidden", PoisonedArray(DType::f32, d->hidden.size()), {0, 1e-30}, of_largest},
          {"dweight", PoisonedArray(d->dtype, d->weight.size()), {0, 1e-30}, of_largest}},
         [d](ThreadPool& pool, const Arrays& in, Arrays& out) {
           linear_cross_entropy_backward(pool, {.logits = logits_of(*d, in),
                                                .lse = in[5].view(),
                                                .softmax_coefficient = in[3].view(),
                                                .target_coefficient = in[4].view(),
                                                .dhidden = out[0].view(),
                                                .dweight = weight_gradient<frozen_weight>(*d, out)});
         }};
  if (frozen_weight) c.outputs.pop_back();
  return c;
}

// In blocks of 256 rows. The reference is both passes on `ref`.
template <bool frozen_weight>
Case loss_with_gradients_case(const SharedLoss& d, std::uint32_t seed) {
  Draw draw(seed);
  const PoisonedArray row(DType::f32, d->shape.rows);
  const double of_largest = d->dtype == DType::bf16 ? 1e-2 : 5e-6;
  Case c{d->dtype,
         "",
         {d->hidden, d->weight, i32_array(d->targets), draw.normal(DType::f32, d->shape.rows),
          draw.normal(DType::f32, d->shape.rows)},
         {{"lse", row, {2e-6, 2e-6}},
          {"target_logit", row, {2e-6, 2e-5}},
          {"dhidden", PoisonedArray(DType::f32, d->hidden.size()), {0, 1e-30}, of_largest},
          {"dweight", PoisonedArray(d->dtype, d->weight.size()), {0, 1e-30}, of_largest}},
         [d](ThreadPool& pool, const Arrays& in, Arrays& out) {
           CrossEntropyLogits logits = logits_of(*d, in);
           logits.whole_vocab = 1 << 20;
           linear_cross_entropy_with_gradients(pool, {.logits = logits,
                                                      .lse = out[0].view(),
                                                      .target_logit = out[1].view(),
                                                      .softmax_coefficient = in[3].view(),
                                                      .target_coefficient = in[4].view(),
                                                      .dhidden = out[2].view(),
                                                      .dweight = weight_gradient<frozen_weight>(*d, out),
                                                      .summed = [](std::int64_t, std::int64_t) {}});
         }};
  if (frozen_weight) c.outputs.pop_back();
  return c;
}

template <Case make(const SharedLoss&, std::uint32_t)>
std::vector<Case> loss_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  const auto add = [&](const LossShape& s, DType dtype, bool vocab_major) {
    seed += 4;
    cases.push_back(make(std::make_shared<LossData>(s, dtype, vocab_major, seed), seed + 2));
    cases.back().what = fmt::format("{} rows, {} dims, {} columns from {} on{}{}, seed {}", s.rows, s.emb,
                                    s.vocab, s.vocab_begin, vocab_major ? ", vocabulary first" : "",
                                    s.soft_cap > 0 ? fmt::format(", soft cap {}", s.soft_cap) : "", seed);
  };
  for (const DType dtype : kFloatTypes) {
    for (const bool vocab_major : {false, true}) {
      for (const LossShape& s : kLossShapes) add(s, dtype, vocab_major);
    }
  }
  for (const bool vocab_major : {false, true}) {
    for (const LossShape& s : kNarrowShapes) add(s, DType::bf16, vocab_major);
  }
  return cases;
}

}  // namespace

std::vector<KernelCases> cross_entropy_kernels() {
  return {{"linear_cross_entropy", "linear_cross_entropy", loss_cases<loss_forward_case>},
          {"linear_cross_entropy_backward", "linear_cross_entropy_backward",
           loss_cases<loss_backward_case<false>>},
          {"linear_cross_entropy_backward of a frozen weight", "linear_cross_entropy_backward",
           loss_cases<loss_backward_case<true>>},
          {"linear_cross_entropy_gradients", "linear_cross_entropy_gradients",
           loss_cases<loss_with_gradients_case<false>>},
          {"linear_cross_entropy_gradients of a frozen weight", "linear_cross_entropy_gradients",
           loss_cases<loss_with_gradients_case<true>>}};
}

}  // namespace switchyard::selftest
