#include "engine/whole_tensors.h"

#include <utility>

#include "models/parameters.h"
#include "ops/reshard.h"

namespace switchyard {

Tensor block_of(const Context& context, const Tensor& whole, const Sharding& sharding) {
  const Shape local = local_shape(*context.mesh, whole.shape(), sharding),
              offset = local_offset(*context.mesh, context.rank, whole.shape(), sharding);
  bool rows = true;  // only dim 0 is split
  for (std::size_t d = 1; d < local.size(); ++d) rows = rows && local[d] == whole.dim(d);
  if (rows && !local.empty())
    return to_device(context.memory, whole.slice_rows(offset[0], offset[0] + local[0]));
  return to_device(context.memory, slice_block(whole, offset, local));
}

Tensor cotangent_block(const Context& context, const Tensor& whole, const Sharding& sharding) {
  const Axes repeats = dual(*context.mesh, sharding).partial;
  if (context.mesh->index_along(context.rank, repeats) == 0) return block_of(context, whole, sharding);
  return context.zeros(whole.dtype(), local_shape(*context.mesh, whole.shape(), sharding));
}

Tensor whole_of(Context& context, Tensor block, const Shape& shape, Sharding sharding, const Tensor& whole) {
  if (context.comm->size() == 1) {
    const Tensor host = to_host(std::exchange(block, {}));
    return host.buffer().use_count() == 1 && !host.buffer()->read_only() ? host : host.clone();
  }
  const NoGrad no_grad(context);
  const Array part = make_leaf(std::move(block), shape, sharding, false);
  sharding.partial.clear();
  const Tensor summed = to_host(reshard(context, part, sharding).tensor());
  if (context.mesh->index_along(context.rank, dual(*context.mesh, sharding).partial) == 0)
    place_block(summed, local_offset(*context.mesh, context.rank, shape, sharding), whole);
  return whole;
}

}  // namespace switchyard
