#include "ops/reshard.h"

#include <algorithm>
#include <cstring>

#include "autograd/ahead.h"
#include "kernels/elementwise.h"
#include "ops/shared_result.h"

namespace switchyard {
namespace {

// [pre, n, post] around dim `dim`, in elements.
struct Block {
  std::int64_t pre = 1, n = 1, post = 1;
};

Block block_of(const Shape& shape, std::size_t dim) {
  Block b;
  for (std::size_t i = 0; i < shape.size(); ++i) (i < dim ? b.pre : i == dim ? b.n : b.post) *= shape[i];
  return b;
}

std::int64_t bytes_of(DType dtype) {
  return static_cast<std::int64_t>(size_of(dtype));
}

// Local tensor collectives along any dim.

// [pre, p, n·post] from [p, pre, n·post], the order in which the blocks of p ranks arrive.
Tensor unstacked(Context& c, const Tensor& stacked, const Block& block, std::int64_t p) {
  if (block.pre == 1) return stacked;
  Tensor out(stacked.dtype(), stacked.shape());
  transpose_blocks(*c.pool, bytes_of(out.dtype()), stacked.raw(), 1, p, block.pre, block.n * block.post,
                   out.raw());
  return out;
}

Tensor gather_along(Context& c, const Tensor& x, const Axes& axes, std::size_t dim) {
  const Group group = c.group(axes);
  const auto p = static_cast<std::int64_t>(group.ranks.size());
  Shape shape = x.shape();
  shape[dim] *= p;
  const Tensor stacked(x.dtype(), shape);
  c.comm->all_gather(group, joined(axes), x.raw(), stacked.raw(), static_cast<std::int64_t>(x.bytes()));
  return unstacked(c, stacked, block_of(x.shape(), dim), p);
}

// gather_along among ranks of one process, which all read one copy. Each rank writes its block where it
// belongs. It is charged for the copy, and for what gather_along takes beside it, as if it were alone.
Tensor gather_shared(Context& c, const Tensor& x, const Axes& axes, std::size_t dim) {
  const Group group = c.group(axes);
  const std::size_t ranks = group.ranks.size(), bytes = x.bytes() * ranks;
  const Block block = block_of(x.shape(), dim);
  const auto place = [&](void* made) {
    const auto run = static_cast<std::size_t>(block.n * block.post * bytes_of(x.dtype()));
    std::byte* const whole = static_cast<Buffer*>(made)->data();
    for (std::size_t i = 0; i < static_cast<std::size_t>(block.pre); ++i)
      std::memcpy(whole + (i * ranks + static_cast<std::size_t>(group.index)) * run, x.raw() + i * run, run);
  };
  auto made = std::static_pointer_cast<Buffer>(c.comm->all_gather_shared(
      group, joined(axes), static_cast<std::int64_t>(x.bytes()), [&] { return shared_buffer(bytes); },
      place));
  Shape shape = x.shape();
  shape[dim] *= static_cast<std::int64_t>(ranks);
  return {x.dtype(), shape, charged_here(std::move(made), bytes, block.pre == 1 ? 0 : bytes)};
}

// gather_along in two parts.
class StartedGather : public StartedOp {
 public:
  StartedGather(Context& c, const Tensor& x, const Axes& axes, std::size_t dim) : x_(x), dim_(dim) {
    const Group group = c.group(axes);
    ranks_ = static_cast<std::int64_t>(group.ranks.size());
    Shape shape = x.shape();
    shape[dim] *= ranks_;
    stacked_ = Tensor(x.dtype(), shape);
    started_ =
        c.comm->start_all_gather(group, joined(axes), x.raw(), stacked_.raw(),
                                 static_cast<std::int64_t>(x.bytes()), {x.buffer(), stacked_.buffer()});
  }
  std::vector<Tensor> finish(Context& c) override {
    c.comm->finish(*started_);
    started_.reset();
    return {unstacked(c, stacked_, block_of(x_.shape(), dim_), ranks_)};
  }

 private:
  Tensor x_, stacked_;
  std::size_t dim_;
  std::int64_t ranks_;
  std::shared_ptr<StartedCollective> started_;
};

Tensor scatter_sum_along(Context& c, const Tensor& x, const Axes& axes, std::size_t dim) {
  const Group group = c.group(axes);
  const auto p = static_cast<std::int64_t>(group.ranks.size());
  Shape shape = x.shape();
  CHECK(shape[dim] % p == 0, "dim {} of {} over {} ranks", dim, to_string(shape), p);
  shape[dim] /= p;
  Tensor out(x.dtype(), shape);
  c.comm->reduce_scatter(group, joined(axes), x.dtype(), x.raw(), out.raw(),
                         out.size(), std::max<std::int64_t>(1, block_of(shape, dim).pre));
  return out;
}

Tensor sum_over(Context& c, const Tensor& x, const Axes& axes) {
  Tensor out = x.clone();
  c.comm->all_reduce(c.group(axes), joined(axes), out.dtype(), out.raw(), out.size());
  return out;
}

Tensor slice_along(Context& c, const Tensor& x, const Axes& axes, std::size_t dim) {
  const std::int64_t p = c.mesh->product(axes);
  const std::int64_t index = c.mesh->index_along(c.rank, axes);
  Shape shape = x.shape();
  CHECK(shape[dim] % p == 0, "dim {} of {} over {} ranks", dim, to_string(shape), p);
  shape[dim] /= p;
  if (dim == 0) return x.slice_rows(index * shape[0], (index + 1) * shape[0]);
  Tensor out(x.dtype(), shape);
  const Block b = block_of(shape, dim);
  const auto row = static_cast<std::size_t>(b.n * b.post * bytes_of(x.dtype()));
  c.pool->for_range(b.pre, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      std::copy_n(x.raw() + static_cast<std::size_t>(i * p + index) * row, row,
                  out.raw() + static_cast<std::size_t>(i) * row);
  });
  return out;
}

// The transpose of slice_along: this rank's block among zeros, a partial sum of the whole.
Tensor pad_along(Context& c, const Tensor& x, const Axes& axes, std::size_t dim) {
  const std::int64_t p = c.mesh->product(axes);
  const std::int64_t index = c.mesh->index_along(c.rank, axes);
  Shape shape = x.shape();
  shape[dim] *= p;
  Tensor out = Tensor::zeros(x.dtype(), shape);
  const Block b = block_of(x.shape(), dim);
  const auto row = static_cast<std::size_t>(b.n * b.post * bytes_of(x.dtype()));
  c.pool->for_range(b.pre, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      std::copy_n(x.raw() + static_cast<std::size_t>(i) * row, row,
                  out.raw() + static_cast<std::size_t>(i * p + index) * row);
  });
  return out;
}

// exchange among ranks of one process, each of which copies its parts to where they belong from the others'
// memory. It is charged for what exchange takes beside the result, as if it were alone.
Tensor exchange_shared(Context& c, const Tensor& x, const Axes& axes, const Shape& part, std::size_t from,
                       std::size_t to) {
  const Group group = c.group(axes);
  const auto p = static_cast<std::int64_t>(group.ranks.size());
  Shape shape = part;
  shape[from] *= p;
  Tensor out(x.dtype(), shape);
  charge_for_a_moment(2 * x.bytes());
  // A part is [before, n, between, run]: the first of the two dims, and runs that begin with the second.
  const Block first = block_of(part, std::min(from, to)), second = block_of(part, std::max(from, to));
  const std::int64_t n = first.n, between = second.pre / std::max<std::int64_t>(1, first.pre * n);
  const auto run = static_cast<std::size_t>(second.n * second.post * bytes_of(x.dtype()));
  // Where a run is in memory that has p parts along the first dim, or along the second.
  const auto place = [&](std::int64_t i, std::int64_t of_part, bool along_first) {
    const std::int64_t outer = i / (n * between), inner = i % (n * between);
    const std::int64_t at = along_first ? (outer * p + of_part) * n * between + inner : i * p + of_part;
    return static_cast<std::size_t>(at) * run;
  };
  const auto grain = static_cast<std::int64_t>(65536 / std::clamp<std::size_t>(run, 1, 65536));
  const auto take = [&](std::size_t index, const void* theirs) {
    const auto* const source = static_cast<const std::byte*>(theirs);
    c.pool->for_range(second.pre, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        std::memcpy(out.raw() + place(i, static_cast<std::int64_t>(index), from < to),
                    source + place(i, group.index, to < from), run);
    });
  };
  c.comm->all_to_all_shared(group, joined(axes), x.raw(), static_cast<std::int64_t>(x.bytes()) / p, take);
  return out;
}

// Split along `from` becomes split along `to`: parts of dim `to` go to the ranks, parts of dim `from` come
// together.
Tensor exchange(Context& c, const Tensor& x, const Axes& axes, std::size_t from, std::size_t to) {
  const Group group = c.group(axes);
  const auto p = static_cast<std::int64_t>(group.ranks.size());
  const std::int64_t e = bytes_of(x.dtype());
  Shape part = x.shape();
  CHECK(part[to] % p == 0, "dim {} of {} over {} ranks", to, to_string(part), p);
  part[to] /= p;
  if (shares_memory(c)) return exchange_shared(c, x, axes, part, from, to);
  const Block cut = block_of(part, to);
  Tensor send(x.dtype(), x.shape());  // [p, part]
  transpose_blocks(*c.pool, e, x.raw(), 1, cut.pre, p, cut.n * cut.post, send.raw());
  Tensor received(x.dtype(), x.shape());
  c.comm->all_to_all(group, joined(axes), send.raw(), received.raw(),
                     static_cast<std::int64_t>(x.bytes()) / p);
  const Block join = block_of(part, from);
  part[from] *= p;
  Tensor out(x.dtype(), part);
  transpose_blocks(*c.pool, e, received.raw(), 1, p, join.pre, join.n * join.post, out.raw());
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
  std::uint32_t needs_inputs() const override { return 0; }

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

// One step closer to `to`, in the order free, summing, exchanging, gathering; empty when only all-reduces
// remain.
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
