// Every large collective has the same shape: publish pointers, wait until all have published (1), read the
// other ranks' memory, wait until all have read (2). A wait suspends every rank but the last, so calls that
// need no second wait have none: small inputs, of which the others read copies; shared results, where each
// rank writes its part beforehand; and shared work, which the last rank does before the others go on.
//
// Memory stays valid when ranks fail, because of these rules:
// 1. Only wait (1) can fail. Once all ranks of a group have arrived, each continues to wait (2), and leaves
//    it only when all are there; so no buffer goes away while another rank reads it, or works for all
//    (`closing`). When the ranks disagree, nobody reads anything and all throw after wait (1).
// 2. After a failure (`stopped_by_`) no wait (1) completes any more, unless all have arrived: ranks that
//    wait in one leave, later ones do not enter.
// 3. A group's two copies of an input take turns. A copy is written again only after another wait, at which
//    all ranks arrived after they had read it.
// 4. The scratch space of all-reduce belongs to the group. It is read after wait (2), and written only
//    after wait (1) of the next collective, when all have read it.
#include "parallel/comm/local.h"

#include <algorithm>
#include <exception>

#include "core/cores.h"
#include "core/error.h"
#include "kernels/pointwise/rank_sum.h"
#include "parallel/comm/device_bytes.h"
#include "parallel/comm/failure.h"
#include "parallel/comm/local_world.h"
#include "parallel/comm/reduce.h"

namespace switchyard {
namespace {

// All-reduce works through pieces of at most this many elements a rank, which bounds its scratch space.
constexpr std::int64_t kScratchElements = 1 << 18, kGpuScratchElements = 1 << 22;

// Inputs of at most this many bytes are copied, which takes less time than a wait; of an all-reduce every
// rank then sums all elements.
constexpr std::int64_t kSmall = 4096;

// A rank's part of a reduce-scatter whose runs have fewer bytes is read as whole lines of the inputs.
constexpr std::int64_t kShortRun = 4096;

class LocalBackend : public CommBackend {
 public:
  LocalBackend(LocalWorld& world, int rank, int channel) : world_(world), rank_(rank), channel_(channel) {}

  int rank() const override { return rank_; }
  int size() const override { return world_.size(); }
  int process_of(int) const override { return 0; }
  Position& position() override { return position_; }
  std::shared_ptr<void> shared(const std::string& key,
                               const std::function<std::shared_ptr<void>()>& make) override {
    return world_.objects().get(key, make);
  }
  bool reads_other_ranks() const override { return true; }
  std::unique_ptr<CommBackend> second_channel() override {
    return std::make_unique<LocalBackend>(world_, rank_, channel_ + 1);
  }

  double carry_out(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) override {
    if (operands.shared != nullptr) return make_shared_result(group, call, *operands.shared);
    if (operands.take != nullptr) return take_inputs(group, call, operands);
    switch (call.kind) {
      case Collective::all_gather:
        return all_gather(group, call, operands);
      case Collective::reduce_scatter:
        return reduce_scatter(group, call, operands);
      case Collective::all_reduce:
        return all_reduce(group, call, operands);
      case Collective::all_to_all:
        return all_to_all(group, call, operands);
      case Collective::ragged_all_to_all:
        return ragged_all_to_all(group, call, operands);
      case Collective::broadcast:
        return broadcast(group, call, operands);
      case Collective::barrier:
      case Collective::make_together:
        break;
    }
    return exchange(group, call, Operands{}, 0, [](Inputs) {});
  }

 private:
  // The inputs of all ranks, null where a rank has none.
  using Inputs = std::span<const void* const>;

  double all_gather(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) {
    return exchange(group, call, operands, call.size, [&](Inputs inputs) {
      std::int64_t offset = 0;
      for (const void* theirs : inputs) {
        move_bytes(operands.device, at(operands.out, offset), theirs, call.size);
        offset += call.size;
      }
    });
  }

  double make_shared_result(const ProcessGroup& group, const CollectiveCall& call, SharedResult& result) {
    Meeting& meeting = publish(group, call, {});
    {
      const std::scoped_lock lock(meeting.making);
      if (!meeting.made) {
        meeting.made = result.make();
        meeting.made_for = call.kind;
        meeting.made_size = call.size;
      }
      if (meeting.made_for == call.kind && meeting.made_size == call.size) result.made = meeting.made;
    }
    if (result.made) result.place(result.made.get());
    const double waited = world_.arrive(meeting, group.index, [&] { meeting.made.reset(); });
    throw_disagreement(meeting);
    return waited;
  }

  double reduce_scatter(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) {
    const std::int64_t run = call.size / call.runs, parts = group.size();
    const std::int64_t bytes = call.size * parts * element_bytes(call.type);
    if (operands.device != nullptr) {
      return exchange(group, call, operands, bytes, [&](Inputs inputs) {
        gpu::sum_in_order({call.type, inputs, group.index * run, run, run * parts, call.size, operands.out});
      });
    }
    if (bytes > kSmall && call.runs > 1 && run * element_bytes(call.type) < kShortRun)
      return reduce_scatter_short_runs(group, call, operands);
    return exchange(group, call, operands, bytes, [&](Inputs inputs) {
      for (std::int64_t i = 0; i < call.runs; ++i)
        sum(inputs, call.type, (i * parts + group.index) * run, run,
            at(operands.out, i * run * sum_bytes(call.type)));
    });
  }

  double all_reduce(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands);

  double all_to_all(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) {
    return exchange(group, call, operands, call.size * group.size(), [&](Inputs inputs) {
      std::int64_t offset = 0;
      for (const void* theirs : inputs) {
        move_bytes(operands.device, at(operands.out, offset), at(theirs, group.index * call.size), call.size);
        offset += call.size;
      }
    });
  }

  double ragged_all_to_all(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) {
    return meet(group, call, operands, [&](Inputs inputs) {
      const auto me = static_cast<std::size_t>(group.index);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        const RaggedRows& theirs = meeting_of(group).slots[i].operands.send;
        move_bytes(operands.device, at(operands.out, operands.receive.offsets[i] * call.size),
                   at(inputs[i], theirs.offsets[me] * call.size), theirs.counts[me] * call.size);
      }
    });
  }

  double take_inputs(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) {
    const auto take_all = [&](Inputs inputs) {
      for (std::size_t i = 0; i < inputs.size(); ++i) (*operands.take)(i, inputs[i]);
    };
    if (call.kind == Collective::all_to_all)
      return exchange(group, call, operands, call.size * group.size(), take_all);
    return meet(group, call, operands, take_all);
  }

  double broadcast(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) {
    void* const data = operands.out;
    const void* const own = group.index == call.root ? data : nullptr;
    return exchange(group, call, {.device = operands.device, .in = own}, call.size, [&](Inputs inputs) {
      if (own == nullptr)
        move_bytes(operands.device, data, inputs[static_cast<std::size_t>(call.root)], call.size);
    });
  }

  Meeting& meeting_of(const ProcessGroup& group) {
    Meeting*& meeting = meetings_[group.ranks];
    if (!meeting) meeting = &world_.meeting_of(group.ranks, channel_);
    return *meeting;
  }

  Slot& slot_of(const ProcessGroup& group) {
    return meeting_of(group).slots[static_cast<std::size_t>(group.index)];
  }

  Meeting& publish(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) {
    Meeting& meeting = meeting_of(group);
    Slot& slot = meeting.slots[static_cast<std::size_t>(group.index)];
    slot.call = call;
    slot.position = &position_;
    slot.operands = operands;
    return meeting;
  }

  static void throw_disagreement(const Meeting& meeting) {
    if (!meeting.error.empty()) throw CollectiveError(meeting.error);
  }

  // In one of the two ways below, by the size of the inputs, which is the same on all ranks.
  template <typename Work>
  double exchange(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands,
                  std::int64_t bytes, const Work& work) {
    // A copy of a GPU's memory is work for the GPU: the second wait costs less.
    return bytes <= kSmall && operands.device == nullptr
               ? meet_with_copies(group, call, operands.in, bytes, work)
               : meet(group, call, {.device = operands.device, .in = operands.in}, work);
  }

  // Publishes the operands, waits for all, runs work(inputs) on the others' memory if they agree, and waits
  // until all have done so. Work must not throw. Returns the seconds waited.
  template <typename Work>
  double meet(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands,
              const Work& work) {
    Meeting& meeting = publish(group, call, operands);
    const double waited = world_.arrive(meeting, group.index);
    throw_disagreement(meeting);
    work(published_inputs(meeting));
    return waited + world_.finish(meeting);
  }

  // meet() with one wait: runs work(inputs) on copies of the inputs, `bytes` bytes each.
  template <typename Work>
  double meet_with_copies(const ProcessGroup& group, const CollectiveCall& call, const void* in,
                          std::int64_t bytes, const Work& work) {
    Meeting& meeting = publish(group, call, {});
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
  double reduce_scatter_short_runs(const ProcessGroup& group, const CollectiveCall& call,
                                   const Operands& operands) {
    return meet(group, call, operands, [&](Inputs inputs) {
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
          void* const to = meeting.slots[static_cast<std::size_t>(index % parts)].operands.out;
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
    for (const Slot& slot : meeting.slots) inputs_.push_back(slot.operands.in);
    return inputs_;
  }

  LocalWorld& world_;
  const int rank_, channel_;
  Position position_;
  std::map<std::vector<int>, Meeting*> meetings_;
  std::vector<const void*> inputs_, terms_;  // members, so that a call allocates nothing once they have grown
};

// Each rank sums one slice of the others' values into its scratch space; then all copy all slices.
double LocalBackend::all_reduce(const ProcessGroup& group, const CollectiveCall& call,
                                const Operands& operands) {
  void* const data = operands.out;
  const Device* const device = operands.device;
  const auto parts = static_cast<int>(group.ranks.size());
  const std::int64_t bytes = element_bytes(call.type);
  if (call.size * bytes <= kSmall && device == nullptr) {
    return meet_with_copies(group, call, data, call.size * bytes, [&](Inputs inputs) {
      sum(inputs, call.type, 0, call.size, static_cast<std::byte*>(data));
    });
  }
  auto& own_scratch =
      slot_of(group).scratch;  // made before its first use, so no other rank can be reading it
  const std::int64_t scratch_elements = device == nullptr ? kScratchElements : kGpuScratchElements;
  Device& scratch_device = device == nullptr ? Device::cpu() : const_cast<Device&>(*device);
  if (!own_scratch || &own_scratch->device() != &scratch_device)
    own_scratch = std::make_shared<Buffer>(Memory(scratch_device, nullptr),
                                           static_cast<std::size_t>(scratch_elements) * sizeof(double));
  const auto address_of = [&](Buffer& buffer) { return buffer.device().kernel_address(buffer.data()); };
  std::byte* const scratch = address_of(*own_scratch);
  double waited = 0;
  std::int64_t begin = 0;
  do {
    const std::int64_t count = std::min(call.size - begin, scratch_elements * parts);
    void* piece = at(data, begin * bytes);
    waited += meet(group, call, {.device = device, .in = piece}, [&](Inputs inputs) {
      const Slice slice = slice_of(count, parts, group.index);
      const std::int64_t own = slice.end - slice.begin;
      if (device != nullptr)
        gpu::sum_in_order({call.type, inputs, slice.begin, own, own, own, scratch});
      else
        sum(inputs, call.type, slice.begin, own, scratch);
    });
    const Meeting& meeting = meeting_of(group);
    for (int i = 0; i < parts; ++i) {
      const Slice slice = slice_of(count, parts, i);
      move_bytes(device, at(piece, slice.begin * bytes),
                 address_of(*meeting.slots[static_cast<std::size_t>(i)].scratch),
                 (slice.end - slice.begin) * bytes);
    }
    begin += count;
  } while (begin < call.size);
  return waited;
}

void run_rank(LocalWorld& world, int rank, const std::function<void(Communicator&)>& body) {
  Communicator communicator(std::make_unique<LocalBackend>(world, rank, 0));
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
