// Pipeline: runs microbatches through the stages that hold a model's layers (mesh axis `stage`).
//
// Every stage runs its own program: it receives activations from the stage before, runs its layers, sends the
// result on, and later does the same with gradients in the other direction. No rank computes in a bubble and
// none runs another stage's layers. models/pipeline_schedule.h gives the order of the passes. With one
// stage every schedule is a loop of forward and backward passes, so every training step runs through here.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <utility>

#include "autograd/op.h"
#include "models/pipeline_schedule.h"

namespace switchyard {

// The result of a block of layers for one microbatch: the activations for the next block (undefined on the
// last) and the block's part of the loss (undefined where it adds nothing).
struct StageOutput {
  Array output, loss;
};

class Pipeline {
 public:
  // `input` is undefined for the first block. Each block is called for microbatches 0, 1, … in order.
  using Forward = std::function<StageOutput(const PipelinePass& pass, const Array& input)>;

  // Activations that go between stages have `shape` and `sharding` on both sides.
  Pipeline(Context& context, PipelineSchedule schedule, DType dtype, Shape shape, Sharding sharding);

  // Runs forward and backward passes of `count` microbatches and leaves gradients on the leaves. `backward`
  // wraps every backward pass (to time it).
  void train(std::int64_t count, const Forward& forward,
             const std::function<void(const std::function<void()>&)>& timed_backward);
  // Runs one microbatch forward only, through the stage's blocks in order.
  void evaluate(const Forward& forward);

 private:
  struct InFlight {
    Array input;
    StageOutput out;
  };
  using Place = std::pair<int, std::int64_t>;  // block and microbatch
  static Place place_of(const PipelinePass& pass) { return {pass.block, pass.microbatch}; }
  void run_forward(const PipelinePass& pass, const Tensor& input, const Forward& forward);
  Tensor run_backward(const PipelinePass& pass, const Tensor& cotangent);  // returns the input's cotangent
  // Takes the result of a pass, which goes to another stage.
  Tensor take_result(const PipelinePass& pass);
  Tensor exchange(int neighbour, const Tensor& send, bool receive);

  Context& context_;
  PipelineSchedule schedule_;
  DType dtype_;
  Shape shape_;
  Sharding sharding_;
  std::map<Place, InFlight> in_flight_;
  std::map<Place, Tensor> cotangents_;  // cotangents of inputs, until the stage before takes them
};

// Replaces each value by the largest that any rank has at that index. Collective.
void max_over_run(Context& context, std::span<float> values);

// Sums in float64 over all ranks of the run, each rank's own contribution counted once. Collective.
void sum_over_run(Context& context, std::span<double> values);
// Sums whole numbers in the same way.
void sum_over_run(Context& context, std::span<std::int32_t> values);
// f64 or i32, where they are.
void sum_over_run(Context& context, const TensorView& values);

}  // namespace switchyard
