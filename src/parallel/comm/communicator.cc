#include "parallel/comm/communicator.h"

#include <cstring>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/gpu.h"
#include "core/graph_recording.h"
#include "parallel/comm/progress_thread.h"

namespace switchyard {
namespace {

std::int64_t bytes_of(const TensorView& x) {
  return static_cast<std::int64_t>(x.bytes());
}

std::int64_t bytes_of_row(const TensorView& x) {
  auto bytes = static_cast<std::int64_t>(size_of(x.dtype()));
  for (std::size_t i = 1; i < x.rank(); ++i) bytes *= x.dim(i);
  return bytes;
}

void* address(const TensorView& x) {
  CHECK(x.is_contiguous(), "a collective on a view with gaps, {}", to_string(x.shape()));
  return x.device_address();
}

// Copies the only part of a group of one rank. Nothing is moved when there is no memory.
void copy_own(const TensorView& to, const TensorView& from) {
  if (to.is_abstract() || from.size() == 0) return;
  void* const out = address(to);
  const void* const in = address(from);
  if (out == in) return;
  if (to.device().kind() == DeviceKind::cuda)
    gpu::move(out, in, from.bytes());
  else if (to.device().kind() == DeviceKind::cuda_emulated)
    gpu::do_or_record([out, in, count = from.bytes()] { std::memmove(out, in, count); });
  else
    std::memmove(out, in, from.bytes());
}

// The device of a view, where kernels of a GPU do the sums and copies.
const Device* gpu_of(const TensorView& x) {
  return x.on_gpu() ? &x.device() : nullptr;
}

std::int64_t part_bytes(const ProcessGroup& group, const TensorView& in) {
  CHECK(bytes_of(in) % group.size() == 0, "{} bytes in {} parts", bytes_of(in), group.size());
  return bytes_of(in) / group.size();
}

CollectiveCall gather_call(const ProcessGroup& group, const TensorView& in, const TensorView& out) {
  CHECK(bytes_of(out) == bytes_of(in) * group.size(), "{} bytes of each of {} ranks into {}", bytes_of(in),
        group.size(), bytes_of(out));
  return {.kind = Collective::all_gather, .axis = group.axis, .size = bytes_of(in)};
}

CollectiveCall ragged_call(const ProcessGroup& group, const TensorView& in) {
  return {.kind = Collective::ragged_all_to_all,
          .axis = group.axis,
          .type = "bytes a row",
          .size = bytes_of_row(in)};
}

void check_counts(const ProcessGroup& group, const CollectiveCall& call,
                  std::span<const std::int64_t> send_counts, std::span<const std::int64_t> receive_counts) {
  CHECK(std::ssize(send_counts) == group.size() && std::ssize(receive_counts) == group.size(),
        "{} on {} ranks with {} and {} counts", to_string(call), group.size(), send_counts.size(),
        receive_counts.size());
  for (std::size_t j = 0; j < send_counts.size(); ++j)
    CHECK(send_counts[j] >= 0 && receive_counts[j] >= 0, "{} and {} rows with group rank {}", send_counts[j],
          receive_counts[j], j);
}

void check_rows(const ProcessGroup& group, const CollectiveCall& call, const RaggedRows& send,
                const RaggedRows& receive) {
  check_counts(group, call, send.counts, receive.counts);
  CHECK(std::ssize(send.offsets) == group.size() && std::ssize(receive.offsets) == group.size(),
        "{} on {} ranks with {} and {} offsets", to_string(call), group.size(), send.offsets.size(),
        receive.offsets.size());
}

}  // namespace

Communicator::Communicator(std::unique_ptr<CommBackend> backend) {
  auto counted = std::make_unique<CountedBackend>(std::make_unique<TracedBackend>(std::move(backend)));
  counted_ = counted.get();
  top_ = std::move(counted);
  if (top_->reads_other_ranks()) shared_memory_ = std::make_unique<SharedMemory>(*this);
}

Communicator::~Communicator() = default;

void Communicator::inject(const Fault& fault) {
  top_ = std::make_unique<FaultyBackend>(std::move(top_), fault);
}

void Communicator::all_gather(const ProcessGroup& group, const TensorView& in, const TensorView& out) {
  const CollectiveCall call = gather_call(group, in, out);
  check(group, call);
  if (group.size() == 1) return copy_own(out, in);
  carry_out(group, call, {.device = gpu_of(in), .in = address(in), .out = address(out)});
}

void Communicator::reduce_scatter(const ProcessGroup& group, const TensorView& in, const TensorView& out,
                                  std::int64_t runs) {
  const bool widened = in.dtype() == DType::bf16 && out.dtype() == DType::f32;
  CHECK(in.dtype() == out.dtype() || (widened && group.size() > 1), "a sum of {} as {} over {} ranks",
        name_of(in.dtype()), name_of(out.dtype()), group.size());
  CHECK(in.dtype() != DType::u8 && runs >= 1 && out.size() % runs == 0 &&
            in.size() == out.size() * group.size(),
        "the sum of {} elements of {} on {} ranks into {} in {} runs", in.size(), name_of(in.dtype()),
        group.size(), out.size(), runs);
  const CollectiveCall call{.kind = Collective::reduce_scatter,
                            .axis = group.axis,
                            .type = widened ? "bfloat16 as float32" : name_of(in.dtype()),
                            .size = out.size(),
                            .runs = runs};
  check(group, call);
  if (group.size() == 1) return copy_own(out, in);
  carry_out(group, call, {.device = gpu_of(in), .in = address(in), .out = address(out)});
}

void Communicator::all_reduce(const ProcessGroup& group, const TensorView& x) {
  CHECK(x.dtype() != DType::u8, "a sum of uint8");
  const CollectiveCall call{
      .kind = Collective::all_reduce, .axis = group.axis, .type = name_of(x.dtype()), .size = x.size()};
  check(group, call);
  if (group.size() > 1) carry_out(group, call, {.device = gpu_of(x), .in = address(x), .out = address(x)});
}

void Communicator::all_to_all(const ProcessGroup& group, const TensorView& in, const TensorView& out) {
  CHECK(bytes_of(in) == bytes_of(out), "{} bytes into {}", bytes_of(in), bytes_of(out));
  const CollectiveCall call{
      .kind = Collective::all_to_all, .axis = group.axis, .size = part_bytes(group, in)};
  check(group, call);
  if (group.size() == 1) return copy_own(out, in);
  carry_out(group, call, {.device = gpu_of(in), .in = address(in), .out = address(out)});
}

void Communicator::ragged_all_to_all(const ProcessGroup& group, const TensorView& in, const RaggedRows& send,
                                     const TensorView& out, const RaggedRows& receive) {
  const CollectiveCall call = ragged_call(group, in);
  check(group, call);
  check_rows(group, call, send, receive);
  CHECK(bytes_of_row(out) == call.size, "rows of {} bytes as rows of {}", call.size, bytes_of_row(out));
  if (group.size() > 1)
    return carry_out(
        group, call,
        {.device = gpu_of(in), .in = address(in), .out = address(out), .send = send, .receive = receive});
  const std::int64_t rows = send.counts[0], from = send.offsets[0], to = receive.offsets[0];
  CHECK(rows == receive.counts[0], "{} rows sent, {} received", rows, receive.counts[0]);
  copy_own(out.rows(to, to + rows), in.rows(from, from + rows));
}

void Communicator::broadcast(const ProcessGroup& group, int root, const TensorView& x) {
  const CollectiveCall call{
      .kind = Collective::broadcast, .axis = group.axis, .size = bytes_of(x), .root = root};
  check(group, call);
  CHECK(root >= 0 && root < group.size(), "{} of {} ranks", to_string(call), group.size());
  if (group.size() > 1) carry_out(group, call, {.device = gpu_of(x), .in = address(x), .out = address(x)});
}

void Communicator::barrier(const ProcessGroup& group) {
  const CollectiveCall call{.kind = Collective::barrier, .axis = group.axis};
  check(group, call);
  if (group.size() > 1) carry_out(group, call, {});
}

void Communicator::start_progress_thread() {
  std::unique_ptr<CommBackend> channel = top_->second_channel();
  if (!channel) return;
  counted_->insert_below([&](std::unique_ptr<CommBackend> inner) {
    auto overlapped = std::make_unique<OverlappedBackend>(
        std::move(inner), std::make_unique<TracedBackend>(std::move(channel)));
    overlapped_ = overlapped.get();
    return overlapped;
  });
}

std::shared_ptr<StartedCollective> Communicator::start_all_gather(const ProcessGroup& group,
                                                                  const TensorView& in, const TensorView& out,
                                                                  Buffers buffers) {
  auto started = std::make_shared<StartedCollective>(group);
  started->call = gather_call(started->group, in, out);
  started->operands = {.device = gpu_of(in), .in = address(in), .out = address(out)};
  started->buffers = std::move(buffers);
  if (group.size() == 1) copy_own(out, in);
  return start(std::move(started));
}

std::shared_ptr<StartedCollective> Communicator::start_ragged_all_to_all(
    const ProcessGroup& group, const TensorView& in, const RaggedRows& send, const TensorView& out,
    const RaggedRows& receive, Buffers buffers) {
  CHECK(group.size() > 1, "rows of one rank have no way to go");
  auto started = std::make_shared<StartedCollective>(group);
  started->call = ragged_call(started->group, in);
  check_rows(group, started->call, send, receive);
  CHECK(bytes_of_row(out) == started->call.size, "rows of {} bytes as rows of {}", started->call.size,
        bytes_of_row(out));
  const std::size_t ranks = group.ranks.size();
  for (const auto& list : {send.offsets, send.counts, receive.offsets, receive.counts})
    started->numbers.insert(started->numbers.end(), list.begin(), list.end());
  const auto kept = [&](std::size_t i) {
    return std::span<const std::int64_t>(started->numbers).subspan(i * ranks, ranks);
  };
  started->operands = {.device = gpu_of(in),
                       .in = address(in),
                       .out = address(out),
                       .send = {kept(0), kept(1)},
                       .receive = {kept(2), kept(3)}};
  started->buffers = std::move(buffers);
  return start(std::move(started));
}

std::shared_ptr<StartedCollective> Communicator::start(std::shared_ptr<StartedCollective> started) {
  started->step = position().step;
  started->layer = position().layer;
  started->phase = position().phase;
  check(started->group, started->call);
  if (started->group.size() > 1) top_->start(started);
  return started;
}

void Communicator::finish(StartedCollective& started) {
  if (started.group.size() > 1) top_->finish(started);
}

void Communicator::trace_progress(TraceLog* log) {
  if (overlapped_ != nullptr) overlapped_->trace_progress(log);
}

void Communicator::check(const ProcessGroup& group, const CollectiveCall& call) const {
  CHECK(call.size >= 0, "{}", to_string(call));
  CHECK(group.index >= 0 && group.index < group.size(), "{}: index {} of {} ranks", to_string(call),
        group.index, group.size());
  const int mine = group.ranks[static_cast<std::size_t>(group.index)];
  CHECK(mine == rank(), "{}: group says rank {}, this is {}", to_string(call), mine, rank());
}

void Communicator::carry_out(const ProcessGroup& group, const CollectiveCall& call,
                             const Operands& operands) {
  top_->carry_out(group, call, operands);
}

std::shared_ptr<void> SharedMemory::all_gather(const ProcessGroup& group, std::int64_t bytes,
                                               const Make& make, const Place& place) {
  const CollectiveCall call{.kind = Collective::all_gather, .axis = group.axis, .size = bytes};
  comm_.check(group, call);
  SharedResult result{make, place, nullptr};
  if (group.size() == 1) {
    result.made = make();
    place(result.made.get());
  } else {
    comm_.carry_out(group, call, {.shared = &result});
  }
  return result.made;
}

std::shared_ptr<void> SharedMemory::make_together(const ProcessGroup& group, const Make& make,
                                                  const Place& place) {
  CHECK(group.size() > 1, "one rank of '{}' has nobody to share with", group.axis);
  const CollectiveCall call{.kind = Collective::make_together, .axis = group.axis};
  comm_.check(group, call);
  SharedResult result{make, place, nullptr};
  comm_.carry_out(group, call, {.shared = &result});
  return result.made;
}

void SharedMemory::all_to_all(const ProcessGroup& group, const TensorView& in, const Take& take) {
  exchange(group, {.kind = Collective::all_to_all, .axis = group.axis, .size = part_bytes(group, in)}, in, {},
           take);
}

void SharedMemory::ragged_all_to_all(const ProcessGroup& group, const TensorView& in,
                                     std::span<const std::int64_t> send_counts,
                                     std::span<const std::int64_t> receive_counts, const Take& take) {
  const CollectiveCall call = ragged_call(group, in);
  check_counts(group, call, send_counts, receive_counts);
  exchange(group, call, in, {.send = {{}, send_counts}, .receive = {{}, receive_counts}}, take);
}

void SharedMemory::exchange(const ProcessGroup& group, const CollectiveCall& call, const TensorView& in,
                            Operands operands, const Take& take) {
  comm_.check(group, call);
  if (group.size() == 1) return take(0, in);
  const TakeInput take_input = [&](std::size_t index, const void* theirs) {
    take(index, TensorView::of_host(in.dtype(), theirs, in.shape()));
  };
  operands.in = address(in);
  operands.take = &take_input;
  comm_.carry_out(group, call, operands);
}

ProcessGroup everyone(const Communicator& comm, std::string axis) {
  ProcessGroup group{std::vector<int>(static_cast<std::size_t>(comm.size())), comm.rank(), std::move(axis)};
  std::iota(group.ranks.begin(), group.ranks.end(), 0);
  return group;
}

}  // namespace switchyard
