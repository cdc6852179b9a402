#include "ops/embedding.h"

#include <cstring>

#include "kernels/elementwise.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

class EmbeddingOp : public Op {
 public:
  std::string_view name() const override { return "embedding"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo out = in[1];
    out.dtype = in[0].dtype;
    out.shape.push_back(in[0].shape[1]);
    out.local.push_back(in[0].local[1]);
    out.sharding.dims.push_back(in[0].sharding.dims[1]);
    out.sharding.partial = in[0].sharding.dims[0];
    return {out};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const Tensor &table = in[0], &tokens = in[1];
    const std::int64_t begin = local_offset(*c.mesh, c.rank, infos[0].shape, infos[0].sharding)[0];
    Shape shape = tokens.shape();
    shape.push_back(table.dim(1));
    Tensor out(table.dtype(), shape);
    const std::size_t row = static_cast<std::size_t>(table.dim(1)) * size_of(table.dtype());
    c.pool->for_range(tokens.size(), 32, [&](std::int64_t first, std::int64_t end) {
      for (std::int64_t i = first; i < end; ++i) {
        std::byte* to = out.raw() + static_cast<std::size_t>(i) * row;
        const std::int64_t at = tokens.data<std::int32_t>()[i] - begin;
        if (at >= 0 && at < table.dim(0))
          std::memcpy(to, table.raw() + static_cast<std::size_t>(at) * row, row);
        else
          std::memset(to, 0, row);
      }
    });
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const ArrayInfo& table = call.input_info(0);
    const std::int64_t begin = local_offset(*c.mesh, c.rank, table.shape, table.sharding)[0];
    const std::int64_t dim = table.local[1];
    Tensor sum = Tensor::zeros(DType::f32, table.local);  // repeated tokens add up in fp32
    const std::byte* from = call.grad(0).raw();
    const DType dtype = call.grad(0).dtype();
    const Tensor tokens = call.input(1);
    if (c.abstract()) return {sum, Tensor()};
    for (std::int32_t token : tokens.span<std::int32_t>()) {
      const std::int64_t at = token - begin;
      if (at >= 0 && at < table.local[0]) {
        const TensorView row = TensorView::of_host(sum.data<float>() + at * dim, {dim});
        add(*c.pool, row, TensorView::of_host(dtype, from, {dim}), row);
      }
      from += static_cast<std::size_t>(dim) * size_of(dtype);
    }
    return {sum, Tensor()};
  }
  std::uint32_t needs_inputs() const override { return 2; }
};

}  // namespace

// An axis that splits both the table and the tokens: either the table is gathered, or the tokens are, each
// rank looks all of them up in its part of the table, and the results go home. Whichever has fewer rows.
Array embedding(Context& context, const Array& table, const Array& tokens, const Sharding& want) {
  Sharding part{table.sharding().dims, {}};
  Sharding of_tokens{{axes_before(want.dims[0], part), axes_before(want.dims[1], part)}, {}};
  if (num_elements(local_shape(*context.mesh, tokens.shape(), of_tokens)) > table.shape()[0]) {
    of_tokens.dims = {want.dims[0], want.dims[1]};
    part.dims[1].clear();
    for (const auto& dim : of_tokens.dims) {
      erase_if(part.dims[0], [&](Axis axis) { return dim.contains(axis); });
    }
  }
  const Array inputs[] = {reshard(context, table, part), reshard(context, tokens, of_tokens)};
  return reshard(context, apply(context, std::make_shared<EmbeddingOp>(), inputs).front(), want);
}

}  // namespace switchyard
