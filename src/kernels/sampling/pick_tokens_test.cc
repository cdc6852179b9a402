// An emulated GPU picks the tokens, and finds the numbers, that the host does: to the bit.
#include "kernels/sampling/pick_tokens.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "core/rng.h"
#include "emulator/emulator.h"
#include "kernels/sampling/likely_tokens.h"

namespace switchyard {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr int kShapes = 9;

class Random {
 public:
  explicit Random(std::uint32_t seed) : key_(rng_key(seed)) {}
  float uniform() { return rng_uniform(key_, at_++); }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(uniform() * static_cast<float>(n)); }
  bool chance(float p) { return uniform() < p; }
  // Returns a number of a bell curve, or nearly.
  float bell(float deviation) {
    float sum = -2;
    for (int i = 0; i < 4; ++i) sum += uniform();
    return sum * deviation * 1.7f;
  }

 private:
  decltype(rng_key(0)) key_;
  std::uint64_t at_ = 0;
};

float logit_of_shape(int shape, std::size_t i, std::size_t one, Random& random) {
  switch (shape) {
    case 0:
      return random.bell(3);
    case 1:
      return random.bell(20);
    case 2:
      return random.bell(0.01f);
    case 3:
      return i % 2 == 0 ? 0.0f : -0.0f;
    case 4:
      return i == one ? 40.0f : -40.0f;
    case 5:
      return std::round(random.bell(1));
    case 6:
      return 20 + 2e-6f * static_cast<float>(i % 5);
    case 7:
      return i != one && random.chance(0.7f) ? kNever : random.bell(2);
    default:
      return i == one ? -3.0f : kNever;
  }
}

// Wanted keeps the lists that a pick points to.
struct Wanted {
  SamplingConfig config;
  std::vector<SeenToken> seen;
  std::vector<std::uint32_t> bits;
};

SamplingConfig random_config(std::int64_t vocab, Random& random) {
  using enum SamplingStrategy;
  constexpr SamplingStrategy kStrategies[] = {greedy, weighted, nucleus, topk, composite};
  constexpr double kTemperatures[] = {1, 0.3, 0.7, 2.5, 0}, kShares[] = {1e-12, 0.05, 0.5, 0.9, 0.999, 1},
                   kLeast[] = {0, 0, 1e-9, 0.03, 0.6, 1};
  const std::int64_t counts[] = {1, 2, 50, vocab, vocab + 1, 1 + random.below(vocab)};
  SamplingConfig config{kStrategies[random.below(5)], kTemperatures[random.below(5)],
                        kShares[random.below(6)], counts[random.below(6)], kLeast[random.below(6)]};
  if (random.chance(0.4f)) {
    config.repetition_penalty = 0.5 + static_cast<double>(random.uniform()) * 2;
    config.presence_penalty = static_cast<double>(random.bell(1));
    config.frequency_penalty = static_cast<double>(random.bell(1));
  }
  if (random.chance(0.3f)) {
    std::set<std::int32_t> tokens;
    for (int i = 0; i < 5; ++i) tokens.insert(static_cast<std::int32_t>(random.below(vocab)));
    for (const std::int32_t token : tokens)
      config.logit_bias.push_back({token, static_cast<double>(random.bell(30))});
  }
  return config;
}

Wanted random_wanted(std::int64_t vocab, Random& random) {
  Wanted wanted{random_config(vocab, random), {}, {}};
  std::set<std::int32_t> tokens;  // some of them are outside of the vocabulary
  for (int i = 0; i < 40; ++i) tokens.insert(static_cast<std::int32_t>(random.below(vocab + 3)));
  for (const std::int32_t token : tokens) wanted.seen.push_back({token, random.below(4)});
  if (random.chance(0.3f)) {
    wanted.bits.assign(static_cast<std::size_t>((vocab + 31) / 32), 0);
    const float share = random.chance(0.5f) ? 0.9f : 0.05f;
    for (std::uint32_t& word : wanted.bits) {
      for (int bit = 0; bit < 32; ++bit) word |= static_cast<std::uint32_t>(random.chance(share)) << bit;
    }
  }
  return wanted;
}

std::string text_of(const TokenPick& pick) {
  return fmt::format("row {}, vocabulary {}, strategy {}, temperature {}, p {}, k {}, min p {}, draw {}, {}",
                     pick.row, pick.vocab, static_cast<int>(pick.config->strategy), pick.config->temperature,
                     pick.config->nucleus_p, pick.config->top_k, pick.config->min_p, pick.uniform,
                     pick.config->uses_history() ? "penalties" : "no penalties");
}

std::vector<PickedToken> picked_on(const Memory& memory, const Tensor& logits,
                                   const std::vector<TokenPick>& picks) {
  ThreadPool pool(1);
  const Tensor there = to_device(memory, logits), packed = to_device(memory, pack_picks(picks)),
               out = memory.empty(DType::i32, {std::ssize(picks), kPickedWords});
  pick_tokens(pool, {there.view(), picks, packed.view(), out.view()});
  const Tensor here = to_host(out);
  std::vector<PickedToken> picked(picks.size());
  std::memcpy(picked.data(), here.raw(), here.bytes());
  return picked;
}

struct Compared {
  std::int64_t picks = 0;
  std::set<std::int32_t> tokens;
};

// `rows` rows of logits of random shapes, each with some random picks.
void compare(std::int64_t width, std::int64_t rows, std::int64_t picks_a_row, std::uint32_t seed,
             Compared& compared) {
  Random random(seed);
  Tensor logits(DType::f32, {rows, width});
  std::vector<Wanted> wanted;
  wanted.reserve(static_cast<std::size_t>(rows * picks_a_row));
  std::vector<TokenPick> picks;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto one = static_cast<std::size_t>(random.below(width));
    const auto shape = static_cast<int>(random.below(kShapes));
    for (std::size_t i = 0; i < static_cast<std::size_t>(width); ++i)
      logits.span<float>()[static_cast<std::size_t>(row * width) + i] = logit_of_shape(shape, i, one, random);
    for (std::int64_t i = 0; i < picks_a_row; ++i) {
      const std::int64_t vocab = random.chance(0.8f) ? width : 1 + random.below(width);
      wanted.push_back(random_wanted(vocab, random));
      TokenPick pick{.row = row,
                     .vocab = vocab,
                     .config = &wanted.back().config,
                     .seen = wanted.back().seen,
                     .bits = wanted.back().bits,
                     .uniform = random.chance(0.1f) ? 1 - 0x1p-24f : random.uniform()};
      if (random.chance(0.05f)) pick.given = static_cast<std::int32_t>(random.below(vocab));
      if (random.chance(0.3f)) pick.most_probable = static_cast<int>(random.below(kMostProbable + 1));
      picks.push_back(pick);
    }
  }
  const auto expected = picked_on(Memory(), logits, picks);
  const auto found = picked_on(Memory(Device::cuda_emulated(), nullptr), logits, picks);
  for (std::size_t i = 0; i < picks.size(); ++i) {
    ASSERT_EQ(found[i].token, expected[i].token) << text_of(picks[i]);
    ASSERT_EQ(std::memcmp(&found[i], &expected[i], sizeof(PickedToken)), 0)
        << text_of(picks[i]) << ": sum " << found[i].sum << " for " << expected[i].sum << ", first bad "
        << found[i].bad << " for " << expected[i].bad;
    if (picks[i].most_probable >= 0) {
      const auto row = logits.span<float>().subspan(static_cast<std::size_t>(picks[i].row * width),
                                                    static_cast<std::size_t>(picks[i].vocab));
      const WeighedLogits weighed(row);
      ASSERT_EQ(std::bit_cast<std::uint64_t>(log_sum_of(found[i], picks[i].vocab)),
                std::bit_cast<std::uint64_t>(static_cast<double>(weighed.top()) + weighed.log_sum()));
    }
    ++compared.picks;
    compared.tokens.insert(found[i].token);
  }
}

TEST(PickTokens, AreTheHosts) {
  Compared compared;
  for (const std::int64_t width : {1, 2, 7, 33})
    compare(width, 40, 4, 11 + static_cast<std::uint32_t>(width), compared);
  compare(1000, 90, 8, 21, compared);
  compare(4097, 25, 8, 22, compared);
  compare(32000, 9, 8, 23, compared);
  compare(151936, 2, 10, 24, compared);
  EXPECT_GT(compared.picks, 1600);
  EXPECT_GT(compared.tokens.size(), 400u);
}

// A token's probability is the share of draws that pick it.
TEST(PickTokens, ProcessedLogitsAreThoseOfTheDraw) {
  constexpr std::int64_t kWidth = 40;
  constexpr int kDraws = 2000;
  Random random(5);
  ThreadPool pool(1);
  std::size_t left_out = 0;
  for (int i = 0; i < 60; ++i) {
    std::vector<float> values(kWidth);
    for (std::size_t t = 0; t < values.size(); ++t) values[t] = logit_of_shape(i % 2, t, 0, random);
    const Tensor logits = Tensor::of<float>({1, kWidth}, values);
    const Wanted wanted = random_wanted(kWidth, random);
    TokenPick pick{.vocab = kWidth,
                   .config = &wanted.config,
                   .seen = wanted.seen,
                   .bits = wanted.bits,
                   .most_probable = kMostProbable,
                   .processed = true};
    if (i == 7) pick.given = 3;
    std::vector<TokenPick> picks(kDraws, pick);
    for (int draw = 0; draw < kDraws; ++draw)
      picks[static_cast<std::size_t>(draw)].uniform = (static_cast<float>(draw) + 0.5f) / kDraws;
    std::vector<int> often(kWidth);
    std::vector<double> probability(kWidth);
    for (const PickedToken& found : picked_on(Memory(), logits, picks)) {
      ++often[static_cast<std::size_t>(found.token)];
      probability[static_cast<std::size_t>(found.token)] =
          std::exp(static_cast<double>(found.logit) - log_sum_of(found, kWidth));
      left_out += std::isinf(found.most_probable[kMostProbable - 1].logit);
    }
    for (std::size_t t = 0; t < often.size(); ++t)
      EXPECT_NEAR(often[t], kDraws * probability[t], 1.5) << text_of(pick) << ", token " << t;
    EXPECT_TRUE(std::ranges::equal(logits.span<float>(), values));
  }
  EXPECT_GT(left_out, 0u);
}

TEST(PickTokens, AreTheHostsInEveryOrderOfThreads) {
  for (const auto order : {gpu::emulator::Order::reverse, gpu::emulator::Order::random}) {
    gpu::emulator::set_order(order);
    Compared compared;
    compare(5000, 6, 10, 31, compared);
    EXPECT_EQ(compared.picks, 60);
  }
  gpu::emulator::set_order(gpu::emulator::Order::forward);
}

// No token is better than another without logits, and none is picked by what is no number.
TEST(PickTokens, OfWhatIsNoNumber) {
  const float kNaN = std::numeric_limits<float>::quiet_NaN(),
              kInfinity = std::numeric_limits<float>::infinity();
  constexpr std::int64_t kWidth = 5;
  const std::vector<float> values{kNaN,   kNaN,   kNaN,      kNaN,   kNaN,    //
                                  kNever, kNever, kNever,    kNever, kNever,  //
                                  1,      kNaN,   3,         kNaN,   3,       //
                                  1,      2,      kInfinity, 3,      kInfinity};
  const Tensor logits = Tensor::of<float>({4, kWidth}, values);
  std::vector<SamplingConfig> configs;
  using enum SamplingStrategy;
  for (const SamplingStrategy strategy : {greedy, weighted, nucleus, topk, composite}) {
    for (const double p : {0.5, 1.0}) {
      for (const double least : {0.0, 0.1}) {
        configs.push_back({strategy, 0.8, p, 3, least});
        configs.push_back({strategy, 0.8, p, 9, least});
      }
    }
  }
  std::vector<TokenPick> picks;
  for (std::int64_t row = 0; row < 4; ++row) {
    for (const SamplingConfig& config : configs) {
      for (const float uniform : {0.0f, 0.7f})
        picks.push_back({.row = row, .vocab = kWidth, .config = &config, .uniform = uniform});
    }
  }
  picks.push_back({.row = 2, .vocab = kWidth, .config = &configs[0], .most_probable = 4});
  const auto expected = picked_on(Memory(), logits, picks);
  const auto found = picked_on(Memory(Device::cuda_emulated(), nullptr), logits, picks);
  for (std::size_t i = 0; i < picks.size(); ++i) {
    EXPECT_EQ(found[i].token, expected[i].token) << text_of(picks[i]);
    EXPECT_EQ(found[i].bad, expected[i].bad) << text_of(picks[i]);
    EXPECT_EQ(found[i].sum, expected[i].sum) << text_of(picks[i]);
  }
  EXPECT_EQ(found[0].bad, 0);
  EXPECT_EQ(found.back().bad, 1);
  EXPECT_EQ(found.back().most_probable[0].token, 2);
  EXPECT_EQ(found.back().most_probable[2].token, 0);
  EXPECT_EQ(found.back().most_probable[3].token, 0);  // there are three
}

}  // namespace
}  // namespace switchyard
