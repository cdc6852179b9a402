// Every collective has the same shape: publish pointers, wait until all have (1), read the others' memory,
// wait until all have read (2). What keeps memory safe when ranks fail:
//
// 1. Only wait (1) can fail. Once all ranks of a group have arrived, each of them goes on to wait (2), and
// leaves it
//    only when all are there; so nobody's buffers go away while another rank reads them. Disagreements found
//    in between are therefore thrown after wait (2), by all ranks alike.
// 2. After a failure (`stopped_`) no wait (1) completes any more: ranks waiting in one leave, later ones do
// not enter.
// 3. The scratch space of all-reduce belongs to the group. It is read after wait (2), and written only after
// wait (1)
//    of the next collective, when all have read it.
#include "dist/comm/local.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "core/error.h"
#include "dist/comm/bytes.h"
#include "dist/comm/failure.h"
#include "dist/comm/local_world.h"
#include "dist/comm/reduce.h"

namespace switchyard {
namespace {

// All-reduce works through pieces of at most this many elements a rank, which bounds its scratch space.
constexpr std::int64_t kScratchElements = 1 << 18;

// A rank's part of a reduce-scatter whose runs have fewer bytes is read as whole lines of the inputs.
constexpr std::int64_t kShortRun = 4096;

class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(LocalWorld& world, int rank, int channel)
      : world_(world), rank_(rank), channel_(channel) {}

  int rank() const override { return rank_; }
  int size() const override { return world_.size(); }
  bool shares_memory() const override { return true; }
  std::shared_ptr<void> shared(const std::string& key,
                               const std::function<std::shared_ptr<void>()>& make) override {
    return world_.objects().get(key, make);
  }

 protected:
  std::unique_ptr<Communicator> second_channel() override {
    return std::make_unique<LocalCommunicator>(world_, rank_, channel_ + 1);
  }
  double do_all_gather(const Group& group, const CollectiveCall& call, const void* in, void* out) override {
    return meet(group, call, in, [&](Meeting& meeting) {
      std::int64_t offset = 0;
      for (const Slot& slot : meeting.slots) {
        copy_bytes(at(out, offset), slot.in, call.size);
        offset += call.size;
      }
    });
  }

  double do_all_gather_shared(const Group& group, const CollectiveCall& call, const Make& make,
                              const Place& place, std::shared_ptr<void>& result) override {
    std::shared_ptr<void>& made = slot_of(group).shared;
    if (group.index == 0) made = make();
    const double waited = meet(group, call, nullptr, [&](Meeting& meeting) {
      result = meeting.slots[0].shared;
      place(result.get());
    });
    made.reset();
    return waited;
  }

  void do_together(const Group& group, const CollectiveCall& call, const void* mine,
                   const Work& work) override {
    std::exception_ptr failure;
    meet(group, call, mine, [&](Meeting& meeting) {
      if (group.index != 0) return;
      try {
        work(inputs_at(meeting, 0));
      } catch (...) {
        failure = std::current_exception();
      }
    });
    if (failure) std::rethrow_exception(failure);
  }

  double do_reduce_scatter(const Group& group, const CollectiveCall& call, const void* in,
                           void* out) override {
    const std::int64_t run = call.size / call.runs;
    if (call.runs > 1 && run * element_bytes(call.type) < kShortRun)
      return reduce_scatter_short_runs(group, call, in, out);
    return meet(group, call, in, [&](Meeting& meeting) {
      const auto parts = static_cast<std::int64_t>(group.ranks.size());
      for (std::int64_t i = 0; i < call.runs; ++i) {
        const std::int64_t begin = (i * parts + group.index) * run;
        sum_at(meeting, call.type, begin, run, at(out, i * run * sum_bytes(call.type)));
      }
    });
  }

  double do_all_reduce(const Group& group, const CollectiveCall& call, void* data) override;

  double do_all_to_all(const Group& group, const CollectiveCall& call, const void* in, void* out) override {
    return meet(group, call, in, [&](Meeting& meeting) {
      std::int64_t offset = 0;
      for (const Slot& slot : meeting.slots) {
        copy_bytes(at(out, offset), at(slot.in, group.index * call.size), call.size);
        offset += call.size;
      }
    });
  }

  double do_ragged_all_to_all(const Group& group, const CollectiveCall& call,
                              const RaggedSide& side) override {
    slot_of(group).ragged = side;
    return meet(group, call, side.in, [&](Meeting& meeting) {
      const auto me = static_cast<std::size_t>(group.index);
      for (std::size_t i = 0; i < meeting.slots.size(); ++i) {
        const RaggedSide& source = meeting.slots[i].ragged;
        copy_bytes(at(side.out, side.recv_offsets[i] * call.size),
                   at(source.in, source.send_offsets[me] * call.size), source.send_counts[me] * call.size);
      }
    });
  }

  double do_take(const Group& group, const CollectiveCall& call, const RaggedSide& side,
                 const Take& take) override {
    slot_of(group).ragged = side;
    return meet(group, call, side.in, [&](Meeting& meeting) {
      for (std::size_t i = 0; i < meeting.slots.size(); ++i) take(i, meeting.slots[i].in);
    });
  }

  double do_broadcast(const Group& group, const CollectiveCall& call, void* data) override {
    return meet(group, call, data, [&](Meeting& meeting) {
      copy_bytes(data, meeting.slots[static_cast<std::size_t>(call.root)].in, call.size);
    });
  }

  double do_barrier(const Group& group, const CollectiveCall& call) override {
    return meet(group, call, nullptr, [](Meeting&) {});
  }

 private:
  Meeting& meeting_of(const Group& group) {
    Meeting*& meeting = meetings_[group.ranks];
    if (!meeting) meeting = &world_.meeting_of(group.ranks, channel_);
    return *meeting;
  }

  Slot& slot_of(const Group& group) { return meeting_of(group).slots[static_cast<std::size_t>(group.index)]; }

  // Publishes `in`, waits for all, checks that they agree, runs work(meeting) on the others' memory, and
  // waits until all have done so. Work must not throw. Returns the seconds waited.
  template <typename Work>
  double meet(const Group& group, const CollectiveCall& call, const void* in, const Work& work) {
    Meeting& meeting = meeting_of(group);
    Slot& slot = meeting.slots[static_cast<std::size_t>(group.index)];
    slot.call = call;
    slot.position = &position();
    slot.in = in;
    double waited = world_.arrive(meeting, group.index);
    const std::string error = disagreement(meeting);
    if (error.empty()) work(meeting);
    waited += world_.finish(meeting);
    if (!error.empty()) throw CollectiveError(error);
    return waited;
  }

  // Each rank sums a slice of the inputs as they lie in memory and brings every rank's runs to it: inputs are
  // read in long stretches, where a rank's own part is a few bytes of every line.
  double reduce_scatter_short_runs(const Group& group, const CollectiveCall& call, const void* in,
                                   void* out) {
    slot_of(group).out = out;
    return meet(group, call, in, [&](Meeting& meeting) {
      constexpr std::int64_t kPieceBytes = 16384;
      alignas(64) std::byte piece[kPieceBytes];
      const auto parts = static_cast<int>(group.ranks.size());
      const std::int64_t bytes = sum_bytes(call.type), run = call.size / call.runs, line = run * parts;
      const Slice slice = slice_of(call.runs, parts, group.index);
      std::int64_t begin = slice.begin * line;
      while (begin < slice.end * line) {
        const std::int64_t end = std::min(slice.end * line, begin + kPieceBytes / bytes);
        sum_at(meeting, call.type, begin, end - begin, piece);
        for (std::int64_t i = begin; i < end;) {
          const std::int64_t index = i / run, within = i % run, count = std::min(run - within, end - i);
          void* const to = meeting.slots[static_cast<std::size_t>(index % parts)].out;
          copy_bytes(at(to, (index / parts * run + within) * bytes), piece + (i - begin) * bytes,
                     count * bytes);
          i += count;
        }
        begin = end;
      }
    });
  }

  // The sum of `count` elements of all inputs, from element `begin` on.
  void sum_at(const Meeting& meeting, std::string_view type, std::int64_t begin, std::int64_t count,
              std::byte* sum) {
    const auto inputs = inputs_at(meeting, begin * element_bytes(type));
    if (inputs.empty())
      std::fill_n(sum, count * sum_bytes(type), std::byte{0});
    else
      sum_in_order(type, inputs, sum, count);
  }

  // The input of every rank that has one, `offset` bytes in. A member, so that a call allocates nothing once
  // it has grown.
  std::span<const void* const> inputs_at(const Meeting& meeting, std::int64_t offset) {
    inputs_.clear();
    for (const Slot& slot : meeting.slots) {
      if (slot.in != nullptr) inputs_.push_back(at(slot.in, offset));
    }
    return inputs_;
  }

  LocalWorld& world_;
  const int rank_, channel_;
  std::map<std::vector<int>, Meeting*> meetings_;
  std::vector<const void*> inputs_;
};

// Each rank sums one slice of the others' values into its scratch space; then all copy all slices.
double LocalCommunicator::do_all_reduce(const Group& group, const CollectiveCall& call, void* data) {
  const auto parts = static_cast<int>(group.ranks.size());
  const std::int64_t bytes = element_bytes(call.type);
  auto& own_scratch =
      slot_of(group).scratch;  // made before its first use, so no other rank can be reading it
  if (!own_scratch)
    own_scratch = std::make_unique_for_overwrite<std::byte[]>(kScratchElements * sizeof(double));
  std::byte* scratch = own_scratch.get();
  double waited = 0;
  std::int64_t begin = 0;
  do {
    const std::int64_t count = std::min(call.size - begin, kScratchElements * parts);
    void* piece = at(data, begin * bytes);
    waited += meet(group, call, piece, [&](Meeting& meeting) {
      const Slice slice = slice_of(count, parts, group.index);
      sum_in_order(call.type, inputs_at(meeting, slice.begin * bytes), scratch, slice.end - slice.begin);
    });
    const Meeting& meeting = meeting_of(group);
    for (int i = 0; i < parts; ++i) {
      const Slice slice = slice_of(count, parts, i);
      copy_bytes(at(piece, slice.begin * bytes), meeting.slots[static_cast<std::size_t>(i)].scratch.get(),
                 (slice.end - slice.begin) * bytes);
    }
    begin += count;
  } while (begin < call.size);
  return waited;
}

void run_rank(LocalWorld& world, int rank, const std::function<void(Communicator&)>& body) {
  LocalCommunicator communicator(world, rank, 0);
  bool failed = true;
  try {
    body(communicator);
    failed = false;
  } catch (const std::exception& error) {
    world.fail(rank, std::current_exception(), message_with_place(error, communicator.position()));
  } catch (...) {
    world.fail(rank, std::current_exception(), "an exception that is no std::exception");
  }
  world.end_rank(failed);
}

}  // namespace

void run_local_ranks(int ranks, double timeout_seconds, const std::function<void(Communicator&)>& body) {
  CHECK(ranks >= 1, "{} ranks", ranks);
  CHECK(timeout_seconds > 0, "timeout of {} s", timeout_seconds);
  LocalWorld world(ranks, timeout_seconds);
  std::vector<std::thread> threads;
  for (int rank = 1; rank < ranks; ++rank) threads.emplace_back([&, rank] { run_rank(world, rank, body); });
  run_rank(world, 0, body);
  for (std::thread& thread : threads) thread.join();
  world.rethrow_failure();
}

}  // namespace switchyard
