#include "texts/slots.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace switchyard::texts {
namespace {

// A shorter prefix is not worth a copy: the tokens after a prefix are attended to in another way, which costs
// more where nearly all tokens are new.
constexpr std::size_t kLeastShared = 16;
std::size_t least_shared(std::size_t prompt) {
  return std::max(kLeastShared, prompt / 8);
}

}  // namespace

Slots::Slots(std::size_t count, bool shares_prefixes, std::int64_t whole_chunks, bool checkpoints)
    : slots_(count),
      shares_prefixes_(shares_prefixes),
      whole_chunks_(whole_chunks),
      group_slots_(count),
      checkpoints_(checkpoints && shares_prefixes) {
  copies_done();
}

void Slots::describe_cache(std::int64_t groups, LongestPrefix longest_prefix) {
  group_slots_ = slots_.size() / static_cast<std::size_t>(groups);
  longest_prefix_ = std::move(longest_prefix);
}

void Slots::copies_done() {
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) slots_[slot].origin = slot;
}

void Slots::append(std::size_t slot, std::span<const std::int32_t> tokens) {
  slots_[slot].tokens.insert(slots_[slot].tokens.end(), tokens.begin(), tokens.end());
}

std::size_t Slots::checkpoint_in(std::size_t prompt, bool reads_all) const {
  if (!checkpoints_ || reads_all || prompt < 2 * kLeastShared) return 0;
  const std::size_t place = prompt - kLeastShared;
  return whole_chunks_ > 0 ? place - place % static_cast<std::size_t>(whole_chunks_) : place;
}

void Slots::release(std::size_t slot) {
  slots_[slot].taken = false;
  slots_[slot].used = ++events_;
}

std::int64_t Slots::tokens_in_use() const {
  std::int64_t tokens = 0;
  for (const Slot& slot : slots_) tokens += slot.taken ? std::ssize(slot.tokens) : 0;
  return tokens;
}

// Returns the free slot in [begin, end) that has nothing cached, else the least recently used free one;
// count() where none is free.
std::size_t Slots::free_slot(std::size_t begin, std::size_t end) const {
  const auto worth = [&](std::size_t slot) {
    return std::pair(!slots_[slot].tokens.empty(), slots_[slot].used);
  };
  std::size_t best = slots_.size();
  for (std::size_t slot = begin; slot < end; ++slot) {
    if (!slots_[slot].taken && (best == slots_.size() || worth(slot) < worth(best))) best = slot;
  }
  return best;
}

// Tokens that a prompt may take from a slot.
std::int64_t Slots::common_tokens(const Slot& source, std::span<const std::int32_t> prompt) const {
  std::size_t most = std::min(prompt.size() - 1, source.tokens.size());
  if (whole_chunks_ > 0) most = source.in_chunks ? std::min(most, source.prompt) : 0;
  const auto end = prompt.begin() + static_cast<std::ptrdiff_t>(most);
  const std::int64_t same = std::mismatch(prompt.begin(), end, source.tokens.begin()).first - prompt.begin();
  return whole_chunks_ > 0 ? same / whole_chunks_ * whole_chunks_ : same;
}

// Returns the part that the checkpoints have of a prefix that the cache has partly evicted.
std::optional<Slots::Beginning> Slots::beginning_of(std::size_t source,
                                                    std::span<const std::int32_t> prompt) const {
  const Slot& from = slots_[source];
  const auto least = static_cast<std::int64_t>(least_shared(prompt.size()));
  const std::int64_t common = common_tokens(from, prompt);
  const std::int64_t tokens = common < least ? 0 : longest_prefix_(from.origin, common);
  if (tokens < least) return {};
  // The template's words before an answer are not always those before the same answer later on.
  const auto whole =
      static_cast<std::size_t>(tokens + (whole_chunks_ > 0 ? whole_chunks_ : 0)) + kLeastShared;
  if (!from.taken && whole >= from.prompt) return Beginning{{source, source, tokens}, true};
  const std::size_t group = source / group_slots_ * group_slots_;
  const std::size_t slot = free_slot(group, group + group_slots_);
  if (slot == slots_.size()) return {};
  return Beginning{{slot, source, tokens}, false};
}

// The source with the longest common prefix wins; of several, one that the prompt goes on in.
PrefixCopy Slots::assign(std::span<const std::int32_t> prompt, bool reads_all, const CacheDomain& domain) {
  const std::size_t any = free_slot(0, slots_.size());
  CHECK(any < slots_.size(), "no slot is free");
  Beginning best{{any, any, 0}, false};
  for (std::size_t source = 0; source < slots_.size() && shares_prefixes_ && !reads_all; ++source) {
    if (slots_[source].domain != domain) continue;
    const std::optional<Beginning> found = beginning_of(source, prompt);
    if (found &&
        std::tuple(found->copy.tokens, found->in_place) > std::tuple(best.copy.tokens, best.in_place))
      best = *found;
  }
  Slot &slot = slots_[best.copy.slot], &source = slots_[best.copy.source_slot];
  source.used = ++events_;
  slot.origin = source.origin;
  slot.taken = true;
  slot.used = ++events_;
  slot.prompt = prompt.size();
  slot.in_chunks = !reads_all;
  slot.domain = domain;
  slot.tokens.assign(prompt.begin(), prompt.begin() + best.copy.tokens);
  return best.copy;
}

}  // namespace switchyard::texts
