#include "serve/batcher.h"

#include <algorithm>

namespace switchyard::serve {

Batcher::Batcher(const Tokenizer& tokenizer, const Limits& limits, RequestQueue& queue,
                 Statistics& statistics)
    : tokenizer_(tokenizer),
      queue_(queue),
      statistics_(statistics),
      slots_(static_cast<std::size_t>(limits.slots), limits.shares_prefixes),
      scheduler_(limits),
      sampler_(tokenizer, limits),
      texts_(static_cast<std::size_t>(limits.slots)) {}

Call Batcher::next(double seconds) {
  for (std::size_t slot = 0; slot < texts_.size(); ++slot) {
    if (texts_[slot] != nullptr && texts_[slot]->text.pieces->abandoned()) finish(slot, Finish::abandoned);
  }
  if (std::ranges::all_of(texts_, [](const auto& text) { return text == nullptr; })) queue_.wait(seconds);
  Call call;
  slots_.copies_done();
  while (std::optional<WantedText> text = queue_.take()) {
    const PrefixCopy copy = slots_.assign(text->request.prompt, text->request.scores_prompt);
    statistics_.change([&](Counts& counts) { counts.shared_tokens += copy.tokens; });
    texts_[copy.slot] = std::make_unique<RunningText>(std::move(*text), tokenizer_, ++turns_, copy.tokens);
    call.copies.push_back(copy);
  }
  std::vector<const Progress*> progress;
  for (const auto& text : texts_) progress.push_back(text == nullptr ? nullptr : &text->progress);
  call.step = scheduler_.next(progress);
  return call;
}

DraftCall Batcher::accept_logits(ThreadPool& pool, const Step& step, const Tensor& logits, double seconds) {
  const bool prompts = texts_[step.fed[0].slot]->progress.reads_prompt();
  Accepted accepted = sampler_.accept_logits(pool, step, texts_, logits);
  DraftCall drafts{{}, std::move(accepted.next)};
  std::int64_t fed = 0;
  for (std::size_t i = 0; i < step.fed.size(); ++i) {
    const auto& [slot, tokens] = step.fed[i];
    slots_.append(slot, std::span(tokens).first(accepted.kept[i]));
    if (accepted.kept[i] < tokens.size())
      drafts.truncated.push_back({slot, slot, std::ssize(slots_.tokens(slot))});
    fed += std::ssize(tokens);
  }
  statistics_.change([&](Counts& counts) {
    (prompts ? counts.prompt_calls : counts.token_calls) += 1;
    (prompts ? counts.prompt_seconds : counts.token_seconds) += seconds;
    if (prompts) counts.prompt_tokens += fed;
    counts.new_tokens += accepted.new_tokens;
    counts.drafts += accepted.drafts;
    counts.accepted_drafts += accepted.accepted_drafts;
  });
  for (const SlotTokens& of : step.fed) {
    const RunningText& text = *texts_[of.slot];
    if (text.progress.reads_prompt() && text.problem.empty()) continue;
    if (const std::optional<Finish> how = sampler_.finish_of(text)) finish(of.slot, *how);
  }
  return drafts;
}

void Batcher::give_up() {
  queue_.close();
  for (std::size_t slot = 0; slot < texts_.size(); ++slot) {
    if (texts_[slot] != nullptr) finish(slot, Finish::abandoned);
  }
}

// The client may see the last piece at once: all that it can ask for is up to date before.
void Batcher::finish(std::size_t slot, Finish how) {
  const std::unique_ptr<RunningText> text = std::move(texts_[slot]);
  Piece piece = Sampler::last_piece(*text, how);
  queue_.finished();
  statistics_.count_finish(*piece.finish);
  if (piece.finish == Finish::failed) slots_.forget(slot);  // no text starts with what has no finite logits
  if (on_finished_ && (piece.finish == Finish::stop || piece.finish == Finish::length))
    on_finished_(slot, text->request().choice, slots_.tokens(slot));
  slots_.release(slot);
  text->text.pieces->add(std::move(piece));
}

}  // namespace switchyard::serve
