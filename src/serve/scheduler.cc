#include "serve/scheduler.h"

#include <algorithm>

namespace switchyard::serve {

Step Scheduler::next(std::span<const Progress* const> slots) {
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

// Takes prompts in the order in which their texts came: of the first no more than a chunk, and others that
// make no more than a chunk with it, as a rectangle of tokens with at most a quarter of padding. A step reads
// prompts that are scored, in smaller chunks, or others.
Step Scheduler::prompt_step(std::span<const Progress* const> slots) const {
  std::vector<std::size_t> order;
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot] != nullptr && slots[slot]->reads_prompt()) order.push_back(slot);
  }
  std::ranges::sort(order, {}, [&](std::size_t slot) { return slots[slot]->turn; });
  Step step;
  step.scored = !order.empty() && slots[order[0]]->scores_prompt;
  const std::size_t most = step.scored ? scored_chunk_ : prompt_chunk_;
  std::size_t tokens = 0, longest = 0;
  for (const std::size_t slot : order) {
    const Progress& text = *slots[slot];
    if (text.scores_prompt != step.scored) continue;
    const std::size_t size = std::min(text.left(), most);
    const std::size_t area = std::max(longest, size) * (step.fed.size() + 1);
    if (area > most || 4 * (tokens + size) < 3 * area) continue;
    tokens += size;
    longest = std::max(longest, size);
    const auto chunk = text.prompt.subspan(text.read, size);
    step.fed.push_back({slot, {chunk.begin(), chunk.end()}});
  }
  return step;
}

Step Scheduler::token_step(std::span<const Progress* const> slots) const {
  Step step;
  step.drafted = drafts_;
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot] == nullptr || slots[slot]->reads_prompt()) continue;
    step.fed.push_back({slot, {slots[slot]->last_token}});
    if (drafts_) step.fed.back().tokens.push_back(slots[slot]->draft);
  }
  return step;
}

}  // namespace switchyard::serve
