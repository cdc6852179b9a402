// Tests collectives on an emulated GPU's memory: among ranks of one process, and under mpirun
// (tests/mpi/nccl_test.cc) among processes with a stand-in for NCCL. Sums must have the bits of the host's
// sums in rank order.
#include <cmath>
#include <cstring>

#include "core/tensor.h"
#include "parallel/comm/reduce.h"
#include "parallel/comm/testing.h"

namespace switchyard {
namespace {

const TestJob& kDeviceJob = test_job();  // known before the tests start

// Values whose sums depend on their order; for every rank others.
template <typename T>
std::vector<T> values_of(int rank, std::int64_t count) {
  constexpr std::size_t kPeriod = 4099;
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i >= kPeriod)
      values[i] = values[i - kPeriod];
    else
      values[i] = static_cast<T>(std::sin(static_cast<float>(i) + 0.37f * static_cast<float>(rank)) * 100);
  }
  return values;
}

class DeviceCollectives : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    try {
      device_ = &Device::named("cuda_emulated");
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    if (GetParam() % processes() != 0)
      GTEST_SKIP() << GetParam() << " ranks in " << processes() << " processes";
  }
  static int processes() { return kDeviceJob.processes().count(); }

  void run(const std::function<void(Communicator&, const ProcessGroup&)>& body) const {
    Workers workers(kDeviceJob.processes().cores(), GetParam() / processes());
    kDeviceJob.processes().run_ranks(workers, 60, *device_, [&](Communicator& comm) {
      EXPECT_EQ(comm.size(), GetParam());
      body(comm, everyone(comm, "data"));
    });
  }

  template <typename T>
  Tensor on_device(const std::vector<T>& values) const {
    const Tensor host = Tensor::of<T>({static_cast<std::int64_t>(values.size())}, std::span<const T>(values));
    return to_device(Memory(*device_, nullptr), host);
  }
  template <typename T>
  Tensor empty_on_device(std::int64_t count) const {
    return on_device(std::vector<T>(static_cast<std::size_t>(count), T(-7.0f)));
  }

  template <typename T>
  static void expect_bits(const Tensor& found, const std::vector<T>& expected, const std::string& what) {
    const Tensor host = to_host(found);
    ASSERT_EQ(host.size(), static_cast<std::int64_t>(expected.size())) << what;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (std::memcmp(&host.span<T>()[i], &expected[i], sizeof(T)) == 0) continue;
      ADD_FAILURE() << what << ": element " << i << " is " << static_cast<float>(host.span<T>()[i])
                    << " instead of " << static_cast<float>(expected[i]);
      return;
    }
  }

  template <typename In, typename Out>
  void expect_reduce_scatter(Communicator& comm, const ProcessGroup& group, std::int64_t count,
                             std::int64_t runs, const char* type) const {
    const std::int64_t p = group.size(), run = runs == 0 ? 0 : count / runs;
    const Tensor out = empty_on_device<Out>(count);
    comm.reduce_scatter(group, on_device(values_of<In>(comm.rank(), count * p)).view(), out.view(), runs);
    std::vector<std::vector<In>> parts;
    std::vector<const void*> inputs;
    for (const int rank : group.ranks) {
      const std::vector<In> all = values_of<In>(rank, count * p);
      std::vector<In>& part = parts.emplace_back();
      for (std::int64_t i = 0; i < runs; ++i) {
        const auto begin = all.begin() + (i * p + group.index) * run;
        part.insert(part.end(), begin, begin + run);
      }
    }
    for (const auto& part : parts) inputs.push_back(part.data());
    std::vector<Out> expected(static_cast<std::size_t>(count));
    sum_in_order(type, inputs, expected.data(), count);
    expect_bits(out, expected, fmt::format("reduce_scatter of {} {} in {} runs", count, type, runs));
  }

  template <typename T>
  void expect_all_reduce(Communicator& comm, const ProcessGroup& group, std::int64_t count,
                         const char* type) const {
    const Tensor data = on_device(values_of<T>(comm.rank(), count));
    comm.all_reduce(group, data.view());
    std::vector<std::vector<T>> parts;
    std::vector<const void*> inputs;
    for (const int rank : group.ranks) parts.push_back(values_of<T>(rank, count));
    for (const auto& part : parts) inputs.push_back(part.data());
    std::vector<T> expected(static_cast<std::size_t>(count));
    sum_in_order(type, inputs, expected.data(), count);
    expect_bits(data, expected, fmt::format("all_reduce of {} {}", count, type));
  }

  void expect_all_gather(Communicator& comm, const ProcessGroup& group, std::int64_t count) const {
    std::vector<float> expected;
    for (const int rank : group.ranks) {
      const std::vector<float> part = values_of<float>(rank, count);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    const Tensor out = empty_on_device<float>(count * group.size());
    comm.all_gather(group, on_device(values_of<float>(comm.rank(), count)).view(), out.view());
    expect_bits(out, expected, fmt::format("all_gather of {}", count));
    const Tensor place = out.slice_rows(group.index * count, (group.index + 1) * count);
    comm.all_gather(group, place.view(), out.view());
    expect_bits(out, expected, fmt::format("all_gather of {} in place", count));
  }

  Device* device_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Ranks, DeviceCollectives, testing::Values(2, 3, 4));

TEST_P(DeviceCollectives, AllGather) {
  run([&](Communicator& comm, const ProcessGroup& group) {
    for (const std::int64_t count : {0, 1, 5, 1025, 300001}) expect_all_gather(comm, group, count);
  });
}

TEST_P(DeviceCollectives, ReduceScatter) {
  run([&](Communicator& comm, const ProcessGroup& group) {
    // Pieces of several runs, whole runs, and runs of several pieces.
    constexpr std::pair<std::int64_t, std::int64_t> kCases[]{
        {0, 1}, {1, 1}, {1023, 1}, {6, 2}, {35, 7}, {90090, 7}, {1500000, 5000}, {2100003, 3}, {1048583, 1}};
    for (const auto& [count, runs] : kCases) {
      expect_reduce_scatter<float, float>(comm, group, count, runs, "float32");
      if (count > 100000) continue;
      expect_reduce_scatter<bfloat16, bfloat16>(comm, group, count, runs, "bfloat16");
      expect_reduce_scatter<bfloat16, float>(comm, group, count, runs, "bfloat16 as float32");
      expect_reduce_scatter<std::int32_t, std::int32_t>(comm, group, count, runs, "int32");
    }
  });
}

TEST_P(DeviceCollectives, AllReduce) {
  run([&](Communicator& comm, const ProcessGroup& group) {
    for (const std::int64_t count : {0, 1, 3, 1023, 4100, (1 << 20) * GetParam() + 123}) {
      expect_all_reduce<float>(comm, group, count, "float32");
      if (count > 100000) continue;
      expect_all_reduce<bfloat16>(comm, group, count, "bfloat16");
      expect_all_reduce<std::int32_t>(comm, group, count, "int32");
    }
  });
}

TEST_P(DeviceCollectives, AllToAllAndBroadcast) {
  run([&](Communicator& comm, const ProcessGroup& group) {
    const std::int64_t p = group.size();
    for (const std::int64_t count : {0, 1, 4097}) {
      const Tensor out = empty_on_device<float>(count * p);
      comm.all_to_all(group, on_device(values_of<float>(comm.rank(), count * p)).view(), out.view());
      std::vector<float> expected;
      for (const int rank : group.ranks) {
        const std::vector<float> all = values_of<float>(rank, count * p);
        expected.insert(expected.end(), all.begin() + group.index * count,
                        all.begin() + (group.index + 1) * count);
      }
      expect_bits(out, expected, fmt::format("all_to_all of {}", count));
      for (int root = 0; root < p; ++root) {
        const Tensor data = on_device(values_of<bfloat16>(comm.rank(), count));
        comm.broadcast(group, root, data.view());
        expect_bits(data, values_of<bfloat16>(root, count), fmt::format("broadcast of {}", count));
      }
    }
  });
}

// Rows that rank `from` sends to rank `to` in a round: none for many pairs, for some ranks,
// and at last at all.
std::int64_t rows_sent(int round, int from, int to) {
  if (round == 2) return 0;
  return from % 3 == 1 ? 0 : (from * 5 + to * 3 + round) % 4 * (round == 1 ? 211 : 1);
}

TEST_P(DeviceCollectives, RaggedAllToAllAndBack) {
  run([&](Communicator& comm, const ProcessGroup& group) {
    constexpr std::int64_t kColumns = 3;
    const auto p = static_cast<int>(group.size());
    for (int round = 0; round < 3; ++round) {
      std::vector<std::int64_t> send_offsets, send_counts, offsets, counts;
      std::int64_t sent = 0, received = 0;
      std::vector<float> expected;
      for (int j = 0; j < p; ++j) {
        send_offsets.push_back(sent);
        send_counts.push_back(rows_sent(round, comm.rank(), j));
        sent += send_counts.back();
        offsets.push_back(received);
        counts.push_back(rows_sent(round, j, comm.rank()));
        received += counts.back();
        std::int64_t before = 0, all = 0;
        for (int k = 0; k < p; ++k) {
          if (k < comm.rank()) before += rows_sent(round, j, k);
          all += rows_sent(round, j, k);
        }
        const std::vector<float> theirs = values_of<float>(j, all * kColumns);
        expected.insert(expected.end(), theirs.begin() + before * kColumns,
                        theirs.begin() + (before + counts.back()) * kColumns);
      }
      const std::vector<float> mine = values_of<float>(comm.rank(), sent * kColumns);
      const Tensor in = on_device(mine).reshaped({sent, kColumns});
      const Tensor out = empty_on_device<float>(received * kColumns).reshaped({received, kColumns});
      const Tensor home = empty_on_device<float>(sent * kColumns).reshaped({sent, kColumns});
      comm.ragged_all_to_all(group, in.view(), {send_offsets, send_counts}, out.view(), {offsets, counts});
      expect_bits(out, expected, fmt::format("ragged_all_to_all, round {}", round));
      comm.ragged_all_to_all(group, out.view(), {offsets, counts}, home.view(), {send_offsets, send_counts});
      expect_bits(home, mine, fmt::format("ragged_all_to_all and back, round {}", round));
    }
  });
}

// Each group of ranks has a communicator of its own; groups overlap.
TEST_P(DeviceCollectives, GroupsOfSomeRanks) {
  run([&](Communicator& comm, const ProcessGroup& whole) {
    const auto chosen = [&](const char* name, const std::function<bool(int)>& is_member) {
      ProcessGroup group{.ranks = {}, .index = 0, .axis = name};
      for (const int rank : whole.ranks) {
        if (!is_member(rank)) continue;
        if (rank == comm.rank()) group.index = static_cast<int>(group.ranks.size());
        group.ranks.push_back(rank);
      }
      return group;
    };
    const ProcessGroup parity = chosen("parity", [&](int rank) { return rank % 2 == comm.rank() % 2; });
    const ProcessGroup halves = chosen("halves", [&](int rank) { return rank / 2 == comm.rank() / 2; });
    for (int round = 0; round < 3; ++round) {
      for (const ProcessGroup* group : {&parity, &whole, &halves}) {
        expect_all_gather(comm, *group, 100 + round);
        if (group->size() == 1) continue;
        expect_all_reduce<bfloat16>(comm, *group, 1000 + round, "bfloat16");
        expect_reduce_scatter<float, float>(comm, *group, 12, 3, "float32");
      }
      double value = comm.rank();  // the host's memory goes its own way
      comm.all_reduce(parity, host_view(std::span(&value, 1)));
      double expected = 0;
      for (const int rank : parity.ranks) expected += rank;
      EXPECT_EQ(value, expected);
    }
  });
}

TEST_P(DeviceCollectives, StartedOnesEndInAnyOrder) {
  run([&](Communicator& comm, const ProcessGroup& group) {
    constexpr std::int64_t kCount = 300;
    std::vector<Tensor> inputs, outputs;
    std::vector<std::shared_ptr<StartedCollective>> started;
    if (processes() > 1) comm.start_progress_thread();  // NCCL needs none
    for (int i = 0; i < 4; ++i) {
      inputs.push_back(on_device(values_of<float>(comm.rank() + i, kCount)));
      outputs.push_back(empty_on_device<float>(kCount * group.size()));
      started.push_back(comm.start_all_gather(group, inputs.back().view(), outputs.back().view(), {}));
      expect_all_reduce<float>(comm, group, 64, "float32");
    }
    for (const std::size_t i : {0, 2, 1, 3}) {
      comm.finish(*started[i]);
      std::vector<float> expected;
      for (const int rank : group.ranks) {
        const std::vector<float> part = values_of<float>(rank + static_cast<int>(i), kCount);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      expect_bits(outputs[i], expected, fmt::format("started all_gather {}", i));
    }
  });
}

}  // namespace
}  // namespace switchyard
