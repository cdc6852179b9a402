// Slots: who has which slot of the KV cache, and which tokens it has cached. It finds the slot whose cached
// tokens begin like a prompt, so that these are copied and not computed again. For the model's thread alone.
//
// Free slots keep their tokens until they are needed:
// 1. A prompt that has nearly all of a free slot's last prompt in front goes on in that slot: it is the next
//    turn of a conversation, and what the slot has beyond is its former answer.
// 2. Any other prompt gets a slot that has nothing cached, or else the least recently used one, with a
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
  // Returns how many of the first `most` tokens that `source_slot` has cached another slot can begin with.
  using LongestPrefix = std::function<std::int64_t(std::size_t source_slot, std::int64_t most)>;

  // `whole_chunks`: prompts share whole chunks of so many tokens only, of other prompts that were read in
  // such chunks, so that a shared beginning has the bits that reading it again would give (0: any beginning).
  // `checkpoints`: the model keeps the states at checkpoint_in() of its prompts.
  Slots(std::size_t count, bool shares_prefixes, std::int64_t whole_chunks = 0, bool checkpoints = false);
  // Tells into how many groups the mesh splits the slots, in order: prefixes are copied within a group only.
  void describe_cache(std::int64_t groups, LongestPrefix longest_prefix);

  std::size_t count() const { return slots_.size(); }
  // The copies of all earlier assign() calls are carried out: the cache has what tokens() says.
  void copies_done();
  // Gives a free slot, of which there is one (CHECK), to a prompt, and says with which cached tokens it
  // starts: none where `reads_all`, and none that another domain left. The prompt's last token is never among
  // them, since its logits are wanted.
  PrefixCopy assign(std::span<const std::int32_t> prompt, bool reads_all, const CacheDomain& domain = {});
  // Returns after how many of a prompt's tokens its state is to be kept for the prompts that begin like it;
  // 0: after none. It is a little before the end, where the next turn of a conversation may have other words:
  // templates put some before an answer that are not there before the same answer later on.
  std::size_t checkpoint_in(std::size_t prompt, bool reads_all) const;
  // Frees a slot. Its tokens stay cached until the slot is assigned again.
  void release(std::size_t slot);
  void append(std::size_t slot, std::span<const std::int32_t> tokens);
  // Lets no text start with the slot's tokens.
  void forget(std::size_t slot) { slots_[slot].tokens.clear(); }
  std::span<const std::int32_t> tokens(std::size_t slot) const { return slots_[slot].tokens; }
  // Returns how many tokens the slots have that are taken.
  std::int64_t tokens_in_use() const;

 private:
  struct Slot {
    bool taken = false;
    std::int64_t used = 0;   // when it was assigned, copied from or released last, in such events
    std::size_t origin;      // the slot that has its tokens until copies_done()
    std::size_t prompt = 0;  // length of its last prompt
    bool in_chunks = false;  // the prompt is read in chunks of whole_chunks_
    CacheDomain domain;      // whose tokens they are
    std::vector<std::int32_t> tokens;
  };
  // A beginning that a prompt may start with, and the slot that would get it.
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
