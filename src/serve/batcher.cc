#include "serve/batcher.h"

#include <algorithm>

#include "serve/steady_seconds.h"

namespace switchyard::serve {

Batcher::Batcher(const Tokenizer& tokenizer, const Limits& limits, RequestQueue& queue,
                 Statistics& statistics)
    : tokenizer_(tokenizer),
      queue_(queue),
      statistics_(statistics),
      slots_(static_cast<std::size_t>(limits.slots), limits.shares_prefixes,
             limits.deterministic ? limits.prompt_chunk : 0, limits.checkpoints > 0),
      scheduler_(limits),
      sampler_(tokenizer, limits),
      text_seconds_(limits.text_seconds),
      texts_(static_cast<std::size_t>(limits.slots)) {}

Call Batcher::next(double seconds) {
  for (std::size_t slot = 0; slot < texts_.size(); ++slot) {
    if (texts_[slot] == nullptr) continue;
    const bool is_late = text_seconds_ > 0 && steady_seconds() - texts_[slot]->text.asked > text_seconds_;
    if (texts_[slot]->text.pieces->abandoned()) {
      finish(slot, Finish::abandoned);
    } else if (is_late) {
      finish(slot, Finish::length);
    }
  }
  if (std::ranges::all_of(texts_, [](const auto& text) { return text == nullptr; })) queue_.wait(seconds);
  Call call;
  slots_.copies_done();
  while (std::optional<WantedText> text = queue_.take()) start(*std::move(text), call);
  std::vector<const Progress*> progress;
  for (const auto& text : texts_) progress.push_back(text == nullptr ? nullptr : &text->progress);
  call.step = scheduler_.next(progress);
  return call;
}

void Batcher::start(WantedText text, Call& call) {
  const PrefixCopy copy = slots_.assign(text.request.prompt, text.request.scores_prompt, text.request.domain);
  statistics_.change([&](Counts& counts) { counts.shared_tokens += copy.tokens; });
  statistics_.time([&](Timings& timings) { timings.queue_seconds.observe(steady_seconds() - text.asked); });
  texts_[copy.slot] = std::make_unique<RunningText>(std::move(text), tokenizer_, ++turns_, copy.tokens);
  RunningText& started = *texts_[copy.slot];
  started.progress.checkpoint =
      slots_.checkpoint_in(started.request().prompt.size(), started.request().scores_prompt);
  call.copies.push_back(copy);
}

DraftCall Batcher::accept_logits(ThreadPool& pool, const Step& step, const Tensor& logits, double seconds) {
  const bool prompts = texts_[step.fed[0].slot]->progress.reads_prompt();
  std::vector<std::int64_t> tokens_before;
  for (const SlotTokens& of : step.fed) tokens_before.push_back(texts_[of.slot]->tokens);
  Accepted accepted = sampler_.accept_logits(pool, step, texts_, logits);
  DraftCall drafts{{}, std::move(accepted.next)};
  for (std::size_t i = 0; i < step.fed.size(); ++i) {
    const auto& [slot, tokens] = step.fed[i];
    slots_.append(slot, std::span(tokens).first(accepted.kept[i]));
    if (accepted.kept[i] < tokens.size())
      drafts.truncated.push_back({slot, slot, std::ssize(slots_.tokens(slot))});
  }
  count(step, prompts, accepted, seconds);
  time_tokens(step, tokens_before);
  for (const SlotTokens& of : step.fed) {
    const RunningText& text = *texts_[of.slot];
    if (text.progress.reads_prompt() && text.problem.empty()) continue;
    if (const std::optional<Finish> how = sampler_.finish_of(text)) finish(of.slot, *how);
  }
  return drafts;
}

void Batcher::count(const Step& step, bool prompts, const Accepted& accepted, double seconds) {
  std::int64_t fed = 0;
  for (const SlotTokens& of : step.fed) fed += std::ssize(of.tokens);
  statistics_.change([&](Counts& counts) {
    (prompts ? counts.prompt_calls : counts.token_calls) += 1;
    (prompts ? counts.prompt_seconds : counts.token_seconds) += seconds;
    if (prompts) counts.prompt_tokens += fed;
    counts.new_tokens += accepted.new_tokens;
    counts.drafts += accepted.drafts;
    counts.accepted_drafts += accepted.accepted_drafts;
  });
  tell_cache_use();
}

void Batcher::tell_cache_use() {
  statistics_.set_cache_use(
      {slots_.tokens_in_use(), slot_tokens_ * static_cast<std::int64_t>(slots_.count())});
}

// The second one of two tokens that one call gives takes no time.
void Batcher::time_tokens(const Step& step, std::span<const std::int64_t> tokens_before) {
  const double now = steady_seconds();
  statistics_.time([&](Timings& timings) {
    for (std::size_t i = 0; i < step.fed.size(); ++i) {
      RunningText& text = *texts_[step.fed[i].slot];
      for (std::int64_t token = tokens_before[i]; token < text.tokens; ++token) {
        if (token == 0)
          timings.first_token_seconds.observe(now - text.text.asked);
        else
          timings.next_token_seconds.observe(now - text.last_token_at);
        text.last_token_at = now;
      }
      if (const std::optional<double> seconds = text.guide.take_mask_seconds())
        timings.grammar_mask_seconds.observe(*seconds);
    }
  });
}

void Batcher::give_up() {
  queue_.close();
  for (std::size_t slot = 0; slot < texts_.size(); ++slot) {
    if (texts_[slot] != nullptr) finish(slot, Finish::abandoned);
  }
}

void Batcher::count_chat(const RunningText& text, Finish how) {
  const auto calls = static_cast<std::int64_t>(text.guide.calls());
  const char* const word = how == Finish::length      ? "length"
                           : how == Finish::abandoned ? "abandoned"
                           : how == Finish::failed    ? "failed"
                           : calls > 0                ? "tool_calls"
                                                      : "stop";
  statistics_.change([&](Counts& counts) {
    counts.chat_requests[word] += 1;
    if (calls > 0) counts.tool_calls[std::string(chat::name_of(text.request().answer->format))] += calls;
  });
}

// The client may see the last piece at once: all that it can ask for is up to date before.
void Batcher::finish(std::size_t slot, Finish how) {
  const std::unique_ptr<RunningText> text = std::move(texts_[slot]);
  Piece piece = Sampler::last_piece(*text, how);
  queue_.finished(text->text);
  statistics_.count_finish(*piece.finish);
  statistics_.time([&](Timings& timings) {
    timings.text_seconds.observe(steady_seconds() - text->text.asked);
    timings.prompt_tokens.observe(static_cast<double>(text->request().prompt.size()));
    timings.new_tokens.observe(static_cast<double>(text->tokens));
  });
  if (text->request().answer != nullptr) count_chat(*text, *piece.finish);
  if (piece.finish == Finish::failed) slots_.forget(slot);  // no text starts with what has no finite logits
  if (on_finished_ && (piece.finish == Finish::stop || piece.finish == Finish::length))
    on_finished_(slot, text->request().choice, slots_.tokens(slot));
  slots_.release(slot);
  tell_cache_use();
  text->text.pieces->add(std::move(piece));
}

}  // namespace switchyard::serve
