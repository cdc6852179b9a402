// Tests every backend's promises: on threads, and under mpirun (mpi_test.cc) on processes with threads.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <random>
#include <thread>

#include "parallel/comm/progress_thread.h"
#include "parallel/comm/reduce.h"
#include "parallel/comm/testing.h"

namespace switchyard {
namespace {

constexpr double kTimeout = 60;

std::size_t index_of(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

// Small integers, different for every sender and position, whose sums are exact.
std::vector<float> payload(int sender, std::int64_t count) {
  std::vector<float> values(index_of(count));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(sender * 1000) + static_cast<float>(i % 251);
  return values;
}

const TestJob& kJob = test_job();  // known before the tests start

// The first `count` of them, or `count` from `begin` on.
template <typename T>
TensorView part_of(const std::vector<T>& values, std::int64_t count, std::int64_t begin = 0) {
  return host_view(values).rows(begin, begin + count);
}

template <typename T>
TensorView as_rows(const std::vector<T>& values, std::int64_t rows, std::int64_t columns) {
  return part_of(values, rows * columns).reshaped({rows, columns});
}

// The same ranks under another name.
ProcessGroup named(ProcessGroup group, std::string axis) {
  group.axis = std::move(axis);
  return group;
}

class Collectives : public testing::TestWithParam<int> {
 protected:
  // The parameter, or what processes can share evenly.
  int ranks() const {
    const int processes = kJob.processes().count();
    return (GetParam() + processes - 1) / processes * processes;
  }
  int ranks_here() const { return ranks() / kJob.processes().count(); }
  void run(const std::function<void(Communicator&, const ProcessGroup&)>& body) const {
    Workers workers(kJob.processes().cores(), ranks_here());
    kJob.processes().run_ranks(workers, kTimeout,
                               [&](Communicator& comm) { body(comm, everyone(comm, "data")); });
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, testing::Values(1, 2, 4, 7, 8));

TEST_P(Collectives, AllGatherKeepsGroupOrder) {
  for (const std::int64_t count : {0, 1, 5, 1025, 9001}) {
    run([&](Communicator& comm, const ProcessGroup& group) {
      const std::vector<float> mine = payload(comm.rank(), count);
      std::vector<float> out(index_of(count * ranks()), NAN);
      comm.all_gather(group, host_view(mine), host_view(out));
      for (int r = 0; r < ranks(); ++r) {
        const std::vector<float> expected = payload(r, count);
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), out.begin() + r * count));
      }
    });
  }
}

TEST_P(Collectives, AllGatherInPlace) {
  run([&](Communicator& comm, const ProcessGroup& group) {
    std::vector<float> out(index_of(3 * ranks()), NAN);
    const std::vector<float> mine = payload(comm.rank(), 3);
    std::copy(mine.begin(), mine.end(), out.begin() + 3 * comm.rank());
    comm.all_gather(group, part_of(out, 3, 3 * comm.rank()), host_view(out));
    for (int r = 0; r < ranks(); ++r) EXPECT_EQ(out[index_of(3 * r + 2)], payload(r, 3)[2]);
  });
}

TEST_P(Collectives, ReduceScatterSumsThisRanksPart) {
  for (const std::int64_t count : {0, 1, 1023, 1024, 2050}) {
    run([&](Communicator& comm, const ProcessGroup& group) {
      const std::vector<float> mine = payload(comm.rank(), count * ranks());
      std::vector<float> out(index_of(count) + 1, -7.0f);
      comm.reduce_scatter(group, host_view(mine), part_of(out, count));
      for (std::int64_t i = 0; i < count; ++i) {
        float expected = 0;
        for (int r = 0; r < ranks(); ++r)
          expected += payload(r, count * ranks())[index_of(comm.rank() * count + i)];
        if (out[index_of(i)] != expected) {
          ADD_FAILURE() << "element " << i << ": " << out[index_of(i)] << " instead of " << expected;
          break;
        }
        i += i > 8 && i < count - 8 ? 61 : 0;  // sampled in the middle
      }
      EXPECT_EQ(out.back(), -7.0f) << "wrote behind the output";
    });
  }
}

// Short runs, and runs of which a backend's pieces hold some and a part.
TEST_P(Collectives, ReduceScatterOfPartsInRuns) {
  constexpr std::pair<std::int64_t, std::int64_t> kCases[]{{0, 1},        {6, 2},     {35, 7},
                                                           {90000, 3000}, {90090, 7}, {700000, 7}};
  for (const auto& [count, runs] : kCases) {
    run([&, count = count, runs = runs](Communicator& comm, const ProcessGroup& group) {
      const std::int64_t p = ranks(), run = count / runs;
      const std::vector<float> mine = payload(comm.rank(), count * p);
      std::vector<float> stacked(mine.size()), expected(index_of(count)), found(index_of(count) + 1, -7.0f);
      for (std::int64_t i = 0; i < count * p; ++i)
        stacked[index_of(i / run % p * count + i / run / p * run + i % run)] = mine[index_of(i)];
      comm.reduce_scatter(group, host_view(stacked), host_view(expected));
      comm.reduce_scatter(group, host_view(mine), part_of(found, count), runs);
      EXPECT_EQ(found.back(), -7.0f) << "wrote behind the output";
      found.pop_back();
      EXPECT_EQ(found, expected);
    });
  }
}

// Small and large inputs by turns, each overwritten as soon as its rank goes on, however late the others are.
TEST_P(Collectives, AnInputMayChangeAtOnce) {
  run([&](Communicator& comm, const ProcessGroup& group) {
    const std::int64_t p = ranks(), total = p * (p - 1) / 2;
    for (int round = 0; round < 120; ++round) {
      const std::int64_t count = round % 5 == 4 ? 20000 : 1 + 7 * (round % 13);
      const auto number = static_cast<float>(round);
      const auto sum = number * static_cast<float>(p) + static_cast<float>(total);
      std::vector<float> in(index_of(count * p), number + static_cast<float>(comm.rank()));
      std::vector<float> out(in.size(), NAN);
      if (round % 7 == comm.rank()) std::this_thread::sleep_for(std::chrono::microseconds(300));
      switch (round % 4) {
        case 0:
          comm.all_gather(group, part_of(in, count), host_view(out));
          for (std::int64_t r = 0; r < p; ++r)
            EXPECT_EQ(out[index_of(r * count)], number + static_cast<float>(r)) << round;
          break;
        case 1:
          comm.all_to_all(group, host_view(in), host_view(out));
          for (std::int64_t r = 0; r < p; ++r)
            EXPECT_EQ(out[index_of((r + 1) * count - 1)], number + static_cast<float>(r)) << round;
          break;
        case 2:
          comm.reduce_scatter(group, host_view(in), part_of(out, count));
          EXPECT_EQ(out[0], sum) << round;
          EXPECT_EQ(out[index_of(count - 1)], sum) << round;
          break;
        default:
          if (round % 8 == 3) {
            comm.all_reduce(group, part_of(in, count));
            EXPECT_EQ(in[index_of(count - 1)], sum) << round;
          } else {
            const auto root = static_cast<int>(round % p);
            comm.broadcast(group, root, part_of(in, count));
            EXPECT_EQ(in[index_of(count - 1)], number + static_cast<float>(root)) << round;
          }
      }
      std::fill(in.begin(), in.end(), -1.0f);
    }
  });
}

TEST_P(Collectives, AllReduceInt32AndDouble) {
  run([&](Communicator& comm, const ProcessGroup& group) {
    std::vector<std::int32_t> counts(13);
    for (std::size_t i = 0; i < counts.size(); ++i)
      counts[i] = comm.rank() + static_cast<std::int32_t>(i) * 100;
    comm.all_reduce(group, host_view(counts));
    const int total = ranks() * (ranks() - 1) / 2;
    for (std::size_t i = 0; i < counts.size(); ++i)
      EXPECT_EQ(counts[i], total + static_cast<int>(i) * 100 * ranks());
    double value = 1.0 / (1 + comm.rank());
    comm.all_reduce(group, host_view(std::span(&value, 1)));
    double expected = 1.0;
    for (int r = 1; r < ranks(); ++r) expected += 1.0 / (1 + r);
    EXPECT_EQ(value, expected);
  });
}

// Longer than one piece of the scratch space, with a tail, and bit-equal to adding in rank order in float32.
TEST_P(Collectives, AllReduceAddsInRankOrder) {
  const std::int64_t count = ranks() * (1 << 18) + 12345;
  const auto value = [](int rank, std::int64_t i) {
    return std::sin(static_cast<float>(i % 4099) + 0.37f * static_cast<float>(rank));
  };
  run([&](Communicator& comm, const ProcessGroup& group) {
    std::vector<float> data(index_of(count));
    for (std::int64_t i = 0; i < count; ++i) data[index_of(i)] = value(comm.rank(), i);
    comm.all_reduce(group, host_view(data));
    for (std::int64_t i = 0; i < count; i += 997) {
      float expected = value(0, i);
      for (int r = 1; r < ranks(); ++r) expected += value(r, i);
      ASSERT_EQ(data[index_of(i)], expected) << i;
    }
  });
}

TEST_P(Collectives, Bfloat16SumsAreRoundedOnce) {
  run([&](Communicator& comm, const ProcessGroup& group) {
    // 256 + 1 is not a bfloat16: rounding after every addition would stay at 256.
    std::vector<bfloat16> data(3, bfloat16(comm.rank() == 0 ? 256.0f : 1.0f));
    comm.all_reduce(group, host_view(data));
    const bfloat16 expected(256.0f + static_cast<float>(ranks() - 1));
    for (const bfloat16 value : data) EXPECT_EQ(value.bits, expected.bits);
  });
}

TEST_P(Collectives, AllToAllTransposes) {
  run([&](Communicator& comm, const ProcessGroup& group) {
    std::vector<std::int64_t> in(index_of(2 * ranks()));
    for (int j = 0; j < ranks(); ++j) in[index_of(2 * j)] = in[index_of(2 * j + 1)] = comm.rank() * 100 + j;
    std::vector<std::int64_t> out(in.size(), -1);
    comm.all_to_all(group, host_view(in), host_view(out));
    for (int j = 0; j < ranks(); ++j) EXPECT_EQ(out[index_of(2 * j + 1)], j * 100 + comm.rank());
  });
}

// Rows rank i sends to rank j: zero for many pairs, and for some ranks everywhere.
std::int64_t rows_between(int from, int to) {
  return from % 3 == 1 ? 0 : (from * 5 + to * 3) % 4;
}

struct RaggedPlan {
  std::vector<std::int64_t> send_offsets, send_counts, recv_offsets, recv_counts;
  std::int64_t sent = 0, received = 0;
};

RaggedPlan ragged_plan(int ranks, int me) {
  RaggedPlan plan;
  for (int j = 0; j < ranks; ++j) {
    plan.send_offsets.push_back(plan.sent);
    plan.send_counts.push_back(rows_between(me, j));
    plan.recv_offsets.push_back(plan.received);
    plan.recv_counts.push_back(rows_between(j, me));
    plan.sent += plan.send_counts.back();
    plan.received += plan.recv_counts.back();
  }
  return plan;
}

TEST_P(Collectives, RaggedAllToAllAndBack) {
  run([&](Communicator& comm, const ProcessGroup& group) {
    const RaggedPlan plan = ragged_plan(ranks(), comm.rank());
    constexpr std::int64_t kColumns = 3;
    const std::vector<float> in = payload(comm.rank(), plan.sent * kColumns);
    std::vector<float> out(index_of(plan.received * kColumns) + 1, -7.0f);
    const TensorView arrived = as_rows(out, plan.received, kColumns);
    comm.ragged_all_to_all(group, as_rows(in, plan.sent, kColumns), {plan.send_offsets, plan.send_counts},
                           arrived, {plan.recv_offsets, plan.recv_counts});
    for (int r = 0; r < ranks(); ++r) {
      const RaggedPlan source = ragged_plan(ranks(), r);
      const std::vector<float> sent = payload(r, source.sent * kColumns);
      for (std::int64_t i = 0; i < plan.recv_counts[index_of(r)] * kColumns; ++i) {
        EXPECT_EQ(out[index_of(plan.recv_offsets[index_of(r)] * kColumns + i)],
                  sent[index_of(source.send_offsets[index_of(comm.rank())] * kColumns + i)]);
      }
    }
    EXPECT_EQ(out.back(), -7.0f) << "wrote behind the output";
    // With sends and receives exchanged the rows go home: its inverse, and its adjoint.
    std::vector<float> home(in.size(), NAN);
    comm.ragged_all_to_all(group, arrived, {plan.recv_offsets, plan.recv_counts},
                           as_rows(home, plan.sent, kColumns), {plan.send_offsets, plan.send_counts});
    EXPECT_EQ(home, in);
  });
}

TEST_P(Collectives, BroadcastFromEveryRoot) {
  run([&](Communicator& comm, const ProcessGroup& group) {
    for (int root = 0; root < ranks(); ++root) {
      std::vector<float> data = payload(comm.rank(), 5);
      comm.broadcast(group, root, host_view(data));
      EXPECT_EQ(data, payload(root, 5));
    }
  });
}

TEST_P(Collectives, BarrierWaitsForAll) {
  std::atomic<int> before{0};
  run([&](Communicator& comm, const ProcessGroup& group) {
    ++before;
    comm.barrier(group);
    EXPECT_EQ(before, ranks_here());
  });
}

// bfloat16 in, the float32 sum out: what all ranks get is what float32 inputs would have given.
TEST_P(Collectives, AWidenedReduceScatterDoesNotRound) {
  run([](Communicator& comm, const ProcessGroup& group) {
    const auto p = static_cast<std::int64_t>(group.ranks.size());
    if (p == 1) return;
    constexpr std::int64_t kCount = 37;
    std::vector<bfloat16> narrow;
    std::vector<float> wide, expected(index_of(kCount)), found(index_of(kCount));
    for (std::int64_t i = 0; i < p * kCount; ++i) {
      narrow.emplace_back(static_cast<float>(comm.rank() + 1) / static_cast<float>(i + 3));
      wide.push_back(static_cast<float>(narrow.back()));
    }
    comm.reduce_scatter(group, host_view(wide), host_view(expected));
    comm.reduce_scatter(group, host_view(narrow), host_view(found));
    EXPECT_EQ(found, expected);
  });
}

// <all_gather x, y> == <x, reduce_scatter y> summed over ranks, likewise
// all_reduce and all_to_all with themselves.
TEST_P(Collectives, GradientsAreAdjoint) {
  const auto dot = [](const std::vector<float>& a, const std::vector<float>& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  run([&](Communicator& comm, const ProcessGroup& group) {
    std::mt19937 random(static_cast<unsigned>(17 + comm.rank()));
    std::uniform_int_distribution<int> digit(-9, 9);
    const auto draw = [&](std::int64_t count) {
      std::vector<float> values(index_of(count));
      for (float& value : values) value = static_cast<float>(digit(random));
      return values;
    };
    constexpr std::int64_t kCount = 6;
    const std::vector<float> x = draw(kCount);
    const std::vector<float> y = draw(kCount * ranks());
    const std::vector<float> z = draw(kCount * ranks());
    std::vector<float> gathered(y.size()), scattered(x.size());
    comm.all_gather(group, host_view(x), host_view(gathered));
    comm.reduce_scatter(group, host_view(y), host_view(scattered));
    std::vector<float> exchanged_y(y.size()), exchanged_z(z.size());
    comm.all_to_all(group, host_view(y), host_view(exchanged_y));
    comm.all_to_all(group, host_view(z), host_view(exchanged_z));
    std::vector<float> sum_y = y, sum_z = z;
    comm.all_reduce(group, host_view(sum_y));
    comm.all_reduce(group, host_view(sum_z));
    std::vector<double> sides{dot(gathered, y),    dot(x, scattered), dot(exchanged_y, z),
                              dot(y, exchanged_z), dot(sum_y, z),     dot(y, sum_z)};
    comm.all_reduce(group, host_view(sides));
    EXPECT_EQ(sides[0], sides[1]);
    EXPECT_EQ(sides[2], sides[3]);
    EXPECT_EQ(sides[4], sides[5]);
  });
}

TEST_P(Collectives, CountsCallsAndBytesSent) {
  run([&](Communicator& comm, const ProcessGroup& group) {
    const int others = ranks() - 1;
    const ProcessGroup fsdp = named(group, "fsdp");
    const std::int64_t p = ranks();
    std::vector<float> data(index_of(10 * p)), out(data.size());
    const std::vector<bfloat16> halves(index_of(7 * p)), sums(7);
    comm.all_gather(fsdp, part_of(data, 10), part_of(out, 10 * p));
    comm.all_gather(fsdp, part_of(data, 1), part_of(out, p));
    comm.all_gather(group, part_of(data, 1), part_of(out, p));
    comm.reduce_scatter(fsdp, host_view(halves), host_view(sums));
    comm.all_reduce(group, host_view(data));
    comm.broadcast(group, 0, part_of(data, 2));
    const std::vector<CollectiveCount> counts = comm.counts();
    if (ranks() == 1) {
      EXPECT_TRUE(counts.empty());
      return;
    }
    ASSERT_EQ(counts.size(), 5u);
    const auto expect = [&](std::size_t i, const char* kind, const char* axis, std::int64_t calls,
                            std::int64_t bytes) {
      EXPECT_EQ(counts[i].kind, kind);
      EXPECT_EQ(counts[i].axis, axis);
      EXPECT_EQ(counts[i].calls, calls);
      EXPECT_EQ(counts[i].bytes, bytes) << kind;
      EXPECT_GE(counts[i].wait_seconds, 0.0);
    };
    expect(0, "all_gather", "data", 1, 4 * others);
    expect(1, "all_gather", "fsdp", 2, 44 * others);
    expect(2, "all_reduce", "data", 1, 2 * 40 * others);
    expect(3, "broadcast", "data", 1, comm.rank() == 0 ? 8 * others : 0);
    expect(4, "reduce_scatter", "fsdp", 1, 14 * others);
    comm.reset_counts();
    EXPECT_TRUE(comm.counts().empty());
  });
}

// With a progress thread and without; what the rank's own thread calls meanwhile goes its own way.
TEST_P(Collectives, StartedOnesDoNotMeetOthers) {
  run([&](Communicator& comm, const ProcessGroup& group) {
    const std::int64_t n = ranks();
    const ProcessGroup fsdp = named(group, "fsdp");
    for (const bool in_background : {false, true}) {
      if (in_background) comm.start_progress_thread();
      comm.reset_counts();
      constexpr std::int64_t kCount = 300;
      std::vector<std::vector<float>> inputs, outputs;
      std::vector<std::shared_ptr<StartedCollective>> started;
      for (int i = 0; i < 5; ++i) {
        inputs.push_back(payload(comm.rank() + i, kCount));
        outputs.emplace_back(index_of(kCount * n), -1.0f);
        started.push_back(
            comm.start_all_gather(fsdp, host_view(inputs.back()), host_view(outputs.back()), {}));
        std::vector<float> sum{1};
        comm.all_reduce(fsdp, host_view(sum));
        EXPECT_EQ(sum[0], static_cast<float>(n));
      }
      EXPECT_EQ(comm.counts().size(), n == 1 ? 0u : 1u) << "the sums; gathers count when they are finished";
      for (const int i : {0, 2, 1, 4, 3}) {
        comm.finish(*started[index_of(i)]);
        for (int r = 0; r < n; ++r) {
          const float* part = outputs[index_of(i)].data() + r * kCount;
          EXPECT_EQ(std::vector<float>(part, part + kCount), payload(r + i, kCount));
        }
      }
      if (n == 1) continue;
      const std::vector<CollectiveCount> counts = comm.counts();
      ASSERT_EQ(counts.size(), 2u);
      EXPECT_EQ(counts[0].kind, "all_gather");
      EXPECT_EQ(counts[0].calls, 5);
      EXPECT_EQ(counts[0].bytes, 5 * kCount * 4 * (n - 1));
    }
  });
}

TEST_P(Collectives, StartedRaggedRows) {
  if (ranks() == 1) return;
  run([&](Communicator& comm, const ProcessGroup& group) {
    comm.start_progress_thread();
    // One row to the next rank, none to others.
    const std::size_t n = index_of(ranks()), me = index_of(comm.rank());
    std::vector<std::int64_t> none(n, 0), sent(n, 0), received(n, 0);
    sent[(me + 1) % n] = received[(me + n - 1) % n] = 1;
    const std::vector<float> in{static_cast<float>(comm.rank())}, out{-1};
    const auto started = comm.start_ragged_all_to_all(group, host_view(in), {none, sent}, host_view(out),
                                                      {none, received}, {});
    sent.assign(n, 99);  // the call has its own
    comm.barrier(group);
    comm.finish(*started);
    EXPECT_EQ(out[0], static_cast<float>((me + n - 1) % n));
    EXPECT_EQ(comm.counts().back().bytes, 4);
  });
}

TEST_P(Collectives, SharedObjectsAreMadeOnce) {
  std::atomic<int> made{0};
  run([&](Communicator& comm, const ProcessGroup& group) {
    std::vector<const void*> addresses(index_of(ranks()));
    const auto object = comm.shared("weight", [&] {
      ++made;
      return std::make_shared<int>(5);
    });
    const void* mine = object.get();
    comm.all_gather(group, host_view(std::span(&mine, 1)), host_view(addresses));
    for (int r = 0; r < ranks(); ++r) {
      if (comm.process_of(r) == comm.process_of(comm.rank())) {
        EXPECT_EQ(addresses[index_of(r)], mine);
      }
    }
  });
  EXPECT_EQ(made, 1);
}

}  // namespace
}  // namespace switchyard
