#include "ops/packed_operand.h"

#include "kernels/packed/packed_weights.h"

namespace switchyard {
namespace {

class DenseWeightOp : public Op {
 public:
  explicit DenseWeightOp(DType to) : to_(to) {}
  std::string_view name() const override { return "unpack"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo out = in[0];
    out.dtype = to_;
    out.shape = unpacked_shape(in[0].dtype, in[0].shape);
    out.local = unpacked_shape(in[0].dtype, in[0].local);
    return {out};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    return {dense_operand(c, in[0], unpacked_shape(in[0].dtype(), in[0].shape()), to_)};
  }
  bool differentiable() const override { return false; }

 private:
  DType to_;
};

}  // namespace

Tensor dense_operand(Context& c, const Tensor& weights, const Shape& dense, DType dtype) {
  if (!is_packed(weights.dtype())) return weights;
  const Tensor values = c.empty(dtype, dense);
  if (values.size() == 0) return values;
  // The dims up to the last input dim are rows of blocks; all others are columns.
  std::size_t dims = 0;
  std::int64_t rows = 1;
  do rows *= weights.dim(dims);
  while (weights.dim(dims) == dense[dims] && ++dims < dense.size());
  const std::int64_t columns = weights.size() / rows;
  unpack_weights(
      *c.pool,
      {.packed = weights.view().reshaped({rows, columns}),
       .dense = values.view().reshaped({rows * block_inputs(weights.dtype()), columns * kBlockOutputs})});
  return values;
}

Array dense_weight(Context& context, const Array& weights, DType dtype) {
  if (!is_packed(weights.dtype())) return weights;
  Array dense = apply_one(context, std::make_shared<DenseWeightOp>(dtype), {weights});
  dense.value()->weight = weights.value()->weight;
  return never_save(dense);
}

}  // namespace switchyard
