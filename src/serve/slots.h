// Slots: which slots of the KV cache are free, which tokens each has cached, and which of them the prompt of
// a new text can start with. For the model's thread alone.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace switchyard::serve {

// `slot` starts with the first `tokens` cached tokens of `source_slot`.
struct PrefixCopy {
  std::size_t slot, source_slot;
  std::int64_t tokens;
};

class Slots {
 public:
  // Says whether the model can start a slot with the first `tokens` tokens that `source_slot` has cached now.
  using CanCopy = std::function<bool(std::size_t source_slot, std::int64_t tokens)>;

  Slots(std::size_t count, bool shares_prefixes);
  // Tells into how many groups the mesh splits the slots, in order: prefixes are copied within a group only.
  void describe_cache(std::int64_t groups, CanCopy can_copy);

  std::size_t count() const { return slots_.size(); }
  // The copies of all earlier assign() calls are carried out: the cache has what tokens() says.
  void copies_done();
  // Gives a free slot, of which there is one (CHECK), to a prompt, and says with which cached tokens it
  // starts: none where `reads_all`. The prompt's last token is never among them, since its logits are wanted.
  PrefixCopy assign(std::span<const std::int32_t> prompt, bool reads_all);
  // Frees a slot. Its tokens stay cached until the slot is assigned again.
  void release(std::size_t slot) { slots_[slot].taken = false; }
  void append(std::size_t slot, std::span<const std::int32_t> tokens);
  // Lets no text start with the slot's tokens.
  void forget(std::size_t slot) { slots_[slot].tokens.clear(); }
  std::span<const std::int32_t> tokens(std::size_t slot) const { return slots_[slot].tokens; }

 private:
  struct Slot {
    bool taken = false;
    std::int64_t assigned = 0;  // the number of the assign() call that gave it away last
    std::size_t origin;         // the slot that has its tokens until copies_done()
    std::vector<std::int32_t> tokens;
  };
  std::size_t longest_free(std::size_t begin, std::size_t end) const;

  std::vector<Slot> slots_;
  bool shares_prefixes_;
  std::size_t group_slots_;
  CanCopy can_copy_ = [](std::size_t, std::int64_t) { return true; };
  std::int64_t assigned_ = 0;
};

}  // namespace switchyard::serve
