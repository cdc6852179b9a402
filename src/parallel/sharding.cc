#include "parallel/sharding.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace switchyard {

Sharding replicated(std::size_t rank) {
  Sharding sharding;
  sharding.dims.resize(rank);
  return sharding;
}

std::string to_string(const Sharding& sharding) {
  std::vector<std::string> parts;
  for (const Axes& axes : sharding.dims) parts.push_back(axes.empty() ? "-" : joined(axes));
  std::string text = fmt::format("[{}]", fmt::join(parts, ", "));
  if (!sharding.partial.empty()) text += fmt::format(" partial({})", joined(sharding.partial));
  return text;
}

Shape local_shape(const Mesh& mesh, const Shape& global, const Sharding& sharding) {
  CHECK(global.size() == sharding.dims.size(), "shape {} with sharding {}", to_string(global),
        to_string(sharding));
  Shape local = global;
  for (std::size_t i = 0; i < local.size(); ++i) {
    const int parts = mesh.product(sharding.dims[i]);
    CHECK(global[i] % parts == 0, "shape {} with sharding {} on {}", to_string(global), to_string(sharding),
          mesh.to_string());
    local[i] = global[i] / parts;
  }
  return local;
}

Shape local_offset(const Mesh& mesh, int rank, const Shape& global, const Sharding& sharding) {
  Shape offset = local_shape(mesh, global, sharding);
  for (std::size_t i = 0; i < offset.size(); ++i) offset[i] *= mesh.index_along(rank, sharding.dims[i]);
  return offset;
}

Sharding dual(const Mesh& mesh, const Sharding& sharding) {
  Sharding result{sharding.dims, {}};
  for (const MeshAxis& axis : mesh.axes()) {
    bool used = axis.size == 1 || sharding.partial.contains(axis.axis);
    for (const Axes& axes : sharding.dims) used = used || axes.contains(axis.axis);
    if (!used) result.partial.push_back(axis.axis);
  }
  return result;
}

}  // namespace switchyard
