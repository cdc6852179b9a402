#include "models/pipeline.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/error.h"

namespace switchyard {

PipelineSchedule parse_pipeline_schedule(const std::string& name) {
  return name == "gpipe" ? PipelineSchedule::gpipe : PipelineSchedule::one_forward_one_backward;
}

Pipeline::Pipeline(Context& context, PipelineSchedule schedule, DType dtype, Shape shape, Sharding sharding)
    : context_(context),
      schedule_(schedule),
      dtype_(dtype),
      shape_(std::move(shape)),
      sharding_(std::move(sharding)) {}

void Pipeline::train(std::int64_t count, const Forward& forward,
                     const std::function<void(const std::function<void()>&)>& timed_backward) {
  const Stage& stage = context_.stage;
  const int before = stage.index - 1, after = stage.index + 1;
  const auto receive = [&](int neighbour, bool is_there) {
    return is_there ? exchange(neighbour, {}, true) : Tensor();
  };
  const auto go_back = [&](const Tensor& cotangent) {
    Tensor gradient;
    timed_backward([&] { gradient = run_backward(cotangent); });
    return gradient;
  };
  // Forward passes before the first backward pass.
  const std::int64_t ahead = schedule_ == PipelineSchedule::gpipe && stage.count > 1
                                 ? count
                                 : std::min<std::int64_t>(count, stage.count - after);
  for (std::int64_t i = 0; i < ahead; ++i) {
    run_forward(i, receive(before, !stage.is_first()), forward);
    if (!stage.is_last()) exchange(after, in_flight_.back().out.output.tensor(), false);
  }
  Tensor input = ahead < count ? receive(before, !stage.is_first()) : Tensor();
  for (std::int64_t i = ahead; i < count; ++i) {
    run_forward(i, input, forward);
    // Sending on and receiving a gradient is one exchange, as is sending a gradient and receiving the next
    // input: neighbours that both wait to send would wait forever.
    const Tensor cotangent =
        stage.is_last() ? Tensor() : exchange(after, in_flight_.back().out.output.tensor(), true);
    const Tensor gradient = go_back(cotangent);
    if (!stage.is_first()) input = exchange(before, gradient, i + 1 < count);
  }
  for (std::int64_t i = 0; i < ahead; ++i) {
    const Tensor gradient = go_back(receive(after, !stage.is_last()));
    if (!stage.is_first()) exchange(before, gradient, false);
  }
}

void Pipeline::evaluate(const Forward& forward) {
  const Stage& stage = context_.stage;
  run_forward(0, stage.is_first() ? Tensor() : exchange(stage.index - 1, {}, true), forward);
  if (!stage.is_last()) exchange(stage.index + 1, in_flight_.back().out.output.tensor(), false);
  in_flight_.clear();
}

void Pipeline::run_forward(std::int64_t microbatch, const Tensor& input, const Forward& forward) {
  InFlight flight;
  if (input.defined()) flight.input = make_leaf(input, shape_, sharding_, context_.grad_enabled);
  flight.out = forward(microbatch, flight.input);
  in_flight_.push_back(std::move(flight));
}

Tensor Pipeline::run_backward(const Tensor& cotangent) {
  const InFlight flight = std::move(in_flight_.front());
  in_flight_.pop_front();
  std::vector<Array> roots;
  std::vector<Tensor> cotangents;
  if (flight.out.output.defined()) {
    roots.push_back(flight.out.output);
    cotangents.push_back(cotangent);
  }
  if (flight.out.loss.defined()) {
    roots.push_back(flight.out.loss);
    cotangents.push_back(loss_seed(context_, flight.out.loss));
  }
  backward(context_, roots, cotangents);
  return flight.input.defined() ? flight.input.grad() : Tensor();
}

Tensor Pipeline::exchange(int neighbour, const Tensor& send, bool receive) {
  const PhaseMark mark(context_.comm->position(), "pipeline");
  const Stage& stage = context_.stage;
  const int low = std::min(stage.index, neighbour), high = std::max(stage.index, neighbour);
  const auto peer = [&](int index) { return stage.across.ranks[static_cast<std::size_t>(index)]; };
  const ProcessGroup pair{{peer(low), peer(high)}, stage.index == low ? 0 : 1, "stage"};
  const auto other = static_cast<std::size_t>(1 - pair.index);
  std::array<std::int64_t, 2> offsets{0, 0}, sent{0, 0}, received{0, 0};
  sent[other] = send.defined() ? 1 : 0;
  received[other] = receive ? 1 : 0;
  const Shape local = local_shape(*context_.mesh, shape_, sharding_);
  Tensor result = receive ? context_.empty(dtype_, local) : Tensor();
  // All activations of the rank are one row. Who sends nothing, or gets nothing, names no memory.
  Shape row = local;
  row.insert(row.begin(), 1);
  const auto as_row = [&](const Tensor& x) {
    return x.defined() ? x.view().reshaped(row) : TensorView(dtype_, row, nullptr, context_.memory.device());
  };
  context_.comm->ragged_all_to_all(pair, as_row(send), {offsets, sent}, as_row(result), {offsets, received});
  return result;
}

namespace {

void sum_all(Context& context, const TensorView& values) {
  const Axes all = dual(*context.mesh, Sharding{}).partial;
  context.comm->all_reduce(context.group(all), values);
  if (context.stage.count > 1) context.comm->all_reduce(context.stage.across, values);
}

}  // namespace

void sum_over_run(Context& context, std::span<double> values) {
  sum_all(context, host_view(values));
}

void sum_over_run(Context& context, std::span<std::int32_t> values) {
  sum_all(context, host_view(values));
}

void max_over_run(Context& context, std::span<float> values) {
  const auto over = [&](const ProcessGroup& group) {
    if (group.size() == 1) return;
    std::vector<float> all(values.size() * static_cast<std::size_t>(group.size()));
    context.comm->all_gather(group, host_view(values), host_view(all));
    for (std::size_t i = 0; i < all.size(); ++i) {
      float& most = values[i % values.size()];
      most = std::max(most, all[i]);
    }
  };
  over(context.group(dual(*context.mesh, Sharding{}).partial));
  if (context.stage.count > 1) over(context.stage.across);
}

}  // namespace switchyard
