#include "ops/attention_cache.h"

#include <cstring>

#include "kernels/attention.h"
#include "kernels/decode_attention.h"
#include "ops/kv_heads.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

Array with_whole_sequence(Context& context, const Array& x) {
  Sharding to = x.sharding();
  to.dims[1].clear();
  return reshard(context, x, to);
}

Array in_rows_of(Context& context, const Array& places, const Sharding& x) {
  return reshard(context, places, Sharding{{x.dims[0], x.dims[1]}, {}});
}

// [B,S,heads,D] of this rank, the sequence whole.
Tensor heads_for(Context& context, const Array& q, const Array& part) {
  const Array x = with_whole_sequence(context, part);
  if (x.shape().size() == 4) return take_heads(context, x.tensor(), kv_heads_of(context, q.info(), x.info()));
  return x.tensor().reshaped({x.tensor().dim(0), x.tensor().dim(1), 1, x.tensor().dim(2)});
}

// The cached matrix of keys or values, and what is new of it.
struct Store {
  Tensor& cached;
  std::vector<Tensor> parts;

  Store(Context& context, Tensor& cached_, const Array& q, std::span<const Array> arrays) : cached(cached_) {
    for (const Array& x : arrays) parts.push_back(heads_for(context, q, x));
  }
  void make_room(std::int64_t rows, std::int64_t capacity) {
    std::int64_t width = 0;
    for (const Tensor& part : parts) width += part.dim(3);
    const Shape shape{rows, capacity, parts[0].dim(2), width};
    if (!cached.defined()) cached = Tensor(parts[0].dtype(), shape);
    if (cached.shape() != shape) {
      fail_usage(
          "[mesh] logical_axis_rules: a rank's heads are not the same for a prompt and for a token after it "
          "({} "
          "and {}); expected activation_length_attn without axes of activation_heads",
          to_string(cached.shape()), to_string(shape));
    }
  }
  // Token `token` of the call's row `from` becomes that of a position of the cached row `row`.
  void copy(std::int64_t from, std::int64_t token, std::int64_t row, std::int64_t position) const {
    std::byte* to = cached.raw() + bytes_before(cached, row, position);
    for (std::int64_t head = 0; head < cached.dim(2); ++head) {
      for (const Tensor& part : parts) {
        const auto bytes = static_cast<std::size_t>(part.dim(3)) * size_of(part.dtype());
        std::memcpy(to, part.raw() + bytes_before(part, from, token) + static_cast<std::size_t>(head) * bytes,
                    bytes);
        to += bytes;
      }
    }
  }
  static std::size_t bytes_before(const Tensor& x, std::int64_t row, std::int64_t token) {
    return static_cast<std::size_t>((row * x.dim(1) + token) * x.dim(2) * x.dim(3)) * size_of(x.dtype());
  }
};

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
    Tensor key_up(w.dtype(), {heads, ranks, nope_}), value_up(w.dtype(), {heads, ranks, value});
    const std::size_t element = size_of(w.dtype()), keys = static_cast<std::size_t>(nope_) * element,
                      values = static_cast<std::size_t>(value) * element;
    c.pool->for_range(heads * ranks, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::byte* from =
            w.raw() + static_cast<std::size_t>(i % ranks * heads + i / ranks) * (keys + values);
        std::memcpy(key_up.raw() + static_cast<std::size_t>(i) * keys, from, keys);
        std::memcpy(value_up.raw() + static_cast<std::size_t>(i) * values, from + keys, values);
      }
    });
    return {key_up, value_up};
  }
  std::vector<Tensor> backward(Context&, const BackwardCall&) const override { return {Tensor()}; }
  bool differentiable() const override { return false; }

 private:
  std::int64_t nope_;
};

class CacheAttentionOp : public Op {  // inputs: q [B,S,N,D], its positions [B,S]
 public:
  CacheAttentionOp(const AttentionCache& cache, std::span<const std::int64_t> rows, float scale)
      : cache_(cache), rows_(rows), scale_(scale) {}
  std::string_view name() const override { return "attention"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo out = in[0];
    out.shape.back() = out.local.back() = cache_.v.dim(3);
    return {out};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const Tensor& q = in[0];
    Tensor out(q.dtype(), {q.dim(0), q.dim(1), q.dim(2), cache_.v.dim(3)});
    infos[0].shape[1] == 1 ? attend_one(c, q, out) : attend_some(c, q, in[1], out);
    return {out};
  }
  std::vector<Tensor> backward(Context&, const BackwardCall&) const override { return {Tensor(), Tensor()}; }
  bool differentiable() const override { return false; }

 private:
  // One token a row, in all and not only on this rank: it sees all keys there are.
  void attend_one(Context& c, const Tensor& q, const Tensor& out) const {
    std::vector<std::int64_t> lengths;
    for (const std::int64_t row : rows_) lengths.push_back(length_of(row));
    DecodeAttentionArgs args;
    args.batch = q.dim(0);
    args.capacity = cache_.capacity;
    args.kv_heads = cache_.k.dim(2);
    args.group = q.dim(2) / args.kv_heads;
    args.qk_dim = q.dim(3);
    args.v_dim = out.dim(3);
    args.scale = scale_;
    args.dtype = q.dtype();
    args.lengths = lengths.data();
    args.rows = rows_.data();
    decode_attention(*c.pool, args, q.raw(), cache_.k.raw(), cache_.v.raw(), out.raw());
  }
  // Several, a row after the other, as their keys' numbers differ.
  void attend_some(Context& c, const Tensor& q, const Tensor& positions, const Tensor& out) const {
    const Tensor lse(DType::f32, {q.dim(2), q.dim(1)});
    AttentionArgs args{};
    args.batch = 1;
    args.q_length = q.dim(1);
    args.heads = q.dim(2);
    args.kv_heads = cache_.k.dim(2);
    args.qk_dim = q.dim(3);
    args.v_dim = out.dim(3);
    args.scale = scale_;
    args.dtype = q.dtype();
    for (std::int64_t b = 0; b < q.dim(0); ++b) {
      const std::int64_t row = rows_[static_cast<std::size_t>(b)];
      const auto at = [](const Tensor& x, std::int64_t i) { return x.raw() + Store::bytes_before(x, i, 0); };
      if (row < 0) {  // padding, which nobody reads: zeros, not what lay there
        std::memset(at(out, b), 0, out.bytes() / static_cast<std::size_t>(out.dim(0)));
        continue;
      }
      args.kv_length = length_of(row);
      args.q_index = positions.data<std::int32_t>() + b * q.dim(1);
      switchyard::attention(*c.pool, args, at(q, b), at(cache_.k, row), at(cache_.v, row), at(out, b),
                            lse.data<float>());
    }
  }
  std::int64_t length_of(std::int64_t row) const {
    return row < 0 ? 0 : cache_.lengths[static_cast<std::size_t>(row)];
  }

  const AttentionCache& cache_;
  std::span<const std::int64_t> rows_;
  float scale_;
};

}  // namespace

std::pair<Array, Array> split_up_projection(Context& context, const Array& wkv_b, std::int64_t nope) {
  Sharding whole_columns = wkv_b.sharding();
  whole_columns.dims.back().clear();
  const Array w = reshard(context, wkv_b, whole_columns);
  auto parts = apply(context, std::make_shared<SplitUpProjectionOp>(nope), std::span(&w, 1));
  return {parts[0], parts[1]};
}

void remember(Context& context, AttentionCache& cache, const Array& q, std::span<const Array> k,
              std::span<const Array> v, const TokenPlaces& places) {
  Store keys(context, cache.k, q, k), values(context, cache.v, q, v);
  const auto rows_here = static_cast<std::int64_t>(cache.lengths.size());
  keys.make_room(rows_here, cache.capacity);
  values.make_room(rows_here, cache.capacity);
  const Sharding rows{{q.sharding().dims[0], {}}, {}};
  const Tensor positions = in_rows_of(context, places.positions, rows).tensor();
  const Tensor segments = in_rows_of(context, places.segments, rows).tensor();
  CHECK(static_cast<std::int64_t>(places.rows.size()) == positions.dim(0), "{} rows for a batch of {}",
        places.rows.size(), positions.dim(0));
  for (std::int64_t b = 0; b < positions.dim(0); ++b) {
    const std::int64_t row = places.rows[static_cast<std::size_t>(b)];
    if (row < 0) continue;
    std::int64_t& length = cache.lengths[static_cast<std::size_t>(row)];
    for (std::int64_t s = 0; s < positions.dim(1); ++s) {
      const std::int64_t at = b * positions.dim(1) + s;
      if (segments.data<std::int32_t>()[at] == 0) break;
      const std::int64_t position = positions.data<std::int32_t>()[at];
      CHECK(position == length && position < cache.capacity, "[attention cache] token {} after {} of {}",
            position, length, cache.capacity);
      keys.copy(b, s, row, position);
      values.copy(b, s, row, position);
      ++length;
    }
  }
}

void remember_of(AttentionCache& cache, std::int64_t row, std::int64_t from, std::int64_t tokens) {
  cache.lengths[static_cast<std::size_t>(row)] = tokens;
  if (row == from || tokens == 0) return;
  for (const Tensor* x : {&cache.k, &cache.v}) {
    if (!x->defined()) continue;  // a layer of another stage
    std::memcpy(x->raw() + Store::bytes_before(*x, row, 0), x->raw() + Store::bytes_before(*x, from, 0),
                Store::bytes_before(*x, 0, tokens));
  }
}

Array attend(Context& context, const AttentionCache& cache, const Array& q, const TokenPlaces& places,
             float scale) {
  return apply_one(context, std::make_shared<CacheAttentionOp>(cache, places.rows, scale),
                   {q, in_rows_of(context, places.positions, q.sharding())});
}

}  // namespace switchyard
