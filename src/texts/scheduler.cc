#include "texts/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace switchyard::texts {

Step Scheduler::next(std::span<const Progress* const> slots) {
  if (together_) {
    Step step = prompts_together(slots);
    return step.fed.empty() ? token_step(slots) : step;
  }
  bool prompts = prompts_next_;
  Step step = prompts ? prompt_step(slots) : token_step(slots);
  if (step.fed.empty()) {
    prompts = !prompts;
    step = prompts ? prompt_step(slots) : token_step(slots);
  }
  if (step.fed.empty()) return {};
  prompts_next_ = !prompts;
  return step;
}

// Returns the slots whose prompts are read.
std::vector<std::size_t> Scheduler::waiting_longest_first(std::span<const Progress* const> slots) {
  waiting_.resize(slots.size());
  std::vector<std::size_t> order;
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot] == nullptr || !slots[slot]->reads_prompt()) continue;
    order.push_back(slot);
    if (waiting_[slot].turn != slots[slot]->turn) waiting_[slot] = {slots[slot]->turn, prompt_steps_};
  }
  std::ranges::sort(order, {},
                    [&](std::size_t slot) { return std::pair(waiting_[slot].since, waiting_[slot].turn); });
  return order;
}

// Takes no more than a chunk of the prompt that waits longest, and others that make no more than a chunk with
// it, as a rectangle of tokens with at most a quarter of padding. A step reads prompts that are scored, in
// smaller chunks, or others. Where texts' bits must not depend on each other, a prompt's pieces follow from
// the prompt alone, and pieces share a step that go through the same kernels of attention: those of one
// token, the first ones of prompts, and the others.
Step Scheduler::prompt_step(std::span<const Progress* const> slots) {
  const std::vector<std::size_t> order = waiting_longest_first(slots);
  Step step;
  if (order.empty()) return step;
  ++prompt_steps_;
  step.scored = slots[order[0]]->scores();
  const std::size_t most = step.scored ? scored_chunk_ : prompt_chunk_;
  const auto size_of = [&](std::size_t slot) {
    const Progress& text = *slots[slot];
    std::size_t size = std::min(text.left(), most);
    if (text.scores_prompt && !step.scored) size = std::min(size, text.scores_from - 1 - text.read);
    return text.read < text.checkpoint ? std::min(size, text.checkpoint - text.read) : size;
  };
  const auto kernels_of = [&](std::size_t slot) {
    return std::pair(size_of(slot) == 1, slots[slot]->read == 0);
  };
  std::size_t tokens = 0, longest = 0;
  for (const std::size_t slot : order) {
    const Progress& text = *slots[slot];
    if (text.scores() != step.scored) continue;
    if (deterministic_ && kernels_of(slot) != kernels_of(order[0])) continue;
    const std::size_t size = size_of(slot);
    const std::size_t area = std::max(longest, size) * (step.fed.size() + 1);
    if (area > most || 4 * (tokens + size) < 3 * area) continue;
    tokens += size;
    longest = std::max(longest, size);
    waiting_[slot].since = prompt_steps_;
    const auto chunk = text.prompt.subspan(text.read, size);
    step.fed.push_back({slot, {chunk.begin(), chunk.end()}});
    if (text.read + size == text.checkpoint) step.kept.push_back(slot);
  }
  return step;
}

// Takes the next chunk of every prompt that is read least. Where texts' bits must not depend on each other,
// chunks of one token have a call of their own behind the others, for their attention is another kernel.
Step Scheduler::prompts_together(std::span<const Progress* const> slots) const {
  const auto reads = [&](std::size_t slot) { return slots[slot] != nullptr && slots[slot]->reads_prompt(); };
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    if (reads(slot)) least = std::min(least, slots[slot]->read);
  }
  Step several, single;
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    if (!reads(slot) || slots[slot]->read != least) continue;
    const auto chunk = slots[slot]->prompt.subspan(least, std::min(slots[slot]->left(), prompt_chunk_));
    Step& step = deterministic_ && chunk.size() == 1 ? single : several;
    step.fed.push_back({slot, {chunk.begin(), chunk.end()}});
  }
  return several.fed.empty() ? single : several;
}

Step Scheduler::token_step(std::span<const Progress* const> slots) const {
  Step step;
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot] == nullptr || slots[slot]->reads_prompt()) continue;
    const std::vector<std::int32_t>& drafts = slots[slot]->drafts;
    step.fed.push_back({slot, {slots[slot]->last_token}});
    step.fed.back().tokens.insert(step.fed.back().tokens.end(), drafts.begin(), drafts.end());
    step.drafted = step.drafted || !drafts.empty();
  }
  return step;
}

}  // namespace switchyard::texts
