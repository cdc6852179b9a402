// Slots: which slots of the KV cache are taken, and which tokens each slot has cached. Finds the slot whose
// cached tokens begin like a prompt, to copy them instead of computing them again. For the model's thread.
//
// Free slots keep their tokens until the slots are needed:
// 1. A prompt that begins with nearly all of a free slot's last prompt continues in that slot: the prompt is
//    the next turn of a conversation, and the slot's tokens beyond it are the former answer.
// 2. Any other prompt gets a slot with an empty cache, or else the least recently used slot, with a
//    copy of the longest common beginning: a new conversation with the same system text leaves the slot
//    of the old conversation alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "texts/cache_domain.h"

namespace switchyard::texts {

// `slot` starts with the first `tokens` cached tokens of `source_slot`.
struct PrefixCopy {
  std::size_t slot, source_slot;
  std::int64_t tokens;
};

class Slots {
 public:
  // Returns how many of `source_slot`'s first `most` cached tokens another slot can begin with.
  using LongestPrefix = std::function<std::int64_t(std::size_t source_slot, std::int64_t most)>;

  // `whole_chunks`: prompts share only whole chunks of so many tokens, and only with prompts read in such
  // chunks, so that a shared beginning has the bits that reading it again would give (0: any beginning).
  // `checkpoints`: the model keeps the states at checkpoint_in() of its prompts.
  Slots(std::size_t count, bool shares_prefixes, std::int64_t whole_chunks = 0, bool checkpoints = false);
  // Tells into how many groups the mesh splits the slots, in order: prefixes are copied within a group only.
  void describe_cache(std::int64_t groups, LongestPrefix longest_prefix);

  std::size_t count() const { return slots_.size(); }
  // Call this when the copies of all earlier assign() calls are done: the cache then has what tokens() says.
  void copies_done();
  // Gives a free slot (CHECK: there is one) to a prompt. Returns the cached tokens that the slot starts with:
  // none if `reads_all`, and none from another domain. The prompt's last token is never among these tokens,
  // since its logits are wanted.
  PrefixCopy assign(std::span<const std::int32_t> prompt, bool reads_all, const CacheDomain& domain = {});
  // Returns the number of prompt tokens after which the state is kept for prompts with the same beginning;
  // 0: none. The place is a little before the end, where the next turn of a conversation may differ:
  // templates put words before a new answer that are missing before the same answer later on.
  std::size_t checkpoint_in(std::size_t prompt, bool reads_all) const;
  // Frees a slot. Its tokens stay cached until the slot is assigned again.
  void release(std::size_t slot);
  void append(std::size_t slot, std::span<const std::int32_t> tokens);
  // Drops the slot's tokens, so that no text starts with them.
  void forget(std::size_t slot) { slots_[slot].tokens.clear(); }
  std::span<const std::int32_t> tokens(std::size_t slot) const { return slots_[slot].tokens; }
  // Returns the number of tokens in the slots that are taken.
  std::int64_t tokens_in_use() const;

 private:
  struct Slot {
    bool taken = false;
    std::int64_t used = 0;   // the last time it was assigned, copied from or released
    std::size_t origin;      // the slot that has its tokens until copies_done()
    std::size_t prompt = 0;  // length of its last prompt
    bool in_chunks = false;  // the prompt is read in chunks of whole_chunks_
    CacheDomain domain;      // the domain that the tokens belong to
    std::vector<std::int32_t> tokens;
  };
  // Cached tokens that a prompt may start with, and the slot that would get them.
  struct Beginning {
    PrefixCopy copy;
    bool in_place;
  };
  std::int64_t common_tokens(const Slot& source, std::span<const std::int32_t> prompt) const;
  std::optional<Beginning> beginning_of(std::size_t source, std::span<const std::int32_t> prompt) const;
  std::size_t free_slot(std::size_t begin, std::size_t end) const;

  std::vector<Slot> slots_;
  bool shares_prefixes_;
  std::int64_t whole_chunks_;
  std::size_t group_slots_;
  bool checkpoints_;
  LongestPrefix longest_prefix_ = [](std::size_t, std::int64_t most) { return most; };
  std::int64_t events_ = 0;
};

}  // namespace switchyard::texts
