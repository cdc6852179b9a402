// Tokens are picked as by the definition of each strategy, which sorts the whole vocabulary.
#include "generate/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/rng.h"

namespace switchyard {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// The slow twin of pick_token.
std::int32_t pick_by_sorting(std::span<const float> logits, const SamplingConfig& config, float uniform) {
  using enum SamplingStrategy;
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  const double top = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  const auto weights = [&](double temperature) {
    std::vector<double> w;
    for (const std::int32_t id : ids)
      w.push_back(std::exp((static_cast<double>(logit(id)) - top) / temperature));
    return w;
  };
  const auto keep_share = [&](double temperature) {
    if (config.nucleus_p >= 1) return;
    const std::vector<double> w = weights(temperature);
    const double wanted = config.nucleus_p * std::accumulate(w.begin(), w.end(), 0.0);
    double sum = 0;
    std::size_t kept = 0;
    while (kept < w.size() && (kept == 0 || sum < wanted)) sum += w[kept++];
    ids.resize(kept);
  };
  if (config.strategy == greedy || config.temperature == 0)
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  if (config.strategy != weighted)
    std::stable_sort(ids.begin(), ids.end(),
                     [&](std::int32_t a, std::int32_t b) { return logit(a) > logit(b); });
  if (config.strategy == topk || config.strategy == composite)
    ids.resize(std::min(ids.size(), static_cast<std::size_t>(config.top_k)));
  if (config.strategy == nucleus) keep_share(1);
  if (config.strategy == composite) keep_share(config.temperature);
  const std::vector<double> w = weights(config.temperature);
  double left = static_cast<double>(uniform) * std::accumulate(w.begin(), w.end(), 0.0);
  for (std::size_t i = 0; i < w.size(); ++i) {
    left -= w[i];
    if (left < 0) return ids[i];
  }
  return ids.back();
}

std::uint64_t draws = 0;
float draw() {
  return rng_uniform(rng_key(77), draws++);
}
// Of a bell curve, or nearly: the sum of twelve draws.
float bell(float deviation) {
  float sum = -6;
  for (int i = 0; i < 12; ++i) sum += draw();
  return sum * deviation;
}

template <typename Make>
std::vector<float> logits_of(std::size_t size, const Make& make) {
  std::vector<float> logits(size);
  for (std::size_t i = 0; i < size; ++i) logits[i] = make(i);
  return logits;
}

std::vector<std::pair<std::string, std::vector<float>>> vocabularies(std::size_t size) {
  const std::size_t one = size / 3;
  return {
      {"bell", logits_of(size, [](std::size_t) { return bell(3); })},
      {"wide", logits_of(size, [](std::size_t) { return bell(20); })},
      {"narrow", logits_of(size, [](std::size_t) { return bell(0.01f); })},
      {"equal", logits_of(size, [](std::size_t) { return 1.0f; })},
      {"zeros of both signs", logits_of(size, [](std::size_t i) { return i % 2 == 0 ? 0.0f : -0.0f; })},
      {"one hot", logits_of(size, [&](std::size_t i) { return i == one ? 40.0f : -40.0f; })},
      {"few values", logits_of(size, [](std::size_t) { return std::round(bell(1)); })},
      {"neighbours", logits_of(size, [](std::size_t i) { return 20 + 2e-6f * static_cast<float>(i % 5); })},
      {"masked",
       logits_of(size, [&](std::size_t i) { return i != one && draw() < 0.7f ? kNever : bell(2); })},
      {"one not masked", logits_of(size, [&](std::size_t i) { return i == one ? -3.0f : kNever; })},
      {"rising", logits_of(size, [](std::size_t i) { return 0.01f * static_cast<float>(i); })}};
}

TEST(Sampling, IsTheDefinition) {
  using enum SamplingStrategy;
  std::int64_t compared = 0;
  std::set<std::int32_t> picked;
  for (const std::size_t size : {1, 2, 3, 17, 300, 3000}) {
    const auto top_k = static_cast<std::int64_t>(size);
    for (const auto& [name, logits] : vocabularies(size)) {
      for (const double temperature : {0.3, 1.0, 2.5}) {
        std::vector<SamplingConfig> configs{{weighted, temperature}};
        for (const std::int64_t k : {std::int64_t{1}, std::int64_t{2}, std::int64_t{50}, top_k, top_k + 1})
          configs.push_back({topk, temperature, -1, k});
        for (const double p : {1e-12, 0.05, 0.5, 0.9, 0.999, 1.0}) {
          configs.push_back({nucleus, temperature, p});
          configs.push_back({composite, temperature, p, 50});
          configs.push_back({composite, temperature, p, top_k});
        }
        for (const SamplingConfig& config : configs) {
          for (const float uniform : {0.0f, draw(), draw(), draw(), 1 - 0x1p-24f}) {
            const std::int32_t got = pick_token(logits, config, uniform);
            ASSERT_EQ(got, pick_by_sorting(logits, config, uniform))
                << name << " of " << size << ", strategy " << static_cast<int>(config.strategy)
                << ", temperature " << temperature << ", p " << config.nucleus_p << ", k " << config.top_k
                << ", draw " << uniform;
            ASSERT_NE(logits[static_cast<std::size_t>(got)], kNever);
            picked.insert(got);
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 20000);
  EXPECT_GT(picked.size(), 100u);
}

// What a model should not give has an answer all the same.
TEST(Sampling, TakesAnyLogits) {
  using enum SamplingStrategy;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const SamplingConfig all[] = {{weighted}, {topk, 1, -1, 2}, {nucleus, 1, 0.9}, {composite, 1, 0.9, 2}};
  for (const SamplingConfig& config : all) {
    for (const float uniform : {0.0f, 0.4f, 0.99f}) {
      const float never[] = {kNever, kNever, kNever}, unknown[] = {nan, nan};
      EXPECT_LT(static_cast<std::size_t>(pick_token(never, config, uniform)), std::size(never));
      EXPECT_LT(static_cast<std::size_t>(pick_token(unknown, config, uniform)), std::size(unknown));
      const float one_known[] = {1, nan, nan, kNever};
      EXPECT_EQ(pick_token(one_known, config, uniform), 0);
      const float infinite[] = {3, -kNever, 2};
      EXPECT_EQ(pick_token(infinite, config, uniform), 1);
    }
  }
}

}  // namespace
}  // namespace switchyard
