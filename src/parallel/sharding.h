// Sharding: how one tensor is distributed over the ranks of a mesh.
//
// `dims` has, per dim, the ordered mesh axes that split it, major to minor, in equal blocks. `partial` has
// the axes over which the true value is the sum of the local values. An axis appears at most once. Over every
// other axis the tensor is whole: each rank holds the same values.
#pragma once

#include <string>

#include "core/tensor.h"
#include "parallel/axis.h"
#include "parallel/mesh.h"

namespace switchyard {

struct Sharding {
  InlineVector<Axes, kMostDims> dims;
  Axes partial;
  bool operator==(const Sharding&) const = default;
};

Sharding replicated(std::size_t rank);            // `rank` dims, all whole
std::string to_string(const Sharding& sharding);  // "[data+fsdp, -, tensor] partial(expert)"

// The shape of each rank's block. The product of a dim's axes must divide the dim (CHECK).
Shape local_shape(const Mesh& mesh, const Shape& global, const Sharding& sharding);
// The first index of this rank's block along each dim.
Shape local_offset(const Mesh& mesh, int rank, const Shape& global, const Sharding& sharding);

// The sharding of the cotangent: the same dims, with whole and partial exchanged. Its `partial` has the mesh
// axes larger than 1 that are neither in dims nor in partial, in mesh order.
Sharding dual(const Mesh& mesh, const Sharding& sharding);

}  // namespace switchyard
