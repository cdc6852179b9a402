#include "serve/request_queue.h"

#include <gtest/gtest.h>

namespace switchyard::serve {
namespace {

std::vector<WantedText> texts(std::size_t count, const std::shared_ptr<Pieces>& pieces) {
  std::vector<WantedText> all;
  for (std::size_t i = 0; i < count; ++i)
    all.push_back({{.prompt = {1}, .most_tokens = 1, .choice = i}, pieces});
  return all;
}

TEST(RequestQueue, TakesAsManyAsThereIsRoomFor) {
  Statistics statistics;
  RequestQueue queue({.slots = 2, .waiting = 1}, statistics);
  const auto pieces = std::make_shared<Pieces>(), gone = std::make_shared<Pieces>();
  EXPECT_EQ(queue.submit(texts(4, pieces)), RequestQueue::Submitted::full);
  EXPECT_EQ(statistics.counts().refused, 4);
  EXPECT_EQ(queue.submit(texts(3, pieces)), RequestQueue::Submitted::yes);
  EXPECT_EQ(queue.submit(texts(1, pieces)), RequestQueue::Submitted::full);
  EXPECT_EQ(queue.take()->request.choice, 0u);
  EXPECT_EQ(queue.take()->request.choice, 1u);
  EXPECT_FALSE(queue.take()) << "both slots are taken";
  EXPECT_EQ(queue.running(), 2);
  EXPECT_EQ(queue.waiting(), 1);
  queue.finished({});
  EXPECT_EQ(queue.submit(texts(1, gone)), RequestQueue::Submitted::yes);
  gone->abandon();
  EXPECT_EQ(queue.take()->request.choice, 2u);
  queue.finished({});
  EXPECT_FALSE(queue.take());
  EXPECT_EQ(statistics.counts().abandoned, 1);
}

TEST(RequestQueue, ClosingAbandonsWhatWaits) {
  Statistics statistics;
  RequestQueue queue({.slots = 1, .waiting = 3}, statistics);
  const auto pieces = std::make_shared<Pieces>();
  ASSERT_EQ(queue.submit(texts(2, pieces)), RequestQueue::Submitted::yes);
  ASSERT_TRUE(queue.take());
  queue.close();
  EXPECT_TRUE(queue.is_closed());
  EXPECT_FALSE(queue.is_done());
  EXPECT_EQ(queue.submit(texts(1, pieces)), RequestQueue::Submitted::full);
  const std::vector<Piece> told = pieces->take(0);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].choice, 1u);
  EXPECT_EQ(told[0].finish, Finish::abandoned);
  queue.finished({});
  EXPECT_TRUE(queue.is_done());
}

TEST(RequestQueue, NothingToGenerateIsAnsweredAtOnce) {
  Statistics statistics;
  RequestQueue queue({.slots = 1, .waiting = 1}, statistics);
  const auto pieces = std::make_shared<Pieces>();
  ASSERT_EQ(queue.submit({{{.prompt = {1}, .most_tokens = 0}, pieces}}), RequestQueue::Submitted::yes);
  EXPECT_EQ(pieces->take(0).at(0).finish, Finish::length);
  EXPECT_EQ(queue.waiting(), 0);
  EXPECT_EQ(statistics.counts().length, 1);
}

}  // namespace
}  // namespace switchyard::serve
