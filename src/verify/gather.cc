#include "verify/gather.h"

#include <algorithm>

#include "models/parameters.h"

namespace switchyard {
namespace {

template <typename T>
void add_block(const T* block, const Shape& local, const Shape& offset, const Shape& shape, T* whole) {
  for (std::int64_t i = 0; i < num_elements(local); ++i) {
    std::int64_t rest = i, at = 0, stride = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      at += (offset[d] + rest % local[d]) * stride;
      rest /= local[d];
      stride *= shape[d];
    }
    whole[at] += block[i];
  }
}

}  // namespace

void Gather::put(const Context& context, const std::string& name, const Array& x) {
  put(context, name, x.tensor(), x.shape(), x.sharding());
}

void Gather::put_gradient(const Context& context, const std::string& name, const Array& x) {
  const Tensor gradient = x.grad().defined() ? x.grad() : Tensor::zeros(x.dtype(), x.info().local);
  put(context, name, gradient, x.shape(), dual(mesh_, x.sharding()));
}

void Gather::put(const Context& context, const std::string& name, const Tensor& local, Shape shape,
                 Sharding sharding) {
  const Tensor copy = is_float(local.dtype()) ? local.cast(DType::f32).clone() : local.clone();
  pieces_[static_cast<std::size_t>(context.rank)][name] = {copy, std::move(shape), std::move(sharding)};
}

std::vector<std::string> Gather::names() const {
  std::vector<std::string> names;
  for (const auto& piece : pieces_[0]) names.push_back(piece.first);
  return names;
}

Tensor Gather::whole(const std::string& name) {
  const auto first = pieces_[0].find(name);
  CHECK(first != pieces_[0].end(), "no rank has {}", name);
  Tensor result = Tensor::zeros(first->second.local.dtype(), first->second.shape);
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    const Piece& piece = pieces_[static_cast<std::size_t>(rank)].at(name);
    const int original = mesh_.group(rank, dual(mesh_, piece.sharding).partial).front();
    if (original == rank) {
      place(piece, rank, result);
      continue;
    }
    const Tensor& same = pieces_[static_cast<std::size_t>(original)].at(name).local;
    const bool equal = piece.local.bytes() == same.bytes() &&
                       std::equal(same.raw(), same.raw() + same.bytes(), piece.local.raw());
    if (!equal) disagreements_.insert(name);
  }
  return result;
}

void Gather::place(const Piece& piece, int rank, Tensor& whole) const {
  const Shape offset = local_offset(mesh_, rank, piece.shape, piece.sharding);
  const Shape& local = piece.local.shape();
  if (whole.dtype() == DType::i32) {
    add_block(piece.local.data<std::int32_t>(), local, offset, piece.shape, whole.data<std::int32_t>());
  } else {
    add_block(piece.local.data<float>(), local, offset, piece.shape, whole.data<float>());
  }
}

Tensor block_of(const Context& context, const Tensor& whole, const Sharding& sharding) {
  const Shape local = local_shape(*context.mesh, whole.shape(), sharding);
  return slice_block(whole, local_offset(*context.mesh, context.rank, whole.shape(), sharding), local);
}

Tensor cotangent_block(const Context& context, const Tensor& whole, const Sharding& sharding) {
  const Axes repeats = dual(*context.mesh, sharding).partial;
  if (context.mesh->index_along(context.rank, repeats) == 0) return block_of(context, whole, sharding);
  return Tensor::zeros(whole.dtype(), local_shape(*context.mesh, whole.shape(), sharding));
}

}  // namespace switchyard
