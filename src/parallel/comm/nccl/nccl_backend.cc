#include "parallel/comm/nccl/nccl_backend.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <tuple>

#include "core/error.h"
#include "core/stream_log.h"
#include "kernels/pointwise/rank_sum.h"
#include "parallel/comm/device_bytes.h"
#include "parallel/comm/failure.h"
#include "parallel/comm/reduce.h"

namespace switchyard {
namespace {

// Sums work through pieces of at most this many elements a rank, which bounds their scratch space.
constexpr std::int64_t kPiecesOfGpu = 1 << 20;
// The most inputs of gpu::sum_in_order.
constexpr int kMostGpus = 64;
// When NCCL reports an error of another rank, news of what happened there is on its way.
constexpr double kNewsSeconds = 1;
// At the end of a run all have come; what still takes longer is given up.
constexpr double kFarewellSeconds = 5;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void* stream_of_communication(const Device& device) {
  if (device.kind() != DeviceKind::cuda) return nullptr;
  const gpu::OnCommunicationStream scope;
  return gpu::stream();
}

// Adds what is put into the stream during its life to the rank's trace.
class NotedTransfer {
 public:
  NotedTransfer() : log_(StreamLog::of_thread()) {
    if (log_ != nullptr) log_->begin();
  }
  ~NotedTransfer() {
    if (log_ != nullptr) log_->end();
  }
  NotedTransfer(const NotedTransfer&) = delete;
  NotedTransfer& operator=(const NotedTransfer&) = delete;

 private:
  StreamLog* const log_;
};

// The type under which elements are copied as they are by a sum of one.
std::string_view plain_type(std::string_view type) {
  return type == "bfloat16 as float32" ? "bfloat16" : type;
}

}  // namespace

NcclBackend::NcclBackend(std::unique_ptr<ProcessBackend> host, const NcclLibrary& library, Device& device)
    : CommDecorator(std::move(host)),
      host_(static_cast<ProcessBackend&>(inner())),
      api_(library.api()),
      device_(device),
      stream_(stream_of_communication(device)),
      watch_(std::make_unique<TransferWatch>(host_.second_process_channel())) {}

// After a run that went well: all ranks are here with the same communicators, and nothing is on its way.
NcclBackend::~NcclBackend() {
  watch_.reset();
  const double begin = steady_seconds();
  for (const auto& [ranks, comm] : comms_) {
    nccl::Status status = api_.comm_finalize(comm);
    while (status == nccl::kInProgress && steady_seconds() - begin < kFarewellSeconds) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      if (api_.comm_get_async_error(comm, &status) != nccl::kSuccess) break;
    }
    status == nccl::kSuccess ? api_.comm_destroy(comm) : api_.comm_abort(comm);
  }
  const gpu::OnCommunicationStream scope;
  scratch_.reset();
}

double NcclBackend::carry_out(const ProcessGroup& group, const CollectiveCall& call,
                              const Operands& operands) {
  if (operands.device == nullptr) return host_.carry_out(group, call, operands);
  const auto started = std::make_shared<StartedCollective>(group);
  started->call = call;
  started->call.axis = started->group.axis;
  started->operands = operands;
  started->step = position().step;
  started->layer = position().layer;
  started->phase = position().phase;
  start(started);
  return finish(*started);
}

void NcclBackend::start(const std::shared_ptr<StartedCollective>& started) {
  if (started->operands.device == nullptr) return host_.start(started);
  const auto& [group, call, operands] = std::tie(started->group, started->call, started->operands);
  const bool sums = call.kind == Collective::reduce_scatter || call.kind == Collective::all_reduce;
  if (sums && group.size() > kMostGpus)
    fail_usage("[comm] a sum over '{}': expected at most {} GPUs, got {}", group.axis, kMostGpus,
               group.size());
  started->waited = host_.agree(group, call, operands);
  const Round round{*started, comm_of(*started)};
  const gpu::Moment written = gpu::Moment::now_untimed();
  {
    const gpu::OnCommunicationStream scope;
    written.hold_stream();
    transfer(round);
    started->over = gpu::Moment::now_untimed();
  }
  watch_->add(started, [this, round, failing_since = std::optional<double>()]() mutable {
    if (round.started.over.has_come()) return true;
    settled(round, failing_since, "a transfer");
    return false;
  });
}

double NcclBackend::finish(StartedCollective& started) {
  if (started.operands.device == nullptr) return host_.finish(started);
  started.over.hold_stream();
  started.buffers.clear();  // the watch may still hold the rest
  return started.waited;
}

void NcclBackend::transfer(const Round& round) {
  switch (round.call().kind) {
    case Collective::all_gather:
      return all_gather(round);
    case Collective::broadcast:
      return broadcast(round);
    case Collective::all_to_all:
      return all_to_all(round);
    case Collective::ragged_all_to_all:
      return ragged_all_to_all(round);
    case Collective::reduce_scatter:
      return reduce_scatter(round);
    case Collective::all_reduce:
      return all_reduce(round);
    case Collective::barrier:
    case Collective::make_together:
      break;
  }
  CHECK(false, "{} in a GPU's memory", to_string(round.call()));
}

nccl::Comm* NcclBackend::comm_of(const StartedCollective& started) {
  nccl::Comm*& comm = comms_[started.group.ranks];
  if (comm != nullptr) return comm;
  nccl::UniqueId id{};
  Round round{started, nullptr};
  if (started.group.index == 0) {
    if (const nccl::Status status = api_.get_unique_id(&id); status != nccl::kSuccess)
      fail(round, status, "ncclGetUniqueId");
  }
  const CollectiveCall carry{.kind = Collective::broadcast, .axis = started.group.axis, .size = sizeof id};
  host_.carry_out(started.group, carry, {.in = &id, .out = &id});
  nccl::Config config;
  const auto status = [&] {
    const std::scoped_lock lock(calls_);
    return api_.comm_init_rank_config(&comm, round.parts(), id, started.group.index, &config);
  }();
  round.comm = comm;
  settle(round, status, "ncclCommInitRankConfig");
  return comm;
}

void NcclBackend::all_gather(const Round& round) {
  const auto count = static_cast<std::size_t>(round.call().size);
  if (count == 0) return;
  const NotedTransfer noted;
  const auto status = [&] {
    const std::scoped_lock lock(calls_);
    return api_.all_gather(round.operands().in, round.operands().out, count, nccl::kBytes, round.comm,
                           stream_);
  }();
  settle(round, status, "ncclAllGather");
}

void NcclBackend::broadcast(const Round& round) {
  const auto count = static_cast<std::size_t>(round.call().size);
  if (count == 0) return;
  const NotedTransfer noted;
  void* const data = round.operands().out;
  const auto status = [&] {
    const std::scoped_lock lock(calls_);
    return api_.broadcast(data, data, count, nccl::kBytes, static_cast<int>(round.call().root), round.comm,
                          stream_);
  }();
  settle(round, status, "ncclBroadcast");
}

void NcclBackend::all_to_all(const Round& round) {
  const Operands& operands = round.operands();
  const std::int64_t bytes = round.call().size, me = round.group().index;
  moves_.clear();
  for (int j = 0; j < round.parts(); ++j) {
    moves_.push_back({j, at(operands.in, j * bytes), nullptr, bytes});
    moves_.push_back({j, nullptr, at(operands.out, j * bytes), bytes});
  }
  exchange(round, moves_);
  move_bytes(&device_, at(operands.out, me * bytes), at(operands.in, me * bytes), bytes);
}

void NcclBackend::ragged_all_to_all(const Round& round) {
  const ProcessGroup& group = round.group();
  const CollectiveCall& call = round.call();
  const Operands& operands = round.operands();
  const RaggedRows &send = operands.send, &receive = operands.receive;
  const auto me = static_cast<std::size_t>(group.index);
  if (send.counts[me] != receive.counts[me])
    throw CollectiveError(fmt::format("[comm] {}{}: rank {} sends {} rows to itself and expects {}",
                                      to_string(call), to_string(position()), rank(), send.counts[me],
                                      receive.counts[me]));
  moves_.clear();
  for (std::size_t j = 0; j < group.ranks.size(); ++j) {
    const int peer = static_cast<int>(j);
    moves_.push_back(
        {peer, at(operands.in, send.offsets[j] * call.size), nullptr, send.counts[j] * call.size});
    moves_.push_back(
        {peer, nullptr, at(operands.out, receive.offsets[j] * call.size), receive.counts[j] * call.size});
  }
  exchange(round, moves_);
  move_bytes(&device_, at(operands.out, receive.offsets[me] * call.size),
             at(operands.in, send.offsets[me] * call.size), send.counts[me] * call.size);
}

// Pieces are several whole runs, or a part of one run.
void NcclBackend::reduce_scatter(const Round& round) {
  const CollectiveCall& call = round.call();
  if (call.size == 0) return;
  const std::int64_t run = call.size / call.runs, whole = std::max<std::int64_t>(1, kPiecesOfGpu / run);
  for (std::int64_t first = 0; first < call.runs; first += whole) {
    const std::int64_t runs = std::min(whole, call.runs - first);
    for (std::int64_t offset = 0; offset < run; offset += kPiecesOfGpu)
      sum_piece(round, first, runs, offset, std::min(run - offset, kPiecesOfGpu),
                at(round.operands().out, (first * run + offset) * sum_bytes(call.type)));
  }
}

// Sums this rank's elements [offset, offset + length) of each of the runs.
void NcclBackend::sum_piece(const Round& round, std::int64_t first_run, std::int64_t runs,
                            std::int64_t offset, std::int64_t length, void* out) {
  const CollectiveCall& call = round.call();
  const std::int64_t bytes = element_bytes(call.type), parts = round.parts(), me = round.group().index;
  const std::int64_t run = call.size / call.runs, count = runs * length;
  const auto begin_of = [&](std::int64_t j) { return (first_run * parts + j) * run + offset; };
  // Room for a piece from each rank, and for a piece to each rank if its runs have to be joined first.
  std::byte* const space = scratch((runs == 1 ? parts : 2 * parts) * count * bytes);
  const auto place = [&](std::int64_t i) { return at(space, i * count * bytes); };
  const auto piece = [&](std::int64_t j) -> const void* {
    if (runs == 1) return at(round.operands().in, begin_of(j) * bytes);
    const void* const in = round.operands().in;
    gpu::sum_in_order({plain_type(call.type), std::span(&in, 1), begin_of(j), length, run * parts, count,
                       place(parts + j)});
    return place(parts + j);
  };
  inputs_.resize(round.group().ranks.size());
  moves_.clear();
  for (std::int64_t j = 0; j < parts; ++j) {
    const void* const own = piece(j);
    moves_.push_back({static_cast<int>(j), own, nullptr, count * bytes});
    moves_.push_back({static_cast<int>(j), nullptr, place(j), count * bytes});
    inputs_[static_cast<std::size_t>(j)] = j == me ? own : place(j);
  }
  exchange(round, moves_);
  gpu::sum_in_order({call.type, inputs_, 0, count, count, count, out});
}

// Each rank sums one slice of the others' values, then sends it to all.
void NcclBackend::all_reduce(const Round& round) {
  const CollectiveCall& call = round.call();
  const std::int64_t bytes = element_bytes(call.type);
  const int parts = round.parts(), me = round.group().index;
  inputs_.resize(round.group().ranks.size());
  for (std::int64_t begin = 0; begin < call.size; begin += kPiecesOfGpu * parts) {
    const std::int64_t count = std::min(kPiecesOfGpu * parts, call.size - begin);
    std::byte* const data = at(round.operands().out, begin * bytes);
    const auto slice_bytes = [&](int j) {
      const Slice slice = slice_of(count, parts, j);
      return (slice.end - slice.begin) * bytes;
    };
    const auto slice_at = [&](int j) { return at(data, slice_of(count, parts, j).begin * bytes); };
    const std::int64_t own = slice_bytes(me);
    std::byte* const space = scratch((parts + 1) * own);
    std::byte* const sum = at(space, parts * own);
    moves_.clear();
    for (int j = 0; j < parts; ++j) {
      moves_.push_back({j, slice_at(j), nullptr, slice_bytes(j)});
      moves_.push_back({j, nullptr, at(space, j * own), own});
      inputs_[static_cast<std::size_t>(j)] = j == me ? slice_at(j) : at(space, j * own);
    }
    exchange(round, moves_);
    if (own > 0) gpu::sum_in_order({call.type, inputs_, 0, own / bytes, own / bytes, own / bytes, sum});
    moves_.clear();
    for (int j = 0; j < parts; ++j) {
      moves_.push_back({j, sum, nullptr, own});
      moves_.push_back({j, nullptr, slice_at(j), slice_bytes(j)});
    }
    exchange(round, moves_);
    move_bytes(&device_, slice_at(me), sum, own);
  }
}

// Nothing goes to this rank itself, and zero bytes are no transfer: both sides know how many there are.
void NcclBackend::exchange(const Round& round, std::span<const Move> moves) {
  const auto is_nothing = [&](const Move& move) { return moves_nothing(round, move); };
  if (std::all_of(moves.begin(), moves.end(), is_nothing)) return;
  const NotedTransfer noted;
  settle(round, enqueue(round, moves), "a group of sends and receives");
}

nccl::Status NcclBackend::enqueue(const Round& round, std::span<const Move> moves) {
  const std::scoped_lock lock(calls_);
  nccl::Status status = api_.group_start();
  for (const Move& move : moves) {
    if (moves_nothing(round, move) || (status != nccl::kSuccess && status != nccl::kInProgress)) continue;
    const auto count = static_cast<std::size_t>(move.bytes);
    status = move.from != nullptr
                 ? api_.send(move.from, count, nccl::kBytes, move.peer, round.comm, stream_)
                 : api_.receive(move.to, count, nccl::kBytes, move.peer, round.comm, stream_);
  }
  const nccl::Status ended = api_.group_end();
  return status == nccl::kSuccess || status == nccl::kInProgress ? ended : status;
}

void NcclBackend::settle(const Round& round, nccl::Status status, const char* what) {
  if (status != nccl::kSuccess && status != nccl::kInProgress) fail(round, status, what);
  std::optional<double> failing_since;
  const auto done = [&] { return settled(round, failing_since, what); };
  if (!done()) host_.wait_until(round.group(), round.call(), done);
}

// On the rank's thread and the watch's, neither of which waits for the other: it has a deadline to keep.
bool NcclBackend::settled(const Round& round, std::optional<double>& failing_since, const char* what) {
  nccl::Status status = nccl::kSuccess;
  {
    const std::unique_lock lock(calls_, std::try_to_lock);
    if (!lock) return false;
    if (const nccl::Status asked = api_.comm_get_async_error(round.comm, &status); asked != nccl::kSuccess)
      status = asked;
  }
  if (status == nccl::kSuccess || status == nccl::kInProgress) return status == nccl::kSuccess;
  if (!failing_since) failing_since = steady_seconds();
  if (steady_seconds() - *failing_since > kNewsSeconds) fail(round, status, what);
  return false;
}

void NcclBackend::fail(const Round& round, nccl::Status status, const char* what) {
  const char* const last = api_.get_last_error(round.comm);
  const std::string more = last == nullptr || *last == '\0' ? "" : fmt::format(" ({})", last);
  Position place;
  place.step = round.started.step;
  place.layer = round.started.layer;
  place.phase = round.started.phase;
  throw CollectiveError(fmt::format("[nccl] {}{}: {} failed: {}{}", to_string(round.call()), to_string(place),
                                    what, api_.get_error_string(status), more));
}

std::byte* NcclBackend::scratch(std::int64_t bytes) {
  const auto wanted = static_cast<std::size_t>(std::max<std::int64_t>(1, bytes));
  if (!scratch_ || scratch_->bytes() < wanted) {
    scratch_.reset();
    scratch_ = std::make_unique<Buffer>(Memory(device_, nullptr), wanted);
  }
  return device_.kernel_address(scratch_->data());
}

}  // namespace switchyard
