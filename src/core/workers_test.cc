#include "core/workers.h"

#include <gtest/gtest.h>

#include <barrier>
#include <numeric>
#include <set>

#include "core/current_memory.h"
#include "core/thread_pool.h"

namespace switchyard {
namespace {

// The threads that ran pieces of one loop.
class Runners {
 public:
  void note() {
    const std::scoped_lock lock(mutex_);
    ids_.insert(std::this_thread::get_id());
    changed_.notify_all();
  }
  // Whether `count` threads come within a generous time: a piece that waits for its fellows shows that they
  // run at once.
  bool wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return ids_.size() >= count; });
  }
  std::size_t count() {
    const std::scoped_lock lock(mutex_);
    return ids_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::thread::id> ids_;
};

TEST(Workers, ASingleRankGetsAllCores) {
  Workers workers(3);
  const RankScope rank(workers);
  ThreadPool pool(workers);
  EXPECT_EQ(pool.threads(), 3);
  Runners runners;
  pool.for_range(3, 1, [&](std::int64_t, std::int64_t) {
    runners.note();
    EXPECT_TRUE(runners.wait_for(3));
  });
}

// An exception of a piece, on whichever thread, comes out behind the loop, and the workers work on.
TEST(Workers, ABodyThrowsToItsRank) {
  Workers workers(3);
  const RankScope rank(workers);
  ThreadPool pool(workers);
  for (std::int64_t bad = 0; bad < 3; ++bad) {
    Runners runners;
    EXPECT_THROW(pool.for_range(3, 1,
                                [&](std::int64_t begin, std::int64_t) {
                                  runners.note();
                                  EXPECT_TRUE(runners.wait_for(3));
                                  if (begin == bad) throw std::out_of_range("piece");
                                }),
                 std::out_of_range);
    std::atomic<std::int64_t> pieces{0};
    pool.for_range(8, 1, [&](std::int64_t, std::int64_t) { ++pieces; });
    EXPECT_EQ(pieces, 8);
  }
}

TEST(Workers, APoolHasPiecesForTwiceItsShare) {
  const auto threads = [](int cores, int ranks) {
    Workers workers(cores, ranks);
    return ThreadPool(workers).threads();
  };
  EXPECT_EQ(threads(1, 8), 1);
  EXPECT_EQ(threads(2, 8), 2);
  EXPECT_EQ(threads(4, 2), 4);
  EXPECT_EQ(threads(8, 4), 4);
  EXPECT_EQ(threads(2, 1), 2);
}

// Two ranks on two cores: while both work no helper comes, and when one waits, the other gets its core.
TEST(Workers, AWaitingRankLeavesItsCoreToTheOthers) {
  Workers workers(2, 2);
  std::barrier both(2);
  Runners alone, helped;
  std::thread waiting([&] {
    const RankScope rank(workers);
    both.arrive_and_wait();  // busy, as far as the workers know
    both.arrive_and_wait();
    const WaitScope wait;
    both.arrive_and_wait();
  });
  {
    const RankScope rank(workers);
    ThreadPool pool(workers);
    both.arrive_and_wait();
    pool.for_range(1000, 1, [&](std::int64_t, std::int64_t) { alone.note(); });
    EXPECT_EQ(alone.count(), 1u);
    both.arrive_and_wait();
    pool.for_range(2, 1, [&](std::int64_t, std::int64_t) {
      helped.note();
      EXPECT_TRUE(helped.wait_for(2));
    });
    both.arrive_and_wait();
  }
  waiting.join();
}

TEST(Workers, AHelperGoesWhenItsCoreIsNeeded) {
  Workers workers(2, 2);
  const RankScope rank(workers);
  ThreadPool pool(workers);
  Runners runners;
  std::atomic<bool> needed{false};
  std::atomic<int> foreign{0};  // pieces that the helper began when its core was needed
  const auto own = std::this_thread::get_id();
  pool.for_range(1000, 1, [&](std::int64_t, std::int64_t) {
    const bool late = needed;
    runners.note();
    if (std::this_thread::get_id() != own) {
      if (late) ++foreign;
    } else if (!late) {
      EXPECT_TRUE(runners.wait_for(2));
      workers.enter();  // another rank has work again
      needed = true;
    }
  });
  if (needed) workers.leave();
  EXPECT_LE(foreign.load(), 1);
}

void run_every_index_once(ThreadPool& pool, std::int64_t count, std::int64_t grain) {
  std::vector<std::atomic<int>> hits(static_cast<std::size_t>(count));
  pool.for_range(count, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) ++hits[static_cast<std::size_t>(i)];
  });
  for (const auto& h : hits) EXPECT_EQ(h.load(), 1);
}

// Eight ranks with loops and waits of all lengths on three cores: every index once, and
// everybody comes to an end.
TEST(Workers, ManyRanksRunEveryIndexOnce) {
  constexpr int kRanks = 8;
  Workers workers(3, kRanks);
  std::barrier meeting(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      const RankScope rank(workers);
      ThreadPool pool(workers);
      for (std::int64_t round = 0; round < 200; ++round) {
        run_every_index_once(pool, (round * 7 + r * 13) % 40, 1 + round % 3);
        const WaitScope wait;
        meeting.arrive_and_wait();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

// For ranks that are fibers: all come before any goes on.
class Meeting {
 public:
  explicit Meeting(int ranks) : ranks_(ranks) {}
  void meet() {
    std::unique_lock lock(mutex_);
    if (++here_ % ranks_ == 0) {
      all_here_.notify_all();
      return;
    }
    const int until = (here_ / ranks_ + 1) * ranks_;
    all_here_.wait(lock, [&] { return here_ >= until; });
  }

 private:
  const int ranks_;
  std::mutex mutex_;
  int here_ = 0;
  RankCondition all_here_;
};

TEST(RunRanks, LoopsAndWaitsOfAllLengthsComeToAnEnd) {
  for (const auto& [cores, ranks] : {std::pair{3, 8}, {1, 5}, {4, 2}, {2, 1}}) {
    Workers workers(cores, ranks);
    Meeting meeting(ranks);
    std::atomic<int> ended{0};
    workers.run_ranks([&](int r) {
      ThreadPool pool(workers);
      for (std::int64_t round = 0; round < 200; ++round) {
        run_every_index_once(pool, (round * 7 + r * 13) % 40, 1 + round % 3);
        meeting.meet();
      }
      ++ended;
    });
    EXPECT_EQ(ended.load(), ranks);
  }
}

// The other rank waits, so that its core helps.
TEST(RunRanks, AHotRankGetsAllCores) {
  Workers workers(2, 2);
  Meeting meeting(2);
  workers.run_ranks([&](int rank) {
    ThreadPool pool(workers);
    Runners runners;
    if (rank == 0) {
      pool.for_range(2, 1, [&](std::int64_t, std::int64_t) {
        runners.note();
        EXPECT_TRUE(runners.wait_for(2));
      });
    }
    meeting.meet();
  });
}

TEST(RunRanks, WhatBuffersAreChargedToGoesWithTheRank) {
  Workers workers(2, 5);
  Meeting meeting(5);
  workers.run_ranks([&](int rank) {
    EXPECT_EQ(current_account(), nullptr);
    const auto account = std::make_shared<MemoryAccount>();
    const MemoryScope scope(Memory(Device::cpu(), account));
    for (int round = 0; round < 50; ++round) {
      const UnchargedScope uncharged;
      meeting.meet();
      EXPECT_EQ(current_account(), account) << rank;
      EXPECT_FALSE(charging());
    }
    EXPECT_TRUE(charging());
  });
  EXPECT_EQ(current_account(), nullptr);
}

TEST(RunRanks, ADeadlinePassesThoughNobodyComes) {
  Workers workers(2, 3);
  std::mutex mutex;
  RankCondition never;
  workers.run_ranks([&](int rank) {
    const auto start = Workers::Clock::now();
    const auto patience = std::chrono::milliseconds(20 * (3 - rank));
    std::unique_lock lock(mutex);
    EXPECT_FALSE(never.wait_until(lock, start + patience, [] { return false; }));
    EXPECT_GE(Workers::Clock::now() - start, patience);
    EXPECT_LT(Workers::Clock::now() - start, std::chrono::seconds(10));
  });
}

TEST(Workers, AWaitOutsideOfRanksIsNoMatter) {
  EXPECT_NO_THROW(const WaitScope wait);
  Workers workers(2, 2);
  std::atomic<int> ran{0};
  {
    const WaitScope wait;
    workers.run_ranks([&](int) { ++ran; });
  }
  EXPECT_EQ(ran, 2) << "ranks run while a thread that is none of them waits";
}

}  // namespace
}  // namespace switchyard
