#include "ops/reshard.h"

#include <algorithm>

#include "autograd/ahead.h"
#include "kernels/pointwise/strided_copy.h"
#include "ops/shared_result.h"

namespace switchyard {
namespace {

// Local tensor collectives along any dim.

std::int64_t bytes_of(const Tensor& x) {
  return static_cast<std::int64_t>(x.bytes());
}

Shape with_dim(Shape shape, std::size_t dim, std::int64_t size) {
  shape[dim] = size;
  return shape;
}

// The blocks of p ranks, in the order [p, ...] in which they arrive, as dim `dim` of one
// array has them: a view.
TensorView as_blocks_of(const TensorView& whole, std::size_t dim, std::int64_t p) {
  const TensorView split = whole.split(dim, p);
  std::vector<std::size_t> order{dim};
  for (std::size_t i = 0; i < split.rank(); ++i) {
    if (i != dim) order.push_back(i);
  }
  return split.permuted(order);
}

// x [p, blocks] as one array whose dim `dim` is made of the blocks.
Tensor unstacked(Context& c, const Tensor& stacked, const Shape& block, std::size_t dim, std::int64_t p) {
  Shape stack = block;
  stack.insert(stack.begin(), p);
  bool in_place = true;  // nothing stands before the dim
  for (std::size_t i = 0; i < dim; ++i) in_place = in_place && block[i] == 1;
  const Shape shape = with_dim(block, dim, block[dim] * p);
  if (in_place) return stacked.reshaped(shape);
  const Tensor out = c.empty(stacked.dtype(), shape);
  strided_copy(*c.pool, stacked.view().reshaped(stack), as_blocks_of(out.view(), dim, p));
  return out;
}

Tensor gather_along(Context& c, const Tensor& x, const Axes& axes, std::size_t dim) {
  const ProcessGroup& group = c.group(axes);
  const auto p = group.size();
  const Tensor stacked = c.empty(x.dtype(), with_dim(x.shape(), dim, x.dim(dim) * p));
  c.comm->all_gather(group, x.view(), stacked.view());
  return unstacked(c, stacked, x.shape(), dim, p);
}

// gather_along among ranks of one process, which all read one copy. Each rank writes its block where it
// belongs. It is charged for the copy, and for what gather_along takes beside it, as if it were alone.
Tensor gather_shared(Context& c, const Tensor& x, const Axes& axes, std::size_t dim) {
  const ProcessGroup& group = c.group(axes);
  const auto p = group.size();
  const Shape shape = with_dim(x.shape(), dim, x.dim(dim) * p);
  const std::size_t bytes = x.bytes() * group.ranks.size();
  const auto make = [&]() -> std::shared_ptr<void> { return shared_buffer(c, bytes); };
  const auto place = [&](void* made) {
    auto& buffer = *static_cast<Buffer*>(made);
    const TensorView whole(x.dtype(), shape, buffer.data(), buffer.device());
    strided_copy(*c.pool, x.view(), whole.slice(dim, group.index * x.dim(dim), x.dim(dim)));
  };
  auto made =
      std::static_pointer_cast<Buffer>(c.comm->shared_memory()->all_gather(group, bytes_of(x), make, place));
  bool in_place = true;
  for (std::size_t i = 0; i < dim; ++i) in_place = in_place && x.dim(i) == 1;
  return {x.dtype(), shape, charged_here(c, std::move(made), bytes, in_place ? 0 : bytes)};
}

// gather_along in two parts.
class StartedGather : public StartedOp {
 public:
  StartedGather(Context& c, const Tensor& x, const Axes& axes, std::size_t dim) : x_(x), dim_(dim) {
    const ProcessGroup& group = c.group(axes);
    ranks_ = group.size();
    stacked_ = c.empty(x.dtype(), with_dim(x.shape(), dim, x.dim(dim) * ranks_));
    started_ = c.comm->start_all_gather(group, x.view(), stacked_.view(), {x.buffer(), stacked_.buffer()});
  }
  std::vector<Tensor> finish(Context& c) override {
    c.comm->finish(*started_);
    started_.reset();
    return {unstacked(c, stacked_, x_.shape(), dim_, ranks_)};
  }

 private:
  Tensor x_, stacked_;
  std::size_t dim_;
  std::int64_t ranks_;
  std::shared_ptr<StartedCollective> started_;
};

// The shape of one of `p` parts along `dim`.
Shape part_of(const Tensor& x, std::size_t dim, std::int64_t p) {
  CHECK(x.dim(dim) % p == 0, "dim {} of {} over {} ranks", dim, to_string(x.shape()), p);
  return with_dim(x.shape(), dim, x.dim(dim) / p);
}

Tensor scatter_sum_along(Context& c, const Tensor& x, const Axes& axes, std::size_t dim) {
  const ProcessGroup& group = c.group(axes);
  const Tensor out = c.empty(x.dtype(), part_of(x, dim, group.size()));
  std::int64_t runs = 1;
  for (std::size_t i = 0; i < dim; ++i) runs *= x.dim(i);
  c.comm->reduce_scatter(group, x.view(), out.view(), std::max<std::int64_t>(1, runs));
  return out;
}

Tensor sum_over(Context& c, const Tensor& x, const Axes& axes) {
  Tensor out = c.empty(x.dtype(), x.shape());
  strided_copy(*c.pool, x.view(), out.view());
  c.comm->all_reduce(c.group(axes), out.view());
  return out;
}

Tensor slice_along(Context& c, const Tensor& x, const Axes& axes, std::size_t dim) {
  const std::int64_t index = c.mesh->index_along(c.rank, axes);
  const Shape shape = part_of(x, dim, c.mesh->product(axes));
  if (dim == 0) return x.slice_rows(index * shape[0], (index + 1) * shape[0]);
  const Tensor out = c.empty(x.dtype(), shape);
  strided_copy(*c.pool, x.view().slice(dim, index * shape[dim], shape[dim]), out.view());
  return out;
}

// The transpose of slice_along: this rank's block among zeros, a partial sum of the whole.
Tensor pad_along(Context& c, const Tensor& x, const Axes& axes, std::size_t dim) {
  const std::int64_t index = c.mesh->index_along(c.rank, axes), n = x.dim(dim);
  const Tensor out = c.zeros(x.dtype(), with_dim(x.shape(), dim, n * c.mesh->product(axes)));
  strided_copy(*c.pool, x.view(), out.view().slice(dim, index * n, n));
  return out;
}

// exchange among ranks of one process, each of which copies its parts to where they belong from the others'
// memory. It is charged for what exchange takes beside the result, as if it were alone.
Tensor exchange_shared(Context& c, const Tensor& x, const Axes& axes, const Shape& part, std::size_t from,
                       std::size_t to) {
  const ProcessGroup& group = c.group(axes);
  const auto p = group.size();
  const Tensor out = c.empty(x.dtype(), with_dim(part, from, part[from] * p));
  charge_for_a_moment(c, 2 * x.bytes());
  const auto take = [&](std::size_t index, const TensorView& theirs) {
    const auto other = static_cast<std::int64_t>(index);
    strided_copy(*c.pool, theirs.slice(to, group.index * part[to], part[to]),
                 out.view().slice(from, other * part[from], part[from]));
  };
  c.comm->shared_memory()->all_to_all(group, x.view(), take);
  return out;
}

// Split along `from` becomes split along `to`: parts of dim `to` go to the ranks, parts
// of dim `from` come together.
Tensor exchange(Context& c, const Tensor& x, const Axes& axes, std::size_t from, std::size_t to) {
  const ProcessGroup& group = c.group(axes);
  const auto p = group.size();
  const Shape part = part_of(x, to, p);
  if (shares_memory(c)) return exchange_shared(c, x, axes, part, from, to);
  Shape parts = part;
  parts.insert(parts.begin(), p);
  const Tensor send = c.empty(x.dtype(), parts), received = c.empty(x.dtype(), parts);
  strided_copy(*c.pool, as_blocks_of(x.view(), to, p), send.view());
  c.comm->all_to_all(group, send.view(), received.view());
  const Tensor out = c.empty(x.dtype(), with_dim(part, from, part[from] * p));
  strided_copy(*c.pool, received.view(), as_blocks_of(out.view(), from, p));
  return out;
}

class ReshardOp : public Op {
 public:
  // `weight`: of a weight by itself, which nobody writes to.
  ReshardOp(ReshardStep step, Sharding from, Sharding to, bool weight)
      : step_(std::move(step)), from_(std::move(from)), to_(std::move(to)), weight_(weight) {}
  std::string_view name() const override {
    switch (step_.kind) {
      case ReshardStep::Kind::slice:
        return "slice";
      case ReshardStep::Kind::reduce_scatter:
        return "reduce_scatter";
      case ReshardStep::Kind::all_to_all:
        return "all_to_all";
      case ReshardStep::Kind::all_gather:
        return "all_gather";
      default:
        return "all_reduce";
    }
  }
  std::vector<ArrayInfo> infer(const Context& c, std::span<const ArrayInfo> in) const override {
    ArrayInfo out{in[0].dtype, in[0].shape, to_, local_shape(*c.mesh, in[0].shape, to_)};
    if (step_.kind == ReshardStep::Kind::all_gather && weight_ && shares_memory(c)) {
      out.shared = step_.axes;
    }
    return {out};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    switch (step_.kind) {
      case ReshardStep::Kind::slice:
        return {slice_along(c, in[0], step_.axes, step_.to_dim)};
      case ReshardStep::Kind::reduce_scatter:
        return {scatter_sum_along(c, in[0], step_.axes, step_.to_dim)};
      case ReshardStep::Kind::all_to_all:
        return {exchange(c, in[0], step_.axes, step_.from_dim, step_.to_dim)};
      case ReshardStep::Kind::all_gather:
        return {gathered(c, in[0], step_.from_dim)};
      default:
        return {sum_over(c, in[0], step_.axes)};
    }
  }
  std::unique_ptr<StartedOp> start(Context& c, std::span<const Tensor> in) const override {
    if (step_.kind != ReshardStep::Kind::all_gather) return nullptr;
    return std::make_unique<StartedGather>(c, in[0], step_.axes, step_.from_dim);
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor& dy = call.grad(0);
    switch (step_.kind) {
      case ReshardStep::Kind::slice:
        return {pad_along(c, dy, step_.axes, step_.to_dim)};
      case ReshardStep::Kind::reduce_scatter:
        return {gathered(c, dy, step_.to_dim)};
      case ReshardStep::Kind::all_to_all:
        return {exchange(c, dy, step_.axes, step_.to_dim, step_.from_dim)};
      case ReshardStep::Kind::all_gather:
        return {scatter_sum_along(c, dy, step_.axes, step_.from_dim)};
      default:
        return {sum_over(c, dy, step_.axes)};
    }
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 0; }

 private:
  Tensor gathered(Context& c, const Tensor& x, std::size_t dim) const {
    return shares_memory(c) ? gather_shared(c, x, step_.axes, dim) : gather_along(c, x, step_.axes, dim);
  }

  ReshardStep step_;
  Sharding from_, to_;
  bool weight_;
};

bool has_prefix(const Axes& axes, const Axes& prefix) {
  return axes.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), axes.begin());
}

// The axis that must be appended to dim d of `now` next to come closer to `to`, or null.
const Axis* next_axis(const Sharding& now, const Sharding& to, std::size_t d) {
  if (now.dims[d].size() >= to.dims[d].size() || !has_prefix(to.dims[d], now.dims[d])) return nullptr;
  return &to.dims[d][now.dims[d].size()];
}

// The longest end of `from` that is what `to` needs next after its first `have` axes.
Axes movable(const Axes& from, const Axes& to, std::size_t have) {
  for (std::size_t n = std::min(from.size(), to.size() - have); n > 0; --n) {
    const auto end = from.end() - static_cast<std::ptrdiff_t>(n);
    if (std::equal(end, from.end(), to.begin() + static_cast<std::ptrdiff_t>(have)))
      return Axes(end, from.end());
  }
  return {};
}

bool is_split(const Sharding& s, Axis axis) {
  return std::any_of(s.dims.begin(), s.dims.end(), [&](const Axes& a) { return a.contains(axis); });
}

// One step closer to `to`, in the order free, summing, exchanging, gathering;
// empty when only all-reduces remain.
std::vector<ReshardStep> next_step(const Sharding& now, const Sharding& to) {
  using Kind = ReshardStep::Kind;
  for (std::size_t d = 0; d < now.dims.size(); ++d) {
    const Axis* axis = next_axis(now, to, d);
    if (axis == nullptr) continue;
    if (now.partial.contains(*axis)) return {{Kind::reduce_scatter, {*axis}, 0, d}};
    if (!is_split(now, *axis)) return {{Kind::slice, {*axis}, 0, d}};
    for (std::size_t i = 0; i < now.dims.size(); ++i) {
      if (i == d || has_prefix(to.dims[i], now.dims[i])) continue;
      if (Axes moved = movable(now.dims[i], to.dims[d], now.dims[d].size()); !moved.empty()) {
        return {{Kind::all_to_all, moved, i, d}};
      }
    }
  }
  for (std::size_t d = 0; d < now.dims.size(); ++d) {
    if (has_prefix(to.dims[d], now.dims[d])) continue;
    std::size_t common = 0;
    while (common < to.dims[d].size() && common < now.dims[d].size() &&
           to.dims[d][common] == now.dims[d][common])
      ++common;
    return {{Kind::all_gather,
             Axes(now.dims[d].begin() + static_cast<std::ptrdiff_t>(common), now.dims[d].end()), d, 0}};
  }
  return {};
}

Sharding after(Sharding s, const ReshardStep& step) {
  using Kind = ReshardStep::Kind;
  auto drop_partial = [&](const Axes& axes) {
    erase_if(s.partial, [&](Axis axis) { return axes.contains(axis); });
  };
  if (step.kind == Kind::all_gather || step.kind == Kind::all_to_all) {
    s.dims[step.from_dim].resize(s.dims[step.from_dim].size() - step.axes.size());
  }
  if (step.kind == Kind::slice || step.kind == Kind::reduce_scatter || step.kind == Kind::all_to_all) {
    auto& dim = s.dims[step.to_dim];
    dim.insert(dim.end(), step.axes.begin(), step.axes.end());
  }
  if (step.kind == Kind::reduce_scatter || step.kind == Kind::all_reduce) drop_partial(step.axes);
  return s;
}

}  // namespace

std::vector<ReshardStep> plan_reshard(const Sharding& from, const Sharding& to) {
  CHECK(from.dims.size() == to.dims.size(), "{} to {}", to_string(from), to_string(to));
  std::vector<ReshardStep> steps;
  Sharding now = from;
  while (true) {
    auto step = next_step(now, to);
    if (step.empty()) break;
    now = after(now, step[0]);
    // Neighbouring reduce-scatters and slices of one dim go as one collective over both axes.
    if (!steps.empty() && steps.back().kind == step[0].kind && steps.back().to_dim == step[0].to_dim &&
        (step[0].kind == ReshardStep::Kind::reduce_scatter || step[0].kind == ReshardStep::Kind::slice)) {
      steps.back().axes.push_back(step[0].axes[0]);
    } else {
      steps.push_back(step[0]);
    }
  }
  Axes rest;
  for (const Axis axis : now.partial) {
    if (!to.partial.contains(axis)) rest.push_back(axis);
  }
  for (const Axis axis : to.partial)
    CHECK(now.partial.contains(axis), "{} to {}", to_string(from), to_string(to));
  if (!rest.empty()) steps.push_back({ReshardStep::Kind::all_reduce, rest, 0, 0});
  return steps;
}

Axes axes_before(const Axes& axes, const Sharding& taken) {
  return Axes(axes.begin(),
              std::find_if(axes.begin(), axes.end(), [&](Axis axis) { return is_split(taken, axis); }));
}

Array reshard(Context& context, const Array& x, const Sharding& to) {
  if (x.sharding() == to) return x;
  Array result = x;
  for (auto& step : plan_reshard(x.sharding(), to)) {
    const Sharding before = result.sharding();
    const Sharding next = after(before, step);
    result = apply_one(context, std::make_shared<ReshardOp>(step, before, next, x.value()->weight), {result});
    result.value()->weight = x.value()->weight;
    if (x.value()->never_save)
      result = never_save(result);  // a gathered weight is cheaper to gather again than to keep
  }
  return result;
}

void start_reshard(Context& context, const Array& x, const Sharding& to) {
  if (context.ahead == nullptr || x.sharding() == to) return;
  const ReshardStep step = plan_reshard(x.sharding(), to).front();
  context.ahead->start(
      context, std::make_shared<ReshardOp>(step, x.sharding(), after(x.sharding(), step), x.value()->weight),
      x.tensor());
}

Array constrain(Context& context, const Array& x, std::initializer_list<std::string_view> logical_dims) {
  return reshard(context, x, context.rules->sharding(logical_dims, x.shape()));
}

Array replicate(Context& context, const Array& x) {
  return reshard(context, x, replicated(x.shape().size()));
}

}  // namespace switchyard
