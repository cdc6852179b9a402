// The load of experts and the loss that balances it. The reference follows the definition in double, with
// gradients by differences.
#include <fmt/format.h>

#include <random>

#include "kernels/moe/balance.h"
#include "kernels/moe/reference/balance_reference.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {
namespace {

constexpr double kBalanceFactor = 2.5;

struct BalanceShape {
  std::int64_t batch, length, experts, per_token;
  RouterScore score;
  bool softmax_of_scores, biased, padded;
  std::vector<std::int32_t> ids, segments;

  Shape tokens(std::int64_t width) const { return {batch, length, width}; }
  TensorView ids_view() const { return TensorView::of_host(ids.data(), tokens(per_token)); }
  TensorView segments_view() const {
    return padded ? TensorView::of_host(segments.data(), {batch, length}) : TensorView();
  }
  BalanceScores scores(const Arrays& in) const {
    return {score, softmax_of_scores, in[0].view(tokens(experts)), biased ? in[1].view() : TensorView()};
  }
  reference::BalanceReference reference_of(const Arrays& in) const {
    reference::BalanceReference result{batch,
                                       length,
                                       experts,
                                       per_token,
                                       score,
                                       softmax_of_scores,
                                       kBalanceFactor,
                                       {},
                                       {},
                                       ids.data(),
                                       padded ? segments.data() : nullptr};
    for (std::int64_t i = 0; i < in[0].size(); ++i) result.logits.push_back(static_cast<double>(in[0].at(i)));
    for (std::int64_t e = 0; e < experts && biased; ++e)
      result.bias.push_back(static_cast<double>(in[1].at(e)));
    return result;
  }
  Tensor sums_beside(const PoisonedArray& array) const {
    return array.memory().empty(DType::f64, {batch, 2 * experts + 1});
  }
};

// Logits and bias. Where scores are each alone, all of every third token vanish in float32.
Arrays balance_inputs(const BalanceShape& s, Draw& draw) {
  Arrays in;
  in.push_back(draw.normal(DType::f32, s.batch * s.length * s.experts));
  in.push_back(draw.normal(DType::f32, s.experts));
  const float down = s.score == RouterScore::sqrt_softplus ? 230.0f : 110.0f;
  for (std::int64_t i = 0; i < in[0].size(); ++i) {
    if (scores_each_alone(s.score) && i / s.experts % 3 == 1) in[0].set(i, in[0].at(i) - down);
  }
  return in;
}

// make(shape, draw) gives a case without its name.
template <typename MakeCase>
std::vector<Case> balance_family(std::uint32_t seed, const MakeCase& make) {
  constexpr std::int64_t kSizes[][4] = {{0, 5, 4, 2}, {1, 1, 1, 1}, {3, 7, 6, 2}, {2, 40, 5, 3}};
  std::vector<Case> cases;
  for (const auto& [batch, length, experts, per_token] : kSizes) {
    for (const RouterScore score :
         {RouterScore::none, RouterScore::softmax, RouterScore::sigmoid, RouterScore::sqrt_softplus}) {
      for (const bool compat : {false, true}) {  // a softmax of biased scores of all tokens
        Draw draw(++seed * 4);
        BalanceShape s{batch,  length,  experts, per_token, score, compat || score == RouterScore::none,
                       compat, !compat, {},      {}};
        std::mt19937 generator(seed);
        for (std::int64_t i = 0; i < batch * length * per_token; ++i)
          s.ids.push_back(static_cast<std::int32_t>(generator() % static_cast<std::uint32_t>(experts)));
        for (std::int64_t t = 0; t < batch * length; ++t)
          s.segments.push_back(t / length == 1 ? 0 : static_cast<std::int32_t>(t % 4));
        const std::string what =
            fmt::format("[{}, {}] tokens, {} of {} experts, score {}{}, seed {}", batch, length, per_token,
                        experts, static_cast<int>(score), compat ? ", biased" : "", draw.seed());
        cases.push_back(make(s, draw));
        cases.back().what = what;
      }
    }
  }
  return cases;
}

std::vector<Case> balance_loss_cases(std::uint32_t seed) {
  return balance_family(seed, [](const BalanceShape& s, Draw& draw) {
    const std::int64_t logits = s.batch * s.length * s.experts;
    return Case{DType::f32,
                "",
                balance_inputs(s, draw),
                {{"probabilities", PoisonedArray(DType::f32, logits), {2e-6, 1e-7}},
                 {"loss", PoisonedArray(DType::f32, 1), {2e-6, 0}}},
                [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  const Tensor sums = s.sums_beside(in[0]), ids = beside(in[0], s.ids_view()),
                               segments = beside(in[0], s.segments_view());
                  balance_statistics(pool, {s.scores(in), ids.view(), segments.view(),
                                            out[0].view(s.tokens(s.experts)), sums.view()});
                  balance_loss_value(pool, {sums.view(), out[1].view({}), kBalanceFactor});
                },
                [s](const Arrays& in, Arrays& out) {
                  const auto expected = s.reference_of(in);
                  for (std::int64_t t = 0; t < s.batch * s.length; ++t) {
                    const auto p = expected.probabilities(t);
                    for (std::int64_t e = 0; e < s.experts; ++e)
                      out[0].set(t * s.experts + e, static_cast<float>(p[static_cast<std::size_t>(e)]));
                  }
                  out[1].set(0, static_cast<float>(expected.loss()));
                }};
  });
}

std::vector<Case> balance_backward_cases(std::uint32_t seed) {
  return balance_family(seed, [](const BalanceShape& s, Draw& draw) {
    const std::int64_t logits = s.batch * s.length * s.experts;
    Case c{DType::f32,
           "",
           balance_inputs(s, draw),
           {{"dlogits", PoisonedArray(DType::f32, logits), {1e-4, 1e-6}}},
           [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
             const float half = 0.5f;
             const Tensor sums = s.sums_beside(in[0]), ids = beside(in[0], s.ids_view()),
                          segments = beside(in[0], s.segments_view()),
                          probabilities = in[0].memory().empty(DType::f32, s.tokens(s.experts)),
                          g = beside(in[0], TensorView::of_host(&half, {}));
             balance_statistics(
                 pool, {s.scores(in), ids.view(), segments.view(), probabilities.view(), sums.view()});
             balance_loss_backward(pool, {.scores = s.scores(in),
                                          .segments = segments.view(),
                                          .probabilities = probabilities.view(),
                                          .sums = sums.view(),
                                          .gradient = g.view(),
                                          .dlogits = out[0].view(s.tokens(s.experts)),
                                          .dbias = s.biased ? out[1].view() : TensorView(),
                                          .factor = kBalanceFactor});
           },
           [s](const Arrays& in, Arrays& out) {
             auto expected = s.reference_of(in);
             const auto of_logits = expected.gradient(expected.logits),
                        of_bias = expected.gradient(expected.bias);
             for (std::size_t i = 0; i < of_logits.size(); ++i)
               out[0].set(static_cast<std::int64_t>(i), static_cast<float>(of_logits[i] / 2));
             for (std::size_t e = 0; e < of_bias.size(); ++e)
               out[1].set(static_cast<std::int64_t>(e), static_cast<float>(of_bias[e] / 2));
           }};
    if (s.biased) c.outputs.push_back({"dbias", PoisonedArray(DType::f32, s.experts), {1e-4, 1e-5}});
    return c;
  });
}

std::vector<Case> count_choices_cases(std::uint32_t seed) {
  return balance_family(seed, [](const BalanceShape& s, Draw&) {
    return Case{
        DType::i32,
        "",
        {},
        {{"counts", PoisonedArray(DType::i32, s.experts)}},
        [s](ThreadPool& pool, const Arrays&, Arrays& out) {
          const Tensor ids = beside(out[0], s.ids_view()), segments = beside(out[0], s.segments_view());
          count_choices(pool, {ids.view(), segments.view(), out[0].view()});
        },
        [s](const Arrays&, Arrays& out) {
          auto* const counts = static_cast<std::int32_t*>(out[0].data());
          for (std::int64_t e = 0; e < s.experts; ++e) {
            counts[e] = 0;
            for (std::size_t i = 0; i < s.ids.size(); ++i) {
              const bool there = !s.padded || s.segments[i / static_cast<std::size_t>(s.per_token)] != 0;
              counts[e] += there && s.ids[i] == e ? 1 : 0;
            }
          }
        }};
  });
}

}  // namespace

std::vector<KernelCases> balance_kernels() {
  return {{"balance_loss", "balance_loss_value", balance_loss_cases},
          {"balance_loss_backward", "balance_loss_backward", balance_backward_cases},
          {"count_choices", "count_choices", count_choices_cases}};
}

}  // namespace switchyard::selftest
