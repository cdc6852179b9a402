#include "serve/batcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>

#include "core/error.h"
#include "tokenizer/unicode.h"

namespace switchyard::serve {

// A text that has a row.
struct Batcher::Running {
  Running(WantedText wanted, const Tokenizer& tokenizer)
      : text(std::move(wanted)), characters(tokenizer, text.request.prompt), stop(text.request.stop) {
    if (text.request.sampling.uses_history()) history.add_prompt(text.request.prompt);
  }

  WantedText text;
  TokenText characters;
  StopText stop;
  std::int64_t turn = 0;        // the place in which it came
  std::size_t read = 0;         // tokens of the prompt that were fed
  std::int64_t tokens = 0;      // new ones
  std::int32_t last_token = 0;  // of them
  std::int32_t draft = 0;       // a guess of the token after it
  TokenHistory history;         // where the request's penalties need one
  std::string problem = {};     // why the text cannot go on

  // Where log probabilities are wanted: characters of the new text, and of a prompt that is scored.
  std::int64_t new_characters = 0, prompt_characters = 0;
  std::optional<TokenText> prompt_text = {};

  // With a token that only this request ends at, whose text is no part of the answer.
  bool ends_itself() const { return tokens > 0 && std::ranges::count(text.request.ends, last_token) > 0; }
  bool reads_prompt() const { return read < text.request.prompt.size(); }
  std::size_t left() const { return text.request.prompt.size() - read; }
};

struct Batcher::Picked {
  std::int32_t token = 0;
  std::vector<TokenLogProb> log_probs = {};  // where wanted
  std::string problem = {};                  // then there is no token
};

// Logits of a row of a step: the row's place among those fed, and which row of all logits they are.
struct Batcher::Place {
  std::size_t fed, at;
};

namespace {

constexpr std::size_t kLeastShared = 16;  // tokens

// Why nothing can be said of a text's next token, in one line; empty where something can.
std::string problem_of(std::span<const float> logits, std::size_t tokens_before) {
  const std::optional<std::size_t> bad = first_not_finite(logits);
  if (!bad) return "";
  return fmt::format("the model's logits after {} tokens are no numbers: that of token {} is {}",
                     tokens_before, *bad, logits[*bad]);
}

std::string name_of_id(std::int32_t token) {
  return fmt::format("token_id:{}", token);
}

// The text of a token within a text; its id where it has none, or only part of a character, as many have.
std::string text_of_token(const Tokenizer& tokenizer, std::int32_t token) {
  const std::string text = text_within(tokenizer, token);
  const bool whole = !text.empty() && repaired_utf8(text).find("\xef\xbf\xbd") == std::string::npos;
  return whole ? text : name_of_id(token);
}

// The most probable token of a text has it for its name, others of the same text their id.
std::vector<std::pair<std::string, double>> most_probable(std::span<const float> logits, double log_sum,
                                                          int count, const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto middle = ids.begin() + std::min<std::ptrdiff_t>(count, std::ssize(ids));
  std::partial_sort(ids.begin(), middle, ids.end(), [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  });
  std::vector<std::pair<std::string, double>> most;
  std::set<std::string> seen;
  for (auto id = ids.begin(); id != middle; ++id) {
    const std::string text = text_of_token(tokenizer, *id);
    most.emplace_back(seen.insert(text).second ? text : name_of_id(*id),
                      static_cast<double>(logits[static_cast<std::size_t>(*id)]) - log_sum);
  }
  return most;
}

// With `count` most probable ones.
TokenLogProb log_prob_of(std::span<const float> logits, std::int32_t token, int count,
                         const Tokenizer& tokenizer) {
  const double log_sum = log_sum_exp(logits);
  return {text_of_token(tokenizer, token),
          static_cast<double>(logits[static_cast<std::size_t>(token)]) - log_sum,
          most_probable(logits, log_sum, count, tokenizer), 0};
}

}  // namespace

Batcher::Batcher(const Tokenizer& tokenizer, const BatcherLimits& limits)
    : tokenizer_(tokenizer),
      limits_(limits),
      rows_(static_cast<std::size_t>(limits.rows)),
      fed_(static_cast<std::size_t>(limits.rows)),
      began_(static_cast<std::size_t>(limits.rows)),
      rows_of_part_(static_cast<std::size_t>(limits.rows)) {}

Batcher::~Batcher() = default;

bool Batcher::submit(std::vector<WantedText> texts) {
  {
    const std::lock_guard lock(mutex_);
    const auto room = limits_.rows - counts_.running + limits_.waiting - std::ssize(waiting_);
    if (closed_ || std::ssize(texts) > room) {
      counts_.refused += std::ssize(texts);
      return false;
    }
    for (WantedText& text : texts) {
      if (text.request.most_tokens > 0 || text.request.scores_prompt) {
        waiting_.push_back(std::move(text));
        continue;
      }
      ++counts_.length;  // the model has nothing to do
      text.pieces->add({.choice = text.request.choice, .text = "", .finish = Finish::length});
    }
  }
  came_.notify_one();
  return true;
}

void Batcher::close() {
  std::deque<WantedText> left;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    left.swap(waiting_);
    counts_.abandoned += std::ssize(left);
  }
  came_.notify_one();
  for (const WantedText& text : left)
    text.pieces->add({.choice = text.request.choice, .text = "", .finish = Finish::abandoned});
}

void Batcher::give_up() {
  close();
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    if (rows_[row] != nullptr) finish(row, Finish::abandoned);
  }
}

bool Batcher::is_closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

BatcherCounts Batcher::counts() const {
  const std::lock_guard lock(mutex_);
  BatcherCounts counts = counts_;
  counts.waiting = std::ssize(waiting_);
  return counts;
}

bool Batcher::is_done() const {
  const std::lock_guard lock(mutex_);
  return closed_ && counts_.running == 0;
}

// Texts that wait get the free rows, in the order in which they came.
void Batcher::admit(Step& step) {
  const std::lock_guard lock(mutex_);
  // Of each row: whose tokens it has once the step has begun its rows, as the model has them still.
  std::vector<std::size_t> origins(rows_.size());
  std::iota(origins.begin(), origins.end(), 0);
  for (;;) {
    while (!waiting_.empty() && waiting_.front().pieces->abandoned()) {
      waiting_.pop_front();
      ++counts_.abandoned;
    }
    if (waiting_.empty() || counts_.running == limits_.rows) return;
    const Begun begun = place_for(waiting_.front().request, origins);
    origins[begun.row] = origins[begun.from];
    auto running = std::make_unique<Running>(std::move(waiting_.front()), tokenizer_);
    waiting_.pop_front();
    running->turn = began_[begun.row] = ++turns_;
    running->read = static_cast<std::size_t>(begun.tokens);
    counts_.shared_tokens += begun.tokens;
    ++counts_.running;
    const auto& prompt = running->text.request.prompt;
    fed_[begun.row].assign(prompt.begin(), prompt.begin() + begun.tokens);
    rows_[begun.row] = std::move(running);
    step.begun.push_back(begun);
  }
}

// Of the free rows from `begin` on, `count` of them in all, the one whose text began first; all rows' number
// without one.
std::size_t Batcher::free_row(std::size_t begin, std::size_t count) const {
  std::size_t best = rows_.size();
  for (std::size_t row = begin; row < begin + count; ++row) {
    if (rows_[row] == nullptr && (best == rows_.size() || began_[row] < began_[best])) best = row;
  }
  return best;
}

// A free row, and how many tokens of a row the prompt begins with: where these are most, and where that row
// is taken, another one of its part. At least the prompt's last token is fed, for its logits, and all of a
// prompt that is scored. A short beginning is not worth it: what follows one is attended to by another way,
// which costs more where nearly all is new. A model that has forgotten what the tokens after a beginning see
// cannot begin with it, nor then with less of that row.
Begun Batcher::place_for(const TextRequest& request, const std::vector<std::size_t>& origins) const {
  const std::vector<std::int32_t>& prompt = request.prompt;
  const bool shares = limits_.shares_prefixes && !request.scores_prompt;
  const std::size_t any = free_row(0, rows_.size());
  Begun best{any, any, 0};
  const std::size_t least = std::max(kLeastShared, prompt.size() / 8);
  for (std::size_t from = 0; from < rows_.size() && shares; ++from) {
    const auto most = static_cast<std::ptrdiff_t>(std::min(prompt.size() - 1, fed_[from].size()));
    const auto same = std::mismatch(prompt.begin(), prompt.begin() + most, fed_[from].begin());
    const std::int64_t tokens = same.first - prompt.begin();
    if (tokens < static_cast<std::int64_t>(least) || tokens <= best.tokens ||
        !can_begin_(origins[from], tokens))
      continue;
    const std::size_t part = from / rows_of_part_ * rows_of_part_;
    const std::size_t row = rows_[from] == nullptr ? from : free_row(part, rows_of_part_);
    if (row < rows_.size()) best = {row, from, tokens};
  }
  return best;
}

// What is left of prompts, in the order in which they came: of the first one no more than a piece, and others
// that make no more than a piece with it, as a rectangle of tokens with a quarter of padding at the most. A
// step reads prompts that are scored, in smaller pieces, or others.
Step Batcher::prompt_step() const {
  std::vector<std::size_t> order;
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    if (rows_[row] != nullptr && rows_[row]->reads_prompt()) order.push_back(row);
  }
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return rows_[a]->turn < rows_[b]->turn; });
  const auto is_scored = [&](std::size_t row) { return rows_[row]->text.request.scores_prompt; };
  Step step;
  step.scored = !order.empty() && is_scored(order[0]);
  std::size_t tokens = 0, longest = 0;
  const auto most = static_cast<std::size_t>(step.scored ? limits_.scored_piece : limits_.prompt_piece);
  for (const std::size_t row : order) {
    if (is_scored(row) != step.scored) continue;
    const Running& running = *rows_[row];
    const std::size_t size = std::min(running.left(), most);
    const std::size_t area = std::max(longest, size) * (step.fed.size() + 1);
    if (area > most || 4 * (tokens + size) < 3 * area) continue;
    tokens += size;
    longest = std::max(longest, size);
    const auto part = std::span(running.text.request.prompt).subspan(running.read, size);
    step.fed.push_back({row, {part.begin(), part.end()}});
  }
  return step;
}

Step Batcher::token_step() const {
  Step step;
  step.drafted = limits_.drafts;
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    if (rows_[row] == nullptr || rows_[row]->reads_prompt()) continue;
    step.fed.push_back({row, {rows_[row]->last_token}});
    if (limits_.drafts) step.fed.back().tokens.push_back(rows_[row]->draft);
  }
  return step;
}

Step Batcher::next(double seconds) {
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    if (rows_[row] != nullptr && rows_[row]->text.pieces->abandoned()) finish(row, Finish::abandoned);
  }
  const auto any = [&] {
    return std::any_of(rows_.begin(), rows_.end(), [](const auto& row) { return row != nullptr; });
  };
  if (!any()) {
    std::unique_lock lock(mutex_);
    came_.wait_for(lock, std::chrono::duration<double>(seconds),
                   [&] { return closed_ || !waiting_.empty(); });
  }
  Step step;
  admit(step);
  Step first = prompts_next_ ? prompt_step() : token_step();
  if (first.fed.empty()) first = prompts_next_ ? token_step() : prompt_step();
  step.fed = std::move(first.fed);
  step.drafted = first.drafted && !step.fed.empty();
  step.scored = first.scored && !step.fed.empty();
  return step;
}

Follow Batcher::take(ThreadPool& pool, const Step& step, Tensor logits, double seconds) {
  const bool prompts = rows_[step.fed[0].row]->reads_prompt();
  const bool drafted = step.drafted;
  CHECK(logits.dim(0) == std::ssize(step.fed) && logits.rank() == (step.wants_each() ? 3u : 2u),
        "logits {} for {} rows", to_string(logits.shape()), step.fed.size());
  const std::size_t of_row = step.wants_each() ? static_cast<std::size_t>(logits.dim(1)) : 1;
  logits = logits.reshaped({logits.dim(0) * static_cast<std::int64_t>(of_row), logits.shape().back()});
  prompts_next_ = !prompts;
  std::int64_t fed = 0, accepted = 0;
  std::vector<Place> picking, again;  // of rows whose next token is wanted, and whose second one is
  for (const RowTokens& row : step.fed) {
    if (prompts) rows_[row.row]->read += row.tokens.size();
    fed += std::ssize(row.tokens);
  }
  if (step.scored) score_prompts(pool, step, logits, of_row);
  for (std::size_t i = 0; i < step.fed.size(); ++i) {
    const Running& running = *rows_[step.fed[i].row];
    const bool wants = running.text.request.most_tokens > 0 && running.problem.empty();
    if (running.reads_prompt() || !wants) continue;
    const std::size_t last = step.scored ? step.fed[i].tokens.size() - 1 : 0;
    picking.push_back({i, i * of_row + last});
  }
  pick_all(pool, step, picking, logits);
  Follow follow;
  for (const RowTokens& row : step.fed) follow.next.push_back(following(row));
  for (const Place& place : drafted ? picking : std::vector<Place>()) {
    const Running& running = *rows_[step.fed[place.fed].row];
    const bool right = running.problem.empty() && running.last_token == running.draft;
    accepted += right;
    // The guess was the token that the model picked: what it saw after it counts.
    if (right && !end_of(running)) again.push_back({place.fed, place.at + 1});
  }
  pick_all(pool, step, again, logits);
  for (const Place& place : again)
    follow.next[place.fed].tokens.push_back(rows_[step.fed[place.fed].row]->last_token);
  for (std::size_t i = 0; i < step.fed.size(); ++i) {
    const auto& [row, tokens] = step.fed[i];
    auto& remembered = fed_[row];
    const auto kept = static_cast<std::ptrdiff_t>(drafted ? follow.next[i].tokens.size() : tokens.size());
    remembered.insert(remembered.end(), tokens.begin(), tokens.begin() + kept);
    if (kept < std::ssize(tokens)) follow.kept.push_back({row, row, std::ssize(remembered)});
  }
  {
    const std::lock_guard lock(mutex_);
    (prompts ? counts_.prompt_calls : counts_.token_calls) += 1;
    (prompts ? counts_.prompt_seconds : counts_.token_seconds) += seconds;
    if (prompts) counts_.prompt_tokens += fed;
    if (drafted) counts_.drafts += std::ssize(picking);
    counts_.accepted_drafts += accepted;
  }
  for (const RowTokens& row : step.fed) {
    const Running& running = *rows_[row.row];
    if (running.reads_prompt() && running.problem.empty()) continue;
    if (const std::optional<Finish> how = end_of(running)) finish(row.row, *how);
  }
  return follow;
}

void Batcher::take_drafts(const Follow& follow, Tensor logits) {
  const auto vocab = static_cast<std::size_t>(std::min(limits_.vocab, logits.dim(1)));
  for (std::size_t i = 0; i < follow.next.size(); ++i) {
    Running* const running = rows_[follow.next[i].row].get();
    if (running == nullptr) continue;  // its text is over
    const auto of_row = logits.span<float>().subspan(i * static_cast<std::size_t>(logits.dim(1)), vocab);
    running->draft =
        static_cast<std::int32_t>(std::max_element(of_row.begin(), of_row.end()) - of_row.begin());
  }
}

// The next tokens of the texts at some places of a step, from logits [n,V].
void Batcher::pick_all(ThreadPool& pool, const Step& step, const std::vector<Place>& places, Tensor& logits) {
  const auto vocab = static_cast<std::size_t>(std::min(limits_.vocab, logits.dim(1)));
  std::vector<Picked> picked(places.size());
  const auto pick_some = [&](std::int64_t begin, std::int64_t end) {
    for (auto n = static_cast<std::size_t>(begin); n < static_cast<std::size_t>(end); ++n) {
      const std::size_t offset = places[n].at * static_cast<std::size_t>(logits.dim(1));
      picked[n] = pick(*rows_[step.fed[places[n].fed].row], logits.span<float>().subspan(offset, vocab));
    }
  };
  pool.for_range(std::ssize(places), rows_a_thread(limits_.vocab), pick_some);
  std::int64_t made = 0;
  for (std::size_t n = 0; n < places.size(); ++n) {
    made += picked[n].problem.empty();
    add(*rows_[step.fed[places[n].fed].row], std::move(picked[n]));
  }
  const std::lock_guard lock(mutex_);
  counts_.new_tokens += made;
}

// Of the parts of prompts in a step, which were read: what the model, with its whole vocabulary, gave each
// token that stands after one of them. Logits [n,V], `of_row` for each row fed.
void Batcher::score_prompts(ThreadPool& pool, const Step& step, const Tensor& logits, std::size_t of_row) {
  const auto vocab = static_cast<std::size_t>(logits.dim(1));
  std::vector<std::vector<Picked>> scored(step.fed.size());
  std::vector<Place> places;  // `at` is the token's place in the part
  for (std::size_t i = 0; i < step.fed.size(); ++i) {
    const Running& running = *rows_[step.fed[i].row];
    const std::size_t size = step.fed[i].tokens.size();
    scored[i].resize(running.reads_prompt() ? size : size - 1);  // nothing is after the prompt's last token
    for (std::size_t t = 0; t < scored[i].size(); ++t) places.push_back({i, t});
  }
  pool.for_range(std::ssize(places), rows_a_thread(logits.dim(1)), [&](std::int64_t begin, std::int64_t end) {
    for (auto n = static_cast<std::size_t>(begin); n < static_cast<std::size_t>(end); ++n) {
      const auto [i, t] = places[n];
      const Running& running = *rows_[step.fed[i].row];
      const TextRequest& request = running.text.request;
      const std::size_t before = running.read - step.fed[i].tokens.size() + t + 1;
      const auto of_token = logits.span<float>().subspan((i * of_row + t) * vocab, vocab);
      Picked& score = scored[i][t];
      score.token = request.prompt[before];
      score.problem = problem_of(of_token, before);
      if (score.problem.empty())
        score.log_probs.push_back(log_prob_of(of_token, score.token, *request.log_probs, tokenizer_));
    }
  });
  for (std::size_t i = 0; i < step.fed.size(); ++i) {
    Running& running = *rows_[step.fed[i].row];
    Piece piece{.choice = running.text.request.choice, .text = "", .of_prompt = true};
    const auto add_token = [&](std::int32_t token, TokenLogProb log_prob) {
      log_prob.offset = running.prompt_characters;
      running.prompt_characters += characters_in(running.prompt_text->add(token));
      piece.log_probs.push_back(std::move(log_prob));
    };
    if (!running.prompt_text) {
      running.prompt_text.emplace(tokenizer_, std::span<const std::int32_t>());
      const std::int32_t first = running.text.request.prompt[0];
      add_token(first, {text_of_token(tokenizer_, first), {}, {}, 0});
    }
    for (Picked& score : scored[i]) {
      running.problem = score.problem;
      if (!running.problem.empty()) break;
      add_token(score.token, std::move(score.log_probs[0]));
    }
    running.text.pieces->add(std::move(piece));
  }
}

// How a text that has a token is over, if it is.
std::optional<Finish> Batcher::end_of(const Running& running) const {
  if (!running.problem.empty()) return Finish::failed;
  const bool is_end = running.tokens > 0 && std::ranges::count(limits_.ends, running.last_token) > 0;
  if ((is_end && !running.text.request.ignore_end) || running.ends_itself() || running.stop.found())
    return Finish::stop;
  if (running.tokens == running.text.request.most_tokens) return Finish::length;
  return std::nullopt;
}

// The tokens that follow on a piece of a prompt that was fed, or on a text's last token.
RowTokens Batcher::following(const RowTokens& fed) const {
  const Running& running = *rows_[fed.row];
  const auto& prompt = running.text.request.prompt;
  if (running.tokens > 1) return {fed.row, {running.last_token}};
  RowTokens next{fed.row, {fed.tokens.begin() + 1, fed.tokens.end()}};
  next.tokens.push_back(running.reads_prompt() ? prompt[running.read] : running.last_token);
  return next;
}

// The next token of a text. Several threads at once, for texts of their own.
Batcher::Picked Batcher::pick(const Running& running, std::span<float> logits) const {
  const TextRequest& request = running.text.request;
  Picked picked;
  picked.problem = problem_of(logits, request.prompt.size() + static_cast<std::size_t>(running.tokens));
  if (!picked.problem.empty()) return picked;
  picked.token = pick_token(logits, request.sampling, running.history,
                            draw_of(request.seed, request.choice, static_cast<std::size_t>(running.tokens)));
  if (request.log_probs)
    picked.log_probs.push_back(log_prob_of(logits, picked.token, *request.log_probs, tokenizer_));
  return picked;
}

// The text that a token makes.
void Batcher::add(Running& running, Picked picked) {
  if (!picked.problem.empty()) {
    running.problem = std::move(picked.problem);
    return;
  }
  running.last_token = picked.token;
  ++running.tokens;
  if (running.text.request.sampling.uses_history()) running.history.add_made(picked.token);
  for (TokenLogProb& token : picked.log_probs) token.offset = running.new_characters;
  const std::string added = running.ends_itself() ? "" : running.characters.add(picked.token);
  if (running.text.request.log_probs) running.new_characters += characters_in(added);
  running.text.pieces->add({.choice = running.text.request.choice,
                            .text = running.stop.add(added),
                            .tokens = 1,
                            .log_probs = std::move(picked.log_probs)});
}

void Batcher::finish(std::size_t row, Finish how) {
  Running& running = *rows_[row];
  std::string rest;
  if (!running.stop.found()) rest = running.stop.add(running.characters.finish());
  rest += running.stop.finish();
  const Finish told = running.stop.found() && how == Finish::length ? Finish::stop : how;
  {
    const std::lock_guard lock(mutex_);
    --counts_.running;
    (told == Finish::stop     ? counts_.stopped
     : told == Finish::length ? counts_.length
     : told == Finish::failed ? counts_.failed
                              : counts_.abandoned) += 1;
  }
  if (told == Finish::failed) fed_[row].clear();  // nobody begins with what made no numbers
  // Before anybody can see that the text is whole.
  if (on_finished_ && (told == Finish::stop || told == Finish::length))
    on_finished_(row, running.text.request.choice, fed_[row]);
  running.text.pieces->add({.choice = running.text.request.choice,
                            .text = std::move(rest),
                            .finish = told,
                            .problem = running.problem});
  rows_[row].reset();
}

}  // namespace switchyard::serve
