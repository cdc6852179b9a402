// Token after token with drafts: the model's first prediction layer guesses the token after the one that was
// picked, and the model reads both at once. Every token is picked from the model's own logits, by the draw
// that it would have without drafts, so the texts are the same: a guess only decides whether the second
// token's logits are of use.
#include <algorithm>
#include <chrono>
#include <limits>

#include "core/error.h"
#include "generate/generate.h"

namespace switchyard {
namespace {

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Drafting {
 public:
  Drafting(Generator& generator, const std::vector<std::vector<std::int32_t>>& prompts,
           const GenerateOptions& options, const std::function<void(std::size_t, std::int32_t)>& on_token)
      : generator_(generator),
        prompts_(prompts),
        options_(options),
        on_token_(on_token),
        histories_(prompts.size()),
        drafts_(prompts.size()) {
    result_.rows.resize(prompts.size());
    for (std::size_t r = 0; r < prompts.size() && options.sampling.uses_history(); ++r)
      histories_[r].add_prompt(prompts[r]);
  }

  Generated run() {
    const double begin = clock_seconds();
    double first = begin;
    if (options_.most_tokens > 0) {
      read_prompts_with_drafts();
      first = clock_seconds();
      while (!going_.empty()) step();
    }
    result_.prefill_seconds = first - begin;
    result_.decode_seconds = clock_seconds() - first;
    return std::move(result_);
  }

 private:
  // The prediction layer reads every piece of a prompt with the tokens that follow on its tokens.
  void read_prompts_with_drafts() {
    const std::size_t at_once = options_.prompt_piece > 0 ? static_cast<std::size_t>(options_.prompt_piece)
                                                          : std::numeric_limits<std::size_t>::max();
    bool more = true;
    for (std::size_t begin = 0; more; begin += at_once) {
      std::vector<RowTokens> fed, next;
      std::vector<bool> ends;
      more = false;
      for (std::size_t r = 0; r < prompts_.size(); ++r) {
        const auto& prompt = prompts_[r];
        if (begin >= prompt.size()) continue;
        const std::size_t size = std::min(at_once, prompt.size() - begin);
        ends.push_back(begin + size == prompt.size());
        more = more || !ends.back();
        const auto from = prompt.begin() + static_cast<std::ptrdiff_t>(begin),
                   to = from + static_cast<std::ptrdiff_t>(size);
        fed.push_back({r, {from, to}});
        next.push_back({r, {from + 1, ends.back() ? to : to + 1}});
      }
      Tensor logits = generator_.feed(fed);
      for (std::size_t i = 0; i < fed.size(); ++i) {
        if (!ends[i]) continue;
        if (add(fed[i].row, logits, i)) going_.push_back(fed[i].row);
        next[i].tokens.push_back(result_.rows[fed[i].row].tokens.back());
      }
      guess(next);
    }
    std::sort(going_.begin(), going_.end());
  }

  // The last token and the guess of the next one, of each row that goes on.
  void step() {
    std::vector<RowTokens> fed, next;
    for (const std::size_t row : going_)
      fed.push_back({row, {result_.rows[row].tokens.back(), drafts_[row]}});
    Tensor logits = generator_.feed_each(fed);
    logits = logits.reshaped({2 * std::ssize(fed), logits.dim(2)});
    going_.clear();
    for (std::size_t i = 0; i < fed.size(); ++i) {
      const std::size_t row = fed[i].row;
      std::vector<std::int32_t>& tokens = result_.rows[row].tokens;
      ++result_.drafted;
      bool goes_on = add(row, logits, 2 * i);
      next.push_back({row, {tokens.back()}});
      const bool right = tokens.back() == drafts_[row];
      result_.accepted += right;
      if (right && goes_on) {
        goes_on = add(row, logits, 2 * i + 1);
        next.back().tokens.push_back(tokens.back());
      } else {
        generator_.cut(row, generator_.length(row) - 1);
      }
      if (goes_on) going_.push_back(row);
    }
    ++result_.steps;
    if (!going_.empty()) guess(next);
  }

  // Picks the row's next token from logits [n,V] at `at`; whether the row goes on.
  bool add(std::size_t row, Tensor& logits, std::size_t at) {
    GeneratedRow& made = result_.rows[row];
    const std::span<float> of_token = logits_at(logits, at);
    if (const auto bad = first_not_finite(of_token)) {
      std::vector<std::int32_t> before = prompts_[row];
      before.insert(before.end(), made.tokens.begin(), made.tokens.end());
      fail_without_numbers(generator_, row, std::move(before), static_cast<std::int32_t>(*bad),
                           of_token[*bad]);
    }
    const std::int32_t token = pick_token(of_token, options_.sampling, histories_[row],
                                          draw_of(options_.seed, row, made.tokens.size()));
    made.tokens.push_back(token);
    if (options_.log_probs) made.log_probs.push_back(log_probability(of_token, token));
    if (options_.sampling.uses_history()) histories_[row].add_made(token);
    made.ended = std::find(options_.ends.begin(), options_.ends.end(), token) != options_.ends.end();
    on_token_(row, token);
    return !made.ended && std::ssize(made.tokens) < options_.most_tokens;
  }

  void guess(const std::vector<RowTokens>& next) {
    Tensor logits = generator_.draft(next);
    for (std::size_t i = 0; i < next.size(); ++i) {
      const std::span<float> of_row = logits_at(logits, i);
      drafts_[next[i].row] =
          static_cast<std::int32_t>(std::max_element(of_row.begin(), of_row.end()) - of_row.begin());
    }
  }

  std::span<float> logits_at(Tensor& logits, std::size_t at) const {
    return logits.span<float>().subspan(at * static_cast<std::size_t>(logits.dim(1)),
                                        static_cast<std::size_t>(std::min(options_.vocab, logits.dim(1))));
  }

  Generator& generator_;
  const std::vector<std::vector<std::int32_t>>& prompts_;
  const GenerateOptions& options_;
  const std::function<void(std::size_t, std::int32_t)>& on_token_;
  Generated result_;
  std::vector<TokenHistory> histories_;
  std::vector<std::int32_t> drafts_;  // of each row: the guess of the token after its last
  std::vector<std::size_t> going_;    // rows that go on, ascending
};

}  // namespace

Generated generate_with_drafts(Generator& generator, const std::vector<std::vector<std::int32_t>>& prompts,
                               const GenerateOptions& options,
                               const std::function<void(std::size_t row, std::int32_t token)>& on_token) {
  return Drafting(generator, prompts, options, on_token).run();
}

}  // namespace switchyard
