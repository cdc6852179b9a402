// Measures sampling the next token from its logits, on one thread.
#include "generate/sampling.h"

#include "bench/cases.h"
#include "bench/random_tensor.h"
#include "generate/token_history.h"

namespace switchyard::bench {
namespace {

struct SamplingCall {
  std::string what, spread;
  std::int64_t vocab;
};

const std::vector<std::string> kSamplingWhats{"greedy", "weighted", "top_p", "top_k", "penalties"};
const std::vector<std::string> kSpreads{"peaked", "flat"};

SamplingConfig config_of_call(const std::string& what) {
  using enum SamplingStrategy;
  constexpr std::int64_t kAllTokens = 0x7fffffff;
  if (what == "greedy") return {};
  if (what == "weighted") return {weighted, 0.8};
  if (what == "top_k") return {topk, 0.8, -1, 40};
  SamplingConfig config{composite, 0.8, 0.9, kAllTokens};
  if (what == "penalties") {
    config.min_p = 0.01;
    config.repetition_penalty = 1.1;
    config.frequency_penalty = config.presence_penalty = 0.2;
    config.logit_bias = {{0, -100}};
  }
  return config;
}

// Flat: a bell curve of logits, in which no token is likely. Peaked: one in 512 is above the others, as
// models have it.
Tensor logits_of_call(ThreadPool& pool, const SamplingCall& call) {
  constexpr float kDeviation = 3, kPeak = 12;
  constexpr std::int64_t kBetweenPeaks = 512;
  Tensor logits = random_tensor(pool, DType::f32, {call.vocab}, 3, kDeviation);
  if (call.spread == "peaked") {
    for (std::int64_t i = 0; i < call.vocab; i += kBetweenPeaks) logits.data<float>()[i] += kPeak;
  }
  return logits;
}

Measurement measure_sampling(Bench& bench, const SamplingCall& call) {
  constexpr int kTokensSeen = 2000;
  Tensor logits = logits_of_call(bench.pool, call);
  const SamplingConfig config = config_of_call(call.what);
  TokenHistory history;
  for (int i = 0; i < kTokensSeen; ++i) history.add_made(static_cast<std::int32_t>(i * 7919 % call.vocab));
  std::size_t made = 0;
  Measurement m;
  m.name = "sampling";
  m.shape = {{"what", call.what}, {"logits", call.spread}, {"vocab", call.vocab}};
  m.dtype = DType::f32;
  m.bytes = static_cast<double>(logits.bytes());
  m.time = time_rounds(bench.budget, [&] {
    pick_token(logits.span<float>(), config, history.seen(), draw_of(1, 0, made++));
  });
  m.more["ms_per_token"] = m.time.seconds * 1e3;
  return m;
}

}  // namespace

std::vector<Key> sampling_keys() {
  return {{"what", "all", "greedy, weighted, top_p (0.9), top_k (40), penalties (top_p with them); or all"},
          {"logits", "all", "peaked, flat; or all"},
          {"vocab", "152064", "vocabulary"}};
}

std::vector<Job> sampling_jobs(const Keys& keys) {
  std::vector<Job> jobs;
  for (const auto& spread : keys.words("logits", kSpreads)) {
    for (const auto& what : keys.words("what", kSamplingWhats)) {
      const SamplingCall call{what, spread, keys.integer("vocab")};
      jobs.push_back({fmt::format("sampling {} {}", what, spread), 32.0 * static_cast<double>(call.vocab),
                      [call](Bench& bench) { return std::vector{measure_sampling(bench, call)}; }});
    }
  }
  return jobs;
}

}  // namespace switchyard::bench
