#include "serve/scheduler.h"

#include <gtest/gtest.h>

namespace switchyard::serve {
namespace {

std::vector<std::int32_t> prompt_of(std::size_t size) {
  return std::vector<std::int32_t>(size, 7);
}

// The fed slots with their numbers of tokens.
using Fed = std::vector<std::pair<std::size_t, std::size_t>>;
Fed fed_of(const Step& step) {
  Fed fed;
  for (const SlotTokens& of : step.fed) fed.emplace_back(of.slot, of.tokens.size());
  return fed;
}

TEST(Scheduler, PromptsAndTokensTakeTurns) {
  Scheduler scheduler({.prompt_chunk = 4});
  const auto prompt = prompt_of(10);
  Progress reads{.prompt = prompt, .turn = 2},
      goes_on{.prompt = prompt, .turn = 1, .read = 10, .last_token = 5};
  const Progress* slots[] = {&reads, nullptr, &goes_on};
  EXPECT_EQ(fed_of(scheduler.next(slots)), (Fed{{0, 4}}));
  reads.read = 4;
  const Step token = scheduler.next(slots);
  EXPECT_EQ(fed_of(token), (Fed{{2, 1}}));
  EXPECT_EQ(token.fed[0].tokens[0], 5);
  EXPECT_EQ(fed_of(scheduler.next(slots)), (Fed{{0, 4}}));
  reads.read = 10;
  EXPECT_EQ(fed_of(scheduler.next(slots)), (Fed{{0, 1}, {2, 1}}));
  EXPECT_EQ(fed_of(scheduler.next(slots)), (Fed{{0, 1}, {2, 1}}));  // no prompt is left
  const Progress* free[] = {nullptr};
  EXPECT_TRUE(scheduler.next(free).fed.empty());
}

// The oldest prompt first; others join it where they make one chunk with at most a quarter of padding.
TEST(Scheduler, PromptsShareAChunk) {
  Scheduler scheduler({.prompt_chunk = 16});
  const auto five = prompt_of(5), four = prompt_of(4), one = prompt_of(1), eight = prompt_of(8);
  const Progress a{.prompt = five, .turn = 4}, b{.prompt = four, .turn = 1}, c{.prompt = one, .turn = 2},
      d{.prompt = eight, .turn = 3};
  const Progress* slots[] = {&a, &b, &c, &d};
  EXPECT_EQ(fed_of(scheduler.next(slots)), (Fed{{1, 4}, {3, 8}}));  // c: too much padding; a: too many tokens
}

TEST(Scheduler, ScoredPromptsAreReadApart) {
  Scheduler scheduler({.prompt_chunk = 16, .scored_chunk = 3});
  const auto prompt = prompt_of(4);
  Progress scored{.prompt = prompt, .scores_prompt = true, .turn = 1}, plain{.prompt = prompt, .turn = 2};
  const Progress* slots[] = {&plain, &scored};
  const Step first = scheduler.next(slots);
  EXPECT_TRUE(first.scored && first.wants_each());
  EXPECT_EQ(fed_of(first), (Fed{{1, 3}}));
  scored.read = 4;
  const Step tokens = scheduler.next(slots);
  EXPECT_EQ(fed_of(tokens), (Fed{{1, 1}}));
  const Step second = scheduler.next(slots);
  EXPECT_FALSE(second.scored);
  EXPECT_EQ(fed_of(second), (Fed{{0, 4}}));
}

TEST(Scheduler, DraftsFollowTheirToken) {
  Scheduler scheduler({.drafts = true});
  const auto prompt = prompt_of(2);
  const Progress text{.prompt = prompt, .read = 2, .last_token = 3, .draft = 8};
  const Progress* slots[] = {&text};
  const Step step = scheduler.next(slots);
  EXPECT_TRUE(step.drafted);
  EXPECT_EQ(step.fed[0].tokens, (std::vector<std::int32_t>{3, 8}));
}

}  // namespace
}  // namespace switchyard::serve
