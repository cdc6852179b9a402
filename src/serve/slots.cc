#include "serve/slots.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace switchyard::serve {
namespace {

// A shorter prefix is not worth a copy: the tokens after a prefix are attended to in another way, which costs
// more where nearly all tokens are new.
std::size_t least_shared(std::size_t prompt) {
  constexpr std::size_t kLeastShared = 16;
  return std::max(kLeastShared, prompt / 8);
}

}  // namespace

Slots::Slots(std::size_t count, bool shares_prefixes)
    : slots_(count), shares_prefixes_(shares_prefixes), group_slots_(count) {
  copies_done();
}

void Slots::describe_cache(std::int64_t groups, CanCopy can_copy) {
  group_slots_ = slots_.size() / static_cast<std::size_t>(groups);
  can_copy_ = std::move(can_copy);
}

void Slots::copies_done() {
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) slots_[slot].origin = slot;
}

void Slots::append(std::size_t slot, std::span<const std::int32_t> tokens) {
  slots_[slot].tokens.insert(slots_[slot].tokens.end(), tokens.begin(), tokens.end());
}

// Returns the free slot in [begin, end) that was assigned first; count() where none is free.
std::size_t Slots::longest_free(std::size_t begin, std::size_t end) const {
  std::size_t best = slots_.size();
  for (std::size_t slot = begin; slot < end; ++slot) {
    if (!slots_[slot].taken && (best == slots_.size() || slots_[slot].assigned < slots_[best].assigned))
      best = slot;
  }
  return best;
}

// The source with the longest common prefix wins. Where that slot is taken, another slot of its group gets
// the copy. A prefix that the cache has partly evicted is of no use, and less of that source is not tried.
PrefixCopy Slots::assign(std::span<const std::int32_t> prompt, bool reads_all) {
  const std::size_t any = longest_free(0, slots_.size());
  CHECK(any < slots_.size(), "no slot is free");
  PrefixCopy best{any, any, 0};
  for (std::size_t source = 0; source < slots_.size() && shares_prefixes_ && !reads_all; ++source) {
    const std::vector<std::int32_t>& cached = slots_[source].tokens;
    const auto most = static_cast<std::ptrdiff_t>(std::min(prompt.size() - 1, cached.size()));
    const auto same = std::mismatch(prompt.begin(), prompt.begin() + most, cached.begin());
    const std::int64_t tokens = same.first - prompt.begin();
    if (tokens < static_cast<std::int64_t>(least_shared(prompt.size())) || tokens <= best.tokens ||
        !can_copy_(slots_[source].origin, tokens))
      continue;
    const std::size_t group = source / group_slots_ * group_slots_;
    const std::size_t slot = slots_[source].taken ? longest_free(group, group + group_slots_) : source;
    if (slot < slots_.size()) best = {slot, source, tokens};
  }
  Slot& slot = slots_[best.slot];
  slot.origin = slots_[best.source_slot].origin;
  slot.taken = true;
  slot.assigned = ++assigned_;
  slot.tokens.assign(prompt.begin(), prompt.begin() + best.tokens);
  return best;
}

}  // namespace switchyard::serve
