#include "ops/basic.h"

#include <algorithm>

#include "kernels/loss/last_tokens.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/strided_copy.h"
#include "kernels/pointwise/sum_over_dim.h"
#include "ops/reshard.h"
#include "ops/shared_result.h"

namespace switchyard {
namespace {

Tensor scaled(Context& c, const Tensor& x, float factor) {
  const Tensor out = c.empty(x.dtype(), x.shape());
  switchyard::scale(*c.pool, x.view(), factor, out.view());
  return out;
}

class CastOp : public Op {
 public:
  CastOp(DType to, float factor) : to_(to), factor_(factor) {}
  std::string_view name() const override { return "cast"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo out = in[0];
    out.dtype = to_;
    return {out};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const Tensor& x = in[0];
    if (factor_ != 1) return {converted(*c.pool, scaled(c, x, factor_), to_)};
    const Axes& shared = infos[0].shared;
    if (x.bytes() < kWorthSharing || c.abstract() || c.mesh->product(shared) == 1)
      return {converted(*c.pool, x, to_)};
    const TensorView elements = x.view().reshaped({x.size()});
    const auto part = [&](const TensorView& out, std::int64_t begin, std::int64_t end) {
      convert(*c.pool, elements.rows(begin, end), out.rows(begin, end));
    };
    return {made_together(c, shared, to_, x.shape(), part)};
  }
  // The gradient keeps its own type: the code that adds or stores it converts it.
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    return {factor_ == 1 ? call.grad(0) : scaled(c, call.grad(0), factor_)};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 0; }

 private:
  static constexpr std::size_t kWorthSharing =
      512 * 1024;  // the meeting of ranks takes as long as to cast it
  DType to_;
  float factor_;
};

class AddBiasOp : public Op {
 public:
  std::string_view name() const override { return "add_bias"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    CHECK(in[0].sharding.partial.empty() && in[0].dtype == in[1].dtype, "[add_bias] {} {} and {}",
          name_of(in[0].dtype), to_string(in[0].sharding), name_of(in[1].dtype));
    return {in[0]};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor out = c.empty(in[0].dtype(), in[0].shape());
    add_to_rows(*c.pool, in[0].view(), in[1].view(), out.view());
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor grad = call.grad(0);
    if (!call.wanted(1)) return {grad, Tensor()};
    const Shape& bias = call.input_info(1).local;
    const std::int64_t columns = num_elements(bias), rows = grad.size() / std::max<std::int64_t>(1, columns);
    const std::int64_t width = columns % kColumnsOfAPiece == 0 ? kColumnsOfAPiece : columns;
    const Tensor sum = c.empty(grad.dtype(), bias);
    const Shape pieces{columns / std::max<std::int64_t>(1, width), width};
    sum_over_dim(*c.pool, grad.view().reshaped({rows, pieces[0], pieces[1]}), 0, sum.view().reshaped(pieces));
    return {grad, sum};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 0; }

 private:
  static constexpr std::int64_t kColumnsOfAPiece = 64;  // the sums of a bias's gradient go to several cores
};

class AddOp : public Op {
 public:
  std::string_view name() const override { return "add"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    CHECK(in[0].shape == in[1].shape && in[0].sharding == in[1].sharding && in[0].dtype == in[1].dtype,
          "[add] {} {} {} and {} {} {}", name_of(in[0].dtype), to_string(in[0].shape),
          to_string(in[0].sharding), name_of(in[1].dtype), to_string(in[1].shape), to_string(in[1].sharding));
    return {in[0]};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor out = c.empty(in[0].dtype(), in[0].shape());
    switchyard::add(*c.pool, in[0].view(), in[1].view(), out.view());
    return {out};
  }
  std::vector<Tensor> backward(Context&, const BackwardCall& call) const override {
    return {call.grad(0), call.grad(0)};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 0; }
};

class ScaleOp : public Op {
 public:
  explicit ScaleOp(float factor) : factor_(factor) {}
  std::string_view name() const override { return "scale"; }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    return {scaled(c, in[0], factor_)};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    return {scaled(c, call.grad(0), factor_)};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 0; }

 private:
  float factor_;
};

std::int64_t last(const Tensor& x) {
  return x.shape().back();
}

class SwigluOp : public Op {
 public:
  std::string_view name() const override { return "swiglu"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    CHECK(in[0].local == in[1].local, "[swiglu] {} and {}", to_string(in[0].local), to_string(in[1].local));
    return {in[0]};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor out = c.empty(in[0].dtype(), in[0].shape());
    switchyard::swiglu(*c.pool, {in[0].view(), in[1].view(), {}, out.view()});
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor gate = call.input(0), up = call.input(1);
    const Tensor dgate = c.empty(gate.dtype(), gate.shape()), dup = c.empty(gate.dtype(), gate.shape());
    swiglu_backward(*c.pool, {gate.view(), up.view(), {}, call.grad(0).view(), dgate.view(), dup.view(), {}});
    return {dgate, dup};
  }
};

// Indices [at, at + count) along a dim of `whole`, copied to `part` or from it.
void cut_out(Context& c, const Tensor& whole, std::size_t dim, std::int64_t at, const Tensor& part) {
  strided_copy(*c.pool, whole.view().slice(dim, at, part.dim(dim)), part.view());
}
void put_in(Context& c, const Tensor& part, const Tensor& whole, std::size_t dim, std::int64_t at) {
  strided_copy(*c.pool, part.view(), whole.view().slice(dim, at, part.dim(dim)));
}

Shape with_last(Shape shape, std::int64_t n) {
  shape.back() = n;
  return shape;
}

class SplitLastOp : public Op {
 public:
  explicit SplitLastOp(std::vector<std::int64_t> widths) : widths_(std::move(widths)) {}
  std::string_view name() const override { return "split_last"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    CHECK(in[0].sharding.dims.back().empty(), "[split_last] {}", to_string(in[0].sharding));
    std::vector<ArrayInfo> parts(widths_.size(), in[0]);
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].shape.back() = parts[i].local.back() = widths_[i];
    return parts;
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    std::vector<Tensor> parts;
    std::int64_t at = 0;
    for (const std::int64_t width : widths_) {
      parts.push_back(c.empty(in[0].dtype(), with_last(in[0].shape(), width)));
      cut_out(c, in[0], in[0].rank() - 1, at, parts.back());
      at += width;
    }
    return parts;
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor dx = c.zeros(call.input_info(0).dtype, call.input_info(0).local);
    std::int64_t at = 0;
    for (std::size_t i = 0; i < widths_.size(); at += widths_[i++]) {
      if (call.grad(i).defined()) put_in(c, call.grad(i), dx, dx.rank() - 1, at);
    }
    return {dx};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 0; }

 private:
  std::vector<std::int64_t> widths_;
};

class JoinLastOp : public Op {
 public:
  std::string_view name() const override { return "join_last"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    CHECK(in[0].sharding == in[1].sharding && in[0].sharding.dims.back().empty(), "[join_last] {} and {}",
          to_string(in[0].sharding), to_string(in[1].sharding));
    ArrayInfo out = in[0];
    out.shape.back() = out.local.back() = in[0].shape.back() + in[1].shape.back();
    return {out};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor out = c.empty(in[0].dtype(), with_last(in[0].shape(), last(in[0]) + last(in[1])));
    put_in(c, in[0], out, out.rank() - 1, 0);
    put_in(c, in[1], out, out.rank() - 1, last(in[0]));
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    std::vector<Tensor> parts;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      parts.push_back(c.empty(call.input_info(i).dtype, call.input_info(i).local));
      cut_out(c, call.grad(0), parts[i].rank() - 1, at, parts[i]);
      at += last(parts[i]);
    }
    return parts;
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 0; }
};

class LastTokensOp : public Op {
 public:
  std::string_view name() const override { return "last_tokens"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo out = in[0];
    out.shape[1] = out.local[1] = 1;
    return {out};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor& x = in[0];
    const Tensor out = c.empty(x.dtype(), {x.dim(0), 1, x.dim(2)});
    switchyard::last_tokens(*c.pool, {x.view(), in[1].view(), out.view()});
    return {out};
  }
  bool differentiable() const override { return false; }
};

class MlaKeyValueOp : public Op {
 public:
  explicit MlaKeyValueOp(std::int64_t nope) : nope_(nope) {}
  std::string_view name() const override { return "mla_key_value"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo k = in[0], v = in[0];
    k.shape.back() = k.local.back() = nope_ + in[1].shape.back();
    v.shape.back() = v.local.back() = in[0].shape.back() - nope_;
    return {k, v};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor &kv = in[0], &rope = in[1];
    const std::int64_t heads = kv.dim(2), r = last(rope), v_dim = last(kv) - nope_;
    const Tensor k = c.empty(kv.dtype(), with_last(kv.shape(), nope_ + r)),
                 v = c.empty(kv.dtype(), with_last(kv.shape(), v_dim));
    strided_copy(*c.pool, kv.view().slice(3, 0, nope_), k.view().slice(3, 0, nope_));
    cut_out(c, kv, 3, nope_, v);
    // The rotary key is the same for all heads.
    const TensorView every_head = rope.view().block(0, {rope.dim(0), rope.dim(1), heads, r},
                                                    {rope.view().stride(0), rope.view().stride(1), 0, 1});
    strided_copy(*c.pool, every_head, k.view().slice(3, nope_, r));
    return {k, v};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const ArrayInfo &kv = call.input_info(0), &rope = call.input_info(1);
    const Tensor dkv = c.zeros(kv.dtype, kv.local);
    Tensor drope = c.zeros(rope.dtype, rope.local);
    const std::int64_t r = rope.local.back();
    if (const Tensor& dk = call.grad(0); dk.defined()) {
      strided_copy(*c.pool, dk.view().slice(3, 0, nope_), dkv.view().slice(3, 0, nope_));
      sum_over_dim(*c.pool, dk.view().slice(3, nope_, r), 2, drope.view());
    }
    if (const Tensor& dv = call.grad(1); dv.defined()) put_in(c, dv, dkv, 3, nope_);
    return {dkv, drope};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 0; }

 private:
  std::int64_t nope_;
};

class ChunkSequenceOp : public Op {
 public:
  explicit ChunkSequenceOp(std::int64_t n) : n_(n) {}
  std::string_view name() const override { return "chunk_sequence"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    CHECK(in[0].local[1] % n_ == 0, "{} tokens in {} chunks", in[0].local[1], n_);
    ArrayInfo part = in[0];
    part.shape[1] /= n_;
    part.local[1] /= n_;
    return std::vector<ArrayInfo>(static_cast<std::size_t>(n_), part);
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    std::vector<Tensor> parts;
    Shape shape = in[0].shape();
    shape[1] /= n_;
    for (std::int64_t i = 0; i < n_; ++i) {
      parts.push_back(c.empty(in[0].dtype(), shape));
      cut_out(c, in[0], 1, i * shape[1], parts.back());
    }
    return parts;
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor dx = c.zeros(call.input_info(0).dtype, call.input_info(0).local);
    for (std::int64_t i = 0; i < n_; ++i) {
      const Tensor& part = call.grad(static_cast<std::size_t>(i));
      if (part.defined()) put_in(c, part, dx, 1, i * dx.dim(1) / n_);
    }
    return {dx};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 0; }

 private:
  std::int64_t n_;
};

class ConcatSequenceOp : public Op {
 public:
  std::string_view name() const override { return "concat_sequence"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo out = in[0];
    out.shape[1] *= static_cast<std::int64_t>(in.size());
    out.local[1] *= static_cast<std::int64_t>(in.size());
    return {out};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    Shape shape = in[0].shape();
    shape[1] *= static_cast<std::int64_t>(in.size());
    const Tensor out = c.empty(in[0].dtype(), shape);
    for (std::size_t i = 0; i < in.size(); ++i)
      put_in(c, in[i], out, 1, static_cast<std::int64_t>(i) * in[i].dim(1));
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    std::vector<Tensor> grads;
    for (std::size_t i = 0; i < call.inputs(); ++i) {
      const ArrayInfo& part = call.input_info(i);
      grads.push_back(c.empty(part.dtype, part.local));
      cut_out(c, call.grad(0), 1, static_cast<std::int64_t>(i) * part.local[1], grads.back());
    }
    return grads;
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 0; }
};

}  // namespace

Array cast(Context& context, const Array& x, DType dtype, float factor) {
  if ((x.dtype() == dtype && factor == 1) || is_packed(x.dtype())) return x;
  Array y = apply_one(context, std::make_shared<CastOp>(dtype, factor), {x});
  y.value()->weight = x.value()->weight;
  return x.value()->never_save ? never_save(y) : y;
}

Array add(Context& context, const Array& a, const Array& b) {
  return apply_one(context, std::make_shared<AddOp>(), {a, b});
}

Array add_bias(Context& context, const Array& x, const Array& bias) {
  const std::size_t dims = bias.shape().size();
  CHECK(dims > 0 && dims <= x.shape().size(), "[add_bias] {} and {}", to_string(x.shape()),
        to_string(bias.shape()));
  Sharding layout;
  for (std::size_t i = x.shape().size() - dims; i < x.shape().size(); ++i)
    layout.dims.push_back(x.sharding().dims[i]);
  return apply_one(context, std::make_shared<AddBiasOp>(),
                   {x, reshard(context, cast(context, bias, x.dtype()), layout)});
}

Array scale(Context& context, const Array& x, float factor) {
  return apply_one(context, std::make_shared<ScaleOp>(factor), {x});
}

Array swiglu(Context& context, const Array& gate, const Array& up) {
  return never_save(apply_one(context, std::make_shared<SwigluOp>(), {gate, up}));
}

std::pair<Array, Array> split_last(Context& context, const Array& x, std::int64_t first) {
  const std::vector<std::int64_t> widths{first, x.shape().back() - first};
  auto parts = apply(context, std::make_shared<SplitLastOp>(widths), std::span(&x, 1));
  return {parts[0], parts[1]};
}

std::vector<Array> chunk_last(Context& context, const Array& x, std::int64_t n) {
  CHECK(x.shape().back() % n == 0, "{} columns in {} chunks", x.shape().back(), n);
  const std::vector<std::int64_t> widths(static_cast<std::size_t>(n), x.shape().back() / n);
  return apply(context, std::make_shared<SplitLastOp>(widths), std::span(&x, 1));
}

Array join_last(Context& context, const Array& a, const Array& b) {
  return apply_one(context, std::make_shared<JoinLastOp>(), {a, b});
}

Array last_tokens(Context& context, const Array& x, const Array& segments) {
  const Sharding& from = x.sharding();
  return apply_one(context, std::make_shared<LastTokensOp>(),
                   {reshard(context, x, Sharding{{from.dims[0], {}, from.dims[2]}, {}}),
                    reshard(context, segments, Sharding{{from.dims[0], {}}, {}})});
}

std::pair<Array, Array> mla_key_value(Context& context, const Array& kv, const Array& k_rope,
                                      std::int64_t nope) {
  const Array inputs[] = {kv, k_rope};
  auto parts = apply(context, std::make_shared<MlaKeyValueOp>(nope), inputs);
  return {parts[0], parts[1]};
}

std::vector<Array> chunk_sequence(Context& context, const Array& x, std::int64_t n) {
  return apply(context, std::make_shared<ChunkSequenceOp>(n), std::span(&x, 1));
}

Array concat_sequence(Context& context, std::span<const Array> parts) {
  return apply(context, std::make_shared<ConcatSequenceOp>(), parts).front();
}

}  // namespace switchyard
