// The up-projection of latent attention, in the form that generation uses.
#include "kernels/pointwise/strided_copy.h"
#include "ops/attention_cache.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

class SplitUpProjectionOp : public Op {
 public:
  explicit SplitUpProjectionOp(std::int64_t nope) : nope_(nope) {}
  std::string_view name() const override { return "split_up_projection"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    std::vector<ArrayInfo> parts;
    for (const std::int64_t width : {nope_, in[0].shape[2] - nope_}) {
      ArrayInfo part;
      part.dtype = in[0].dtype;
      part.shape = {in[0].shape[1], in[0].shape[0], width};
      part.local = {in[0].local[1], in[0].local[0], width};
      part.sharding.dims = {in[0].sharding.dims[1], in[0].sharding.dims[0], {}};
      parts.push_back(part);
    }
    return parts;
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor& w = in[0];
    const std::int64_t ranks = w.dim(0), heads = w.dim(1), value = w.dim(2) - nope_;
    const Tensor key_up = c.empty(w.dtype(), {heads, ranks, nope_}),
                 value_up = c.empty(w.dtype(), {heads, ranks, value});
    const TensorView heads_first = w.view().permuted({1, 0, 2});
    strided_copy(*c.pool, heads_first.slice(2, 0, nope_), key_up.view());
    strided_copy(*c.pool, heads_first.slice(2, nope_, value), value_up.view());
    return {key_up, value_up};
  }
  bool differentiable() const override { return false; }

 private:
  std::int64_t nope_;
};

}  // namespace

std::pair<Array, Array> split_up_projection(Context& context, const Array& wkv_b, std::int64_t nope) {
  Sharding whole_columns = wkv_b.sharding();
  whole_columns.dims.back().clear();
  const Array w = reshard(context, wkv_b, whole_columns);
  auto parts = apply(context, std::make_shared<SplitUpProjectionOp>(nope), std::span(&w, 1));
  return {parts[0], parts[1]};
}

}  // namespace switchyard
