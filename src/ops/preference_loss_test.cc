// Losses over pairs: against finite differences, and against their definitions.
#include "ops/preference_loss.h"

#include <cmath>

#include "ops/gradient_testing.h"

namespace switchyard {
namespace {

using namespace autograd_test;

// Two rows: one with two pairs, one with a pair and padding. Targets are masked here and there.
Tensor pair_segments() {
  const std::int32_t ids[] = {1, 1, 0, 2, 3, 3, 4, 0, 0, 1, 1, 2, 2, 2, 0, 0};
  return Tensor::of<std::int32_t>({2, 8}, ids);
}

// Log-probabilities are below 0.
Tensor some_log_probs(std::uint32_t seed) {
  const Tensor x = random_tensor({2, 8}, seed, 0.3f);
  for (float& v : x.span<float>()) v = -1.5f + v;
  return x;
}

TEST(PreferenceLoss, HasTheGradientOfItsLoss) {
  const Sharding rows{{{"data"}, {}}, {}}, both{{{"data"}, {"tensor"}}, {}};
  for (const PreferenceKind kind : {PreferenceKind::dpo, PreferenceKind::orpo}) {
    const PreferenceOptions options{.kind = kind,
                                    .beta = 0.7,
                                    .label_smoothing = 0.1,
                                    .odds_factor = 0.5,
                                    .pairs = 3,
                                    .chosen_targets = 6};
    check_gradients({.function =
                         [&](Context& c, std::span<const Array> in) {
                           return preference_loss(c, in[0], in[1], in[2], options).loss;
                         },
                     .inputs = {{some_log_probs(1), {both, rows}},
                                {some_log_probs(2), {both, rows}, false},
                                {pair_segments(), {both, rows}}},
                     .meshes = {kData2Tensor2, kData2Tensor2}});
  }
}

TEST(PreferenceLoss, CountsPairsAndTheirTargets) {
  const PairCounts counts = count_pairs(pair_segments());
  EXPECT_EQ(counts.pairs, 3);
  EXPECT_EQ(counts.chosen_targets, 2 + 2 + 2);
}

TEST(PreferenceLoss, EqualsTheDefinition) {
  const Tensor log_probs = some_log_probs(1), reference = some_log_probs(2), segments = pair_segments();
  // The second row's pair is the third.
  double chosen[3] = {}, rejected[3] = {}, chosen_there[3] = {}, rejected_there[3] = {}, of_chosen[3] = {},
         of_rejected[3] = {};
  for (std::size_t i = 0; i < 16; ++i) {
    const std::int32_t segment = segments.span<std::int32_t>()[i];
    if (segment == 0) continue;
    const std::size_t pair = i < 8 ? static_cast<std::size_t>(segment - 1) / 2 : 2;
    const bool first = segment % 2 == 1;
    (first ? chosen : rejected)[pair] += static_cast<double>(log_probs.span<float>()[i]);
    (first ? chosen_there : rejected_there)[pair] += static_cast<double>(reference.span<float>()[i]);
    (first ? of_chosen : of_rejected)[pair] += 1;
  }
  double dpo = 0, orpo = 0, reward = 0, nll = 0, targets = 0;
  for (int p = 0; p < 3; ++p) {
    const double d = 0.4 * ((chosen[p] - chosen_there[p]) - (rejected[p] - rejected_there[p]));
    dpo += (0.9 * std::log(1 + std::exp(-d)) + 0.1 * std::log(1 + std::exp(d))) / 3;
    reward += 0.4 * (chosen[p] - chosen_there[p]) / 3;
    const double c = std::exp(chosen[p] / of_chosen[p]), r = std::exp(rejected[p] / of_rejected[p]);
    orpo += 0.2 * std::log(1 + (r / (1 - r)) / (c / (1 - c))) / 3;
    nll -= chosen[p], targets += of_chosen[p];
  }
  on_mesh(Mesh(), [&](Context& c) {
    const auto placed = [&](const Tensor& x) { return leaf(c, x, replicated(2)); };
    const auto number = [](const Array& x) { return x.tensor().data<float>()[0]; };
    const Preference by_dpo = preference_loss(c, placed(log_probs), placed(reference), placed(segments),
                                              {.beta = 0.4, .label_smoothing = 0.1, .pairs = 3});
    EXPECT_NEAR(number(by_dpo.loss), dpo, 1e-6);
    EXPECT_NEAR(number(by_dpo.chosen_reward), reward, 1e-6);
    const Preference by_orpo = preference_loss(
        c, placed(log_probs), {}, placed(segments),
        {.kind = PreferenceKind::orpo, .odds_factor = 0.2, .pairs = 3, .chosen_targets = targets});
    EXPECT_NEAR(number(by_orpo.loss), orpo + nll / targets, 1e-5);
  });
}

}  // namespace
}  // namespace switchyard
