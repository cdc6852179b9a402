#include "texts/batcher.h"

#include <algorithm>
#include <utility>

#include "texts/steady_seconds.h"

namespace switchyard::texts {

Batcher::Batcher(const Tokenizer* tokenizer, const Limits& limits, Inbox& inbox, Observer& observer,
                 OnFinished on_finished)
    : tokenizer_(tokenizer),
      inbox_(inbox),
      observer_(observer),
      on_finished_(std::move(on_finished)),
      slots_(static_cast<std::size_t>(limits.slots), limits.shares_prefixes,
             limits.deterministic ? limits.prompt_chunk : 0, limits.checkpoints > 0),
      scheduler_(limits),
      sampler_(tokenizer, limits),
      text_seconds_(limits.text_seconds),
      drafts_(limits.drafts),
      ngram_drafts_(limits.ngram_drafts),
      call_cost_(limits.call_cost),
      texts_(static_cast<std::size_t>(limits.slots)) {}

Batcher::~Batcher() {
  inbox_.close();
  for (std::size_t slot = 0; slot < texts_.size(); ++slot) {
    if (texts_[slot] != nullptr) finish(slot, Finish::abandoned);
  }
}

Call Batcher::next(double seconds, const std::vector<const Pieces*>* only) {
  for (std::size_t slot = 0; slot < texts_.size(); ++slot) {
    if (texts_[slot] == nullptr) continue;
    const bool is_late = text_seconds_ > 0 && steady_seconds() - texts_[slot]->text.asked > text_seconds_;
    if (texts_[slot]->text.pieces->abandoned()) {
      finish(slot, Finish::abandoned);
    } else if (is_late) {
      finish(slot, Finish::length);
    }
  }
  if (std::ranges::all_of(texts_, [](const auto& text) { return text == nullptr; })) inbox_.wait(seconds);
  Call call;
  call.copies = std::exchange(rejected_, {});
  slots_.copies_done();
  for (std::size_t slot = 0; slot < texts_.size(); ++slot) {
    if (!is_current_(slot)) read_again(slot, call);
  }
  while (std::optional<WantedText> text = inbox_.take()) start(*std::move(text), call);
  std::vector<const Progress*> progress;
  std::vector<RunningText*> making;  // next tokens
  for (const auto& text : texts_) {
    const bool runs =
        text != nullptr && (only == nullptr || std::ranges::count(*only, text->text.pieces.get()) > 0);
    progress.push_back(runs ? &text->progress : nullptr);
    if (runs && !text->progress.reads_prompt()) making.push_back(text.get());
  }
  held_drafts_ = 0;
  for (RunningText* const text : making) choose_drafts(*text, std::ssize(making));
  call.step = scheduler_.next(progress);
  return call;
}

// Holds back drafts that cost more than they save; whether the first one is right counts all the same.
void Batcher::choose_drafts(RunningText& text, std::int64_t texts) {
  std::vector<std::int32_t>& drafts = text.progress.drafts;
  if (text.ngrams) {
    drafts = text.ngrams->guess(static_cast<std::size_t>(ngram_drafts_));
    text.held_draft.reset();
  }
  const std::int64_t left = text.request().most_tokens - text.tokens - 1;  // none behind the last token
  if (std::ssize(drafts) > left) drafts.resize(static_cast<std::size_t>(std::max<std::int64_t>(0, left)));
  if (drafts.empty()) return;
  const std::int64_t worth = drafts_worth(call_cost_, text.draft_rate.share(), std::ssize(drafts), texts);
  held_drafts_ += std::ssize(drafts) - worth;
  if (worth == 0) text.held_draft = drafts[0];
  drafts.resize(static_cast<std::size_t>(worth));
}

std::vector<SlotTokens> Batcher::wanted_drafts(std::span<const SlotTokens> next) const {
  const std::int64_t making = std::ranges::count_if(
      texts_, [](const auto& text) { return text != nullptr && !text->progress.reads_prompt(); });
  std::vector<SlotTokens> last;
  bool wanted = false;
  for (const SlotTokens& of : next) {
    const RunningText* const text = texts_[of.slot].get();
    const bool drafts = text != nullptr && !text->progress.reads_prompt();
    last.push_back({of.slot, {drafts ? text->progress.drafts.back() : 0}});
    if (!drafts) continue;
    const auto there = std::ssize(text->progress.drafts);
    wanted = wanted || (text->request().most_tokens - text->tokens - 1 > there &&
                        drafts_worth(call_cost_, text->draft_rate.share(), drafts_, making) > there);
  }
  return wanted ? last : std::vector<SlotTokens>();
}

void Batcher::rate_drafts(RunningText& text, std::size_t fed, std::size_t kept) const {
  if (fed > 1)
    text.draft_rate.add(static_cast<std::int64_t>(kept) - 1, kept < fed);
  else if (text.held_draft)
    text.draft_rate.add(text.progress.last_token == *text.held_draft,
                        text.progress.last_token != *text.held_draft);
  text.held_draft.reset();
}

void Batcher::start(WantedText text, Call& call) {
  const PrefixCopy copy = slots_.assign(text.request.prompt, text.request.scores_prompt, text.request.domain);
  observer_.started(steady_seconds() - text.asked, copy.tokens);
  texts_[copy.slot] = std::make_unique<RunningText>(std::move(text), tokenizer_, ++turns_, copy.tokens);
  RunningText& started = *texts_[copy.slot];
  if (ngram_drafts_ > 0) started.ngrams.emplace().add(started.request().prompt);
  started.progress.checkpoint =
      slots_.checkpoint_in(started.request().prompt.size(), started.request().scores_prompt);
  call.copies.push_back(copy);
  const TextAdapter* const adapter = started.request().adapter.get();
  call.begun.push_back({copy.slot, adapter == nullptr ? 0 : adapter->number});
}

void Batcher::end_all(Finish how) {
  for (std::size_t slot = 0; slot < texts_.size(); ++slot) {
    if (texts_[slot] != nullptr) finish(slot, how);
  }
}

// Empties a slot whose tokens were read with former weights. Its text, where it has one, reads them again.
void Batcher::read_again(std::size_t slot, Call& call) {
  if (texts_[slot] != nullptr) texts_[slot]->read_again();
  slots_.forget(slot);
  call.copies.push_back({slot, slot, 0});
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
    if (!prompts) rate_drafts(*texts_[slot], tokens.size(), accepted.kept[i]);
    texts_[slot]->progress.drafts.clear();
    if (accepted.kept[i] == tokens.size()) continue;
    (ngram_drafts_ > 0 ? rejected_ : drafts.truncated)
        .push_back({slot, slot, std::ssize(slots_.tokens(slot))});
  }
  observer_.called(report_of(step, accepted, prompts, seconds, tokens_before));
  tell_cache_use();
  for (const SlotTokens& of : step.fed) {
    const RunningText& text = *texts_[of.slot];
    if (text.progress.reads_prompt() && text.problem.empty()) continue;
    if (const std::optional<Finish> how = sampler_.finish_of(text)) finish(of.slot, *how);
  }
  return drafts;
}

// The second one of two tokens that one call gives takes no time.
CallReport Batcher::report_of(const Step& step, const Accepted& accepted, bool prompts, double seconds,
                              std::span<const std::int64_t> tokens_before) {
  CallReport call{.prompts = prompts,
                  .seconds = seconds,
                  .new_tokens = accepted.new_tokens,
                  .drafts = accepted.drafts,
                  .accepted_drafts = accepted.accepted_drafts,
                  .held_drafts = prompts ? 0 : held_drafts_};
  const double now = steady_seconds();
  for (std::size_t i = 0; i < step.fed.size(); ++i) {
    RunningText& text = *texts_[step.fed[i].slot];
    if (prompts) call.prompt_tokens += std::ssize(step.fed[i].tokens);
    for (std::int64_t token = tokens_before[i]; token < text.tokens; ++token) {
      if (token == 0)
        call.first_token_seconds.push_back(now - text.text.asked);
      else
        call.next_token_seconds.push_back(now - text.last_token_at);
      text.last_token_at = now;
    }
    if (const std::optional<double> mask = text.guide.take_mask_seconds()) call.mask_seconds.push_back(*mask);
  }
  return call;
}

void Batcher::tell_cache_use() {
  observer_.cache_holds(slots_.tokens_in_use(), slot_tokens_ * static_cast<std::int64_t>(slots_.count()));
}

// The client may see the last piece at once: all that it can ask for is up to date before.
void Batcher::finish(std::size_t slot, Finish how) {
  const std::unique_ptr<RunningText> text = std::move(texts_[slot]);
  Piece piece = Sampler::last_piece(*text, how);
  if (piece.not_finite) piece.not_finite->slot = slot;
  inbox_.finished(text->text);
  observer_.ended(*piece.finish);
  const FinishedText finished{.request = text->request(),
                              .how = *piece.finish,
                              .slot = slot,
                              .cached = slots_.tokens(slot),
                              .new_tokens = text->tokens,
                              .seconds = steady_seconds() - text->text.asked,
                              .calls = text->guide.calls()};
  observer_.finished(finished);
  if (on_finished_) on_finished_(finished, piece);
  if (piece.finish == Finish::failed) slots_.forget(slot);  // no text starts with what has no finite logits
  slots_.release(slot);
  tell_cache_use();
  text->text.pieces->add(std::move(piece));
}

}  // namespace switchyard::texts
