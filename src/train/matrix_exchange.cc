#include "train/matrix_exchange.h"

#include <algorithm>
#include <numeric>

#include "kernels/pointwise/strided_copy.h"

namespace switchyard {
namespace {

Shape dims_from(const Shape& shape, std::size_t first) {
  return Shape(shape.begin() + static_cast<std::ptrdiff_t>(first), shape.end());
}

Shape with_front(std::int64_t n, Shape shape) {
  shape.insert(shape.begin(), n);
  return shape;
}

}  // namespace

MatrixExchange::MatrixExchange(const Context& context, const Parameter& parameter, OwnerLoads& loads) {
  const MatrixForm form = parameter.spec.matrix;
  const Mesh& mesh = *context.mesh;
  const Sharding& sharding = parameter.array.sharding();
  const Shape &shape = parameter.spec.shape, &local = parameter.array.info().local;
  CHECK(form.inputs > 0 && form.stack + form.inputs < shape.size(), "{} is no matrix", parameter.spec.name);
  Axes axes = dual(mesh, sharding).partial, split;
  for (std::size_t d = form.stack; d < shape.size(); ++d)
    split.insert(split.end(), sharding.dims[d].begin(), sharding.dims[d].end());
  replicas_ = static_cast<std::size_t>(mesh.product(axes));
  blocks_ = static_cast<std::size_t>(mesh.product(split));
  axes.insert(axes.end(), split.begin(), split.end());
  group_ = &context.group(axes);
  me_ = static_cast<std::size_t>(group_->index);

  whole_ = dims_from(shape, form.stack);
  local_ = dims_from(local, form.stack);
  part_ = num_elements(local_);
  matrices_ = num_elements(Shape(local.begin(), local.begin() + static_cast<std::ptrdiff_t>(form.stack)));
  inputs_ = num_elements(Shape(whole_.begin(), whole_.begin() + static_cast<std::ptrdiff_t>(form.inputs)));
  outputs_ = num_elements(whole_) / inputs_;
  const std::vector<int> members = mesh.group(context.rank, axes);  // as the mesh numbers them
  for (std::size_t x = 0; x < blocks_; ++x)
    offsets_.push_back(dims_from(local_offset(mesh, members[x], shape, sharding), form.stack));
  moves_ = blocks_ > 1 || matrices_ % static_cast<std::int64_t>(replicas_) != 0;
  choose_owners(loads[group_->axis]);
  plan_traffic();
}

// Owners follow the order of the matrices. With fewer matrices than ranks, each matrix has its own
// candidates, some of which hold a part of the matrix.
void MatrixExchange::choose_owners(std::vector<double>& loads) {
  const auto members = static_cast<std::int64_t>(group_->ranks.size());
  const auto side = static_cast<double>(std::min(inputs_, outputs_));
  const double work = side * static_cast<double>(inputs_) * static_cast<double>(outputs_);
  loads.resize(group_->ranks.size(), 0.0);
  first_.assign(group_->ranks.size() + 1, 0);
  for (std::int64_t j = 0; j < matrices_; ++j) {
    const std::int64_t begin = j * members / matrices_,
                       end = std::max(begin + 1, (j + 1) * members / matrices_);
    const auto owner = std::min_element(loads.begin() + begin, loads.begin() + end);
    *owner += work;
    ++first_[static_cast<std::size_t>(owner - loads.begin()) + 1];
  }
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
}

MatrixExchange::Span MatrixExchange::range_of(std::size_t member) const {
  const auto replicas = static_cast<std::int64_t>(replicas_), r = static_cast<std::int64_t>(member / blocks_);
  const std::int64_t size = matrices_ * part_, share = (size + replicas - 1) / replicas;
  return {std::min(size, share * r), std::min(size, share * (r + 1))};
}

MatrixExchange::Span MatrixExchange::overlap(std::size_t member, std::size_t owner) const {
  const Span range = range_of(member);
  const std::int64_t begin = std::clamp(first_[owner] * part_, range.begin, range.end);
  return {begin, std::clamp(first_[owner + 1] * part_, begin, range.end)};
}

void MatrixExchange::plan_traffic() {
  const Span mine = range_of(me_);
  const std::int64_t block = owned() * part_;
  for (std::size_t i = 0; i < group_->ranks.size(); ++i) {
    const Span out = overlap(me_, i), in = overlap(i, me_);
    traffic_.range_offset.push_back(out.begin - mine.begin);
    traffic_.range_count.push_back(out.size());
    const auto x = static_cast<std::int64_t>(i % blocks_);
    traffic_.block_offset.push_back(in.size() == 0 ? 0 : x * block + in.begin - first_[me_] * part_);
    traffic_.block_count.push_back(in.size());
  }
}

// Block x of the owned matrices: as they were brought, one block after the other, and where it
// is in the whole ones.
TensorView MatrixExchange::part_in(const Tensor& parts, std::size_t x) const {
  const auto row = static_cast<std::int64_t>(x);
  return parts.view().rows(row, row + 1).reshaped(with_front(owned(), local_));
}

TensorView MatrixExchange::block_in(const Tensor& whole, std::size_t x) const {
  TensorView block = whole.view();
  for (std::size_t d = 0; d < local_.size(); ++d) block = block.slice(d + 1, offsets_[x][d], local_[d]);
  return block;
}

Tensor MatrixExchange::gather(Context& context, const Tensor& range) const {
  const Shape result{owned(), inputs_, outputs_};
  CHECK(range.dtype() == DType::f32 && range.size() == range_of(me_).size(), "{} elements of a range",
        range.size());
  if (!moves_) return range.reshaped(result);
  const auto blocks = static_cast<std::int64_t>(blocks_);
  const Tensor parts = context.empty(DType::f32, {blocks, owned() * part_});
  context.comm->ragged_all_to_all(*group_, range.view(), {traffic_.range_offset, traffic_.range_count},
                                  parts.view().reshaped({parts.size()}),
                                  {traffic_.block_offset, traffic_.block_count});
  if (blocks_ == 1) return parts.reshaped(result);
  const Tensor whole = context.empty(DType::f32, with_front(owned(), whole_));
  for (std::size_t x = 0; x < blocks_; ++x)
    strided_copy(*context.pool, part_in(parts, x), block_in(whole, x));
  return whole.reshaped(result);
}

Tensor MatrixExchange::scatter(Context& context, const Tensor& matrices) const {
  CHECK(matrices.dtype() == DType::f32 && matrices.shape() == (Shape{owned(), inputs_, outputs_}), "{}",
        to_string(matrices.shape()));
  const std::int64_t count = range_of(me_).size();
  if (!moves_) return matrices.reshaped({count});
  Tensor parts = matrices;
  if (blocks_ > 1) {
    parts = context.empty(DType::f32, {static_cast<std::int64_t>(blocks_), owned() * part_});
    const Tensor whole = matrices.reshaped(with_front(owned(), whole_));
    for (std::size_t x = 0; x < blocks_; ++x)
      strided_copy(*context.pool, block_in(whole, x), part_in(parts, x));
  }
  const Tensor range = context.empty(DType::f32, {count});
  context.comm->ragged_all_to_all(*group_, parts.view().reshaped({parts.size()}),
                                  {traffic_.block_offset, traffic_.block_count}, range.view(),
                                  {traffic_.range_offset, traffic_.range_count});
  return range;
}

}  // namespace switchyard
