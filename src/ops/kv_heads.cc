#include "ops/kv_heads.h"

#include <algorithm>

#include "core/error.h"
#include "kernels/pointwise/strided_copy.h"
#include "kernels/pointwise/sum_over_dim.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

class SpreadHeadsOp : public Op {
 public:
  explicit SpreadHeadsOp(Axes axes) : axes_(std::move(axes)) {}
  std::string_view name() const override { return "spread_heads"; }
  std::vector<ArrayInfo> infer(const Context& c, std::span<const ArrayInfo> in) const override {
    ArrayInfo out = in[0];
    const std::size_t dim = heads_dim(out.shape);
    out.shape[dim] = c.mesh->product(axes_);
    out.local[dim] = 1;
    out.sharding.dims[dim] = axes_;
    CHECK(out.shape[dim] % in[0].shape[dim] == 0, "{} heads in {} parts", in[0].shape[dim], out.shape[dim]);
    return {out};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const Tensor& w = in[0];
    Shape shape = w.shape();
    const std::size_t dim = heads_dim(shape);
    shape[dim] = 1;
    const Tensor part = c.empty(w.dtype(), shape);
    strided_copy(*c.pool, w.view().slice(dim, head_of(c, infos[0]), 1), part.view());
    return {part};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor& part = call.grad(0);
    const ArrayInfo& whole = call.input_info(0);
    Shape shape = part.shape();
    const std::size_t dim = heads_dim(shape);
    shape[dim] = whole.shape[dim];
    const Tensor grad = c.zeros(part.dtype(), shape);
    strided_copy(*c.pool, part.view(), grad.view().slice(dim, head_of(c, whole), 1));
    return {grad};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 0; }

 private:
  // The head that belongs to this rank's part.
  std::int64_t head_of(const Context& c, const ArrayInfo& whole) const {
    const std::int64_t parts = c.mesh->product(axes_);
    const std::int64_t part = local_offset(*c.mesh, c.rank, {parts}, Sharding{{axes_}, {}})[0];
    return part * whole.shape[heads_dim(whole.shape)] / parts;
  }
  static std::size_t heads_dim(const Shape& shape) { return shape.size() - 2; }

  Axes axes_;
};

}  // namespace

std::vector<std::int64_t> kv_heads_of(const Context& c, const ArrayInfo& q, const ArrayInfo& k) {
  const std::int64_t per_kv = q.shape[2] / k.shape[2], count = q.local[2];
  const std::int64_t first = local_offset(*c.mesh, c.rank, q.shape, q.sharding)[2];
  const std::int64_t first_kv = local_offset(*c.mesh, c.rank, k.shape, k.sharding)[2];
  const bool even = count % per_kv == 0 || per_kv % count == 0;
  std::vector<std::int64_t> heads;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t head = (first + i) / per_kv - first_kv;
    CHECK(head >= 0 && head < k.local[2], "[attention] q is {}, k {}", to_string(q.sharding),
          to_string(k.sharding));
    if (!even || heads.empty() || heads.back() != head) heads.push_back(head);
  }
  return heads;
}

Tensor take_heads(Context& c, const Tensor& x, const std::vector<std::int64_t>& heads) {
  const auto count = static_cast<std::int64_t>(heads.size());
  if (count == x.dim(2) && heads.front() == 0 && heads.back() == count - 1) return x;
  const Tensor out = c.empty(x.dtype(), {x.dim(0), x.dim(1), count, x.dim(3)});
  for (std::int64_t i = 0; i < count; ++i)
    strided_copy(*c.pool, x.view().slice(2, heads[static_cast<std::size_t>(i)], 1),
                 out.view().slice(2, i, 1));
  return out;
}

Tensor put_heads(Context& c, const Tensor& x, const std::vector<std::int64_t>& heads, const Shape& whole) {
  const auto count = static_cast<std::int64_t>(heads.size());
  if (count == whole[2] && heads.front() == 0 && heads.back() == count - 1) return x;
  const Tensor out = c.zeros(x.dtype(), whole);
  std::int64_t copies = 0;  // of a head, one after the other
  for (std::int64_t i = 0; i < count; i += copies) {
    const std::int64_t head = heads[static_cast<std::size_t>(i)];
    copies = std::count(heads.begin() + i, heads.end(), head);
    const TensorView to = out.view().slice(2, head, 1);
    if (copies == 1) {
      strided_copy(*c.pool, x.view().slice(2, i, 1), to);
      continue;
    }
    const Tensor sum = c.empty(x.dtype(), {x.dim(0), x.dim(1), 1, x.dim(3)});
    sum_over_dim(*c.pool, x.view().slice(2, i, copies), 2,
                 sum.view().reshaped({x.dim(0), x.dim(1), x.dim(3)}));
    strided_copy(*c.pool, sum.view(), to);
  }
  return out;
}

Array spread_heads(Context& context, const Array& weight, const Axes& axes) {
  Sharding whole = weight.sharding();
  whole.dims[whole.dims.size() - 2].clear();
  for (Axes& dim : whole.dims) dim = axes_before(dim, Sharding{{axes}, {}});
  return apply_one(context, std::make_shared<SpreadHeadsOp>(axes), {reshard(context, weight, whole)});
}

}  // namespace switchyard
