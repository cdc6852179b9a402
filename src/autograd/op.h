// Op: a pure function on arrays. To add an op, derive from this class; no list of ops exists elsewhere.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "autograd/array.h"
#include "autograd/context.h"

namespace switchyard {

struct Node;

// The arguments of a backward rule. Inputs and outputs are fetched on demand, so that dropped ones are
// recomputed only when read; a rule may read only what needs_inputs()/needs_outputs() announced.
class BackwardCall {
 public:
  BackwardCall(Context& context, Node& node, std::vector<Tensor> grads);
  // Undefined where no gradient came.
  const Tensor& grad(std::size_t output) const { return grads_[output]; }
  // Returns grad(output) and forgets it, for a backward that wants to free the gradient before it ends.
  Tensor take_grad(std::size_t output) const;
  Tensor input(std::size_t i) const;
  Tensor output(std::size_t i) const;
  const ArrayInfo& input_info(std::size_t i) const;
  const ArrayInfo& output_info(std::size_t i) const;
  bool wanted(std::size_t input) const;  // true when this input needs a gradient
  std::size_t inputs() const;

 private:
  Context& context_;
  Node& node_;
  mutable std::vector<Tensor> grads_;
};

// The forward of an op that was started and is not finished.
class StartedOp {
 public:
  virtual ~StartedOp() = default;
  virtual std::vector<Tensor> finish(Context& context) = 0;  // call it once
};

class Op {
 public:
  virtual ~Op() = default;
  virtual std::string_view name() const = 0;

  // Returns dtype, global and local shape and sharding of each output. A ragged output's row count is 0.
  // Without an override: one output, which is like the first input.
  virtual std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> inputs) const {
    return {inputs[0]};
  }

  // Local computation (and communication). Must be re-runnable: remat calls it again. Kernels and
  // ThreadPool::for_range do nothing in an abstract context. An op that needs a value on the host reads it by
  // read_back, which returns the op's assumption when there is no data.
  virtual std::vector<Tensor> forward(Context& context, std::span<const Tensor> inputs,
                                      std::span<const ArrayInfo> infos) const = 0;

  // Splits forward in two, for an op that communicates first and can overlap that with other work: start and
  // finish together equal forward. Null when the op cannot be split, or not with these inputs.
  virtual std::unique_ptr<StartedOp> start(Context&, std::span<const Tensor>) const { return nullptr; }

  // Returns one gradient per input, in the dual sharding of the input; undefined when not wanted
  // (BackwardCall::wanted) or zero. Behaves as forward does in an abstract context. Every op overrides it
  // that is differentiable().
  virtual std::vector<Tensor> backward(Context& context, const BackwardCall& call) const;

  // Bit i is set where backward reads input (output) i. `wanted` has a bit for each input whose gradient is
  // asked for: an input that only other gradients read is not kept.
  virtual std::uint32_t needs_inputs([[maybe_unused]] std::uint32_t wanted) const { return ~0u; }
  virtual std::uint32_t needs_outputs() const { return 0; }
  virtual bool differentiable() const { return true; }
  // True where the result of a weight, and what is made of that alone, is made again for the backward pass
  // rather than kept, even where the weight has no gradient.
  virtual bool fetches() const { return false; }
};

// Runs the op and records it when an input requires a gradient.
std::vector<Array> apply(Context& context, std::shared_ptr<const Op> op, std::span<const Array> inputs);
Array apply_one(Context& context, std::shared_ptr<const Op> op, std::initializer_list<Array> inputs);

// Walks the graph back from `loss` (one element) and stores gradients on the leaves. The seed is 1 for the
// whole system: it is on one rank of each axis over which the loss is whole (invariant 2).
void backward(Context& context, const Array& loss);
Tensor loss_seed(const Context& context, const Array& loss);  // that seed, for the overload below
// Walks the graph back from arbitrary cotangents, each in the dual sharding of its root.
void backward(Context& context, std::span<const Array> roots, std::span<const Tensor> cotangents);

}  // namespace switchyard
