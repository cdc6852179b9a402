#include "kernels/moe/route.h"

#include <gtest/gtest.h>

#include "kernels/moe/reference/route_cases.h"
#include "kernels/moe/reference/route_reference.h"
#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

using kernel_test::Array;

constexpr std::int64_t kBatch = 3, kLength = 45, kExperts = 16;

std::vector<double> row(const Array& x, std::int64_t t, std::int64_t width) {
  std::vector<double> result;
  for (std::int64_t i = 0; i < width; ++i) result.push_back(static_cast<double>(x.at(t * width + i)));
  return result;
}

struct Problem {
  Problem(const reference::NamedRule& named, std::int64_t slots_of_token)
      : rule(named.rule), slots(slots_of_token), with_bias(named.bias) {}
  RoutingRule rule;
  std::int64_t slots;
  bool with_bias;
  Array logits = Array::normal(DType::f32, kBatch* kLength* kExperts, 31);
  Array bias = Array::normal(DType::f32, kExperts, 32, 0.2f);
  Array ids{DType::i32, kBatch*kLength*slots}, weights{DType::f32, kBatch*kLength*slots};

  const std::int32_t* ids_of(std::int64_t t) const {
    return static_cast<const std::int32_t*>(ids.data()) + t * slots;
  }
  RouteArgs args() const {
    return {.rule = rule,
            .logits = logits.view({kBatch, kLength, kExperts}),
            .bias = with_bias ? bias.view() : TensorView(),
            .choices = TensorView(),
            .random = {rng_key(5), 7, 90, 200},
            .ids = ids.view({kBatch, kLength, slots}),
            .weights = weights.view({kBatch, kLength, slots})};
  }
  std::span<const std::int32_t> chosen(std::int64_t t) const {
    return {ids_of(t), static_cast<std::size_t>(slots)};
  }
  void expect_weights_of_ids() const {
    for (std::int64_t t = 0; t < kBatch * kLength; ++t) {
      const auto want =
          reference::chosen_weights(rule, row(logits, t, kExperts),
                                    with_bias ? row(bias, 0, kExperts) : std::vector<double>(), chosen(t));
      for (std::int64_t k = 0; k < slots; ++k) {
        const double w = want[static_cast<std::size_t>(k)];
        ASSERT_NEAR(weights.at(t * slots + k), w, 1e-5 * std::abs(w) + 1e-7);
      }
    }
    EXPECT_TRUE(ids.guards_intact() && weights.guards_intact());
  }
};

TEST(Route, EqualsItsTwinForAnyNumberOfThreads) {
  for (const auto& named : reference::routing_rules()) {
    for (const std::int64_t slots : {1, 3, 8}) {
      SCOPED_TRACE(named.name);
      Problem p(named, slots);
      ThreadPool one(1), three(3);
      route(one, p.args());
      for (std::int64_t t = 0; t < kBatch * kLength; ++t) {
        const std::span<const float> bias(p.bias.floats(), named.bias ? kExperts : 0);
        const auto want =
            reference::chosen_ids(p.rule, {p.logits.floats() + t * kExperts, kExperts}, bias, slots);
        ASSERT_TRUE(std::equal(want.begin(), want.end(), p.ids_of(t))) << t;
      }
      p.expect_weights_of_ids();
      Problem again(named, slots);
      route(three, again.args());
      EXPECT_EQ(again.ids, p.ids);
      EXPECT_EQ(again.weights, p.weights);
    }
  }
}

TEST(Route, TakesTheChoicesThatItIsGiven) {
  for (const auto& named : reference::routing_rules()) {
    Problem p(named, 2);
    std::vector<std::int32_t> choices;
    for (std::int32_t i = 0; i < kBatch * kLength * 2; ++i) choices.push_back(i * 5 % kExperts);
    RouteArgs args = p.args();
    args.choices = TensorView::of_host(choices.data(), {kBatch, kLength, 2});
    ThreadPool pool(2);
    route(pool, args);
    EXPECT_TRUE(std::equal(choices.begin(), choices.end(), p.ids_of(0)));
    p.expect_weights_of_ids();
  }
}

TEST(Route, ChoosesForTokensThatAreGivenNone) {
  for (const auto& named : reference::routing_rules()) {
    Problem p(named, 2), alone(named, 2);
    ThreadPool pool(2);
    route(pool, alone.args());
    std::vector<std::int32_t> choices;
    for (std::int32_t i = 0; i < kBatch * kLength * 2; ++i)
      choices.push_back(i % 6 < 2 ? -1 : i * 5 % kExperts);
    RouteArgs args = p.args();
    args.choices = TensorView::of_host(choices.data(), {kBatch, kLength, 2});
    route(pool, args);
    for (std::int32_t i = 0; i < kBatch * kLength * 2; ++i)
      ASSERT_EQ(p.ids_of(0)[i], i % 6 < 2 ? alone.ids_of(0)[i] : choices[static_cast<std::size_t>(i)]) << i;
    p.expect_weights_of_ids();
  }
}

TEST(Route, DrawsIdsByTheTokensPlaceInTheBatch) {
  Problem p({"random", {.score = RouterScore::sigmoid, .softmax_over_selected = false, .random = true}, true},
            3);
  ThreadPool pool(2);
  route(pool, p.args());
  for (std::int64_t b = 0; b < kBatch; ++b) {
    for (std::int64_t s = 0; s < kLength; ++s) {
      for (std::int64_t k = 0; k < 3; ++k) {
        const auto index = static_cast<std::uint64_t>(((7 + b) * 200 + 90 + s) * 3 + k);
        ASSERT_EQ(p.ids_of(b * kLength + s)[k], rng_randint(rng_key(5), index, 0, kExperts));
      }
    }
  }
  p.expect_weights_of_ids();
}

TEST(Route, GradientsAreDifferencesOfTheTwin) {
  auto rules = reference::routing_rules();
  rules.push_back({"random", {.score = RouterScore::softmax, .random = true}, true});
  for (const auto& named : rules) {
    SCOPED_TRACE(named.name);
    constexpr std::int64_t kSlots = 3;
    Problem p(named, kSlots);
    ThreadPool pool(2);
    const RouteArgs args = p.args();
    route(pool, args);
    const Array dweights = Array::normal(DType::f32, p.weights.size(), 33);
    Array dlogits(DType::f32, p.logits.size()), dbias(DType::f32, kExperts);
    route_backward(pool, {.rule = p.rule,
                          .logits = args.logits,
                          .bias = args.bias,
                          .ids = args.ids,
                          .weights = args.weights,
                          .dweights = dweights.view(args.weights.shape()),
                          .dlogits = dlogits.view(args.logits.shape()),
                          .dbias = named.bias ? dbias.view() : TensorView()});
    std::vector<double> bias = named.bias ? row(p.bias, 0, kExperts) : std::vector<double>(),
                        bias_sum(bias.size());
    for (std::int64_t t = 0; t < kBatch * kLength; ++t) {
      std::vector<double> logits = row(p.logits, t, kExperts);
      const auto d = row(dweights, t, kSlots);
      const auto of_logits = reference::weight_gradient(p.rule, logits, bias, logits, p.chosen(t), d),
                 of_bias = reference::weight_gradient(p.rule, logits, bias, bias, p.chosen(t), d);
      for (std::int64_t e = 0; e < kExperts; ++e)
        ASSERT_NEAR(dlogits.at(t * kExperts + e), of_logits[static_cast<std::size_t>(e)], 2e-5) << t;
      for (std::size_t e = 0; e < of_bias.size(); ++e) bias_sum[e] += of_bias[e];
    }
    for (std::size_t e = 0; e < bias_sum.size(); ++e)
      EXPECT_NEAR(dbias.at(static_cast<std::int64_t>(e)), bias_sum[e], 2e-4);
    EXPECT_TRUE(dlogits.guards_intact() && dbias.guards_intact());
  }
}

}  // namespace
}  // namespace switchyard
