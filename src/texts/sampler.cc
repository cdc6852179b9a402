#include "texts/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "generate/generator.h"
#include "tokenizer/unicode.h"

namespace switchyard::texts {
namespace {

// The first logit of a token's row that is no number, if there is one.
std::optional<NotFinite> not_finite_of(const PickedToken& found, std::size_t tokens_before) {
  if (found.bad < 0) return std::nullopt;
  return NotFinite{static_cast<std::int64_t>(tokens_before), found.bad, found.bad_logit, 0};
}

std::string problem_of(const NotFinite& found) {
  return fmt::format("the model's logits after {} tokens are no numbers: that of token {} is {}",
                     found.tokens_before, found.token, found.logit);
}

constexpr const char* kNoneAllowed = "the grammar of the answer allows none of the model's tokens";

std::size_t tokens_before_next(const RunningText& text) {
  return text.request().prompt.size() + static_cast<std::size_t>(text.tokens);
}

// Returns the draw of a text's next token.
float draw_for(const RunningText& text) {
  return draw_of(text.request().seed, text.request().choice,
                 static_cast<std::size_t>(text.request().draws_before + text.tokens));
}

std::string name_of_id(std::int32_t token) {
  return fmt::format("token_id:{}", token);
}

// Returns the text of a token within a text, or its id where it has no text or only a part of a character.
// Returns nothing where there is no tokenizer.
std::string text_of_token(const Tokenizer* tokenizer, std::int32_t token) {
  if (tokenizer == nullptr) return "";
  const std::string text = text_within(*tokenizer, token);
  const bool whole = !text.empty() && repaired_utf8(text).find("\xef\xbf\xbd") == std::string::npos;
  return whole ? text : name_of_id(token);
}

using Probable = PickedToken::Probable;

// The most probable of all tokens with one text is named by it, the others by their ids.
TokenLogProb named_log_prob(Probable token, std::span<const Probable> most_probable, double log_sum,
                            const Tokenizer* tokenizer) {
  TokenLogProb result{token.token,
                      text_of_token(tokenizer, token.token),
                      static_cast<double>(token.logit) - log_sum,
                      {},
                      {},
                      0};
  std::set<std::string> seen;
  for (const auto& [id, logit] : most_probable) {
    if (std::isinf(logit)) break;  // the draw leaves it out, and all that follow
    const std::string text = text_of_token(tokenizer, id);
    result.most_probable.emplace_back(seen.insert(text).second ? text : name_of_id(id),
                                      static_cast<double>(logit) - log_sum);
    result.most_probable_tokens.push_back(id);
  }
  return result;
}

// The log probability of a token, with those of the `count` most probable ones.
TokenLogProb log_prob_of(const PickedToken& found, std::int64_t vocab, int count,
                         const Tokenizer* tokenizer) {
  const auto most = static_cast<std::size_t>(std::min<std::int64_t>(count, vocab));
  return named_log_prob({found.token, found.logit}, std::span(found.most_probable).first(most),
                        log_sum_of(found, vocab), tokenizer);
}

// The tokens that follow a chunk of a prompt, or the first token of a step with drafts.
SlotTokens next_tokens(const Step& step, const SlotTokens& fed, const Progress& progress) {
  if (step.drafted) return {fed.slot, {progress.last_token}};
  SlotTokens next{fed.slot, {fed.tokens.begin() + 1, fed.tokens.end()}};
  next.tokens.push_back(progress.reads_prompt() ? progress.prompt[progress.read] : progress.last_token);
  return next;
}

}  // namespace

RunningText::RunningText(WantedText wanted, const Tokenizer* tokenizer, std::int64_t turn,
                         std::int64_t cached_tokens)
    : text(std::move(wanted)),
      progress{.prompt = text.request.prompt,
               .scores_prompt = text.request.scores_prompt,
               .scores_from = text.request.scores_from,
               .turn = turn,
               .read = static_cast<std::size_t>(cached_tokens)},
      cached(cached_tokens),
      stop(text.request.stop),
      guide(text.request) {
  if (tokenizer != nullptr)
    characters.emplace(*tokenizer, text.request.prompt, text.request.answer != nullptr);
  CHECK(tokenizer != nullptr || (text.request.stop.empty() && text.request.answer == nullptr),
        "a text without a tokenizer has no characters");
  if (!text.request.sampling.uses_history()) return;
  if (text.request.history != nullptr)
    history = *text.request.history;
  else
    history.add_prompt(text.request.prompt);
}

void RunningText::read_again() {
  all_tokens = text.request.prompt;
  all_tokens.insert(all_tokens.end(), made.begin(), made.end());
  progress.prompt = all_tokens;
  progress.scores_prompt = progress.scores_prompt && made.empty();
  progress.read = progress.checkpoint = 0;
}

bool RunningText::ends_itself() const {
  return tokens > 0 && std::ranges::count(text.request.ends, progress.last_token) > 0;
}

Accepted Sampler::accept_logits(ThreadPool& pool, const Step& step, const RunningTexts& texts,
                                Tensor logits) const {
  CHECK(logits.dim(0) == std::ssize(step.fed) && logits.rank() == (step.wants_each() ? 3u : 2u),
        "logits {} for {} slots", to_string(logits.shape()), step.fed.size());
  const std::size_t rows_of_slot = step.wants_each() ? static_cast<std::size_t>(logits.dim(1)) : 1;
  logits = logits.reshaped({logits.dim(0) * static_cast<std::int64_t>(rows_of_slot), logits.shape().back()});
  for (const SlotTokens& fed : step.fed) {
    Progress& progress = texts[fed.slot]->progress;
    if (progress.reads_prompt()) progress.read += fed.tokens.size();
  }
  if (step.scored) score_prompts(pool, step, texts, logits, rows_of_slot);
  std::vector<Wanted> wanted;
  for (std::size_t i = 0; i < step.fed.size(); ++i) {
    const RunningText& text = *texts[step.fed[i].slot];
    if (text.progress.reads_prompt() || text.request().most_tokens == 0 || !text.problem.empty()) continue;
    const std::size_t last = step.scored ? step.fed[i].tokens.size() - 1 : 0;
    wanted.push_back({i, i * rows_of_slot + last});
  }
  Accepted accepted;
  accepted.new_tokens = append_next(pool, step, texts, wanted, logits);
  for (const SlotTokens& fed : step.fed) {
    accepted.kept.push_back(step.drafted ? 1 : fed.tokens.size());
    if (drafts_) accepted.next.push_back(next_tokens(step, fed, texts[fed.slot]->progress));
  }
  if (!step.drafted) return accepted;
  for (const Wanted& of : wanted) accepted.drafts += std::ssize(step.fed[of.fed].tokens) - 1;
  // A draft that is the token which was picked is right: the row after it has the next token's logits.
  for (std::size_t draft = 1; !wanted.empty(); ++draft) {
    std::vector<Wanted> again;
    for (const Wanted& of : wanted) {
      const std::vector<std::int32_t>& fed = step.fed[of.fed].tokens;
      const RunningText& text = *texts[step.fed[of.fed].slot];
      if (draft == fed.size() || !text.problem.empty() || text.progress.last_token != fed[draft]) continue;
      ++accepted.accepted_drafts;
      if (!finish_of(text)) again.push_back({of.fed, of.row + 1});
    }
    accepted.new_tokens += append_next(pool, step, texts, again, logits);
    for (const Wanted& of : again) {
      ++accepted.kept[of.fed];
      if (drafts_) accepted.next[of.fed].tokens.push_back(texts[step.fed[of.fed].slot]->progress.last_token);
    }
    wanted = std::move(again);
  }
  return accepted;
}

void Sampler::accept_drafts(ThreadPool& pool, std::span<const SlotTokens> next, const RunningTexts& texts,
                            const Tensor& logits) const {
  const std::int64_t vocab = std::min(vocab_, logits.dim(1));
  const SamplingConfig greedy;
  std::vector<TokenPick> picks;
  for (std::size_t i = 0; i < next.size(); ++i)
    picks.push_back({.row = static_cast<std::int64_t>(i), .vocab = vocab, .config = &greedy});
  const std::vector<PickedToken> found = pick_there(pool, logits, picks);
  for (std::size_t i = 0; i < next.size(); ++i) {
    RunningText* const text = texts[next[i].slot].get();
    if (text != nullptr) text->progress.drafts.push_back(found[i].token);
  }
}

std::int64_t Sampler::append_next(ThreadPool& pool, const Step& step, const RunningTexts& texts,
                                  const std::vector<Wanted>& wanted, const Tensor& logits) const {
  std::vector<Picked> picked = pick(pool, step, texts, wanted, logits);
  std::int64_t made = 0;
  for (std::size_t n = 0; n < wanted.size(); ++n) {
    made += picked[n].problem.empty();
    append(*texts[step.fed[wanted[n].fed].slot], std::move(picked[n]));
  }
  return made;
}

std::vector<Sampler::Picked> Sampler::scores_of(ThreadPool& pool, const Step& step, const RunningTexts& texts,
                                                const std::vector<Scored>& scored,
                                                const Tensor& logits) const {
  std::vector<Picked> scores(scored.size());
  const auto request_of = [&](std::size_t n) -> const TextRequest& {
    return texts[step.fed[scored[n].fed].slot]->request();
  };
  for (std::size_t n = 0; n < scored.size(); ++n) scores[n].token = request_of(n).prompt[scored[n].before];
  std::vector<TokenPick> picks;
  for (std::size_t n = 0; n < scored.size(); ++n)
    picks.push_back({.row = static_cast<std::int64_t>(scored[n].row),
                     .vocab = logits.dim(1),
                     .config = &request_of(n).sampling,
                     .given = scores[n].token,
                     .most_probable = *request_of(n).log_probs});
  const std::vector<PickedToken> found = pick_there(pool, logits, picks);
  for (std::size_t n = 0; n < scored.size(); ++n) {
    scores[n].not_finite = not_finite_of(found[n], scored[n].before);
    if (scores[n].not_finite)
      scores[n].problem = problem_of(*scores[n].not_finite);
    else
      scores[n].log_probs.push_back(log_prob_of(found[n], logits.dim(1), picks[n].most_probable, tokenizer_));
  }
  return scores;
}

// Scores the prompt tokens that follow those of the chunks in a step: their log probabilities over the whole
// vocabulary of the model. `logits` [n,V] has `rows_of_slot` rows for each fed slot.
void Sampler::score_prompts(ThreadPool& pool, const Step& step, const RunningTexts& texts,
                            const Tensor& logits, std::size_t rows_of_slot) const {
  std::vector<std::vector<Picked>> scores(step.fed.size());
  std::vector<Scored> scored;
  for (std::size_t i = 0; i < step.fed.size(); ++i) {
    const std::size_t size = step.fed[i].tokens.size();
    const Progress& progress = texts[step.fed[i].slot]->progress;
    scores[i].resize(progress.reads_prompt() ? size : size - 1);  // no prompt token follows the last one
    for (std::size_t t = 0; t < scores[i].size(); ++t)
      scored.push_back({i, t, i * rows_of_slot + t, progress.read - size + t + 1});
  }
  std::vector<Picked> found = scores_of(pool, step, texts, scored, logits);
  for (std::size_t n = 0; n < scored.size(); ++n)
    scores[scored[n].fed][scored[n].token] = std::move(found[n]);
  for (std::size_t i = 0; i < step.fed.size(); ++i) {
    RunningText& text = *texts[step.fed[i].slot];
    Piece piece{.choice = text.request().choice, .text = "", .of_prompt = true};
    const auto add_token = [&](std::int32_t token, TokenLogProb log_prob) {
      log_prob.offset = text.prompt_characters;
      if (text.prompt_text) text.prompt_characters += characters_in(text.prompt_text->add(token));
      piece.log_probs.push_back(std::move(log_prob));
    };
    if (text.progress.read == step.fed[i].tokens.size()) {
      if (tokenizer_ != nullptr) text.prompt_text.emplace(*tokenizer_, std::span<const std::int32_t>());
      const std::int32_t first = text.request().prompt[0];
      add_token(first, {first, text_of_token(tokenizer_, first), {}, {}, {}, 0});
    }
    for (Picked& score : scores[i]) {
      text.problem = score.problem;
      text.not_finite = score.not_finite;
      if (!text.problem.empty()) break;
      add_token(score.token, std::move(score.log_probs[0]));
    }
    text.text.pieces->add(std::move(piece));
  }
}

bool Sampler::is_end(const RunningText& text, std::int32_t token) const {
  const bool of_model = std::ranges::count(ends_, token) > 0;
  return (of_model && (!text.request().ignore_end || text.guide.has_grammar())) ||
         std::ranges::count(text.request().ends, token) > 0;
}

std::optional<Finish> Sampler::finish_of(const RunningText& text) const {
  if (!text.problem.empty()) return Finish::failed;
  const bool ended = text.tokens > 0 && is_end(text, text.progress.last_token);
  if (ended || text.stop.found() || text.guide.is_over()) return Finish::stop;
  if (text.tokens == text.request().most_tokens) return Finish::length;
  return std::nullopt;
}

// The ends that come too early.
std::vector<std::int32_t> Sampler::withheld_from(const RunningText& text) const {
  std::vector<std::int32_t> withheld = text.guide.forbidden();
  if (text.tokens >= text.request().least_tokens) return withheld;
  withheld.insert(withheld.end(), ends_.begin(), ends_.end());
  withheld.insert(withheld.end(), text.request().ends.begin(), text.request().ends.end());
  return withheld;
}

std::vector<Sampler::Picked> Sampler::pick(ThreadPool& pool, const Step& step, const RunningTexts& texts,
                                           const std::vector<Wanted>& wanted, const Tensor& logits) const {
  const std::int64_t vocab = std::min(vocab_, logits.dim(1));
  const auto text_of = [&](std::size_t n) -> RunningText& { return *texts[step.fed[wanted[n].fed].slot]; };
  std::vector<TokenPick> picks(wanted.size());
  std::vector<std::vector<std::uint32_t>> bits(wanted.size());  // where tokens are masked
  std::vector<std::uint8_t> none_allowed(wanted.size());
  pool.for_range(std::ssize(wanted), rows_a_thread(vocab), [&](std::int64_t begin, std::int64_t end) {
    for (auto n = static_cast<std::size_t>(begin); n < static_cast<std::size_t>(end); ++n) {
      RunningText& text = text_of(n);
      const TextRequest& request = text.request();
      picks[n] = {.row = static_cast<std::int64_t>(wanted[n].row),
                  .vocab = vocab,
                  .config = &request.sampling,
                  .seen = text.history.seen(),
                  .uniform = draw_for(text),
                  .given = text.guide.forced(),
                  .most_probable = request.log_probs.value_or(-1),
                  .processed = request.log_probs && request.processed_log_probs};
      const std::vector<std::int32_t> withheld = withheld_from(text);
      if (picks[n].given || (!text.guide.is_masking() && withheld.empty())) continue;
      none_allowed[n] = !text.guide.mask(static_cast<std::size_t>(vocab), withheld, bits[n]);
      picks[n].bits = bits[n];
    }
  });
  const std::vector<PickedToken> found = pick_there(pool, logits, picks);
  std::vector<Picked> result(wanted.size());
  for (std::size_t n = 0; n < wanted.size(); ++n) {
    Picked& picked = result[n];
    const RunningText& text = text_of(n);
    picked.not_finite = not_finite_of(found[n], tokens_before_next(text));
    if (picked.not_finite) {
      picked.problem = problem_of(*picked.not_finite);
      continue;
    }
    if (none_allowed[n] != 0) {
      picked.is_over = text.guide.may_end();
      if (!picked.is_over) picked.problem = kNoneAllowed;
      continue;
    }
    picked.token = found[n].token;
    if (text.request().log_probs)
      picked.log_probs.push_back(log_prob_of(found[n], vocab, *text.request().log_probs, tokenizer_));
  }
  return result;
}

void Sampler::append(RunningText& text, Picked picked) const {
  if (picked.is_over) {
    text.guide.end();
    return;
  }
  if (!picked.problem.empty()) {
    text.problem = std::move(picked.problem);
    text.not_finite = picked.not_finite;
    return;
  }
  text.progress.last_token = picked.token;
  text.made.push_back(picked.token);
  ++text.tokens;
  text.progress.drafts.clear();
  if (text.ngrams) text.ngrams->add(std::span(&picked.token, 1));
  if (text.request().sampling.uses_history()) text.history.add_made(picked.token);
  for (TokenLogProb& token : picked.log_probs) token.offset = text.new_characters;
  const bool is_end_of_answer = text.request().answer && is_end(text, picked.token);
  const bool has_text = text.characters && !text.ends_itself() && !is_end_of_answer;
  const std::string added = has_text ? text.characters->add(picked.token) : "";
  if (text.request().log_probs) text.new_characters += characters_in(added);
  Piece piece{.choice = text.request().choice,
              .text = "",
              .tokens = 1,
              .log_probs = std::move(picked.log_probs),
              .cached_tokens = text.tokens == 1 ? text.cached : 0};
  if (is_end_of_answer)
    piece.end = picked.token;
  else
    piece.made.push_back(picked.token);
  if (text.request().answer) {
    text.guide.add(picked.token, added, piece);
  } else {
    piece.text = text.stop.add(added);
  }
  text.text.pieces->add(std::move(piece));
}

Piece Sampler::last_piece(RunningText& text, Finish how) {
  Piece piece{.choice = text.request().choice,
              .text = "",
              .finish = how,
              .problem = text.problem,
              .not_finite = text.not_finite};
  const std::string rest = text.characters ? text.characters->finish() : "";
  if (text.request().answer) {
    text.guide.finish(rest, piece);
    return piece;
  }
  if (!text.stop.found()) piece.text = text.stop.add(rest);
  piece.text += text.stop.finish();
  if (text.stop.found() && how == Finish::length) piece.finish = Finish::stop;
  return piece;
}

}  // namespace switchyard::texts
