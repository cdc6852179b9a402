#include "ops/gather_to_first.h"

#include <vector>

#include "kernels/pointwise/strided_copy.h"
#include "ops/shared_result.h"

namespace switchyard {
namespace {

// The axes that split a dim of x, in the order of the dims.
Axes split_axes(const Sharding& sharding) {
  Axes axes;
  for (const Axes& of_dim : sharding.dims) axes.insert(axes.end(), of_dim.begin(), of_dim.end());
  return axes;
}

void copy_shard(Context& context, const TensorView& shard, const Shape& offset, const Tensor& whole) {
  TensorView to = whole.view();
  for (std::size_t d = 0; d < offset.size(); ++d) to = to.slice(d, offset[d], shard.dim(d));
  strided_copy(*context.pool, shard, to);
}

// `to_result` takes what is gathered in the device's memory to where the result is wanted.
template <typename ToResult>
Tensor gathered(Context& context, const Array& x, const ToResult& to_result) {
  CHECK(x.sharding().partial.empty(), "[gather] partial sums {}", to_string(x.sharding()));
  const Axes axes = split_axes(x.sharding());
  const std::vector<int> members = context.mesh->group(context.rank, axes);
  if (members.front() != 0) return {};
  const bool is_first = context.rank == 0;
  const Tensor& own = x.tensor();
  if (members.size() == 1) return to_result(own);
  const auto ranks = static_cast<std::int64_t>(members.size()), size = own.size();
  std::vector<std::int64_t> sent(members.size(), 0), received(members.size(), is_first ? 1 : 0),
      offsets(members.size());
  sent[0] = 1;
  for (std::size_t i = 0; i < offsets.size(); ++i) offsets[i] = is_first ? static_cast<std::int64_t>(i) : 0;
  const std::vector<std::int64_t> none(members.size());
  const ProcessGroup& group = context.group(axes);
  const TensorView mine = own.view().reshaped({1, size});
  const auto offset_of = [&](std::size_t member) {
    return local_offset(*context.mesh, members[member], x.shape(), x.sharding());
  };
  if (shares_memory(context)) {  // the first rank copies from the others' memory
    const Tensor whole = is_first ? context.empty(x.dtype(), x.shape()) : Tensor();
    const auto take = [&](std::size_t member, const TensorView& theirs) {
      if (is_first) copy_shard(context, theirs.reshaped(own.shape()), offset_of(member), whole);
    };
    context.comm->shared_memory()->ragged_all_to_all(group, mine, sent, received, take);
    return is_first ? to_result(whole) : Tensor();
  }
  const Tensor shards = context.empty(x.dtype(), {is_first ? ranks : 0, size});
  context.comm->ragged_all_to_all(group, mine, {none, sent}, shards.view(), {offsets, received});
  if (!is_first) return {};
  const Tensor there = to_result(shards);
  const Memory memory = there.memory().device().is_host() ? Memory() : there.memory();
  const Tensor whole(memory, x.dtype(), x.shape());
  for (std::size_t i = 0; i < members.size(); ++i)
    copy_shard(context,
               there.slice_rows(static_cast<std::int64_t>(i), static_cast<std::int64_t>(i) + 1)
                   .view()
                   .reshaped(own.shape()),
               offset_of(i), whole);
  return whole;
}

}  // namespace

Tensor gather_to_first(Context& context, const Array& x, std::string_view what) {
  return gathered(context, x, [&](const Tensor& there) {
    return read_back(context, there, what, [&] { return Memory().zeros(there.dtype(), there.shape()); });
  });
}

Tensor gather_to_first_device(Context& context, const Array& x) {
  return gathered(context, x, [](const Tensor& there) { return there; });
}

}  // namespace switchyard
