// Tokens are picked as by the definition of each strategy, which sorts the whole vocabulary.
#include "generate/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "generate/token_history.h"
#include "kernels/loss/vocabulary.h"
#include "kernels/registry/isa.h"

namespace switchyard {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Bits of the weight of the most probable of so many tokens.
int scale_of(std::size_t size) {
  return std::min(kMostWeightBits, 62 - static_cast<int>(std::bit_width(size)));
}

// The slow reference of pick_token.
std::int32_t pick_by_sorting(std::span<const float> logits, const SamplingConfig& config, float uniform) {
  using enum SamplingStrategy;
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  const double top = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  const double least = std::ldexp(1.0, -1 - scale_of(logits.size()));  // less has no weight
  const auto weights = [&](double temperature) {
    std::vector<double> w;
    for (const std::int32_t id : ids) {
      w.push_back(std::exp((static_cast<double>(logit(id)) - top) / temperature));
      if (w.back() < least) w.back() = 0;
    }
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
  std::erase_if(ids, [&](std::int32_t id) {
    return std::exp((static_cast<double>(logit(id)) - top) / config.temperature) < config.min_p;
  });
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
        for (const SamplingConfig& plain : std::vector(configs)) {
          for (const double min_p : {1e-9, 0.03, 0.6, 1.0}) {
            configs.push_back(plain);
            configs.back().min_p = min_p;
          }
        }
        for (const SamplingConfig& config : configs) {
          for (const float uniform : {0.0f, draw(), draw(), draw(), 1 - 0x1p-24f}) {
            const std::int32_t got = pick_token(logits, config, uniform);
            ASSERT_EQ(got, pick_by_sorting(logits, config, uniform))
                << name << " of " << size << ", strategy " << static_cast<int>(config.strategy)
                << ", temperature " << temperature << ", p " << config.nucleus_p << ", k " << config.top_k
                << ", min p " << config.min_p << ", draw " << uniform;
            ASSERT_NE(logits[static_cast<std::size_t>(got)], kNever);
            picked.insert(got);
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 100000);
  EXPECT_GT(picked.size(), 100u);
}

// The same with the very weights of pick_token, so that nothing may differ, however many tokens there are.
std::int32_t pick_by_whole_weights(std::span<const float> logits, const SamplingConfig& config,
                                   float uniform) {
  using enum SamplingStrategy;
  const float top = *std::max_element(logits.begin(), logits.end());
  const double factor = 1 / config.temperature;
  const int scale = scale_of(logits.size());
  struct Weighed {
    float logit;
    std::uint64_t own, tempered;
    std::int32_t id;
  };
  std::vector<std::uint64_t> own(logits.size()), tempered(logits.size());
  logit_weights(logits, top, 1, scale, own);
  logit_weights(logits, top, factor, scale, tempered);
  std::vector<Weighed> all;
  for (std::size_t i = 0; i < logits.size(); ++i)
    all.push_back({logits[i], own[i], tempered[i], static_cast<std::int32_t>(i)});
  const auto keep_share = [&](std::uint64_t Weighed::*weight) {
    if (config.nucleus_p >= 1) return;
    std::uint64_t sum = 0, reached = 0;
    for (const Weighed& w : all) sum += w.*weight;
    const auto wanted = std::clamp<std::uint64_t>(
        static_cast<std::uint64_t>(std::ceil(config.nucleus_p * static_cast<double>(sum))), 1, sum);
    std::size_t kept = 0;
    while (reached < wanted) reached += all[kept++].*weight;
    all.resize(kept);
  };
  if (config.strategy != weighted)
    std::stable_sort(all.begin(), all.end(),
                     [](const Weighed& a, const Weighed& b) { return a.logit > b.logit; });
  if (config.strategy == topk || config.strategy == composite)
    all.resize(std::min(all.size(), static_cast<std::size_t>(config.top_k)));
  if (config.strategy == nucleus) keep_share(&Weighed::own);
  if (config.strategy == composite) keep_share(&Weighed::tempered);
  if (config.min_p > 0)
    std::erase_if(all, [&](const Weighed& w) {
      return w.logit != top &&
             (static_cast<double>(w.logit) - static_cast<double>(top)) * factor < std::log(config.min_p);
    });
  std::uint64_t sum = 0;
  for (const Weighed& w : all) sum += w.tempered;
  auto passed = static_cast<std::uint64_t>(static_cast<double>(uniform) * static_cast<double>(sum));
  std::size_t at = 0;
  while (passed >= all[at].tempered) passed -= all[at++].tempered;
  return all[at].id;
}

TEST(Sampling, IsTheFullSort) {
  using enum SamplingStrategy;
  constexpr std::size_t kSize = 20001;
  constexpr std::int64_t kAll = std::numeric_limits<std::int32_t>::max();
  const std::vector<SamplingConfig> configs{{weighted, 0.8},
                                            {weighted, 1.3, -1, 0, 0.01},
                                            {nucleus, 1, 0.9},
                                            {nucleus, 0.7, 0.999999},
                                            {nucleus, 1.4, 0.5, 0, 0.2},
                                            {nucleus, 0.9, 1},
                                            {nucleus, 0.9, 1, 0, 1e-3},
                                            {topk, 1, -1, 40},
                                            {topk, 1, -1, 9000},
                                            {topk, 0.6, -1, kAll},
                                            {composite, 0.7, 0.95, 40, 0.05},
                                            {composite, 1, 0.9, kAll},
                                            {composite, 0.6, 0.3, kAll}};
  std::int64_t compared = 0;
  std::set<std::int32_t> picked;
  for (const auto& [name, logits] : vocabularies(kSize)) {
    for (std::size_t c = 0; c < configs.size(); ++c) {
      for (const float uniform : {0.0f, draw(), 1 - 0x1p-24f}) {
        const std::int32_t want = pick_by_whole_weights(logits, configs[c], uniform);
        for (const Isa isa : {Isa::ref, Isa::avx2, Isa::avx512}) {
          if (isa > machine_isa()) continue;
          const ScopedIsa cap(isa);
          ASSERT_EQ(pick_token(logits, configs[c], uniform), want)
              << name << ", config " << c << ", draw " << uniform << ", " << name_of(isa);
          ++compared;
        }
        picked.insert(want);
      }
    }
  }
  EXPECT_GE(compared, 11 * 13 * 3);
  EXPECT_GT(picked.size(), 50u);
}

std::vector<float> changed(const std::vector<float>& logits, const SamplingConfig& config,
                           const std::vector<std::int32_t>& prompt, const std::vector<std::int32_t>& made) {
  std::vector<float> all = logits;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    const auto times = static_cast<double>(std::count(made.begin(), made.end(), id));
    auto x = static_cast<double>(all[i]);
    if (times > 0 || std::find(prompt.begin(), prompt.end(), id) != prompt.end())
      x = x < 0 ? x * config.repetition_penalty : x / config.repetition_penalty;
    x -= times * config.frequency_penalty + (times > 0 ? config.presence_penalty : 0);
    all[i] = static_cast<float>(x);
    for (const LogitBias& bias : config.logit_bias) {
      if (bias.token == id) all[i] = static_cast<float>(static_cast<double>(all[i]) + bias.bias);
    }
  }
  return all;
}

TEST(Sampling, PenaltiesAndBiasesChangeLogits) {
  using enum SamplingStrategy;
  int others = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<float> logits = logits_of(50, [](std::size_t) { return bell(2); });
    SamplingConfig config{round % 2 == 0 ? weighted : greedy};
    config.repetition_penalty = round % 3 == 0 ? 1 : 0.5 + static_cast<double>(draw());
    config.presence_penalty = round % 5 == 0 ? 0 : 2 * static_cast<double>(draw()) - 1;
    config.frequency_penalty = round % 7 == 0 ? 0 : 2 * static_cast<double>(draw()) - 1;
    if (round % 4 != 0) config.logit_bias = {{7, 3}, {31, -100}};
    TokenHistory history;
    std::vector<std::int32_t> prompt, made;
    for (int i = 0; i < 30; ++i) {
      // Some ids are the model's alone, and there are no logits of them.
      (i < 10 ? prompt : made).push_back(static_cast<std::int32_t>(draw() * 55));
    }
    history.add_prompt(prompt);
    for (const std::int32_t token : made) history.add_made(token);
    const std::vector<float> before = logits;
    const float uniform = draw();
    const std::int32_t got = pick_token(std::span(logits), config, history.seen(), uniform);
    EXPECT_EQ(got, pick_token(changed(logits, config, prompt, made), config, uniform)) << round;
    EXPECT_EQ(logits, before);
    others += got != pick_token(before, config, uniform);
  }
  EXPECT_GT(others, 50);
  // What they are: halved or doubled once however often seen, less 0.5 a time and 0.25.
  const std::vector<float> logits{2, -1, 3, 1};
  SamplingConfig config;
  config.repetition_penalty = 2;
  config.frequency_penalty = 0.5;
  config.presence_penalty = 0.25;
  EXPECT_EQ(changed(logits, config, {0, 1}, {2, 2}), (std::vector<float>{1, -2, 0.25f, 1}));
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
      for (const double min_p : {0.0, 0.5}) {
        SamplingConfig with_min_p = config;
        with_min_p.min_p = min_p;
        const float one_known[] = {nan, 1, nan, kNever};
        EXPECT_EQ(pick_token(one_known, with_min_p, uniform), 1);
        EXPECT_LT(static_cast<std::size_t>(pick_token(never, with_min_p, uniform)), std::size(never));
      }
      const float infinite[] = {3, -kNever, 2};
      EXPECT_EQ(pick_token(infinite, config, uniform), 1);
    }
  }
}

}  // namespace
}  // namespace switchyard
