// Pipeline: microbatches through the stages that hold a model's layers (mesh axis `stage`).
//
// Every stage runs its own program: it receives activations from the stage before, runs its layers, sends the
// result on, and later does the same with gradients in the other direction. No rank computes in a bubble and
// none runs another stage's layers. With one stage both schedules are a loop of forward and backward passes,
// so this is how every training step runs.
//
//   gpipe  (Huang et al. 2019) all forward passes, then all backward passes: every microbatch's activations
//   live. 1f1b   (Narayanan et al. 2019) stage s of P starts going back after P - s forward passes: at most
//   so many
//          microbatches live. The same sums in the same order, so the same bits.
#pragma once

#include <deque>
#include <functional>
#include <span>
#include <string>

#include "autograd/op.h"

namespace switchyard {

enum class PipelineSchedule { gpipe, one_forward_one_backward };
PipelineSchedule parse_pipeline_schedule(const std::string& name);

// What a stage made of one microbatch: the activations for the next stage (undefined on the last), and what
// it adds to the loss (undefined where it adds nothing).
struct StageOutput {
  Array output, loss;
};

class Pipeline {
 public:
  // `input` is undefined on the first stage. `forward` is called for microbatches 0, 1, … in order.
  using Forward = std::function<StageOutput(std::int64_t microbatch, const Array& input)>;

  // Activations between stages are `shape` in `sharding`, alike on both sides.
  Pipeline(Context& context, PipelineSchedule schedule, DType dtype, Shape shape, Sharding sharding);

  // Forward and backward passes of `count` microbatches; gradients are left on the leaves. `backward` is
  // called around every backward pass (to time it).
  void train(std::int64_t count, const Forward& forward,
             const std::function<void(const std::function<void()>&)>& timed_backward);
  // One microbatch forward only.
  void evaluate(const Forward& forward);

 private:
  struct InFlight {
    Array input;
    StageOutput out;
  };
  void run_forward(std::int64_t microbatch, const Tensor& input, const Forward& forward);
  Tensor run_backward(const Tensor& cotangent);  // of the oldest in flight; the input's cotangent
  Tensor exchange(int neighbour, const Tensor& send, bool receive);

  Context& context_;
  PipelineSchedule schedule_;
  DType dtype_;
  Shape shape_;
  Sharding sharding_;
  std::deque<InFlight> in_flight_;
};

// The largest of all ranks' values, place by place. Collective.
void max_over_run(Context& context, std::span<float> values);

// Sums in float64 over all ranks of the run, each rank's own contribution counted once. Collective.
void sum_over_run(Context& context, std::span<double> values);
// The same of whole numbers.
void sum_over_run(Context& context, std::span<std::int32_t> values);

}  // namespace switchyard
