#include "kernels/moe/plan_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "core/testing.h"

namespace switchyard {
namespace {

using Indices = std::vector<std::int32_t>;

Indices random_choices(std::int64_t count, std::int32_t experts, std::uint32_t seed) {
  std::mt19937 generator(seed);
  Indices ids(static_cast<std::size_t>(count));
  for (auto& id : ids) id = static_cast<std::int32_t>(generator() % static_cast<std::uint32_t>(experts));
  return ids;
}

TensorView view_of(const Indices& values) {
  return TensorView::of_host(values.data(), {static_cast<std::int64_t>(values.size())});
}

// The assignments of three passes, each past those of the passes before, are those of one that keeps all.
TEST(PlanRows, PassesOverAssignmentsThatWereTaken) {
  ThreadPool pool(1);
  constexpr std::int32_t kPerToken = 2, kFirst = 1, kHere = 3;
  const Indices ids = random_choices(200, 5, 11);
  std::vector<Indices> of_expert(kHere);
  Indices skipped(kHere, 0);
  for (const std::int32_t most : {4, 0, 1000}) {
    Indices kept;
    for (std::int32_t e = 0; e < kHere; ++e) {
      const auto all = static_cast<std::int32_t>(std::count(ids.begin(), ids.end(), kFirst + e));
      kept.push_back(std::min(most * (e + 1), all - skipped[static_cast<std::size_t>(e)]));
    }
    const std::int64_t n = std::accumulate(kept.begin(), kept.end(), std::int64_t{0});
    Indices assignments(static_cast<std::size_t>(n) + 1, -7), tokens(assignments), position(ids.size(), -7);
    plan_rows(pool, {.ids = view_of(ids).reshaped({100, kPerToken}),
                     .first = kFirst,
                     .kept = view_of(kept),
                     .assignments = view_of(assignments).rows(0, n),
                     .tokens = view_of(tokens).rows(0, n),
                     .position = view_of(position),
                     .skipped = view_of(skipped)});
    std::size_t at = 0;
    for (std::size_t e = 0; e < kHere; ++e) {
      for (std::int32_t i = 0; i < kept[e]; ++i, ++at) {
        EXPECT_EQ(tokens[at], assignments[at] / kPerToken);
        EXPECT_EQ(position[static_cast<std::size_t>(assignments[at])], static_cast<std::int32_t>(at));
        of_expert[e].push_back(assignments[at]);
      }
      skipped[e] += kept[e];
    }
    EXPECT_EQ(std::count(position.begin(), position.end(), -1), 200 - n);
  }
  for (std::int32_t e = 0; e < kHere; ++e) {
    Indices all;
    for (std::int32_t r = 0; r < 200; ++r) {
      if (ids[static_cast<std::size_t>(r)] == kFirst + e) all.push_back(r);
    }
    EXPECT_EQ(of_expert[static_cast<std::size_t>(e)], all);
  }
}

TEST(PlanRows, RefusesToKeepMoreThanThereIs) {
  ThreadPool pool(1);
  const Indices ids{0, 1, 1, 0}, kept{3, 1};
  Indices assignments(4), tokens(4), position(4);
  const PlanRowsArgs args{.ids = view_of(ids),
                          .first = 0,
                          .kept = view_of(kept),
                          .assignments = view_of(assignments),
                          .tokens = view_of(tokens),
                          .position = view_of(position)};
  expect_broken_check([&] { plan_rows(pool, args); }, "fewer assignments than it keeps");
}

// Two sequences of three tokens of two assignments, three experts with two rows each.
TEST(PlanPlaces, ByHand) {
  ThreadPool pool(2);
  const Indices ids{0, 1, 0, 2, 0, 1, /**/ 2, 2, 2, 2, 1, 0};
  Indices assignments(12), tokens(12), position(12), dropped(3);
  const Shape of_places{3, 2, 2}, of_ids{2, 3, 2};
  plan_places(pool, {.ids = view_of(ids).reshaped(of_ids),
                     .assignments = view_of(assignments).reshaped(of_places),
                     .tokens = view_of(tokens).reshaped(of_places),
                     .position = view_of(position).reshaped(of_ids),
                     .dropped = view_of(dropped)});
  EXPECT_EQ(assignments, (Indices{0, 2, 11, -1, 1, 5, 10, -1, 3, -1, 6, 7}));
  EXPECT_EQ(tokens, (Indices{0, 1, 5, -1, 0, 2, 5, -1, 1, -1, 3, 3}));
  EXPECT_EQ(position, (Indices{0, 4, 1, 8, -1, 5, 10, 11, -1, -1, 6, 2}));
  EXPECT_EQ(dropped, (Indices{1, 0, 2}));
}

// Of four assignments in each sequence, and two: places for as many of an expert as its share of those.
TEST(PlanPlaces, AreForTheAssignmentsThatThereAre) {
  EXPECT_EQ(places_of(6, 3, 1.5), 3);
  EXPECT_EQ(places_of(2, 3, 1.5), 1);  // ⌈2 / 3⌉ · 1.5
  EXPECT_EQ(places_of(0, 3, 0.5), 0);
  ThreadPool pool(2);
  const Indices ids{0, 0, 0, 2, 0, 1, /**/ 2, 2, -1, -1, -1, -1};
  Indices assignments(18), tokens(18), position(12), dropped(3);
  const Shape of_places{3, 2, 3}, of_ids{2, 3, 2};
  plan_places(pool, {.ids = view_of(ids).reshaped(of_ids),
                     .assignments = view_of(assignments).reshaped(of_places),
                     .tokens = view_of(tokens).reshaped(of_places),
                     .position = view_of(position).reshaped(of_ids),
                     .dropped = view_of(dropped),
                     .factor = 1.5});
  EXPECT_EQ(position, (Indices{0, 1, 2, 12, -1, 6, 15, -1, -1, -1, -1, -1}));
  EXPECT_EQ(dropped, (Indices{1, 0, 1}));
}

}  // namespace
}  // namespace switchyard
