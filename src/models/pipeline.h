// Pipeline: microbatches through the stages that hold a model's layers (mesh axis `stage`).
//
// Every stage runs its own program: it receives activations from the stage before, runs its layers, sends the
// result on, and later does the same with gradients in the other direction. No rank computes in a bubble and
// none runs another stage's layers. Which pass comes when is said in models/pipeline_schedule.h. With one
// stage every schedule is a loop of forward and backward passes, so this is how every training step runs.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <utility>

#include "autograd/op.h"
#include "models/pipeline_schedule.h"

namespace switchyard {

// What a block of layers made of one microbatch: the activations for the next block (undefined on the last),
// and what it adds to the loss (undefined where it adds nothing).
struct StageOutput {
  Array output, loss;
};

class Pipeline {
 public:
  // `input` is undefined for the first block. Each block is called for microbatches 0, 1, … in order.
  using Forward = std::function<StageOutput(const PipelinePass& pass, const Array& input)>;

  // Activations between stages are `shape` in `sharding`, alike on both sides.
  Pipeline(Context& context, PipelineSchedule schedule, DType dtype, Shape shape, Sharding sharding);

  // Forward and backward passes of `count` microbatches; gradients are left on the leaves. `backward` is
  // called around every backward pass (to time it).
  void train(std::int64_t count, const Forward& forward,
             const std::function<void(const std::function<void()>&)>& timed_backward);
  // One microbatch forward only, through one block of the stage after the other.
  void evaluate(const Forward& forward);

 private:
  struct InFlight {
    Array input;
    StageOutput out;
  };
  using Place = std::pair<int, std::int64_t>;  // block and microbatch
  static Place place_of(const PipelinePass& pass) { return {pass.block, pass.microbatch}; }
  void run_forward(const PipelinePass& pass, const Tensor& input, const Forward& forward);
  Tensor run_backward(const PipelinePass& pass, const Tensor& cotangent);  // the input's cotangent
  // What a pass made, for another stage.
  Tensor take_result(const PipelinePass& pass);
  Tensor exchange(int neighbour, const Tensor& send, bool receive);

  Context& context_;
  PipelineSchedule schedule_;
  DType dtype_;
  Shape shape_;
  Sharding sharding_;
  std::map<Place, InFlight> in_flight_;
  std::map<Place, Tensor> cotangents_;  // of inputs, until the stage before takes them
};

// The largest of all ranks' values, place by place. Collective.
void max_over_run(Context& context, std::span<float> values);

// Sums in float64 over all ranks of the run, each rank's own contribution counted once. Collective.
void sum_over_run(Context& context, std::span<double> values);
// The same of whole numbers.
void sum_over_run(Context& context, std::span<std::int32_t> values);

}  // namespace switchyard
