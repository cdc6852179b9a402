#include "generate/generate.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <set>

#include "core/error.h"

namespace switchyard {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::span<float> logits_of_row(Tensor& logits, std::size_t row, std::int64_t vocab) {
  return logits.span<float>().subspan(row * static_cast<std::size_t>(logits.dim(1)),
                                      static_cast<std::size_t>(std::min(vocab, logits.dim(1))));
}

// Feeds the prompts, no more than `piece` tokens of each at once. Logits of their next tokens.
Tensor read_prompts(Generator& generator, const std::vector<RowTokens>& prompts, std::int64_t piece) {
  const auto at_once = piece > 0 ? static_cast<std::size_t>(piece) : std::numeric_limits<std::size_t>::max();
  Tensor all;
  for (std::size_t begin = 0;; begin += at_once) {
    std::vector<RowTokens> fed;
    std::vector<std::size_t> of;  // the prompts that have tokens left
    bool more = false;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const std::size_t size = prompts[i].tokens.size();
      if (begin >= size) continue;
      const auto tokens = std::span(prompts[i].tokens).subspan(begin, std::min(at_once, size - begin));
      of.push_back(i);
      fed.push_back({prompts[i].row, {tokens.begin(), tokens.end()}});
      more = more || begin + tokens.size() < size;
    }
    const Tensor logits = generator.feed(fed);
    if (begin == 0 && !more) return logits;
    if (begin == 0) all = Tensor(DType::f32, {static_cast<std::int64_t>(prompts.size()), logits.dim(1)});
    const std::size_t row_bytes = static_cast<std::size_t>(logits.dim(1)) * sizeof(float);
    for (std::size_t i = 0; i < fed.size(); ++i)
      std::memcpy(all.raw() + of[i] * row_bytes, logits.raw() + i * row_bytes, row_bytes);
    if (!more) return all;
  }
}

// The next token of each row of logits, which is that row's of the text `of[i]`; log probabilities where
// wanted. Rows are independent, so threads share them.
struct Picked {
  std::int32_t token = 0;
  double log_prob = 0;
  std::optional<std::size_t> bad = {};  // a logit that is no number; then there is no token
};
std::vector<Picked> pick_tokens(ThreadPool& pool, Tensor& logits, const std::vector<RowTokens>& fed,
                                const std::vector<GeneratedRow>& rows,
                                const std::vector<TokenHistory>& histories, const GenerateOptions& options) {
  std::vector<Picked> picked(fed.size());
  const auto pick = [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      const std::size_t row = fed[i].row;
      const auto of_row = logits_of_row(logits, i, options.vocab);
      if ((picked[i].bad = first_not_finite(of_row))) continue;
      picked[i].token = pick_token(of_row, options.sampling, histories[row],
                                   draw_of(options.seed, row, rows[row].tokens.size()));
      if (options.log_probs) picked[i].log_prob = log_probability(of_row, picked[i].token);
    }
  };
  pool.for_range(std::ssize(fed), rows_a_thread(options.vocab), pick);
  return picked;
}

}  // namespace

std::vector<std::int32_t> end_tokens(const Config& config, const Tokenizer& tokenizer) {
  std::set<std::int32_t> ends;
  if (tokenizer.eos()) ends.insert(*tokenizer.eos());
  for (const std::int64_t id : config.get_ints("decode_end_tokens")) {
    if (id < 0 || id > std::numeric_limits<std::int32_t>::max())
      fail_usage("[generate] decode_end_tokens: expected ids of 0 or more, got {}", id);
    ends.insert(static_cast<std::int32_t>(id));
  }
  return {ends.begin(), ends.end()};
}

std::string broken_layer_text(std::int64_t layer, std::int64_t layers) {
  if (layer < 0) return "the embedding's output is not finite";
  if (layer == layers) return "the outputs of all layers are finite";
  return fmt::format("the first output that is not finite is that of layer {}", layer);
}

void fail_without_numbers(Generator& generator, std::size_t row, std::vector<std::int32_t> before,
                          std::int32_t bad, float logit) {
  const std::size_t size = before.size();
  const std::int64_t layer = generator.first_broken_layer({row, std::move(before)});
  fail_runtime(
      "[generate] row {}: the model's logits after {} tokens are no numbers (that of token {} is {}); {}",
      row, size, bad, logit, broken_layer_text(layer, generator.layers()));
}

Generated generate(Generator& generator, const std::vector<std::vector<std::int32_t>>& prompts,
                   const GenerateOptions& options,
                   const std::function<void(std::size_t, std::int32_t)>& on_token) {
  Generated result;
  result.rows.resize(prompts.size());
  const double begin = seconds_now();
  double first = begin;
  std::vector<RowTokens> next;
  std::vector<TokenHistory> histories(prompts.size());
  const bool has_history = options.sampling.uses_history();
  for (std::size_t r = 0; r < prompts.size() && has_history; ++r) histories[r].add_prompt(prompts[r]);
  for (std::size_t r = 0; r < prompts.size() && options.most_tokens > 0; ++r) next.push_back({r, prompts[r]});
  for (std::int64_t n = 0; !next.empty(); ++n) {
    Tensor logits = n == 0 ? read_prompts(generator, next, options.prompt_piece) : generator.feed(next);
    const std::vector<Picked> picked =
        pick_tokens(generator.pool(), logits, next, result.rows, histories, options);
    std::vector<RowTokens> going_on;
    for (std::size_t i = 0; i < next.size(); ++i) {
      GeneratedRow& row = result.rows[next[i].row];
      if (const auto bad = picked[i].bad) {
        std::vector<std::int32_t> before = prompts[next[i].row];
        before.insert(before.end(), row.tokens.begin(), row.tokens.end());
        fail_without_numbers(generator, next[i].row, std::move(before), static_cast<std::int32_t>(*bad),
                             logits_of_row(logits, i, options.vocab)[*bad]);
      }
      const std::int32_t token = picked[i].token;
      row.tokens.push_back(token);
      if (options.log_probs) row.log_probs.push_back(picked[i].log_prob);
      if (has_history) histories[next[i].row].add_made(token);
      row.ended = std::find(options.ends.begin(), options.ends.end(), token) != options.ends.end();
      on_token(next[i].row, token);
      if (!row.ended && n + 1 < options.most_tokens) going_on.push_back({next[i].row, {token}});
    }
    next = std::move(going_on);
    if (n == 0) first = seconds_now();
    result.steps = n;
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
  TokenHistory history;
  history.add_prompt(tokens);
  std::size_t seen = 0;  // tokens that the generator was fed
  for (std::int64_t i = 0; i < count; ++i) {
    const auto after = static_cast<std::ptrdiff_t>(tokens.size());
    if (!generator || generator->length(0) == window) {
      const std::int64_t most = generator ? std::max<std::int64_t>(1, window / 2) : window;
      seen = tokens.size() - std::min(tokens.size(), static_cast<std::size_t>(most));
      generator.emplace(context, model, parameters, 1, window);
    }
    const RowTokens fed{0, {tokens.begin() + static_cast<std::ptrdiff_t>(seen), tokens.begin() + after}};
    Tensor logits = generator->feed(std::span(&fed, 1));
    seen = tokens.size();
    const auto last = logits_of_row(logits, 0, tokenizer.vocab_size());
    if (tokenizer.eos())
      last[static_cast<std::size_t>(*tokenizer.eos())] = -std::numeric_limits<float>::infinity();
    tokens.push_back(pick_token(last, sampling, history, draw_of(seed, 0, static_cast<std::size_t>(i))));
    history.add_made(tokens.back());
  }
  return tokenizer.decode(tokens);
}

}  // namespace switchyard
