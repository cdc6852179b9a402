#include "ops/embedding.h"

#include "kernels/loss/embedding.h"
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
    Shape shape = tokens.shape();
    shape.push_back(table.dim(1));
    const Tensor out = c.empty(table.dtype(), shape);
    embedding_lookup(*c.pool, {table.view(), tokens.view(), out.view(), first_id(c, infos[0])});
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const ArrayInfo& table = call.input_info(0);
    const Tensor sum = c.zeros(DType::f32, table.local), tokens = call.input(1);
    embedding_backward(*c.pool, {call.grad(0).view(), tokens.view(), sum.view(), first_id(c, table)});
    return {sum, Tensor()};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 2; }

 private:
  static std::int64_t first_id(const Context& c, const ArrayInfo& table) {
    return local_offset(*c.mesh, c.rank, table.shape, table.sharding)[0];
  }
};

}  // namespace

// An axis may split both the table and the tokens. Then either the table is gathered, or the tokens are: each
// rank looks all of them up in its part and returns the results. The choice gathers fewer rows.
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
