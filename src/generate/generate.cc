#include "generate/generate.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "core/rng.h"

namespace switchyard {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

float draw_of(std::uint32_t seed, std::size_t row, std::size_t token) {
  return rng_uniform(rng_key(seed), (static_cast<std::uint64_t>(row) << 32) + token);
}

std::span<float> logits_of_row(Tensor& logits, std::size_t row, std::int64_t vocab) {
  return logits.span<float>().subspan(row * static_cast<std::size_t>(logits.dim(1)),
                                      static_cast<std::size_t>(std::min(vocab, logits.dim(1))));
}

}  // namespace

Generated generate(Generator& generator, const std::vector<std::vector<std::int32_t>>& prompts,
                   const GenerateOptions& options,
                   const std::function<void(std::size_t, std::int32_t)>& on_token) {
  Generated result;
  result.rows.resize(prompts.size());
  const double begin = seconds_now();
  double first = begin;
  std::vector<std::vector<std::int32_t>> next = prompts;
  for (std::int64_t n = 0; n < options.most_tokens; ++n) {
    Tensor logits = generator.feed(next);
    bool done = true;
    for (std::size_t r = 0; r < next.size(); ++r) {
      GeneratedRow& row = result.rows[r];
      next[r].resize(1);  // of a row that has ended its end again, until all have
      if (row.ended) continue;
      const auto of_row = logits_of_row(logits, r, options.vocab);
      const std::int32_t token =
          pick_token(of_row, options.sampling, draw_of(options.seed, r, row.tokens.size()));
      next[r][0] = token;
      row.tokens.push_back(token);
      if (options.log_probs) row.log_probs.push_back(log_probability(of_row, token));
      row.ended = token == options.end;
      done = done && row.ended;
      on_token(r, token);
    }
    if (n == 0) first = seconds_now();
    result.steps = n;
    if (done) break;
  }
  result.prefill_seconds = first - begin;
  result.decode_seconds = seconds_now() - first;
  return result;
}

std::string sample_text(Context& context, const ModelConfig& model, const Parameters& parameters,
                        const Tokenizer& tokenizer, const std::string& prompt, std::int64_t count,
                        std::int64_t window, const SamplingConfig& sampling, std::uint32_t seed) {
  std::vector<std::int32_t> tokens = tokenizer.encode(prompt);
  if (tokens.empty()) return "";
  std::optional<Generator> generator;
  std::size_t seen = 0;  // tokens that the generator was fed
  for (std::int64_t i = 0; i < count; ++i) {
    const auto after = static_cast<std::ptrdiff_t>(tokens.size());
    if (!generator || generator->length(0) == window) {
      const std::int64_t most = generator ? std::max<std::int64_t>(1, window / 2) : window;
      seen = tokens.size() - std::min(tokens.size(), static_cast<std::size_t>(most));
      generator.emplace(context, model, parameters, window);
    }
    const std::vector<std::int32_t> fed(tokens.begin() + static_cast<std::ptrdiff_t>(seen),
                                        tokens.begin() + after);
    Tensor logits = generator->feed(std::span(&fed, 1));
    seen = tokens.size();
    const auto last = logits_of_row(logits, 0, tokenizer.vocab_size());
    if (tokenizer.eos())
      last[static_cast<std::size_t>(*tokenizer.eos())] = -std::numeric_limits<float>::infinity();
    tokens.push_back(pick_token(last, sampling, draw_of(seed, 0, static_cast<std::size_t>(i))));
  }
  return tokenizer.decode(tokens);
}

}  // namespace switchyard
