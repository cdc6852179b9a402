#include "ops/basic.h"

#include <algorithm>
#include <cstring>

#include "kernels/elementwise.h"
#include "ops/reshard.h"
#include "ops/shared_result.h"

namespace switchyard {
namespace {

class CastOp : public Op {
 public:
  explicit CastOp(DType to) : to_(to) {}
  std::string_view name() const override { return "cast"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo out = in[0];
    out.dtype = to_;
    return {out};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const Tensor& x = in[0];
    const Axes& shared = infos[0].shared;
    if (x.bytes() < kWorthSharing || c.abstract() || c.mesh->product(shared) == 1)
      return {converted(*c.pool, x, to_)};
    const auto part = [&](void* out, std::int64_t begin, std::int64_t end) {
      const auto at = [&](DType dtype) { return static_cast<std::size_t>(begin) * size_of(dtype); };
      convert(*c.pool, x.dtype(), x.raw() + at(x.dtype()), to_, static_cast<std::byte*>(out) + at(to_),
              end - begin);
    };
    return {made_together(c, shared, to_, x.shape(), part)};
  }
  // In its own type: whoever adds it to something, or stores it, converts it.
  std::vector<Tensor> backward(Context&, const BackwardCall& call) const override { return {call.grad(0)}; }
  std::uint32_t needs_inputs() const override { return 0; }

 private:
  static constexpr std::size_t kWorthSharing =
      512 * 1024;  // the meeting of ranks takes as long as to cast it
  DType to_;
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
    Tensor out(in[0].dtype(), in[0].shape());
    switchyard::add(*c.pool, out.dtype(), in[0].raw(), in[1].raw(), out.raw(), out.size());
    return {out};
  }
  std::vector<Tensor> backward(Context&, const BackwardCall& call) const override {
    return {call.grad(0), call.grad(0)};
  }
  std::uint32_t needs_inputs() const override { return 0; }
};

class ScaleOp : public Op {
 public:
  explicit ScaleOp(float factor) : factor_(factor) {}
  std::string_view name() const override { return "scale"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {in[0]};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    return {scaled(c, in[0])};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    return {scaled(c, call.grad(0))};
  }
  std::uint32_t needs_inputs() const override { return 0; }

 private:
  Tensor scaled(Context& c, const Tensor& x) const {
    Tensor out(x.dtype(), x.shape());
    switchyard::scale(*c.pool, x.dtype(), x.raw(), factor_, out.raw(), x.size());
    return out;
  }
  float factor_;
};

constexpr std::int64_t kRowsAtOnce = 64;

std::int64_t last(const Tensor& x) {
  return x.shape().back();
}
std::int64_t rows_of(const Tensor& x) {
  return last(x) == 0 ? 0 : x.size() / last(x);
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
    Tensor out(in[0].dtype(), in[0].shape());
    switchyard::swiglu(*c.pool, out.dtype(), in[0].raw(), in[1].raw(), nullptr, rows_of(out), last(out),
                       out.raw());
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor gate = call.input(0), up = call.input(1);
    Tensor dgate(gate.dtype(), gate.shape()), dup(gate.dtype(), gate.shape());
    swiglu_backward(*c.pool, gate.dtype(), gate.raw(), up.raw(), nullptr, call.grad(0).raw(), rows_of(gate),
                    last(gate), dgate.raw(), dup.raw(), nullptr);
    return {dgate, dup};
  }
};

// Copies columns [from, from + count) of x's last dim to column `to` of y's.
void copy_columns(Context& c, const Tensor& x, std::int64_t from, const Tensor& y, std::int64_t to,
                  std::int64_t count) {
  const std::size_t e = size_of(x.dtype());
  const auto bytes = static_cast<std::size_t>(count) * e;
  c.pool->for_range(rows_of(x), kRowsAtOnce, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      std::memcpy(y.raw() + static_cast<std::size_t>(r * last(y) + to) * e,
                  x.raw() + static_cast<std::size_t>(r * last(x) + from) * e, bytes);
    }
  });
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
      parts.emplace_back(in[0].dtype(), with_last(in[0].shape(), width));
      copy_columns(c, in[0], at, parts.back(), 0, width);
      at += width;
    }
    return parts;
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    Tensor dx = Tensor::zeros(call.input_info(0).dtype, call.input_info(0).local);
    std::int64_t at = 0;
    for (std::size_t i = 0; i < widths_.size(); at += widths_[i++]) {
      if (call.grad(i).defined()) copy_columns(c, call.grad(i), 0, dx, at, widths_[i]);
    }
    return {dx};
  }
  std::uint32_t needs_inputs() const override { return 0; }

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
    Tensor out(in[0].dtype(), with_last(in[0].shape(), last(in[0]) + last(in[1])));
    copy_columns(c, in[0], 0, out, 0, last(in[0]));
    copy_columns(c, in[1], 0, out, last(in[0]), last(in[1]));
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    std::vector<Tensor> parts;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      parts.emplace_back(call.input_info(i).dtype, call.input_info(i).local);
      copy_columns(c, call.grad(0), at, parts[i], 0, last(parts[i]));
      at += last(parts[i]);
    }
    return parts;
  }
  std::uint32_t needs_inputs() const override { return 0; }
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
    const Tensor &x = in[0], &segments = in[1];
    Tensor out(x.dtype(), {x.dim(0), 1, x.dim(2)});
    const std::size_t token = static_cast<std::size_t>(x.dim(2)) * size_of(x.dtype());
    for (std::int64_t row = 0; row < x.dim(0) && !c.abstract(); ++row) {
      const std::int32_t* const of_row = segments.data<std::int32_t>() + row * segments.dim(1);
      const std::int64_t tokens = std::find(of_row, of_row + segments.dim(1), 0) - of_row;
      const std::int64_t at = std::max<std::int64_t>(tokens - 1, 0);
      std::memcpy(out.raw() + static_cast<std::size_t>(row) * token,
                  x.raw() + static_cast<std::size_t>(row * x.dim(1) + at) * token, token);
    }
    return {out};
  }
  std::vector<Tensor> backward(Context&, const BackwardCall&) const override { return {Tensor(), Tensor()}; }
  bool differentiable() const override { return false; }
};

// Sums columns [from, from + dim) of x [rows, heads, width] over heads, in fp32.
Tensor sum_over_heads(Context& c, const Tensor& x, std::int64_t from, std::int64_t heads, std::int64_t dim,
                      Shape shape) {
  const Tensor wide = x.cast(DType::f32);
  Tensor sum = Tensor::zeros(DType::f32, std::move(shape));
  c.pool->for_range(rows_of(x) / heads, kRowsAtOnce, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      float* to = sum.data<float>() + r * dim;
      for (std::int64_t h = 0; h < heads; ++h) {
        const float* at = wide.data<float>() + (r * heads + h) * last(x) + from;
        for (std::int64_t d = 0; d < dim; ++d) to[d] += at[d];
      }
    }
  });
  return sum.cast(x.dtype());
}

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
    Tensor k(kv.dtype(), with_last(kv.shape(), nope_ + r)), v(kv.dtype(), with_last(kv.shape(), v_dim));
    copy_columns(c, kv, 0, k, 0, nope_);
    copy_columns(c, kv, nope_, v, 0, v_dim);
    const std::size_t e = size_of(kv.dtype());
    c.pool->for_range(rows_of(k), kRowsAtOnce, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        std::memcpy(k.raw() + static_cast<std::size_t>(row * (nope_ + r) + nope_) * e,
                    rope.raw() + static_cast<std::size_t>(row / heads * r) * e,
                    static_cast<std::size_t>(r) * e);
      }
    });
    return {k, v};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const ArrayInfo &kv = call.input_info(0), &rope = call.input_info(1);
    Tensor dkv = Tensor::zeros(kv.dtype, kv.local), drope = Tensor::zeros(rope.dtype, rope.local);
    const std::int64_t r = rope.local.back();
    if (const Tensor& dk = call.grad(0); dk.defined()) {
      copy_columns(c, dk, 0, dkv, 0, nope_);
      drope = sum_over_heads(c, dk, nope_, kv.local[2], r, rope.local);
    }
    if (const Tensor& dv = call.grad(1); dv.defined()) copy_columns(c, dv, 0, dkv, nope_, last(dv));
    return {dkv, drope};
  }
  std::uint32_t needs_inputs() const override { return 0; }

 private:
  std::int64_t nope_;
};

// Copies a part's sequence positions to or from positions [at, ...) of the whole.
void copy_sequence(Context& c, const Tensor& whole, const Tensor& part, std::int64_t at, bool to_part) {
  Shape inner(whole.shape().begin() + 2, whole.shape().end());
  const std::size_t token = static_cast<std::size_t>(num_elements(inner)) * size_of(whole.dtype());
  const std::size_t bytes = static_cast<std::size_t>(part.dim(1)) * token;
  c.pool->for_range(whole.dim(0), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      std::byte* w = whole.raw() + static_cast<std::size_t>(b * whole.dim(1) + at) * token;
      std::byte* p = part.raw() + static_cast<std::size_t>(b) * bytes;
      if (to_part)
        std::memcpy(p, w, bytes);
      else
        std::memcpy(w, p, bytes);
    }
  });
}

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
      parts.emplace_back(in[0].dtype(), shape);
      copy_sequence(c, in[0], parts.back(), i * shape[1], true);
    }
    return parts;
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    Tensor dx = Tensor::zeros(call.input_info(0).dtype, call.input_info(0).local);
    for (std::int64_t i = 0; i < n_; ++i) {
      const Tensor& part = call.grad(static_cast<std::size_t>(i));
      if (part.defined()) copy_sequence(c, dx, part, i * dx.dim(1) / n_, false);
    }
    return {dx};
  }
  std::uint32_t needs_inputs() const override { return 0; }

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
    Tensor out(in[0].dtype(), shape);
    for (std::size_t i = 0; i < in.size(); ++i)
      copy_sequence(c, out, in[i], static_cast<std::int64_t>(i) * in[i].dim(1), false);
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    std::vector<Tensor> grads;
    for (std::size_t i = 0; i < call.inputs(); ++i) {
      const ArrayInfo& part = call.input_info(i);
      grads.emplace_back(part.dtype, part.local);
      copy_sequence(c, call.grad(0), grads.back(), static_cast<std::int64_t>(i) * part.local[1], true);
    }
    return grads;
  }
  std::uint32_t needs_inputs() const override { return 0; }
};

}  // namespace

Array cast(Context& context, const Array& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Array y = apply_one(context, std::make_shared<CastOp>(dtype), {x});
  y.value()->weight = x.value()->weight;
  return x.value()->never_save ? never_save(y) : y;
}

Array add(Context& context, const Array& a, const Array& b) {
  return apply_one(context, std::make_shared<AddOp>(), {a, b});
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
