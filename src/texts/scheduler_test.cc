#include "texts/scheduler.h"

#include <gtest/gtest.h>

#include <memory>

namespace switchyard::texts {
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

TEST(Scheduler, WhatComesBeforeAScoredTokenIsReadAsPromptsAre) {
  Scheduler scheduler({.prompt_chunk = 16, .scored_chunk = 3});
  const auto prompt = prompt_of(8);
  Progress text{.prompt = prompt, .scores_prompt = true, .scores_from = 6};
  const Progress* slots[] = {&text};
  const Step before = scheduler.next(slots);
  EXPECT_FALSE(before.scored);
  EXPECT_EQ(fed_of(before), (Fed{{0, 5}}));
  text.read = 5;
  const Step scored = scheduler.next(slots);
  EXPECT_TRUE(scored.scored);
  EXPECT_EQ(fed_of(scored), (Fed{{0, 3}}));
}

TEST(Scheduler, DraftsFollowTheirToken) {
  Scheduler scheduler({});
  const auto prompt = prompt_of(2);
  const Progress text{.prompt = prompt, .read = 2, .last_token = 3, .drafts = {8}};
  const Progress* slots[] = {&text};
  const Step step = scheduler.next(slots);
  EXPECT_TRUE(step.drafted);
  EXPECT_EQ(step.fed[0].tokens, (std::vector<std::int32_t>{3, 8}));
}

// A text of the scheduler's tests that reads what it is fed.
struct Reader {
  std::vector<std::int32_t> prompt;
  Progress progress;
  std::int64_t tokens = 0;  // new ones
};

class Readers {
 public:
  explicit Readers(std::span<const std::size_t> prompts) {
    for (const std::size_t size : prompts) add(size);
  }
  void add(std::size_t prompt) {
    auto& reader = *readers_.emplace_back(std::make_unique<Reader>());
    reader.prompt = prompt_of(prompt);
    reader.progress = {.prompt = reader.prompt, .turn = std::ssize(readers_)};
  }
  // Returns whether the step read prompts.
  bool step(Scheduler& scheduler) {
    std::vector<const Progress*> slots;
    for (const auto& reader : readers_) slots.push_back(&reader->progress);
    bool prompts = false;
    for (const SlotTokens& fed : scheduler.next(slots).fed) {
      Reader& reader = *readers_[fed.slot];
      prompts = prompts || reader.progress.reads_prompt();
      if (reader.progress.reads_prompt()) reader.progress.read += fed.tokens.size();
      if (!reader.progress.reads_prompt()) ++reader.tokens;
    }
    return prompts;
  }
  const Reader& operator[](std::size_t i) const { return *readers_[i]; }

 private:
  std::vector<std::unique_ptr<Reader>> readers_;
};

// Between two chunks of a prompt of twenty every running text gets a token.
TEST(Scheduler, ALongPromptHoldsOthersForAChunkOnly) {
  Scheduler scheduler({.prompt_chunk = 8});
  Readers texts(std::vector<std::size_t>{2, 2, 2});
  while (texts.step(scheduler)) {
  }
  texts.add(160);
  int chunks = 0;
  while (texts[3].progress.reads_prompt()) {
    const std::int64_t before[] = {texts[0].tokens, texts[1].tokens, texts[2].tokens};
    const bool prompts = texts.step(scheduler);
    chunks += prompts;
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(texts[i].tokens, before[i] + (prompts ? 0 : 1));
    if (prompts && texts[3].progress.reads_prompt()) {
      EXPECT_FALSE(texts.step(scheduler));
    }
  }
  EXPECT_EQ(chunks, 20);
}

// A chunk ends where the state is to be kept.
TEST(Scheduler, AChunkEndsAtACheckpoint) {
  Scheduler scheduler({.prompt_chunk = 8});
  const std::vector<std::int32_t> prompt(30, 1);
  Progress text{.prompt = prompt, .checkpoint = 13};
  const Progress* slots[] = {&text};
  std::vector<std::size_t> sizes, kept;
  while (text.reads_prompt()) {
    const Step step = scheduler.next(slots);
    sizes.push_back(step.fed[0].tokens.size());
    kept.push_back(step.kept.size());
    text.read += sizes.back();
  }
  EXPECT_EQ(sizes, (std::vector<std::size_t>{8, 5, 8, 8, 1}));
  EXPECT_EQ(kept, (std::vector<std::size_t>{0, 1, 0, 0, 0}));
}

// A prompt waits for one chunk of each other prompt at most, so neither long nor short ones starve.
TEST(Scheduler, PromptsTakeTurns) {
  Scheduler scheduler({.prompt_chunk = 8});
  Readers texts(std::vector<std::size_t>{160, 160});
  texts.step(scheduler);
  texts.add(8);
  texts.step(scheduler);
  texts.step(scheduler);
  EXPECT_EQ(texts[0].progress.read, 16u);
  EXPECT_EQ(texts[1].progress.read, 8u);
  EXPECT_EQ(texts[2].progress.read, 0u);
  for (int i = 0; i < 2; ++i) texts.step(scheduler);
  EXPECT_EQ(texts[2].progress.read, 8u) << "its turn";
}

// With deterministic batches, pieces that attention reads in other ways do not share a step.
TEST(Scheduler, PiecesOfOneKindShareAStep) {
  const auto eight = prompt_of(8), seven = prompt_of(7), one = prompt_of(1);
  const Progress a{.prompt = eight, .turn = 1}, b{.prompt = seven, .turn = 2},
      c{.prompt = eight, .turn = 3, .read = 1}, d{.prompt = one, .turn = 4},
      e{.prompt = eight, .turn = 5, .read = 7};
  const Progress* slots[] = {&a, &b, &c, &d, &e};
  Scheduler scheduler({.prompt_chunk = 64, .deterministic = true});
  EXPECT_EQ(fed_of(scheduler.next(slots)), (Fed{{0, 8}, {1, 7}}));
  EXPECT_EQ(fed_of(scheduler.next(slots)), (Fed{{2, 7}}));
  EXPECT_EQ(fed_of(scheduler.next(slots)), (Fed{{3, 1}}));
  EXPECT_EQ(fed_of(scheduler.next(slots)), (Fed{{4, 1}}));
  Scheduler mixed({.prompt_chunk = 64});
  EXPECT_EQ(fed_of(mixed.next(slots)), (Fed{{0, 8}, {1, 7}, {2, 7}}));
}

}  // namespace
}  // namespace switchyard::texts
