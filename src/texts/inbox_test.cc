#include "texts/inbox.h"

#include <gtest/gtest.h>

#include <map>

namespace switchyard::texts {
namespace {

struct Counts final : Observer {
  void refused(std::int64_t texts) override { refused_texts += texts; }
  void ended(Finish how) override { ++ends[how]; }
  std::int64_t refused_texts = 0;
  std::map<Finish, int> ends;
};

std::vector<WantedText> texts(std::size_t count, const std::shared_ptr<Pieces>& pieces) {
  std::vector<WantedText> all;
  for (std::size_t i = 0; i < count; ++i)
    all.push_back({{.prompt = {1}, .most_tokens = 1, .choice = i}, pieces});
  return all;
}

TEST(Inbox, TakesAsManyAsThereIsRoomFor) {
  Counts counts;
  Inbox inbox({.slots = 2, .waiting = 1}, counts);
  const auto pieces = std::make_shared<Pieces>(), gone = std::make_shared<Pieces>();
  EXPECT_EQ(inbox.submit(texts(4, pieces)), Inbox::Submitted::full);
  EXPECT_EQ(counts.refused_texts, 4);
  EXPECT_EQ(inbox.submit(texts(3, pieces)), Inbox::Submitted::yes);
  EXPECT_EQ(inbox.submit(texts(1, pieces)), Inbox::Submitted::full);
  EXPECT_EQ(inbox.take()->request.choice, 0u);
  EXPECT_EQ(inbox.take()->request.choice, 1u);
  EXPECT_FALSE(inbox.take()) << "both slots are taken";
  EXPECT_EQ(inbox.running(), 2);
  EXPECT_EQ(inbox.waiting(), 1);
  inbox.finished({});
  EXPECT_EQ(inbox.submit(texts(1, gone)), Inbox::Submitted::yes);
  gone->abandon();
  EXPECT_EQ(inbox.take()->request.choice, 2u);
  inbox.finished({});
  EXPECT_FALSE(inbox.take());
  EXPECT_EQ(counts.ends[Finish::abandoned], 1);
}

TEST(Inbox, ClosingAbandonsWhatWaits) {
  Counts counts;
  Inbox inbox({.slots = 1, .waiting = 3}, counts);
  const auto pieces = std::make_shared<Pieces>();
  ASSERT_EQ(inbox.submit(texts(2, pieces)), Inbox::Submitted::yes);
  ASSERT_TRUE(inbox.take());
  inbox.close();
  EXPECT_TRUE(inbox.is_closed());
  EXPECT_FALSE(inbox.is_done());
  EXPECT_EQ(inbox.submit(texts(1, pieces)), Inbox::Submitted::full);
  const std::vector<Piece> told = pieces->take(0);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].choice, 1u);
  EXPECT_EQ(told[0].finish, Finish::abandoned);
  inbox.finished({});
  EXPECT_TRUE(inbox.is_done());
}

TEST(Inbox, NothingToGenerateIsAnsweredAtOnce) {
  Counts counts;
  Inbox inbox({.slots = 1, .waiting = 1}, counts);
  const auto pieces = std::make_shared<Pieces>();
  ASSERT_EQ(inbox.submit({{{.prompt = {1}, .most_tokens = 0}, pieces}}), Inbox::Submitted::yes);
  EXPECT_EQ(pieces->take(0).at(0).finish, Finish::length);
  EXPECT_EQ(inbox.waiting(), 0);
  EXPECT_EQ(counts.ends[Finish::length], 1);
}

}  // namespace
}  // namespace switchyard::texts
