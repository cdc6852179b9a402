#include "dist/comm/communicator.h"

#include <cstring>
#include <numeric>

#include "core/error.h"
#include "dist/comm/progress_thread.h"
#include "dist/comm/reduce.h"

namespace switchyard {
namespace {

std::int64_t size_of_group(const Group& group) {
  return static_cast<std::int64_t>(group.ranks.size());
}

CollectiveCall reduction(std::string_view kind, std::string_view axis, DType dtype, std::int64_t count) {
  CHECK(dtype != DType::u8, "{} of uint8", kind);
  return {.kind = kind, .axis = axis, .type = name_of(dtype), .size = count};
}

}  // namespace

std::string to_string(const CollectiveCall& call) {
  std::string text = fmt::format("{} over '{}' of {} {}", call.kind, call.axis, call.size, call.type);
  if (call.kind == "broadcast") text += fmt::format(" from group rank {}", call.root);
  if (call.runs > 1) text += fmt::format(" in {} runs", call.runs);
  return text;
}

std::string to_string(const Position& position) {
  const std::int64_t step = position.step, layer = position.layer;
  if (step < 0) return {};
  const std::string place = layer < 0 ? "outside the layers" : fmt::format("in layer {}", layer);
  return fmt::format(" {}, step {} ({})", place, step, position.phase.load());
}

Slice slice_of(std::int64_t count, int parts, int index) {
  const std::int64_t base = count / parts;
  const std::int64_t longer = count % parts;
  const auto begin = [&](std::int64_t i) { return i * base + std::min(i, longer); };
  return {begin(index), begin(index + 1)};
}

Communicator::Communicator() = default;
Communicator::~Communicator() = default;

void Communicator::all_gather(const Group& group, std::string_view axis, const void* in, void* out,
                              std::int64_t bytes) {
  CollectiveCall call{.kind = "all_gather", .axis = axis, .type = "bytes", .size = bytes};
  enter(group, call);
  if (group.ranks.size() == 1) return copy_own(out, in, bytes);
  record(call, bytes * (size_of_group(group) - 1), do_all_gather(group, call, in, out));
}

std::shared_ptr<void> Communicator::all_gather_shared(const Group& group, std::string_view axis,
                                                      std::int64_t bytes, const Make& make,
                                                      const Place& place) {
  CollectiveCall call{.kind = "all_gather", .axis = axis, .type = "bytes", .size = bytes};
  enter(group, call);
  std::shared_ptr<void> result;
  if (group.ranks.size() == 1) {
    result = make();
    place(result.get());
    return result;
  }
  const double waited = do_all_gather_shared(group, call, make, place, result);
  record(call, bytes * (size_of_group(group) - 1), waited);
  return result;
}

std::shared_ptr<void> Communicator::make_together(const Group& group, std::string_view axis, const Make& make,
                                                  const Place& place) {
  CHECK(group.ranks.size() > 1, "one rank of '{}' has nobody to share with", axis);
  const TraceSpan span(position_.trace, "make_together", "together", position_.layer);
  std::shared_ptr<void> result;
  do_all_gather_shared(group, {.kind = "make_together", .axis = axis, .type = "bytes"}, make, place, result);
  return result;
}

double Communicator::do_all_gather_shared(const Group&, const CollectiveCall& call, const Make&, const Place&,
                                          std::shared_ptr<void>&) {
  CHECK(false, "{}: these ranks do not share memory", to_string(call));
  return 0;
}

void Communicator::reduce_scatter(const Group& group, std::string_view axis, DType dtype, const void* in,
                                  void* out, std::int64_t count, std::int64_t runs) {
  CHECK(runs >= 1 && count % runs == 0, "{} elements in {} runs", count, runs);
  CollectiveCall call = reduction("reduce_scatter", axis, dtype, count);
  call.runs = runs;
  reduce_scatter_as(group, call, in, out);
}

void Communicator::reduce_scatter_widened(const Group& group, std::string_view axis, const void* in,
                                          float* out, std::int64_t count) {
  CHECK(group.ranks.size() > 1, "nothing to sum over '{}'", axis);
  reduce_scatter_as(
      group, {.kind = "reduce_scatter", .axis = axis, .type = "bfloat16 as float32", .size = count}, in, out);
}

void Communicator::reduce_scatter_as(const Group& group, CollectiveCall call, const void* in, void* out) {
  enter(group, call);
  const std::int64_t bytes = call.size * element_bytes(call.type);
  if (group.ranks.size() == 1) return copy_own(out, in, bytes);
  record(call, bytes * (size_of_group(group) - 1), do_reduce_scatter(group, call, in, out));
}

void Communicator::all_reduce(const Group& group, std::string_view axis, DType dtype, void* data,
                              std::int64_t count) {
  all_reduce_as(group, reduction("all_reduce", axis, dtype, count), static_cast<std::int64_t>(size_of(dtype)),
                data);
}

void Communicator::all_reduce_f64(const Group& group, std::string_view axis, double* data,
                                  std::int64_t count) {
  all_reduce_as(group, {.kind = "all_reduce", .axis = axis, .type = "float64", .size = count}, 8, data);
}

void Communicator::all_reduce_as(const Group& group, CollectiveCall call, std::int64_t element_bytes,
                                 void* data) {
  enter(group, call);
  if (group.ranks.size() == 1) return;
  const Slice own = slice_of(call.size, static_cast<int>(group.ranks.size()), group.index);
  const std::int64_t length = own.end - own.begin;
  const std::int64_t sent = (call.size - length) + length * (size_of_group(group) - 1);
  record(call, sent * element_bytes, do_all_reduce(group, call, data));
}

void Communicator::all_to_all(const Group& group, std::string_view axis, const void* in, void* out,
                              std::int64_t bytes_per_rank) {
  CollectiveCall call{.kind = "all_to_all", .axis = axis, .type = "bytes", .size = bytes_per_rank};
  enter(group, call);
  if (group.ranks.size() == 1) return copy_own(out, in, bytes_per_rank);
  record(call, bytes_per_rank * (size_of_group(group) - 1), do_all_to_all(group, call, in, out));
}

std::int64_t Communicator::ragged_bytes(const Group& group, const CollectiveCall& call,
                                        const RaggedSide& side) {
  const std::size_t ranks = group.ranks.size();
  CHECK(side.send_counts.size() == ranks && side.recv_counts.size() == ranks,
        "{} on {} ranks with {} and {} counts", to_string(call), ranks, side.send_counts.size(),
        side.recv_counts.size());
  std::int64_t rows = 0;
  for (std::size_t j = 0; j < ranks; ++j) {
    CHECK(side.send_counts[j] >= 0 && side.recv_counts[j] >= 0, "{} and {} rows with group rank {}",
          side.send_counts[j], side.recv_counts[j], j);
    if (static_cast<int>(j) != group.index) rows += side.send_counts[j];
  }
  return rows * call.size;
}

void Communicator::check_offsets(const Group& group, const CollectiveCall& call, const RaggedSide& side) {
  const std::size_t ranks = group.ranks.size();
  CHECK(side.send_offsets.size() == ranks && side.recv_offsets.size() == ranks,
        "{} on {} ranks with {} and {} offsets", to_string(call), ranks, side.send_offsets.size(),
        side.recv_offsets.size());
}

void Communicator::all_to_all_shared(const Group& group, std::string_view axis, const void* in,
                                     std::int64_t bytes_per_rank, const Take& take) {
  CollectiveCall call{.kind = "all_to_all", .axis = axis, .type = "bytes", .size = bytes_per_rank};
  enter(group, call);
  if (group.ranks.size() == 1) return take(0, in);
  record(call, bytes_per_rank * (size_of_group(group) - 1), do_take(group, call, {.in = in}, take));
}

void Communicator::ragged_all_to_all_shared(const Group& group, std::string_view axis, const void* in,
                                            std::span<const std::int64_t> send_counts,
                                            std::span<const std::int64_t> recv_counts, std::int64_t row_bytes,
                                            const Take& take) {
  CollectiveCall call{.kind = "ragged_all_to_all", .axis = axis, .type = "bytes a row", .size = row_bytes};
  enter(group, call);
  const RaggedSide side{.in = in, .send_counts = send_counts, .recv_counts = recv_counts};
  const std::int64_t bytes = ragged_bytes(group, call, side);
  if (group.ranks.size() == 1) return take(0, in);
  record(call, bytes, do_take(group, call, side, take));
}

double Communicator::do_take(const Group&, const CollectiveCall& call, const RaggedSide&, const Take&) {
  CHECK(false, "{}: these ranks do not share memory", to_string(call));
  return 0;
}

void Communicator::ragged_all_to_all(const Group& group, std::string_view axis, const void* in,
                                     std::span<const std::int64_t> send_offsets,
                                     std::span<const std::int64_t> send_counts, void* out,
                                     std::span<const std::int64_t> recv_offsets,
                                     std::span<const std::int64_t> recv_counts, std::int64_t row_bytes) {
  CollectiveCall call{.kind = "ragged_all_to_all", .axis = axis, .type = "bytes a row", .size = row_bytes};
  enter(group, call);
  const RaggedSide side{in, send_offsets, send_counts, out, recv_offsets, recv_counts};
  check_offsets(group, call, side);
  const std::int64_t bytes = ragged_bytes(group, call, side);
  if (group.ranks.size() == 1) {
    CHECK(send_counts[0] == recv_counts[0], "{} rows sent, {} received", send_counts[0], recv_counts[0]);
    return copy_own(static_cast<std::byte*>(out) + recv_offsets[0] * row_bytes,
                    static_cast<const std::byte*>(in) + send_offsets[0] * row_bytes,
                    send_counts[0] * row_bytes);
  }
  record(call, bytes, do_ragged_all_to_all(group, call, side));
}

void Communicator::broadcast(const Group& group, std::string_view axis, int root_index, void* data,
                             std::int64_t bytes) {
  CollectiveCall call{.kind = "broadcast", .axis = axis, .type = "bytes", .size = bytes, .root = root_index};
  enter(group, call);
  CHECK(root_index >= 0 && root_index < size_of_group(group), "{} of {} ranks", to_string(call),
        group.ranks.size());
  if (group.ranks.size() == 1) return;
  record(call, group.index == root_index ? bytes * (size_of_group(group) - 1) : 0,
         do_broadcast(group, call, data));
}

void Communicator::barrier(const Group& group, std::string_view axis) {
  CollectiveCall call{.kind = "barrier", .axis = axis, .type = "bytes"};
  enter(group, call);
  if (group.ranks.size() == 1) return;
  record(call, 0, do_barrier(group, call));
}

void Communicator::start_progress_thread() {
  if (std::unique_ptr<Communicator> channel = second_channel())
    progress_thread_ = std::make_unique<ProgressThread>(std::move(channel));
}

std::shared_ptr<StartedCollective> Communicator::start_all_gather(const Group& group, std::string_view axis,
                                                                  const void* in, void* out,
                                                                  std::int64_t bytes, Buffers buffers) {
  auto started = std::make_shared<StartedCollective>(group, axis, std::move(buffers));
  started->call = {.kind = "all_gather", .axis = started->axis, .type = "bytes", .size = bytes};
  started->bytes = bytes * (size_of_group(group) - 1);
  started->work = [in, out, bytes](Communicator& comm, const StartedCollective& s) {
    if (s.group.ranks.size() > 1) return comm.do_all_gather(s.group, s.call, in, out);
    comm.copy_own(out, in, bytes);
    return 0.0;
  };
  return start(std::move(started));
}

std::shared_ptr<StartedCollective> Communicator::start_ragged_all_to_all(const Group& group,
                                                                         std::string_view axis,
                                                                         const RaggedSide& side,
                                                                         std::int64_t row_bytes,
                                                                         Buffers buffers) {
  CHECK(group.ranks.size() > 1, "rows of one rank have no way to go");
  auto started = std::make_shared<StartedCollective>(group, axis, std::move(buffers));
  started->call = {
      .kind = "ragged_all_to_all", .axis = started->axis, .type = "bytes a row", .size = row_bytes};
  check_offsets(group, started->call, side);
  started->bytes = ragged_bytes(group, started->call, side);
  const auto copy = [](std::span<const std::int64_t> numbers) {
    return std::vector<std::int64_t>(numbers.begin(), numbers.end());
  };
  started->work = [in = side.in, out = side.out, from = copy(side.send_offsets),
                   sent = copy(side.send_counts), to = copy(side.recv_offsets),
                   received = copy(side.recv_counts)](Communicator& comm, const StartedCollective& s) {
    return comm.do_ragged_all_to_all(s.group, s.call, {in, from, sent, out, to, received});
  };
  return start(std::move(started));
}

std::shared_ptr<StartedCollective> Communicator::start(std::shared_ptr<StartedCollective> started) {
  started->step = position_.step;
  started->layer = position_.layer;
  started->phase = position_.phase;
  enter(started->group, started->call);
  if (started->group.ranks.size() == 1) return started;
  if (progress_thread_)
    progress_thread_->start(started);
  else
    started->start = do_start([&] { return started->work(*this, *started); });
  return started;
}

void Communicator::finish(StartedCollective& started) {
  const auto work = [&] { return started.work(*this, started); };
  if (started.group.ranks.size() == 1) {
    work();
    return;
  }
  if (!progress_thread_) {
    entered_ = position_.trace == nullptr ? 0 : TraceLog::now();
    return record(started.call, started.bytes, do_finish(work, started.start));
  }
  const TraceSpan span(position_.trace, "wait", "wait", position_.layer);
  const std::int64_t begin = TraceLog::now();
  progress_thread_->wait(started);
  count(started.call, started.bytes, static_cast<double>(TraceLog::now() - begin) * 1e-9);
}

void Communicator::trace_progress(TraceLog* log) {
  if (progress_thread_) progress_thread_->trace(log);
}

std::vector<CollectiveCount> Communicator::counts() const {
  std::vector<CollectiveCount> counts;
  for (const auto& [key, count] : counts_) counts.push_back(count);
  return counts;
}

void Communicator::enter(const Group& group, CollectiveCall& call) {
  CHECK(call.size >= 0, "{}", to_string(call));
  CHECK(group.index >= 0 && group.index < size_of_group(group), "{}: index {} of {} ranks", to_string(call),
        group.index, group.ranks.size());
  const int mine = group.ranks[static_cast<std::size_t>(group.index)];
  CHECK(mine == rank(), "{}: group says rank {}, this is {}", to_string(call), mine, rank());
  if (position_.trace != nullptr) entered_ = TraceLog::now();
  if (fault_ && group.ranks.size() > 1 && !is_numeric(fault_->kind)) [[unlikely]]
    suffer(call);
}

void Communicator::suffer(CollectiveCall& call) {
  if (position_.step != fault_->step || fault_->phase != position_.phase.load()) return;
  if (fault_->calls_before-- > 0) return;
  const Fault fault = *fault_;
  fault_.reset();
  if (fault.kind == Fault::Kind::mismatch)
    call.kind = call.kind == "barrier" ? "broadcast" : "barrier";
  else
    happen(fault);
}

bool Communicator::suffers(Fault::Kind kind, std::string_view phase) const {
  return fault_ && fault_->kind == kind && fault_->phase == phase && position_.step >= fault_->step &&
         position_.step < fault_->step + fault_->steps;
}

// The only part of a group of one.
void Communicator::copy_own(void* to, const void* from, std::int64_t bytes) const {
  if (bytes > 0 && to != from && moves_data()) std::memmove(to, from, static_cast<std::size_t>(bytes));
}

void Communicator::record(const CollectiveCall& call, std::int64_t bytes, double wait_seconds) {
  log(call, bytes, wait_seconds);
  count(call, bytes, wait_seconds);
}

void Communicator::log(const CollectiveCall& call, std::int64_t bytes, double wait_seconds) const {
  if (position_.trace == nullptr) return;
  TraceEvent event;
  event.name = call.kind;
  event.category = "collective";
  event.begin = entered_;
  event.end = TraceLog::now();
  event.number = position_.layer;
  event.axis = call.axis;
  event.where = position_.phase.load();
  event.bytes = bytes;
  event.wait_seconds = wait_seconds;
  position_.trace->add(std::move(event));
}

void Communicator::count(const CollectiveCall& call, std::int64_t bytes, double wait_seconds) {
  CollectiveCount& count = counts_[{std::string(call.kind), std::string(call.axis), position_.phase.load()}];
  count.kind = call.kind;
  count.axis = call.axis;
  count.where = position_.phase.load();
  count.calls += 1;
  count.bytes += bytes;
  count.wait_seconds += wait_seconds;
}

Group everyone(const Communicator& comm) {
  Group group{std::vector<int>(static_cast<std::size_t>(comm.size())), comm.rank()};
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  return group;
}

}  // namespace switchyard
