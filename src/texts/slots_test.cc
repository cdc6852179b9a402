#include "texts/slots.h"

#include <gtest/gtest.h>

#include <numeric>

namespace switchyard::texts {
namespace {

using Tokens = std::vector<std::int32_t>;

Tokens count_up(std::int32_t first, std::size_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

void expect_copy(const PrefixCopy& got, std::size_t slot, std::size_t source_slot, std::int64_t tokens) {
  EXPECT_EQ(got.slot, slot);
  EXPECT_EQ(got.source_slot, source_slot);
  EXPECT_EQ(got.tokens, tokens);
}

// Assigns a slot to a prompt that is then read, and returns the copy.
PrefixCopy read(Slots& slots, const Tokens& prompt, bool reads_all = false) {
  slots.copies_done();
  const PrefixCopy copy = slots.assign(prompt, reads_all);
  slots.append(copy.slot, std::span(prompt).subspan(static_cast<std::size_t>(copy.tokens)));
  return copy;
}

TEST(Slots, APromptStartsWithTheLongestCachedPrefix) {
  Slots slots(3, true);
  const Tokens prompt = count_up(0, 40);
  expect_copy(read(slots, prompt), 0, 0, 0);
  expect_copy(read(slots, count_up(0, 30)), 1, 0, 29);  // its last token is read
  slots.release(0);
  expect_copy(read(slots, count_up(0, 50)), 0, 0, 40);  // in place
  expect_copy(read(slots, count_up(0, 41)), 2, 0, 40);
  EXPECT_EQ(slots.tokens(2).size(), 41u);
}

// What one key sent is not found by another, nor under another salt.
TEST(Slots, DomainsShareNothing) {
  Slots slots(4, true);
  const Tokens prompt = count_up(0, 40);
  const CacheDomain first{0}, second{1}, salted{0, "s"};
  const auto assigned = [&](const CacheDomain& domain) {
    slots.copies_done();
    const PrefixCopy copy = slots.assign(prompt, false, domain);
    slots.append(copy.slot, std::span(prompt).subspan(static_cast<std::size_t>(copy.tokens)));
    slots.release(copy.slot);
    return copy.tokens;
  };
  EXPECT_EQ(assigned(first), 0);
  EXPECT_EQ(assigned(second), 0);
  EXPECT_EQ(assigned(salted), 0);
  for (const CacheDomain& domain : {first, second, salted}) EXPECT_EQ(assigned(domain), 39);
  EXPECT_EQ(assigned({}), 0);
}

TEST(Slots, ShortPrefixesAndScoredPromptsAreRead) {
  Slots slots(8, true);
  read(slots, count_up(0, 200));
  Tokens prompt = count_up(0, 15);
  prompt.resize(40, -1);
  EXPECT_EQ(read(slots, prompt).tokens, 0);  // fewer than 16
  prompt = count_up(0, 20);
  prompt.resize(180, -1);
  EXPECT_EQ(read(slots, prompt).tokens, 0);  // less than an eighth
  EXPECT_EQ(read(slots, count_up(0, 100), true).tokens, 0);
  EXPECT_EQ(read(slots, count_up(0, 100)).tokens, 99);
  slots.forget(0);
  EXPECT_EQ(read(slots, count_up(0, 200)).tokens, 100);  // of another slot
  Slots alone(2, false);
  read(alone, count_up(0, 40));
  EXPECT_EQ(read(alone, count_up(0, 40)).tokens, 0);
}

TEST(Slots, TheLeastRecentlyUsedGoesFirst) {
  Slots slots(3, true);
  for (std::int32_t i = 0; i < 3; ++i) read(slots, count_up(100 * i, 20));
  for (const std::size_t slot : {2, 0, 1}) slots.release(slot);
  EXPECT_EQ(read(slots, count_up(1000, 20)).slot, 2u);
  EXPECT_EQ(read(slots, count_up(2000, 20)).slot, 0u);
  EXPECT_EQ(read(slots, count_up(3000, 20)).slot, 1u);
  EXPECT_ANY_THROW(slots.assign(count_up(0, 2), false));
}

TEST(Slots, AnEmptySlotIsTakenBeforeARememberedOne) {
  Slots slots(3, true);
  read(slots, count_up(0, 40));
  slots.release(0);
  EXPECT_EQ(read(slots, count_up(100, 40)).slot, 1u);
  slots.release(1);
  EXPECT_EQ(read(slots, count_up(200, 40)).slot, 2u);
  EXPECT_EQ(slots.tokens_in_use(), 40);
  slots.forget(1);
  EXPECT_EQ(read(slots, count_up(300, 40)).slot, 1u);
}

Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Each conversation goes on in its slot, also where the template drops what the model made before its answer.
TEST(Slots, ConversationsGoOnInTheirSlots) {
  const Tokens system = count_up(0, 100);
  Slots slots(4, true);
  std::vector<Tokens> prompts;
  for (std::int32_t i = 0; i < 3; ++i) {
    prompts.push_back(joined(system, count_up(1000 * (i + 1), 50)));
    const PrefixCopy copy = read(slots, prompts.back());
    EXPECT_EQ(copy.tokens, i == 0 ? 0 : 100);  // the system text; the other conversation stays
    EXPECT_EQ(copy.slot, static_cast<std::size_t>(i));
    slots.append(copy.slot, count_up(5000, 30));  // reasoning and an answer
    slots.release(copy.slot);
  }
  for (const std::int32_t i : {2, 0, 1}) {
    const Tokens next = joined(prompts[static_cast<std::size_t>(i)], count_up(9000 + 100 * i, 60));
    expect_copy(read(slots, next), static_cast<std::size_t>(i), static_cast<std::size_t>(i), 150);
    slots.release(static_cast<std::size_t>(i));
  }
  // A fourth one takes the empty slot, a fifth one that of the conversation that rests longest.
  expect_copy(read(slots, joined(system, count_up(4000, 50))), 3, 0, 100);
  slots.release(3);
  const PrefixCopy fifth = read(slots, joined(system, count_up(6000, 50)));
  EXPECT_EQ(fifth.tokens, 100);
  EXPECT_EQ(fifth.slot, 2u);
}

// With deterministic batches, a prompt starts with whole chunks of others' prompts, never with tokens that a
// model made or that were read to be scored.
TEST(Slots, WholeChunksOnly) {
  Slots slots(5, true, 16);
  read(slots, count_up(0, 40));
  slots.append(0, count_up(40, 60));  // made
  expect_copy(read(slots, count_up(0, 100)), 1, 0, 32);
  EXPECT_EQ(read(slots, count_up(0, 33)).tokens, 32);
  read(slots, count_up(500, 60), true);
  EXPECT_EQ(read(slots, count_up(500, 60)).tokens, 0);
}

// The cache has the tokens of a round's copies only afterwards: until then it is asked about their origin.
TEST(Slots, ACopyOfACopyIsAskedForAtItsOrigin) {
  Slots slots(4, true);
  std::vector<std::size_t> asked;
  slots.describe_cache(1, [&](std::size_t source, std::int64_t most) {
    asked.push_back(source);
    return most;
  });
  read(slots, count_up(0, 40));
  slots.copies_done();
  expect_copy(slots.assign(count_up(0, 60), false), 1, 0, 40);
  slots.append(1, count_up(40, 20));
  asked.clear();
  expect_copy(slots.assign(count_up(0, 61), false), 2, 1, 60);
  EXPECT_EQ(asked, (std::vector<std::size_t>{0, 0}));
  slots.copies_done();
  asked.clear();
  slots.assign(count_up(0, 61), false);
  EXPECT_EQ(asked, (std::vector<std::size_t>{0, 1, 2}));
}

// A model that cannot be cut has the states that it kept.
TEST(Slots, ANextTurnStartsAtACheckpoint) {
  Slots slots(2, true, 0, true);
  EXPECT_EQ(slots.checkpoint_in(100, false), 84u);
  EXPECT_EQ(slots.checkpoint_in(100, true), 0u);
  EXPECT_EQ(slots.checkpoint_in(31, false), 0u);
  EXPECT_EQ(Slots(2, true, 32, true).checkpoint_in(100, false), 64u);
  EXPECT_EQ(Slots(2, true).checkpoint_in(100, false), 0u);
  slots.describe_cache(1, [&](std::size_t, std::int64_t most) { return most >= 84 ? 84 : 0; });
  read(slots, count_up(0, 100));
  slots.append(0, count_up(500, 20));
  slots.release(0);
  Tokens next = count_up(0, 98);  // without the template's last words
  next.resize(150, -1);
  expect_copy(read(slots, next), 0, 0, 84);
  expect_copy(read(slots, count_up(0, 60)), 1, 1, 0);
}

TEST(Slots, GroupsAndTheCacheLimitCopies) {
  Slots slots(4, true);
  bool can_copy = true;
  slots.describe_cache(2, [&](std::size_t, std::int64_t most) { return can_copy ? most : 0; });
  read(slots, count_up(0, 40));
  expect_copy(read(slots, count_up(0, 40)), 1, 0, 39);
  expect_copy(read(slots, count_up(0, 40)), 2, 2, 0);  // the other group
  slots.release(1);
  can_copy = false;
  EXPECT_EQ(read(slots, count_up(0, 40)).tokens, 0);
}

}  // namespace
}  // namespace switchyard::texts
