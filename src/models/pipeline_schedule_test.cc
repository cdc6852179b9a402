#include "models/pipeline_schedule.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

namespace switchyard {
namespace {

using Schedule = PipelineSchedule;
constexpr Schedule kBoth[] = {Schedule::gpipe, Schedule::one_forward_one_backward};

std::vector<std::vector<PipelineEvent>> events_of(Schedule schedule, const PipelineShape& shape) {
  std::vector<std::vector<PipelineEvent>> stages;
  for (int s = 0; s < shape.stages; ++s) stages.push_back(pipeline_events(schedule, shape, s));
  return stages;
}

// Runs all stages; a transfer ends when both sides have reached it. Expects that every pass has its inputs
// and that no stage waits forever.
void expect_runs(Schedule schedule, const PipelineShape& shape) {
  const auto stages = events_of(schedule, shape);
  std::vector<std::size_t> at(stages.size(), 0);
  std::vector<bool> has_received(stages.size(), false);
  std::set<std::tuple<bool, int, std::int64_t>> done;  // forward, block of all, microbatch
  const auto current = [&](int s) -> const PipelineEvent* {
    const auto stage = static_cast<std::size_t>(s);
    return at[stage] < stages[stage].size() ? &stages[stage][at[stage]] : nullptr;
  };
  const auto key = [&](int s, const PipelinePass& pass) {
    return std::tuple(pass.forward, pass.block * shape.stages + s, pass.microbatch);
  };
  for (bool moves = true; moves;) {
    moves = false;
    for (int s = 0; s < shape.stages; ++s) {
      const auto stage = static_cast<std::size_t>(s);
      const PipelineEvent* event = current(s);
      if (event == nullptr) continue;
      if (event->pass) {
        const auto [forward, block, microbatch] = key(s, *event->pass);
        const bool needs = forward ? block > 0 : block + 1 < shape.blocks();
        ASSERT_EQ(has_received[stage], needs) << block << " " << microbatch;
        if (!forward) {
          ASSERT_TRUE(done.count({true, block, microbatch}));
        }
        ASSERT_TRUE(done.insert(key(s, *event->pass)).second) << "twice";
        has_received[stage] = false;
      } else {
        const PipelineEvent* other = current(event->neighbour);
        if (other == nullptr || other->pass || other->neighbour != s) continue;
        for (const auto& [from, to, who] :
             {std::tuple(event, other, s), std::tuple(other, event, event->neighbour)}) {
          ASSERT_EQ(from->sent.has_value(), to->receives);
          if (from->sent) {
            ASSERT_TRUE(done.count(key(who, *from->sent)));
          }
        }
        const auto neighbour = static_cast<std::size_t>(event->neighbour);
        has_received[stage] = has_received[stage] || event->receives;
        has_received[neighbour] = has_received[neighbour] || other->receives;
        ++at[neighbour];
      }
      ++at[stage];
      moves = true;
    }
  }
  EXPECT_EQ(done.size(), static_cast<std::size_t>(2 * shape.blocks() * shape.microbatches)) << "stands still";
}

TEST(PipelineSchedule, RunsEveryPassOnceAndNobodyWaitsForEver) {
  for (const Schedule schedule : kBoth) {
    for (int stages = 1; stages <= 6; ++stages) {
      for (int repeats = 1; repeats <= (stages == 1 ? 1 : 4); ++repeats) {
        for (const std::int64_t microbatches : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13}) {
          SCOPED_TRACE(::testing::Message()
                       << stages << " stages, " << repeats << " blocks, " << microbatches);
          expect_runs(schedule, {stages, repeats, microbatches});
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// So a weight's gradient is the same sum whatever the schedule.
TEST(PipelineSchedule, EveryBlockTakesTheMicrobatchesInTheirOrder) {
  for (const Schedule schedule : kBoth) {
    for (const auto& events : events_of(schedule, {3, 2, 7})) {
      std::map<std::pair<bool, int>, std::int64_t> next;
      for (const PipelineEvent& event : events) {
        if (!event.pass) continue;
        const auto order = std::pair(event.pass->forward, event.pass->block);
        EXPECT_EQ(event.pass->microbatch, next[order]++);
      }
    }
  }
}

std::vector<std::int64_t> most_alive(Schedule schedule, const PipelineShape& shape) {
  std::vector<std::int64_t> most;
  for (const auto& events : events_of(schedule, shape)) {
    std::int64_t alive = 0, peak = 0;
    for (const PipelineEvent& event : events) {
      if (event.pass) alive += event.pass->forward ? 1 : -1;
      peak = std::max(peak, alive);
    }
    most.push_back(peak);
  }
  return most;
}

TEST(PipelineSchedule, SoManyPassesLive) {
  using Counts = std::vector<std::int64_t>;
  EXPECT_EQ(most_alive(Schedule::gpipe, {4, 1, 8}), (Counts{8, 8, 8, 8}));
  EXPECT_EQ(most_alive(Schedule::one_forward_one_backward, {4, 1, 8}), (Counts{4, 3, 2, 1}));
  EXPECT_EQ(most_alive(Schedule::one_forward_one_backward, {4, 2, 8}), (Counts{11, 9, 7, 5}));
  EXPECT_EQ(most_alive(Schedule::one_forward_one_backward, {1, 1, 8}), (Counts{1}));
  EXPECT_EQ(most_alive(Schedule::gpipe, {1, 1, 8}), (Counts{1}));
}

TEST(PipelineSchedule, TheBubbleShrinksWithTheBlocks) {
  for (const Schedule schedule : kBoth) {
    for (const int stages : {1, 2, 3, 4, 8}) {
      for (const int repeats : {1, 2, 4}) {
        for (const int groups : {1, 2, 4}) {
          if (stages == 1 && repeats > 1) continue;
          const PipelineShape shape{stages, repeats, stages * groups};
          EXPECT_DOUBLE_EQ(pipeline_bubble(schedule, shape),
                           (stages - 1) / static_cast<double>(repeats * shape.microbatches))
              << stages << " stages, " << repeats << " blocks, " << shape.microbatches;
        }
      }
    }
  }
  // A last group that is not full leaves gaps.
  const PipelineShape uneven{4, 2, 6};
  for (const Schedule schedule : kBoth) EXPECT_GT(pipeline_bubble(schedule, uneven), 3.0 / 12);
}

}  // namespace
}  // namespace switchyard
