#include "parallel/comm/local.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/messages.h"
#include "core/suspended_testing.h"
#include "parallel/comm/progress_thread.h"
#include "parallel/mesh.h"

namespace switchyard {
namespace {

constexpr double kLocalTimeout = 60;

TEST(Local, DisjointGroupsRunAtTheSameTime) {
  const Mesh mesh({{"data", 2}, {"expert", 4}});
  run_local_ranks(8, kLocalTimeout, [&](Communicator& comm) {
    for (const Axes& axes : {Axes{"expert"}, Axes{"data"}, Axes{"expert", "data"}}) {
      const ProcessGroup group{mesh.group(comm.rank(), axes), mesh.index_along(comm.rank(), axes),
                               joined(axes)};
      for (int repeat = 0; repeat < 50; ++repeat) {
        std::vector<int> seen(group.ranks.size());
        const int rank = comm.rank();
        comm.all_gather(group, host_view(std::span(&rank, 1)), host_view(seen));
        ASSERT_EQ(seen, group.ranks);
        // One group runs ahead of the others.
        if (repeat % 10 == 0 && group.ranks[0] == 0) std::this_thread::yield();
      }
    }
  });
}

TEST(Local, SumsAreTheSameInEveryRun) {
  std::vector<std::uint32_t> first;
  for (int run = 0; run < 3; ++run) {
    std::vector<std::uint32_t> bits(5000);
    run_local_ranks(7, kLocalTimeout, [&](Communicator& comm) {
      std::vector<float> data(5000);
      for (std::size_t i = 0; i < data.size(); ++i) {
        data[i] =
            std::exp(static_cast<float>((i * 31 + static_cast<std::size_t>(comm.rank()) * 17) % 23) - 11.0f);
      }
      comm.all_reduce(everyone(comm, "data"), host_view(data));
      if (comm.rank() == 3) std::memcpy(bits.data(), data.data(), 20000);
    });
    if (run == 0) first = bits;
    EXPECT_EQ(bits, first);
  }
}

// A batch system may suspend a run for longer than its ranks wait for each other.
TEST(Local, SuspensionIsNoTimeOut) {
  run_local_ranks(2, 1.5, [](Communicator& comm) {
    if (comm.rank() == 1) be_suspended(2500);
    comm.barrier(everyone(comm, "data"));
  });
}

// The message of the error that `body` on `ranks` ranks ends with, and its kind.
std::pair<std::string, Error::Kind> failure(int ranks, double timeout,
                                            const std::function<void(Communicator&)>& body) {
  try {
    run_local_ranks(ranks, timeout, body);
  } catch (const Error& error) {
    return {error.what(), error.kind()};
  }
  return {"no error", Error::Kind::runtime};
}

TEST(LocalFailure, AThrowingRankStopsTheOthers) {
  const auto start = std::chrono::steady_clock::now();
  const auto [message, kind] = failure(4, kLocalTimeout, [](Communicator& comm) {
    const ProcessGroup group = everyone(comm, "data");
    comm.barrier(group);
    if (comm.rank() == 2) fail_usage("[data] no such file: {}", "a.txt");
    comm.barrier(group);
  });
  EXPECT_EQ(message, "[data] no such file: a.txt");
  EXPECT_EQ(kind, Error::Kind::usage);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(LocalFailure, OneRankKeepsTheExceptionAsItIs) {
  EXPECT_THROW(run_local_ranks(1, kLocalTimeout, [](Communicator&) { throw std::out_of_range("x"); }),
               std::out_of_range);
  EXPECT_EQ(failure(1, kLocalTimeout, [](Communicator&) { fail_runtime("[x] y"); }).first, "[x] y");
}

TEST(LocalFailure, TheSameErrorOnAllRanksNamesTheLowest) {
  const auto [message, kind] =
      failure(4, kLocalTimeout, [](Communicator&) { throw std::runtime_error("disk full"); });
  EXPECT_EQ(kind, Error::Kind::runtime);
  EXPECT_TRUE(message.ends_with(": disk full")) << message;
}

TEST(LocalFailure, DifferentCollectivesAreNamed) {
  const std::string kinds = failure(2, kLocalTimeout, [](Communicator& comm) {
                              const std::vector<float> value(1);
                              const ProcessGroup group = everyone(comm, "data");
                              if (comm.rank() == 0)
                                comm.all_reduce(group, host_view(value));
                              else
                                comm.broadcast(group, 1, host_view(value));
                            }).first;
  EXPECT_EQ(kinds,
            "rank 0: [comm] expected the same collective on all ranks, got all_reduce over 'data' of 1 "
            "float32 on rank 0 and "
            "broadcast over 'data' of 4 bytes from group rank 1 on rank 1");
  const std::string sizes = failure(4, kLocalTimeout, [](Communicator& comm) {
                              const std::vector<float> value(comm.rank() == 3 ? 2 : 1);
                              comm.all_reduce(everyone(comm, "data"), host_view(value));
                            }).first;
  EXPECT_NE(sizes.find("of 1 float32 on rank 0 and all_reduce over 'data' of 2 float32 on rank 3"),
            std::string::npos)
      << sizes;
}

// Small and large inputs take different ways; nobody waits for one that has gone another.
TEST(LocalFailure, SmallAndLargeInputsMustAgree) {
  const std::string sizes = failure(3, kLocalTimeout, [](Communicator& comm) {
                              const std::vector<float> in(comm.rank() == 1 ? 100000 : 100),
                                  out(3 * in.size());
                              comm.all_gather(everyone(comm, "data"), host_view(in), host_view(out));
                            }).first;
  EXPECT_NE(sizes.find("of 400 bytes on rank 0 and all_gather over 'data' of 400000 bytes on rank 1"),
            std::string::npos)
      << sizes;
  const std::string kinds = failure(3, kLocalTimeout, [](Communicator& comm) {
                              const ProcessGroup group = everyone(comm, "data");
                              std::vector<float> data(100000), out(300000);
                              if (comm.rank() == 1)
                                comm.all_gather(group, host_view(data), host_view(out));
                              else
                                comm.barrier(group);
                            }).first;
  EXPECT_NE(kinds.find("got barrier over 'data' of 0 bytes on rank 0 and all_gather"), std::string::npos)
      << kinds;
}

TEST(LocalFailure, RaggedCountsMustAgree) {
  for (const bool shared : {false, true}) {
    const std::string message =
        failure(2, kLocalTimeout, [&](Communicator& comm) {
          const std::vector<std::int64_t> offsets{0, 0}, sent{1, 2};
          const std::vector<std::int64_t> received{comm.rank() == 1 ? 5 : 1, comm.rank() == 1 ? 2 : 1};
          const std::vector<float> in(4), out(8);
          const ProcessGroup group = everyone(comm, "expert");
          if (shared)
            comm.shared_memory()->ragged_all_to_all(
                group, host_view(in), sent, received,
                [](std::size_t, const TensorView&) { FAIL() << "took rows"; });
          else
            comm.ragged_all_to_all(group, host_view(in), {offsets, sent}, host_view(out),
                                   {offsets, received});
        }).first;
    EXPECT_NE(message.find("rank 0 sends 2 rows to rank 1, which expects 5"), std::string::npos) << message;
  }
}

TEST(LocalFailure, TimeoutNamesTheMissingRanks) {
  const std::string message = failure(4, 0.2, [](Communicator& comm) {
                                if (comm.rank() < 2) comm.barrier(everyone(comm, "fsdp"));
                              }).first;
  EXPECT_NE(message.find("[comm] barrier over 'fsdp' of 0 bytes timed out after 0.2 s: 2 of 4 ranks came; "
                         "missing: rank 2, 3"),
            std::string::npos)
      << message;
}

// A library waits for a rank that works on, and says so once; the process does not end.
TEST(LocalFailure, ARankThatWorksOnIsWaitedFor) {
  std::vector<std::string> lines;
  set_message_handler([&](const std::string& line) { lines.push_back(line); });
  std::atomic<bool> ended{false};
  const auto [message, kind] = failure(3, kLocalTimeout, [&](Communicator& comm) {
    if (comm.rank() > 0) CHECK(false, "rank {}", 5);
    std::this_thread::sleep_for(std::chrono::seconds(6));
    ended = true;
  });
  set_message_handler({});
  EXPECT_TRUE(ended);
  EXPECT_EQ(kind, Error::Kind::internal);
  EXPECT_TRUE(message.starts_with("rank 1: ") && message.find("rank 5") != std::string::npos) << message;
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], message + " (1 of 3 ranks did not come to an end); waiting for them");
}

// More ranks hang than there are threads for ranks.
TEST(LocalFailure, TimeoutsAreSeenWhileOtherRanksKeepAllCores) {
  Workers workers(2, 4);
  std::string message;
  std::atomic<bool> timed_out{false};
  const auto start = std::chrono::steady_clock::now();
  try {
    run_local_ranks(workers, 0.2, [&](Communicator& comm) {
      if (comm.rank() >= 2) {
        while (!timed_out && std::chrono::steady_clock::now() - start < std::chrono::seconds(30))
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return;
      }
      try {
        comm.barrier(everyone(comm, "fsdp"));
      } catch (...) {
        timed_out = true;
        throw;
      }
    });
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_TRUE(timed_out);
  EXPECT_NE(message.find("2 of 4 ranks came; missing: rank 2, 3"), std::string::npos) << message;
}

// A started gather that nobody else takes part in: its error names the place where it was started.
TEST(LocalFailure, AStartedGatherTimesOut) {
  const std::string message =
      failure(2, 0.2, [](Communicator& comm) {
        comm.start_progress_thread();
        if (comm.rank() == 1) return;
        const std::vector<char> in(1), out(2);
        comm.position().step = 4;
        comm.position().layer = 2;
        const auto started = comm.start_all_gather(everyone(comm, "fsdp"), host_view(in), host_view(out), {});
        comm.position().layer = 7;
        comm.finish(*started);
      }).first;
  EXPECT_NE(message.find("all_gather over 'fsdp' of 1 bytes timed out after 0.2 s in layer 2, step 4"),
            std::string::npos)
      << message;
}

TEST(LocalFailure, ARankThatThrowsEndsStartedGathers) {
  const auto start = std::chrono::steady_clock::now();
  const std::string message = failure(3, kLocalTimeout, [](Communicator& comm) {
                                comm.start_progress_thread();
                                if (comm.rank() == 1) fail_runtime("[train] loss is NaN");
                                auto memory = std::make_shared<std::vector<char>>(4);
                                const TensorView bytes = host_view(*memory);
                                const auto started = comm.start_all_gather(
                                    everyone(comm, "fsdp"), bytes.rows(0, 1), bytes.rows(1, 4), {memory});
                                memory.reset();
                                if (comm.rank() == 2)
                                  fail_runtime("[train] another one");  // with a gather on its way
                                comm.finish(*started);
                              }).first;
  EXPECT_TRUE(message == "rank 1: [train] loss is NaN" || message == "rank 2: [train] another one")
      << message;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(LocalFailure, CollectivesAfterAFailureFailToo) {
  const std::string message =
      failure(3, kLocalTimeout, [](Communicator& comm) {
        if (comm.rank() == 1) fail_runtime("[train] loss is NaN");
        for (int i = 0; i < 3; ++i) {
          try {
            comm.barrier(everyone(comm, "data"));
            ADD_FAILURE() << "a barrier without rank 1 completed";
          } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find("because rank 1 failed"), std::string::npos)
                << error.what();
          }
        }
      }).first;
  EXPECT_EQ(message, "rank 1: [train] loss is NaN");
}

TEST(LocalFailure, ASharedObjectThatFailedIsMadeAgain) {
  run_local_ranks(1, kLocalTimeout, [](Communicator& comm) {
    EXPECT_THROW(comm.shared("w", []() -> std::shared_ptr<void> { throw std::bad_alloc(); }), std::bad_alloc);
    EXPECT_EQ(*std::static_pointer_cast<int>(comm.shared("w", [] { return std::make_shared<int>(3); })), 3);
  });
}

TEST(MadeTogether, IsOneResultAndCountsNothing) {
  std::atomic<int> made = 0;
  std::vector<const void*> results(3);
  run_local_ranks(3, kLocalTimeout, [&](Communicator& comm) {
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto result = std::static_pointer_cast<std::vector<int>>(comm.shared_memory()->make_together(
        everyone(comm, "data"),
        [&]() -> std::shared_ptr<void> {
          ++made;
          return std::make_shared<std::vector<int>>(3, -1);
        },
        [&](void* memory) { (*static_cast<std::vector<int>*>(memory))[me] = comm.rank(); }));
    EXPECT_EQ(*result, (std::vector<int>{0, 1, 2}));
    results[me] = result.get();
    EXPECT_TRUE(comm.counts().empty());
    comm.barrier(everyone(comm, "data"));
  });
  EXPECT_EQ(made.load(), 1);
  for (const void* result : results) EXPECT_EQ(result, results[0]);
}

TEST(SharedExchange, TakesEveryPartFromWhereItLiesAndIsCountedLikeACopy) {
  for (const std::size_t part : {1u, 2000u}) {
    run_local_ranks(3, kLocalTimeout, [part](Communicator& comm) {
      const ProcessGroup group = everyone(comm, "expert");
      std::vector<std::int64_t> mine(3 * part), copied(3 * part), taken(3 * part);
      std::iota(mine.begin(), mine.end(), 100000 * comm.rank());
      comm.all_to_all(group, host_view(mine), host_view(copied));
      const auto counts = comm.counts();
      comm.shared_memory()->all_to_all(
          group, host_view(mine), [&](std::size_t index, const TensorView& theirs) {
            const auto* const from =
                reinterpret_cast<const std::int64_t*>(theirs.kernel_address()) + group.index * part;
            std::copy_n(from, part, taken.data() + index * part);
          });
      EXPECT_EQ(taken, copied);
      EXPECT_EQ(taken.back(), 200000 + static_cast<std::int64_t>((group.index + 1) * part) - 1);
      ASSERT_EQ(comm.counts().size(), 1u);
      EXPECT_EQ(comm.counts()[0].calls, 2);
      EXPECT_EQ(comm.counts()[0].bytes, 2 * counts[0].bytes);
    });
  }
}

TEST(SharedGather, GivesAllRanksOneResultWithEveryPartInIt) {
  for (const int ranks : {1, 2, 7}) {
    std::atomic<int> made = 0;
    std::vector<const void*> results(static_cast<std::size_t>(ranks));
    run_local_ranks(ranks, kLocalTimeout, [&](Communicator& comm) {
      for (int round = 0; round < 20; ++round) {
        const auto me = static_cast<std::size_t>(comm.rank());
        const auto result = std::static_pointer_cast<std::vector<int>>(comm.shared_memory()->all_gather(
            everyone(comm, "fsdp"), 4,
            [&]() -> std::shared_ptr<void> {
              ++made;
              return std::make_shared<std::vector<int>>(static_cast<std::size_t>(ranks), -1);
            },
            [&](void* memory) {
              (*static_cast<std::vector<int>*>(memory))[me] = 100 * round + comm.rank();
            }));
        for (int r = 0; r < ranks; ++r) EXPECT_EQ((*result)[static_cast<std::size_t>(r)], 100 * round + r);
        if (round == 19) results[me] = result.get();
        comm.barrier(everyone(comm, "fsdp"));
      }
      const auto counts = comm.counts();
      const auto gathers = std::find_if(counts.begin(), counts.end(),
                                        [](const CollectiveCount& c) { return c.kind == "all_gather"; });
      if (ranks == 1) return;
      ASSERT_NE(gathers, counts.end());
      EXPECT_EQ(gathers->calls, 20);
      EXPECT_EQ(gathers->bytes, 20 * 4 * (ranks - 1));
    });
    EXPECT_EQ(made.load(), 20);
    for (const void* result : results) EXPECT_EQ(result, results[0]);
  }
}

TEST(Slices, CoverEverythingOnce) {
  for (const int parts : {1, 2, 7, 8}) {
    for (const std::int64_t count : {0, 1, 7, 8, 1000}) {
      std::int64_t next = 0;
      for (int i = 0; i < parts; ++i) {
        const Slice slice = slice_of(count, parts, i);
        EXPECT_EQ(slice.begin, next);
        EXPECT_LE(slice.end - slice.begin, count / parts + 1);
        next = slice.end;
      }
      EXPECT_EQ(next, count);
    }
  }
}

}  // namespace
}  // namespace switchyard
