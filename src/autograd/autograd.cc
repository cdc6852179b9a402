#include <algorithm>
#include <queue>
#include <unordered_map>

#include "autograd/ahead.h"
#include "autograd/node.h"
#include "autograd/offload.h"
#include "autograd/remat.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/random_values.h"

namespace switchyard {
namespace {

void attach(Value& value, const Tensor& data) {
  value.buffer = data.buffer();
  value.offset_bytes = data.offset_bytes();
}

bool bit(std::uint32_t mask, std::size_t i) {
  return i < 32 && ((mask >> i) & 1u) != 0;
}

const Value& value_of(const Array& x) {
  return *x.value();
}
const Value& value_of(const ValuePtr& x) {
  return *x;
}

// The inputs that need a gradient.
std::uint32_t wanted_of(const auto& inputs) {
  std::uint32_t wanted = 0;
  for (std::size_t i = 0; i < std::min<std::size_t>(32, inputs.size()); ++i)
    wanted |= value_of(inputs[i]).requires_grad ? 1u << i : 0;
  return wanted;
}

Tensor alive(const Value& value) {
  auto buffer = value.buffer.lock();
  if (!buffer) return {};
  return Tensor(value.info.dtype, value.info.local, std::move(buffer), value.offset_bytes);
}

std::shared_ptr<Node> record(Context& context, std::shared_ptr<const Op> op, std::span<const Array> inputs) {
  auto node = std::make_shared<Node>();
  node->id = context.next_node++;
  if (context.comm != nullptr) node->layer = context.comm->position().layer;
  node->op = std::move(op);
  const std::uint32_t read = node->op->needs_inputs(wanted_of(inputs));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    // A value that cannot be recomputed is held even if only a recomputation reads it.
    const Value& value = *inputs[i].value();
    const bool keep = value.producer == nullptr || (bit(read, i) && !value.never_save);
    node->inputs.push_back(inputs[i].value());
    node->saved_inputs.push_back(keep ? inputs[i].tensor() : Tensor());
  }
  if (context.region != nullptr) context.region->add(node);
  return node;
}

void accumulate(Context& context, Value& value, const Tensor& grad) {
  CHECK(grad.shape() == value.info.local, "gradient {} for a value of {}", to_string(grad.shape()),
        to_string(value.info.local));
  if (!value.grad.defined()) {
    // A parameter's first gradient stays as narrow as it comes: the update reads either type.
    const bool keep = value.weight && value.producer == nullptr && grad.dtype() == DType::bf16;
    value.grad = keep ? grad : converted(*context.pool, grad, value.info.dtype);
    return;
  }
  value.grad = converted(*context.pool, value.grad, value.info.dtype);
  const auto& buffer = value.grad.buffer();
  const bool own = buffer.use_count() == 1 && !buffer->read_only();
  Tensor sum = own ? value.grad : context.empty(value.info.dtype, value.info.local);
  const Tensor other = converted(*context.pool, grad, value.info.dtype);
  add(*context.pool, value.grad.view(), other.view(), sum.view());
  value.grad = sum;
}

void run_backward(Context& context, Node& node) {
  if (context.comm != nullptr) context.comm->position().layer = node.layer;
  std::vector<Tensor> grads;
  bool any = false;
  for (auto& weak : node.outputs) {
    auto value = weak.lock();
    grads.push_back(value ? value->grad : Tensor());
    any = any || grads.back().defined();
  }
  if (any) {
    const BackwardCall call(context, node, std::move(grads));
    const std::vector<Tensor> results =
        inside_op(context, node.op->name(), "backward", [&] { return node.op->backward(context, call); });
    CHECK(results.size() == node.inputs.size(), "[{}] {} gradients for {} inputs", node.op->name(),
          results.size(), node.inputs.size());
    const InsideOp adding(context, "add_gradients", "backward");
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (results[i].defined() && node.inputs[i]->requires_grad)
        accumulate(context, *node.inputs[i], results[i]);
    }
  }
  for (auto& weak : node.outputs) {
    if (auto value = weak.lock()) {
      value->grad = Tensor();
      value->recomputed = Tensor();
      value->offloaded.reset();
      value->producer.reset();
    }
  }
  node.saved_inputs.clear();
  node.saved_outputs.clear();
  node.inputs.clear();
}

std::vector<Tensor> run_forward(Context& context, const std::shared_ptr<const Op>& op,
                                std::span<const Tensor> inputs, std::span<const ArrayInfo> infos,
                                bool weight) {
  if (context.ahead != nullptr && inputs.size() == 1)
    return context.ahead->run(context, op, inputs[0], infos[0], weight);
  return op->forward(context, inputs, infos);
}

// Runs the op again and puts its results where they are asked for. Returns them.
std::vector<Tensor> rerun(Context& context, Node& node) {
  std::vector<Tensor> inputs;
  std::vector<ArrayInfo> infos;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    inputs.push_back(node.saved_inputs[i].defined() ? node.saved_inputs[i]
                                                    : materialize(context, node.inputs[i]));
    infos.push_back(node.inputs[i]->info);
  }
  auto results = inside_op(context, node.op->name(), "recompute", [&] {
    return run_forward(context, node.op, inputs, infos, node.inputs[0]->weight);
  });
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (bit(node.op->needs_outputs(), i)) node.saved_outputs[i] = results[i];
    if (auto output = node.outputs[i].lock()) {
      attach(*output, results[i]);
      output->recomputed = results[i];
    }
  }
  return results;
}

struct Later {
  bool operator()(const std::shared_ptr<Node>& a, const std::shared_ptr<Node>& b) const {
    return a->id < b->id;
  }
};

}  // namespace

ArrayInfo ragged_info(DType dtype, std::size_t rank) {
  ArrayInfo info;
  info.dtype = dtype;
  info.shape = info.local = Shape(rank, 0);
  info.sharding = replicated(rank);
  info.ragged = true;
  return info;
}

Array make_leaf(Tensor data, Shape shape, Sharding sharding, bool requires_grad) {
  auto value = std::make_shared<Value>();
  value->info = {data.dtype(), std::move(shape), std::move(sharding), data.shape(), false};
  value->requires_grad = requires_grad;
  attach(*value, data);
  return {std::move(value), std::move(data)};
}

Array checkpoint_name(Array x, std::string name) {
  x.value()->checkpoint_name = std::move(name);
  return x;
}

Array always_keep(Array x) {
  x.value()->always_keep = true;
  return x;
}

Array never_save(Array x) {
  x.value()->never_save = true;
  return x;
}

BackwardCall::BackwardCall(Context& context, Node& node, std::vector<Tensor> grads)
    : context_(context), node_(node), grads_(std::move(grads)) {}

std::vector<Tensor> Op::backward(Context&, const BackwardCall&) const {
  CHECK(false, "[{}] a gradient is asked of an op that has none", name());
}

Tensor BackwardCall::take_grad(std::size_t output) const {
  if (const ValuePtr value = node_.outputs[output].lock()) value->grad = Tensor();
  return std::move(grads_[output]);
}

Tensor BackwardCall::input(std::size_t i) const {
  const std::uint32_t wanted = wanted_of(node_.inputs);
  CHECK(bit(node_.op->needs_inputs(wanted), i), "[{}] input {} was not announced", node_.op->name(), i);
  return node_.saved_inputs[i].defined() ? node_.saved_inputs[i] : materialize(context_, node_.inputs[i]);
}

Tensor BackwardCall::output(std::size_t i) const {
  CHECK(bit(node_.op->needs_outputs(), i), "[{}] output {} was not announced", node_.op->name(), i);
  if (node_.saved_outputs[i].defined()) return node_.saved_outputs[i];
  if (const ValuePtr value = node_.outputs[i].lock();
      value && (value->offloaded || value->recomputed.defined()))
    node_.saved_outputs[i] = materialize(context_, value);
  else
    rerun(context_, node_);
  return node_.saved_outputs[i];
}

const ArrayInfo& BackwardCall::input_info(std::size_t i) const {
  return node_.inputs[i]->info;
}
const ArrayInfo& BackwardCall::output_info(std::size_t i) const {
  return node_.output_infos[i];
}
bool BackwardCall::wanted(std::size_t input) const {
  return node_.inputs[input]->requires_grad;
}
std::size_t BackwardCall::inputs() const {
  return node_.inputs.size();
}

std::vector<Array> apply(Context& context, std::shared_ptr<const Op> op, std::span<const Array> inputs) {
  std::vector<ArrayInfo> infos;
  std::vector<Tensor> tensors;
  infos.reserve(inputs.size());
  bool grad = false;
  for (const auto& x : inputs) {
    CHECK(x.defined() && x.tensor().defined(), "[{}] undefined input", op->name());
    infos.push_back(x.info());
    tensors.push_back(x.tensor());
    grad = grad || x.value()->requires_grad;
  }
  const std::vector<ArrayInfo> outputs = op->infer(context, infos);
  const auto results = inside_op(context, op->name(), "forward", [&] {
    return run_forward(context, op, tensors, infos, !inputs.empty() && inputs[0].value()->weight);
  });
  CHECK(results.size() == outputs.size(), "[{}] {} results, {} inferred", op->name(), results.size(),
        outputs.size());
  std::shared_ptr<Node> node;
  const bool fetched = inputs.size() == 1 && inputs[0].value()->weight &&
                       (op->fetches() || inputs[0].value()->producer != nullptr);
  if ((grad || fetched) && context.grad_enabled) node = record(context, op, inputs);

  std::vector<Array> arrays;
  for (std::size_t i = 0; i < results.size(); ++i) {
    auto value = std::make_shared<Value>();
    value->info = outputs[i];
    if (value->info.ragged) value->info.shape = value->info.local = results[i].shape();
    CHECK(results[i].shape() == value->info.local && results[i].dtype() == value->info.dtype,
          "[{}] output {}: got {} {}, inferred {} {}", op->name(), i, name_of(results[i].dtype()),
          to_string(results[i].shape()), name_of(value->info.dtype), to_string(value->info.local));
    attach(*value, results[i]);
    if (node) {
      value->producer = node;
      value->requires_grad = grad && op->differentiable() && is_float(value->info.dtype);
      node->outputs.push_back(value);
      node->output_infos.push_back(value->info);
      node->saved_outputs.push_back(bit(op->needs_outputs(), i) ? results[i] : Tensor());
    }
    arrays.emplace_back(std::move(value), results[i]);
  }
  if (context.observer != nullptr) context.observer->applied(*op, inputs, arrays);
  return arrays;
}

Array apply_one(Context& context, std::shared_ptr<const Op> op, std::initializer_list<Array> inputs) {
  return apply(context, std::move(op), std::span<const Array>(inputs.begin(), inputs.size())).front();
}

Tensor materialize(Context& context, const ValuePtr& value) {
  if (value->recomputed.defined()) return value->recomputed;
  if (Tensor t = alive(*value); t.defined()) return t;
  if (value->offloaded) return value->recomputed = bring_back(context, *value);
  CHECK(value->producer != nullptr, "a leaf's data is gone");
  rerun(context, *value->producer);
  CHECK(value->recomputed.defined(), "[{}] did not make the value again", value->producer->op->name());
  return value->recomputed;
}

void backward(Context& context, std::span<const Array> roots, std::span<const Tensor> cotangents) {
  NoGrad no_grad(context);
  std::priority_queue<std::shared_ptr<Node>, std::vector<std::shared_ptr<Node>>, Later> queue;
  // Nodes in the queue, and the values of theirs that gradients were left on: their consumers
  // may be gone by then.
  std::unordered_map<const Node*, std::vector<ValuePtr>> waiting;
  auto visit = [&](const ValuePtr& value) {
    if (value->producer == nullptr) return;
    auto& held = waiting[value->producer.get()];
    if (held.empty()) queue.push(value->producer);
    held.push_back(value);
  };
  for (std::size_t i = 0; i < roots.size(); ++i) {
    accumulate(context, *roots[i].value(), cotangents[i]);
    visit(roots[i].value());
  }
  while (!queue.empty()) {
    auto node = queue.top();
    queue.pop();
    for (const auto& input : node->inputs) {
      if (input->requires_grad) visit(input);
    }
    run_backward(context, *node);
    waiting.erase(node.get());
  }
}

Tensor loss_seed(const Context& context, const Array& loss) {
  CHECK(loss.tensor().size() == 1, "loss of shape {}", to_string(loss.shape()));
  bool first = true;
  for (const auto& axis : dual(*context.mesh, loss.sharding()).partial) {
    first = first && context.mesh->coordinate(context.rank, axis) == 0;
  }
  if (!first) return context.zeros(loss.dtype(), loss.info().local);
  const Tensor seed = context.empty(loss.dtype(), loss.info().local);
  const TensorView one = seed.view().reshaped({1});
  random_values(*context.pool, {.to = one, .whole = {1}, .start = {0}, .factor = 1});
  return seed;
}

void backward(Context& context, const Array& loss) {
  const Tensor seed = loss_seed(context, loss);
  backward(context, std::span(&loss, 1), std::span(&seed, 1));
}

}  // namespace switchyard
