#include "parallel/comm/mpi/mpi_backend.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>

#include "core/error.h"
#include "parallel/comm/bytes.h"
#include "parallel/comm/failure.h"
#include "parallel/comm/reduce.h"

namespace switchyard {
namespace {

// Reductions work through pieces of at most this many elements a rank, which bounds their scratch space.
constexpr std::int64_t kPieceElements = 1 << 18;

// A rank's description of its call for each other rank, which checks it before it uses the call's data.
struct Announcement {
  std::int32_t kind = 0;
  char axis[128] = {};
  char type[24] = {};
  std::int64_t size = 0, root = 0, runs = 1;
  std::uint64_t ranks = 0;              // hash of the group's ranks
  std::int64_t sent = 0, expected = 0;  // rows of a ragged exchange, to and from the rank that reads this
};

void write_to(std::span<char> field, std::string_view text) {
  std::memcpy(field.data(), text.data(), std::min(text.size(), field.size() - 1));
}

Announcement announce(const ProcessGroup& group, const CollectiveCall& call) {
  Announcement a;
  a.kind = static_cast<std::int32_t>(call.kind);
  write_to(a.axis, call.axis);
  write_to(a.type, call.type);
  a.size = call.size;
  a.root = call.root;
  a.runs = call.runs;
  for (const int rank : group.ranks) a.ranks = a.ranks * 1000003 + static_cast<std::uint64_t>(rank) + 1;
  return a;
}

CollectiveCall call_of(const Announcement& a) {
  return {.kind = static_cast<Collective>(a.kind),
          .axis = a.axis,
          .type = a.type,
          .size = a.size,
          .root = a.root,
          .runs = a.runs};
}

bool same_call(const Announcement& a, const Announcement& b) {
  return call_of(a) == call_of(b) && a.ranks == b.ranks;
}

template <typename... Args>
[[noreturn]] void fail_collective(fmt::format_string<Args...> format, Args&&... args) {
  throw CollectiveError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace

// One collective of one rank: announcements to all, then bytes. What is sent may leave at once; what is
// received is asked for after meet(), when all calls are known to be alike.
class MpiBackend::Exchange {
 public:
  Exchange(MpiBackend& comm, const ProcessGroup& group, const CollectiveCall& call,
           const Operands& operands = {})
      : comm_(comm), group_(group), call_(call), own_(group.ranks.size()), theirs_(group.ranks.size()) {
    for_others([&](std::size_t j) {
      own_[j] = announce(group, call);
      if (call.kind == Collective::ragged_all_to_all) {
        own_[j].sent = operands.send.counts[j];
        own_[j].expected = operands.receive.counts[j];
      }
      comm_.wire_.receive(arrivals_, peer(j, false, false), &theirs_[j], sizeof theirs_[j]);
      comm_.wire_.send(moves_, peer(j, true, false), &own_[j], sizeof own_[j]);
    });
  }

  template <typename Visit>
  void for_others(const Visit& visit) const {
    for (std::size_t j = 0; j < group_.ranks.size(); ++j) {
      if (static_cast<int>(j) != group_.index) visit(j);
    }
  }

  void send(std::size_t j, const void* data, std::int64_t bytes) {
    comm_.wire_.send(moves_, peer(j, true, true), data, bytes);
  }
  void receive(std::size_t j, void* data, std::int64_t bytes) {
    comm_.wire_.receive(moves_, peer(j, false, true), data, bytes);
  }

  // Waits until all have come, and ends the run when they call something else. Returns the seconds waited.
  double meet() {
    const auto start = std::chrono::steady_clock::now();
    comm_.world_.wait({comm_.caller_, call_, group_.ranks.size(), true}, arrivals_);
    for_others([&](std::size_t j) { compare(j); });
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  // Waits until all bytes are where they belong.
  void finish() {
    comm_.world_.wait({comm_.caller_, call_, group_.ranks.size(), false}, moves_);
    moves_.clear();
  }

 private:
  // On each channel each ordered pair of ranks has a tag for announcements and one for bytes.
  Wire::Peer peer(std::size_t j, bool to, bool bytes) const {
    const int other = group_.ranks[j], per_process = comm_.world_.ranks_a_process();
    const int mine = comm_.caller_.rank % per_process, theirs = other % per_process;
    const int pair = to ? mine * per_process + theirs : theirs * per_process + mine;
    const int tag = comm_.caller_.channel * per_process * per_process + pair;
    return {comm_.process_of(other), 2 * tag + (bytes ? 1 : 0), other};
  }

  void compare(std::size_t j) const {
    const std::string place = to_string(comm_.position());
    const int other = group_.ranks[j];
    if (!same_call(own_[j], theirs_[j])) {
      const std::string got = to_string(call_of(theirs_[j]));
      fail_runtime(
          "[comm] expected the same collective on all ranks, got {} on rank {}{} and {} on rank {}{}",
          to_string(call_), comm_.caller_.rank, place, got, other,
          call_of(own_[j]) == call_of(theirs_[j]) ? " among other ranks" : "");
    }
    if (theirs_[j].sent == own_[j].expected && theirs_[j].expected == own_[j].sent) return;
    const bool mine = theirs_[j].expected != own_[j].sent;
    fail_collective("[comm] {}{}: rank {} sends {} rows to rank {}, which expects {}", to_string(call_),
                    place, mine ? comm_.caller_.rank : other, mine ? own_[j].sent : theirs_[j].sent,
                    mine ? other : comm_.caller_.rank, mine ? theirs_[j].expected : own_[j].expected);
  }

  MpiBackend& comm_;
  const ProcessGroup& group_;
  const CollectiveCall& call_;
  std::vector<Announcement> own_, theirs_;
  Transfers arrivals_, moves_;
};

MpiBackend::MpiBackend(World& world, Wire& wire, SharedObjects& objects, World::Caller caller)
    : world_(world), wire_(wire), objects_(objects), caller_(caller) {
  world_.enter(caller, position_);
}

MpiBackend::~MpiBackend() {
  world_.leave(caller_);
}

std::unique_ptr<ProcessBackend> MpiBackend::second_process_channel() {
  if (!wire_.any_thread())
    fail_usage("[comm] overlap_communication: expected off, as this MPI serves one thread a process only");
  return std::make_unique<MpiBackend>(world_, wire_, objects_,
                                      World::Caller{caller_.rank, caller_.channel + 1});
}

// Ends the run, for the next collective must not take what other ranks sent for this one.
void MpiBackend::failed(const std::exception& failure) {
  const auto* error = dynamic_cast<const Error*>(&failure);
  world_.fail(caller_.rank, error == nullptr ? Error::Kind::runtime : error->kind(),
              message_with_place(failure, position()));
}

double MpiBackend::carry_out(const ProcessGroup& group, const CollectiveCall& call,
                             const Operands& operands) {
  switch (call.kind) {
    case Collective::all_gather:
      return all_gather(group, call, operands);
    case Collective::reduce_scatter:
      return reduce_scatter(group, call, operands);
    case Collective::all_reduce:
      return all_reduce(group, call, operands.out);
    case Collective::all_to_all:
      return all_to_all(group, call, operands);
    case Collective::ragged_all_to_all:
      return ragged_all_to_all(group, call, operands);
    case Collective::broadcast:
      return broadcast(group, call, operands.out);
    case Collective::barrier:
      return agree(group, call, operands);
    case Collective::make_together:
      break;
  }
  CHECK(false, "{}: these ranks do not read each other's memory", to_string(call));
  return 0;
}

double MpiBackend::all_gather(const ProcessGroup& group, const CollectiveCall& call,
                              const Operands& operands) {
  Exchange exchange(*this, group, call);
  exchange.for_others([&](std::size_t j) { exchange.send(j, operands.in, call.size); });
  const double waited = exchange.meet();
  const auto place = [&](std::size_t j) {
    return at(operands.out, static_cast<std::int64_t>(j) * call.size);
  };
  exchange.for_others([&](std::size_t j) { exchange.receive(j, place(j), call.size); });
  copy_bytes(place(static_cast<std::size_t>(group.index)), operands.in, call.size);
  exchange.finish();
  return waited;
}

namespace {

// The elements [begin, begin + count) of group rank `index`'s part of a reduce-scatter's input: where they
// are, or put together in `to` when the part is several runs.
const std::byte* piece_of(const CollectiveCall& call, const void* in, std::int64_t parts, std::int64_t index,
                          std::int64_t begin, std::int64_t count, std::byte* to) {
  const std::int64_t bytes = element_bytes(call.type), run = call.size / call.runs;
  if (call.runs == 1) return at(in, (index * run + begin) * bytes);
  for (std::int64_t i = begin; i < begin + count;) {
    const std::int64_t length = std::min(begin + count - i, run - i % run);
    copy_bytes(at(to, (i - begin) * bytes), at(in, ((i / run * parts + index) * run + i % run) * bytes),
               length * bytes);
    i += length;
  }
  return to;
}

}  // namespace

double MpiBackend::reduce_scatter(const ProcessGroup& group, const CollectiveCall& call,
                                  const Operands& operands) {
  Exchange exchange(*this, group, call);
  const double waited = exchange.meet();
  const std::int64_t bytes = element_bytes(call.type);
  const auto parts = static_cast<std::int64_t>(group.ranks.size());
  // Room for a piece from each rank, and for a piece to each rank if its runs have to be joined first.
  const std::int64_t pieces = call.runs == 1 ? parts : 2 * parts;
  scratch_.resize(static_cast<std::size_t>(pieces * std::min(call.size, kPieceElements) * bytes));
  inputs_.resize(group.ranks.size());
  for (std::int64_t begin = 0; begin < call.size; begin += kPieceElements) {
    const std::int64_t count = std::min(kPieceElements, call.size - begin);
    const auto place = [&](std::int64_t i) { return at(scratch_.data(), i * count * bytes); };
    const auto piece = [&](std::int64_t j) {
      return piece_of(call, operands.in, parts, j, begin, count, place(parts + j));
    };
    exchange.for_others([&](std::size_t other) {
      const auto j = static_cast<std::int64_t>(other);
      inputs_[other] = place(j);
      exchange.receive(other, place(j), count * bytes);
      exchange.send(other, piece(j), count * bytes);
    });
    inputs_[static_cast<std::size_t>(group.index)] = piece(group.index);
    exchange.finish();
    sum_in_order(call.type, inputs_, at(operands.out, begin * sum_bytes(call.type)), count);
  }
  exchange.finish();
  return waited;
}

// Each rank sums one slice of the others' values, then sends it to all.
double MpiBackend::all_reduce(const ProcessGroup& group, const CollectiveCall& call, void* data) {
  Exchange exchange(*this, group, call);
  const double waited = exchange.meet();
  const std::int64_t bytes = element_bytes(call.type);
  const auto parts = static_cast<int>(group.ranks.size());
  inputs_.resize(group.ranks.size());
  for (std::int64_t begin = 0; begin < call.size; begin += kPieceElements * parts) {
    const std::int64_t count = std::min(kPieceElements * parts, call.size - begin);
    std::byte* piece = at(data, begin * bytes);
    const auto slice = [&](std::size_t j) { return slice_of(count, parts, static_cast<int>(j)); };
    const auto me = static_cast<std::size_t>(group.index);
    const std::int64_t length = slice(me).end - slice(me).begin;
    scratch_.resize((group.ranks.size() + 1) * static_cast<std::size_t>(length * bytes));
    exchange.for_others([&](std::size_t j) {
      std::byte* place = at(scratch_.data(), static_cast<std::int64_t>(j) * length * bytes);
      inputs_[j] = place;
      exchange.receive(j, place, length * bytes);
      exchange.send(j, at(piece, slice(j).begin * bytes), (slice(j).end - slice(j).begin) * bytes);
    });
    inputs_[me] = at(piece, slice(me).begin * bytes);
    exchange.finish();
    std::byte* sum = at(scratch_.data(), parts * length * bytes);
    sum_in_order(call.type, inputs_, sum, length);
    exchange.for_others([&](std::size_t j) {
      exchange.receive(j, at(piece, slice(j).begin * bytes), (slice(j).end - slice(j).begin) * bytes);
      exchange.send(j, sum, length * bytes);
    });
    copy_bytes(at(piece, slice(me).begin * bytes), sum, length * bytes);
    exchange.finish();
  }
  exchange.finish();
  return waited;
}

double MpiBackend::all_to_all(const ProcessGroup& group, const CollectiveCall& call,
                              const Operands& operands) {
  Exchange exchange(*this, group, call);
  const auto offset = [&](std::size_t j) { return static_cast<std::int64_t>(j) * call.size; };
  exchange.for_others([&](std::size_t j) { exchange.send(j, at(operands.in, offset(j)), call.size); });
  const double waited = exchange.meet();
  exchange.for_others([&](std::size_t j) { exchange.receive(j, at(operands.out, offset(j)), call.size); });
  const auto me = static_cast<std::size_t>(group.index);
  copy_bytes(at(operands.out, offset(me)), at(operands.in, offset(me)), call.size);
  exchange.finish();
  return waited;
}

double MpiBackend::ragged_all_to_all(const ProcessGroup& group, const CollectiveCall& call,
                                     const Operands& operands) {
  Exchange exchange(*this, group, call, operands);
  const auto me = static_cast<std::size_t>(group.index);
  const auto from = [&](std::size_t j) { return at(operands.in, operands.send.offsets[j] * call.size); };
  const auto to = [&](std::size_t j) { return at(operands.out, operands.receive.offsets[j] * call.size); };
  exchange.for_others([&](std::size_t j) { exchange.send(j, from(j), operands.send.counts[j] * call.size); });
  const double waited = exchange.meet();
  if (operands.send.counts[me] != operands.receive.counts[me])
    fail_collective("[comm] {}{}: rank {} sends {} rows to itself and expects {}", to_string(call),
                    to_string(position()), caller_.rank, operands.send.counts[me],
                    operands.receive.counts[me]);
  exchange.for_others(
      [&](std::size_t j) { exchange.receive(j, to(j), operands.receive.counts[j] * call.size); });
  copy_bytes(to(me), from(me), operands.send.counts[me] * call.size);
  exchange.finish();
  return waited;
}

double MpiBackend::broadcast(const ProcessGroup& group, const CollectiveCall& call, void* data) {
  Exchange exchange(*this, group, call);
  const bool root = group.index == call.root;
  if (root) exchange.for_others([&](std::size_t j) { exchange.send(j, data, call.size); });
  const double waited = exchange.meet();
  if (!root) exchange.receive(static_cast<std::size_t>(call.root), data, call.size);
  exchange.finish();
  return waited;
}

double MpiBackend::agree(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) {
  Exchange exchange(*this, group, call, operands);
  const double waited = exchange.meet();
  exchange.finish();
  return waited;
}

// Who is late is not known: each of the others may be, but for those that say that they wait, too.
void MpiBackend::wait_until(const ProcessGroup& group, const CollectiveCall& call,
                            const std::function<bool()>& done) {
  world_.wait(
      {caller_, call, group.ranks.size(), false}, [&](bool&) { return done(); },
      [&] {
        std::vector<int> others = group.ranks;
        others.erase(others.begin() + group.index);
        return others;
      });
}

}  // namespace switchyard
