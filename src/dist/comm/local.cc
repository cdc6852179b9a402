// Every collective that moves much has the same shape: publish pointers, wait until all have (1), read the
// others' memory, wait until all have read (2). A wait suspends every rank but the last, so what needs
// only the first has no second: small inputs, of which the others read copies; results that the ranks share,
// where each writes its part beforehand; work for all, which the last to come does before the others go on.
//
// What keeps memory safe when ranks fail:
// 1. Only wait (1) can fail. Once all ranks of a group have arrived, each of them goes on to wait (2), and
//    leaves it only when all are there; so nobody's buffers go away while another rank reads them, or works
//    for all (`closing`). When they disagree, nobody reads anything and all throw after wait (1).
// 2. After a failure (`stopped_by_`) no wait (1) completes any more, but where all have arrived: ranks that
//    wait in one leave, later ones do not enter.
// 3. A group's two copies of an input take turns. One is written again after another wait, for which all came
//    when they had read it.
// 4. The scratch space of all-reduce belongs to the group. It is read after wait (2), and written only after
//    wait (1) of the next collective, when all have read it.
#include "dist/comm/local.h"

#include <algorithm>
#include <exception>

#include "core/cores.h"
#include "core/error.h"
#include "dist/comm/bytes.h"
#include "dist/comm/failure.h"
#include "dist/comm/local_world.h"
#include "dist/comm/reduce.h"

namespace switchyard {
namespace {

// All-reduce works through pieces of at most this many elements a rank, which bounds its scratch space.
constexpr std::int64_t kScratchElements = 1 << 18;

// Inputs of at most this many bytes are copied, which takes less time than a wait; of an all-reduce every
// rank then sums all elements.
constexpr std::int64_t kSmall = 4096;

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
    return exchange(group, call, in, call.size, [&](Inputs inputs) {
      std::int64_t offset = 0;
      for (const void* theirs : inputs) {
        copy_bytes(at(out, offset), theirs, call.size);
        offset += call.size;
      }
    });
  }

  double do_all_gather_shared(const Group& group, const CollectiveCall& call, const Make& make,
                              const Place& place, std::shared_ptr<void>& result) override {
    Meeting& meeting = publish(group, call, nullptr);
    {
      const std::scoped_lock lock(meeting.making);
      if (!meeting.made) {
        meeting.made = make();
        meeting.made_for = call.kind;
        meeting.made_size = call.size;
      }
      if (meeting.made_for == call.kind && meeting.made_size == call.size) result = meeting.made;
    }
    if (result) place(result.get());
    const double waited = world_.arrive(meeting, group.index, [&] { meeting.made.reset(); });
    throw_disagreement(meeting);
    return waited;
  }

  double do_reduce_scatter(const Group& group, const CollectiveCall& call, const void* in,
                           void* out) override {
    const std::int64_t run = call.size / call.runs, parts = std::ssize(group.ranks);
    const std::int64_t bytes = call.size * parts * element_bytes(call.type);
    if (bytes > kSmall && call.runs > 1 && run * element_bytes(call.type) < kShortRun)
      return reduce_scatter_short_runs(group, call, in, out);
    return exchange(group, call, in, bytes, [&](Inputs inputs) {
      for (std::int64_t i = 0; i < call.runs; ++i)
        sum(inputs, call.type, (i * parts + group.index) * run, run, at(out, i * run * sum_bytes(call.type)));
    });
  }

  double do_all_reduce(const Group& group, const CollectiveCall& call, void* data) override;

  double do_all_to_all(const Group& group, const CollectiveCall& call, const void* in, void* out) override {
    return exchange(group, call, in, call.size * std::ssize(group.ranks), [&](Inputs inputs) {
      std::int64_t offset = 0;
      for (const void* theirs : inputs) {
        copy_bytes(at(out, offset), at(theirs, group.index * call.size), call.size);
        offset += call.size;
      }
    });
  }

  double do_ragged_all_to_all(const Group& group, const CollectiveCall& call,
                              const RaggedSide& side) override {
    slot_of(group).ragged = side;
    return meet(group, call, side.in, [&](Inputs inputs) {
      const auto me = static_cast<std::size_t>(group.index);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        const RaggedSide& source = meeting_of(group).slots[i].ragged;
        copy_bytes(at(side.out, side.recv_offsets[i] * call.size),
                   at(inputs[i], source.send_offsets[me] * call.size), source.send_counts[me] * call.size);
      }
    });
  }

  double do_take(const Group& group, const CollectiveCall& call, const RaggedSide& side,
                 const Take& take) override {
    const auto take_all = [&](Inputs inputs) {
      for (std::size_t i = 0; i < inputs.size(); ++i) take(i, inputs[i]);
    };
    if (side.send_counts.empty())
      return exchange(group, call, side.in, call.size * std::ssize(group.ranks), take_all);
    slot_of(group).ragged = side;
    return meet(group, call, side.in, take_all);
  }

  double do_broadcast(const Group& group, const CollectiveCall& call, void* data) override {
    const void* const own = group.index == call.root ? data : nullptr;
    return exchange(group, call, own, call.size, [&](Inputs inputs) {
      if (own == nullptr) copy_bytes(data, inputs[static_cast<std::size_t>(call.root)], call.size);
    });
  }

  double do_barrier(const Group& group, const CollectiveCall& call) override {
    return exchange(group, call, nullptr, 0, [](Inputs) {});
  }

 private:
  Meeting& meeting_of(const Group& group) {
    Meeting*& meeting = meetings_[group.ranks];
    if (!meeting) meeting = &world_.meeting_of(group.ranks, channel_);
    return *meeting;
  }

  Slot& slot_of(const Group& group) { return meeting_of(group).slots[static_cast<std::size_t>(group.index)]; }

  Meeting& publish(const Group& group, const CollectiveCall& call, const void* in) {
    Meeting& meeting = meeting_of(group);
    Slot& slot = meeting.slots[static_cast<std::size_t>(group.index)];
    slot.call = call;
    slot.position = &position();
    slot.in = in;
    return meeting;
  }

  static void throw_disagreement(const Meeting& meeting) {
    if (!meeting.error.empty()) throw CollectiveError(meeting.error);
  }

  // The inputs of all ranks, null where a rank has none.
  using Inputs = std::span<const void* const>;

  // In one of the two ways below, by the size of the inputs, which is the same on all ranks.
  template <typename Work>
  double exchange(const Group& group, const CollectiveCall& call, const void* in, std::int64_t bytes,
                  const Work& work) {
    return bytes <= kSmall ? meet_with_copies(group, call, in, bytes, work) : meet(group, call, in, work);
  }

  // Publishes `in`, waits for all, runs work(inputs) on the others' memory if they agree, and waits until
  // all have done so. Work must not throw. Returns the seconds waited.
  template <typename Work>
  double meet(const Group& group, const CollectiveCall& call, const void* in, const Work& work) {
    Meeting& meeting = publish(group, call, in);
    const double waited = world_.arrive(meeting, group.index);
    throw_disagreement(meeting);
    work(published_inputs(meeting));
    return waited + world_.finish(meeting);
  }

  // The same with one wait: work(inputs) on copies of the inputs, of `bytes` bytes.
  template <typename Work>
  double meet_with_copies(const Group& group, const CollectiveCall& call, const void* in, std::int64_t bytes,
                          const Work& work) {
    Meeting& meeting = publish(group, call, nullptr);
    const std::size_t turn = meeting.generation % 2;
    std::vector<std::byte>& copy = meeting.slots[static_cast<std::size_t>(group.index)].copies[turn];
    const auto* const begin = static_cast<const std::byte*>(in);
    in == nullptr ? copy.clear() : copy.assign(begin, begin + bytes);
    const double waited = world_.arrive(meeting, group.index);
    throw_disagreement(meeting);
    inputs_.clear();
    for (const Slot& slot : meeting.slots)
      inputs_.push_back(slot.copies[turn].empty() ? nullptr : slot.copies[turn].data());
    work(Inputs(inputs_));
    return waited;
  }

  // Each rank sums a slice of the inputs as they lie in memory and brings every rank's runs to it: inputs are
  // read in long stretches, where a rank's own part is a few bytes of every line.
  double reduce_scatter_short_runs(const Group& group, const CollectiveCall& call, const void* in,
                                   void* out) {
    slot_of(group).out = out;
    return meet(group, call, in, [&](Inputs inputs) {
      const Meeting& meeting = meeting_of(group);
      constexpr std::int64_t kPieceBytes = 16384;
      alignas(64) std::byte piece[kPieceBytes];
      const auto parts = static_cast<int>(group.ranks.size());
      const std::int64_t bytes = sum_bytes(call.type), run = call.size / call.runs, line = run * parts;
      const Slice slice = slice_of(call.runs, parts, group.index);
      std::int64_t begin = slice.begin * line;
      while (begin < slice.end * line) {
        const std::int64_t end = std::min(slice.end * line, begin + kPieceBytes / bytes);
        sum(inputs, call.type, begin, end - begin, piece);
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
  void sum(Inputs inputs, std::string_view type, std::int64_t begin, std::int64_t count, std::byte* out) {
    terms_.clear();
    for (const void* input : inputs) terms_.push_back(at(input, begin * element_bytes(type)));
    sum_in_order(type, terms_, out, count);
  }

  Inputs published_inputs(const Meeting& meeting) {
    inputs_.clear();
    for (const Slot& slot : meeting.slots) inputs_.push_back(slot.in);
    return inputs_;
  }

  LocalWorld& world_;
  const int rank_, channel_;
  std::map<std::vector<int>, Meeting*> meetings_;
  std::vector<const void*> inputs_, terms_;  // members, so that a call allocates nothing once they have grown
};

// Each rank sums one slice of the others' values into its scratch space; then all copy all slices.
double LocalCommunicator::do_all_reduce(const Group& group, const CollectiveCall& call, void* data) {
  const auto parts = static_cast<int>(group.ranks.size());
  const std::int64_t bytes = element_bytes(call.type);
  if (call.size * bytes <= kSmall) {
    return meet_with_copies(group, call, data, call.size * bytes, [&](Inputs inputs) {
      sum(inputs, call.type, 0, call.size, static_cast<std::byte*>(data));
    });
  }
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
    waited += meet(group, call, piece, [&](Inputs inputs) {
      const Slice slice = slice_of(count, parts, group.index);
      sum(inputs, call.type, slice.begin, slice.end - slice.begin, scratch);
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

void run_local_ranks(Workers& workers, double timeout_seconds,
                     const std::function<void(Communicator&)>& body) {
  CHECK(timeout_seconds > 0, "timeout of {} s", timeout_seconds);
  LocalWorld world(workers.ranks(), timeout_seconds);
  workers.run_ranks([&](int rank) { run_rank(world, rank, body); });
  world.rethrow_failure();
}

void run_local_ranks(int ranks, double timeout_seconds, const std::function<void(Communicator&)>& body) {
  Workers workers(std::min(usable_cores(), ranks), ranks);
  run_local_ranks(workers, timeout_seconds, body);
}

}  // namespace switchyard
