#include "verify/gather.h"

#include <algorithm>

#include "core/error.h"
#include "engine/session.h"
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

// Concatenates the rows of `above` and `below`.
Tensor stacked(const Tensor& above, const Tensor& below) {
  Shape shape = above.shape();
  shape[0] += below.dim(0);
  Tensor all(above.dtype(), shape);
  std::copy_n(above.raw(), above.bytes(), all.raw());
  std::copy_n(below.raw(), below.bytes(), all.raw() + above.bytes());
  return all;
}

void place(const Mesh& mesh, int rank, const Tensor& local, const Sharding& sharding, Tensor& whole) {
  const Shape offset = local_offset(mesh, rank, whole.shape(), sharding);
  if (whole.dtype() == DType::i32) {
    add_block(local.data<std::int32_t>(), local.shape(), offset, whole.shape(), whole.data<std::int32_t>());
  } else {
    add_block(local.data<float>(), local.shape(), offset, whole.shape(), whole.data<float>());
  }
}

}  // namespace

Gather::Gather(const Mesh& mesh) : mesh_(stage_mesh(mesh)), pieces_(static_cast<std::size_t>(mesh.size())) {
  stages_.resize(static_cast<std::size_t>(mesh.axis_size("stage")));
  for (int rank = 0; rank < mesh.size(); ++rank)
    stages_[static_cast<std::size_t>(mesh.coordinate(rank, "stage"))].push_back(rank);
}

void Gather::put(const Context& context, const std::string& name, const Array& x, std::int64_t first_row) {
  put(context, name, first_row, {x.tensor(), x.shape(), x.sharding()});
}

void Gather::put_gradient(const Context& context, const std::string& name, const Array& x) {
  const Tensor gradient = x.grad().defined() ? x.grad() : Memory().zeros(x.dtype(), x.info().local);
  put(context, name, 0, {gradient, x.shape(), dual(mesh_, x.sharding())});
}

void Gather::put(const Context& context, const std::string& name, std::int64_t first_row, Piece piece) {
  const Tensor host = to_host(piece.local);
  piece.local = is_float(host.dtype()) ? host.cast(DType::f32).clone() : host.clone();
  pieces_[static_cast<std::size_t>(context.comm->rank())][name][first_row] = std::move(piece);
}

const Gather::Pieces* Gather::find(int rank, const std::string& name) const {
  const auto& of_rank = pieces_[static_cast<std::size_t>(rank)];
  const auto at = of_rank.find(name);
  return at == of_rank.end() ? nullptr : &at->second;
}

bool Gather::contains(const std::string& name) const {
  return std::any_of(stages_.begin(), stages_.end(),
                     [&](const std::vector<int>& ranks) { return find(ranks.front(), name) != nullptr; });
}

std::vector<std::string> Gather::names() const {
  std::set<std::string> names;
  for (const auto& ranks : stages_) {
    for (const auto& [name, pieces] : pieces_[static_cast<std::size_t>(ranks.front())]) names.insert(name);
  }
  return {names.begin(), names.end()};
}

Tensor Gather::whole(const std::string& name) {
  Tensor result;
  for (const auto& ranks : stages_) {
    const Pieces* pieces = find(ranks.front(), name);
    if (pieces == nullptr) continue;
    Tensor rows;
    for (const auto& [first_row, piece] : *pieces) {
      const Tensor part = of_stage(ranks, name, first_row);
      rows = rows.defined() ? stacked(rows, part) : part;
    }
    if (result.defined())
      place(Mesh(), 0, rows, replicated(rows.rank()), result);
    else
      result = rows;
  }
  CHECK(result.defined(), "no rank has {}", name);
  return result;
}

Tensor Gather::of_stage(const std::vector<int>& ranks, const std::string& name, std::int64_t first_row) {
  const auto piece_of = [&](int place) -> const Piece& {
    return find(ranks[static_cast<std::size_t>(place)], name)->at(first_row);
  };
  Tensor result = Tensor::zeros(piece_of(0).local.dtype(), piece_of(0).shape);
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    const Piece& piece = piece_of(rank);
    const int original = mesh_.group(rank, dual(mesh_, piece.sharding).partial).front();
    if (original == rank) {
      place(mesh_, rank, piece.local, piece.sharding, result);
      continue;
    }
    const Tensor& same = piece_of(original).local;
    const bool equal = piece.local.bytes() == same.bytes() &&
                       std::equal(same.raw(), same.raw() + same.bytes(), piece.local.raw());
    if (!equal) disagreements_.insert(name);
  }
  return result;
}

}  // namespace switchyard
