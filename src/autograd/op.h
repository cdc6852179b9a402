// Op: a pure function on arrays. Adding an op means writing one of these; nothing else knows the list of ops.
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

// What a backward rule sees. Inputs and outputs are handed out on demand, so that dropped ones are recomputed
// only when they are really read; a rule may read just what needs_inputs()/needs_outputs() announced.
class BackwardCall {
 public:
  BackwardCall(Context& context, Node& node, std::vector<Tensor> grads);
  // Undefined where no gradient came.
  const Tensor& grad(std::size_t output) const { return grads_[output]; }
  // The same, for a backward that ends its use early: nothing else holds it afterwards.
  Tensor take_grad(std::size_t output) const;
  Tensor input(std::size_t i) const;
  Tensor output(std::size_t i) const;
  const ArrayInfo& input_info(std::size_t i) const;
  const ArrayInfo& output_info(std::size_t i) const;
  bool wanted(std::size_t input) const;  // does input need a gradient?
  std::size_t inputs() const;

 private:
  Context& context_;
  Node& node_;
  mutable std::vector<Tensor> grads_;
};

// An op's forward that was started and is not finished.
class StartedOp {
 public:
  virtual ~StartedOp() = default;
  virtual std::vector<Tensor> finish(Context& context) = 0;  // once
};

class Op {
 public:
  virtual ~Op() = default;
  virtual std::string_view name() const = 0;

  // dtype, global and local shape and sharding of each output. Rows of a ragged output are given as 0.
  virtual std::vector<ArrayInfo> infer(const Context& context, std::span<const ArrayInfo> inputs) const = 0;

  // Local computation (and communication). Must be re-runnable: remat calls it again. Kernels and
  // ThreadPool::for_range do nothing in an abstract context. An op that needs a value on the host reads it by
  // read_back, which gives what the op assumes where there is no data.
  virtual std::vector<Tensor> forward(Context& context, std::span<const Tensor> inputs,
                                      std::span<const ArrayInfo> infos) const = 0;

  // The same in two parts, for an op that communicates first and can let other work go on meanwhile: together
  // they give what forward gives. Null: it cannot, or not with these inputs.
  virtual std::unique_ptr<StartedOp> start(Context&, std::span<const Tensor>) const { return nullptr; }

  // Gradient per input, in the dual sharding of the input; undefined where none is wanted
  // (BackwardCall::wanted) or none comes. As forward in an abstract context.
  virtual std::vector<Tensor> backward(Context& context, const BackwardCall& call) const = 0;

  // Bit i set: backward reads input (output) i.
  virtual std::uint32_t needs_inputs() const { return ~0u; }
  virtual std::uint32_t needs_outputs() const { return 0; }
  virtual bool differentiable() const { return true; }
};

// Runs the op and records it when an input requires a gradient.
std::vector<Array> apply(Context& context, std::shared_ptr<const Op> op, std::span<const Array> inputs);
Array apply_one(Context& context, std::shared_ptr<const Op> op, std::initializer_list<Array> inputs);

// Walks the graph back from `loss` (one element) and leaves gradients on the leaves. The seed is 1 for the
// whole system: on one rank of each axis over which the loss is whole (invariant 2).
void backward(Context& context, const Array& loss);
Tensor loss_seed(const Context& context, const Array& loss);  // that seed, for the walk below
// The same from an arbitrary cotangent in the dual sharding of `root`.
void backward(Context& context, std::span<const Array> roots, std::span<const Tensor> cotangents);

}  // namespace switchyard
