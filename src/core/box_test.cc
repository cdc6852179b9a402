#include "core/box.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace switchyard {
namespace {

// Indices in the tensor of a box's elements, in order.
std::vector<std::int64_t> elements_of(const Shape& tensor, const Box& box) {
  std::vector<std::int64_t> at;
  for_runs(tensor, box, [&](std::int64_t first, std::int64_t in_box, std::int64_t count) {
    EXPECT_EQ(in_box, static_cast<std::int64_t>(at.size()));
    for (std::int64_t i = 0; i < count; ++i) at.push_back(first + i);
  });
  return at;
}

TEST(Box, RunsAreAsLongAsTheyCanBe) {
  std::int64_t runs = 0;
  const auto count = [&](std::int64_t, std::int64_t, std::int64_t) { ++runs; };
  for_runs({4, 6, 8}, {{1, 0, 0}, {2, 6, 8}}, count);
  EXPECT_EQ(runs, 1);
  runs = 0;
  for_runs({4, 6, 8}, {{1, 2, 0}, {2, 3, 8}}, count);
  EXPECT_EQ(runs, 2);
  runs = 0;
  for_runs({4, 6, 8}, {{0, 0, 3}, {4, 6, 2}}, count);
  EXPECT_EQ(runs, 24);
  runs = 0;
  for_runs({4, 0}, {{0, 0}, {4, 0}}, count);
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(elements_of({}, {}), std::vector<std::int64_t>{0});
  EXPECT_EQ(elements_of({2, 3}, {{0, 1}, {2, 2}}), (std::vector<std::int64_t>{1, 2, 4, 5}));
}

TEST(Box, RangesOfABlockAreBoxesInOrder) {
  std::mt19937 random(7);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    const auto dims = static_cast<std::size_t>(draw(1, 4));
    Shape tensor(dims);
    Box block{Shape(dims), Shape(dims)};
    for (std::size_t d = 0; d < dims; ++d) {
      tensor[d] = draw(1, 6);
      block.start[d] = draw(0, tensor[d] - 1);
      block.shape[d] = draw(1, tensor[d] - block.start[d]);
    }
    const std::int64_t size = num_elements(block.shape), begin = draw(0, size), end = draw(begin, size);
    const std::int64_t most = draw(1, 20);
    const std::vector<std::int64_t> all = elements_of(tensor, block);
    std::vector<std::int64_t> got;
    for (const Box& box : boxes_of_range(block, begin, end, most)) {
      EXPECT_TRUE(inside(box, tensor));
      EXPECT_LE(num_elements(box.shape), most);
      for (const std::int64_t i : elements_of(tensor, box)) got.push_back(i);
    }
    EXPECT_EQ(got, std::vector<std::int64_t>(all.begin() + begin, all.begin() + end));
  }
}

TEST(Box, WholeRowsStayTogether) {
  // [1:5) of 3 rows of 4: the rest of row 0, and one element of row 1.
  EXPECT_EQ(boxes_of_range(whole_box({3, 4}), 1, 5, 100),
            (std::vector<Box>{{{0, 1}, {1, 3}}, {{1, 0}, {1, 1}}}));
  EXPECT_EQ(boxes_of_range(whole_box({3, 4}), 0, 12, 8),
            (std::vector<Box>{{{0, 0}, {2, 4}}, {{2, 0}, {1, 4}}}));
}

}  // namespace
}  // namespace switchyard
