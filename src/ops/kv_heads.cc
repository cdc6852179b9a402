#include "ops/kv_heads.h"

#include <cstring>

#include "core/error.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

class SpreadHeadsOp : public Op {
 public:
  explicit SpreadHeadsOp(Axes axes) : axes_(std::move(axes)) {}
  std::string_view name() const override { return "spread_heads"; }
  std::vector<ArrayInfo> infer(const Context& c, std::span<const ArrayInfo> in) const override {
    ArrayInfo out = in[0];
    out.shape[1] = c.mesh->product(axes_);
    out.local[1] = 1;
    out.sharding.dims[1] = axes_;
    CHECK(out.shape[1] % in[0].shape[1] == 0, "{} heads in {} parts", in[0].shape[1], out.shape[1]);
    return {out};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const Tensor& w = in[0];
    Tensor part(w.dtype(), {w.dim(0), 1, w.dim(2)});
    const std::int64_t heads = w.dim(1), head = head_of(c, infos[0]);
    const std::size_t bytes = static_cast<std::size_t>(w.dim(2)) * size_of(w.dtype());
    c.pool->for_range(w.dim(0), 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t m = begin; m < end; ++m)
        std::memcpy(part.raw() + static_cast<std::size_t>(m) * bytes,
                    w.raw() + static_cast<std::size_t>(m * heads + head) * bytes, bytes);
    });
    return {part};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor& part = call.grad(0);
    const ArrayInfo& whole = call.input_info(0);
    Tensor grad = Tensor::zeros(part.dtype(), {part.dim(0), whole.shape[1], part.dim(2)});
    const std::int64_t heads = whole.shape[1], head = head_of(c, whole);
    const std::size_t bytes = static_cast<std::size_t>(part.dim(2)) * size_of(part.dtype());
    c.pool->for_range(part.dim(0), 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t m = begin; m < end; ++m)
        std::memcpy(grad.raw() + static_cast<std::size_t>(m * heads + head) * bytes,
                    part.raw() + static_cast<std::size_t>(m) * bytes, bytes);
    });
    return {grad};
  }
  std::uint32_t needs_inputs() const override { return 0; }

 private:
  // The head of this rank's part.
  std::int64_t head_of(const Context& c, const ArrayInfo& whole) const {
    const std::int64_t parts = c.mesh->product(axes_);
    const std::int64_t part = local_offset(*c.mesh, c.rank, {parts}, Sharding{{axes_}, {}})[0];
    return part * whole.shape[1] / parts;
  }

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
  Tensor out(x.dtype(), {x.dim(0), x.dim(1), count, x.dim(3)});
  const auto head = static_cast<std::size_t>(x.dim(3)) * size_of(x.dtype());
  c.pool->for_range(x.dim(0) * x.dim(1), 32, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin * count; i < end * count; ++i) {
      const std::int64_t from = i / count * x.dim(2) + heads[static_cast<std::size_t>(i % count)];
      std::memcpy(out.raw() + static_cast<std::size_t>(i) * head,
                  x.raw() + static_cast<std::size_t>(from) * head, head);
    }
  });
  return out;
}

Array spread_heads(Context& context, const Array& weight, const Axes& axes) {
  Sharding whole = weight.sharding();
  whole.dims[1].clear();
  for (Axes& dim : whole.dims) dim = axes_before(dim, Sharding{{axes}, {}});
  return apply_one(context, std::make_shared<SpreadHeadsOp>(axes), {reshard(context, weight, whole)});
}

}  // namespace switchyard
