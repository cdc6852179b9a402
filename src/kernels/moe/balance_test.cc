#include "kernels/moe/balance.h"

#include <gtest/gtest.h>

#include <random>

#include "kernels/moe/reference/balance_reference.h"
#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

using kernel_test::Array;

constexpr std::int64_t kBatch = 3, kLength = 70, kExperts = 5, kSlots = 2;
constexpr double kFactor = 1.5;

struct Problem {
  explicit Problem(RouterScore score, bool compat) : compat_(compat) {
    std::mt19937 generator(3);
    for (std::int64_t i = 0; i < kBatch * kLength * kSlots; ++i)
      ids.push_back(static_cast<std::int32_t>(generator() % kExperts));
    for (std::int64_t t = 0; t < kBatch * kLength; ++t)  // the second sequence is padding
      segments.push_back(t / kLength == 1 ? 0 : static_cast<std::int32_t>(generator() % 3));
    twin = {kBatch,
            kLength,
            kExperts,
            kSlots,
            score,
            compat || score == RouterScore::none,
            kFactor,
            {},
            {},
            ids.data(),
            compat ? nullptr : segments.data()};
    for (std::int64_t i = 0; i < logits.size(); ++i) twin.logits.push_back(static_cast<double>(logits.at(i)));
    for (std::int64_t e = 0; e < kExperts && compat; ++e)
      twin.bias.push_back(static_cast<double>(bias.at(e)));
  }
  BalanceScores scores() const {
    return {twin.score, twin.softmax_of_scores, logits.view({kBatch, kLength, kExperts}),
            compat_ ? bias.view() : TensorView()};
  }
  TensorView ids_view() const { return TensorView::of_host(ids.data(), {kBatch, kLength, kSlots}); }
  TensorView segments_view() const {
    return compat_ ? TensorView() : TensorView::of_host(segments.data(), {kBatch, kLength});
  }
  // Fills probabilities and sums.
  void statistics(ThreadPool& pool) {
    balance_statistics(pool, {scores(), ids_view(), segments_view(),
                              probabilities.view({kBatch, kLength, kExperts}), sums_view()});
  }
  TensorView sums_view() const { return TensorView::of_host(sums.data(), {kBatch, 2 * kExperts + 1}); }

  Array logits = Array::normal(DType::f32, kBatch* kLength* kExperts, 1);
  Array bias = Array::normal(DType::f32, kExperts, 2);
  Array probabilities{DType::f32, kBatch* kLength* kExperts};
  std::vector<double> sums = std::vector<double>(kBatch * (2 * kExperts + 1), -1);
  std::vector<std::int32_t> ids, segments;
  reference::BalanceTwin twin;

 private:
  bool compat_;
};

template <typename Check>
void for_each_kind(const Check& check) {
  for (const RouterScore score :
       {RouterScore::none, RouterScore::softmax, RouterScore::sigmoid, RouterScore::sqrt_softplus}) {
    for (const bool compat : {false, true}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(score) << (compat ? " compat" : ""));
      check(score, compat);
    }
  }
}

TEST(BalanceKernels, LossEqualsItsDefinitionForAnyNumberOfThreads) {
  for_each_kind([](RouterScore score, bool compat) {
    Problem p(score, compat), again(score, compat);
    ThreadPool one(1), three(3);
    p.statistics(one);
    again.statistics(three);
    EXPECT_EQ(p.probabilities, again.probabilities);
    EXPECT_EQ(p.sums, again.sums);
    for (std::int64_t t = 0; t < kBatch * kLength; ++t) {
      const auto want = p.twin.probabilities(t);
      for (std::int64_t e = 0; e < kExperts; ++e)
        ASSERT_NEAR(p.probabilities.at(t * kExperts + e), want[static_cast<std::size_t>(e)], 1e-6);
    }
    Array loss(DType::f32, 1);
    balance_loss_value(one, {p.sums_view(), loss.view({}), kFactor});
    EXPECT_NEAR(loss.at(0), p.twin.loss(), 1e-6 * p.twin.loss());
    EXPECT_GT(loss.at(0), 0);
  });
}

TEST(BalanceKernels, GradientsAreDifferencesOfTheDefinition) {
  for_each_kind([](RouterScore score, bool compat) {
    Problem p(score, compat);
    Array first_dlogits(DType::f32, p.logits.size());
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      p.statistics(pool);
      const float g = 2;
      Array dlogits(DType::f32, p.logits.size()), dbias(DType::f32, kExperts);
      balance_loss_backward(pool, {.scores = p.scores(),
                                   .segments = p.segments_view(),
                                   .probabilities = p.probabilities.view({kBatch, kLength, kExperts}),
                                   .sums = p.sums_view(),
                                   .gradient = TensorView::of_host(&g, {}),
                                   .dlogits = dlogits.view({kBatch, kLength, kExperts}),
                                   .dbias = compat ? dbias.view() : TensorView(),
                                   .factor = kFactor});
      if (threads == 3) {
        EXPECT_EQ(dlogits, first_dlogits);
        continue;
      }
      first_dlogits = dlogits;
      const auto of_logits = p.twin.gradient(p.twin.logits), of_bias = p.twin.gradient(p.twin.bias);
      for (std::size_t i = 0; i < of_logits.size(); ++i)
        ASSERT_NEAR(dlogits.at(static_cast<std::int64_t>(i)), 2 * of_logits[i], 1e-6) << i;
      for (std::size_t e = 0; e < of_bias.size(); ++e)
        EXPECT_NEAR(dbias.at(static_cast<std::int64_t>(e)), 2 * of_bias[e], 1e-5);
    }
  });
}

TEST(BalanceKernels, CountsTheChoicesOfTokensThatCount) {
  for (const bool compat : {false, true}) {
    const Problem p(RouterScore::none, compat);
    std::vector<std::int32_t> want(kExperts), found(kExperts, -1);
    for (std::size_t i = 0; i < p.ids.size(); ++i)
      want[static_cast<std::size_t>(p.ids[i])] += compat || p.segments[i / kSlots] != 0 ? 1 : 0;
    ThreadPool pool(2);
    count_choices(pool, {p.ids_view(), p.segments_view(), TensorView::of_host(found.data(), {kExperts})});
    EXPECT_EQ(found, want);
  }
}

}  // namespace
}  // namespace switchyard
