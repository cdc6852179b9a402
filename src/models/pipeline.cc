#include "models/pipeline.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/error.h"

namespace switchyard {

Pipeline::Pipeline(Context& context, PipelineSchedule schedule, DType dtype, Shape shape, Sharding sharding)
    : context_(context),
      schedule_(schedule),
      dtype_(dtype),
      shape_(std::move(shape)),
      sharding_(std::move(sharding)) {}

void Pipeline::train(std::int64_t count, const Forward& forward,
                     const std::function<void(const std::function<void()>&)>& timed_backward) {
  const Stage& stage = context_.stage;
  Tensor received;
  for (const PipelineEvent& event :
       pipeline_events(schedule_, {stage.count, stage.repeats, count}, stage.index)) {
    if (!event.pass) {
      const Tensor sent = event.sent ? take_result(*event.sent) : Tensor();
      const Tensor arrived = exchange(event.neighbour, sent, event.receives);
      if (event.receives) received = arrived;
      continue;
    }
    const Tensor input = std::exchange(received, Tensor());
    if (event.pass->forward) {
      run_forward(*event.pass, input, forward);
    } else {
      Tensor cotangent;
      timed_backward([&] { cotangent = run_backward(*event.pass, input); });
      if (cotangent.defined()) cotangents_[place_of(*event.pass)] = cotangent;
    }
  }
}

void Pipeline::evaluate(const Forward& forward) {
  const Stage& stage = context_.stage;
  const int before = (stage.index + stage.count - 1) % stage.count, after = (stage.index + 1) % stage.count;
  for (int i = 0; i < stage.repeats; ++i) {
    const Stage::Block block = stage.block(i);
    const PipelinePass pass{true, i, 0};
    run_forward(pass, block.is_first() ? Tensor() : exchange(before, {}, true), forward);
    if (!block.is_last()) exchange(after, take_result(pass), false);
    in_flight_.clear();
  }
}

void Pipeline::run_forward(const PipelinePass& pass, const Tensor& input, const Forward& forward) {
  InFlight flight;
  if (input.defined()) flight.input = make_leaf(input, shape_, sharding_, context_.grad_enabled);
  flight.out = forward(pass, flight.input);
  in_flight_.emplace(place_of(pass), std::move(flight));
}

Tensor Pipeline::take_result(const PipelinePass& pass) {
  if (pass.forward) return in_flight_.at(place_of(pass)).out.output.tensor();
  const auto found = cotangents_.extract(place_of(pass));
  return found.mapped();
}

Tensor Pipeline::run_backward(const PipelinePass& pass, const Tensor& cotangent) {
  const InFlight flight = std::move(in_flight_.extract(place_of(pass)).mapped());
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
  // The activations of a rank form one row. A rank that sends or receives nothing names no memory.
  Shape row = local;
  row.insert(row.begin(), 1);
  const auto as_row = [&](const Tensor& x) {
    return x.defined() ? x.view().reshaped(row) : TensorView(dtype_, row, nullptr, context_.memory.device());
  };
  context_.comm->ragged_all_to_all(pair, as_row(send), {offsets, sent}, as_row(result), {offsets, received});
  return result;
}

void sum_over_run(Context& context, const TensorView& values) {
  const Axes all = dual(*context.mesh, Sharding{}).partial;
  context.comm->all_reduce(context.group(all), values);
  if (context.stage.count > 1) context.comm->all_reduce(context.stage.across, values);
}

void sum_over_run(Context& context, std::span<double> values) {
  sum_over_run(context, host_view(values));
}

void sum_over_run(Context& context, std::span<std::int32_t> values) {
  sum_over_run(context, host_view(values));
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
