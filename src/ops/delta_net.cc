#include "ops/delta_net.h"

#include "kernels/delta_net/causal_conv.h"
#include "kernels/delta_net/delta_gates.h"
#include "kernels/delta_net/gated_delta.h"
#include "kernels/pointwise/strided_copy.h"
#include "ops/kv_heads.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

// [B,S,N,D] -> [B,S,N·D], and [N,D,K] -> [N·D,K].
TensorView channels_of(const TensorView& x) {
  return x.reshaped({x.dim(0), x.dim(1), x.dim(2) * x.dim(3)});
}
TensorView taps_of(const TensorView& w) {
  return w.reshaped({w.dim(0) * w.dim(1), w.dim(2)});
}

class CausalConvOp : public Op {  // inputs: x, w, segments
 public:
  std::string_view name() const override { return "causal_conv"; }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor y = c.empty(in[0].dtype(), in[0].shape());
    switchyard::causal_conv(*c.pool, {.x = channels_of(in[0].view()),
                                      .w = taps_of(in[1].view()),
                                      .segments = in[2].view(),
                                      .tail = {},
                                      .y = channels_of(y.view())});
    return {y};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor x = call.input(0), w = call.input(1), segments = call.input(2);
    const Tensor dx = c.empty(x.dtype(), x.shape()), dw = c.empty(DType::f32, w.shape());
    causal_conv_backward(*c.pool, {.x = channels_of(x.view()),
                                   .w = taps_of(w.view()),
                                   .segments = segments.view(),
                                   .dy = channels_of(call.grad(0).view()),
                                   .dx = channels_of(dx.view()),
                                   .dw = taps_of(dw.view())});
    return {dx, dw, Tensor()};
  }
};

class DeltaGatesOp : public Op {  // inputs: a, b, rate, bias
 public:
  std::string_view name() const override { return "delta_gates"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo out = in[0];
    out.dtype = DType::f32;
    return {out, out};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor g = c.empty(DType::f32, in[0].shape()), beta = c.empty(DType::f32, in[0].shape());
    switchyard::delta_gates(*c.pool, args_of(in[0], in[1], in[2], in[3], g, beta));
    return {g, beta};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor a = call.input(0), b = call.input(1), rate = call.input(2), bias = call.input(3);
    const Tensor g = call.output(0), beta = call.output(1);
    const auto given = [&](std::size_t i) {
      return call.grad(i).defined() ? call.grad(i) : c.zeros(DType::f32, g.shape());
    };
    const Tensor dg = given(0), dbeta = given(1);
    const Tensor da = c.empty(a.dtype(), a.shape()), db = c.empty(b.dtype(), b.shape()),
                 drate = c.empty(DType::f32, rate.shape()), dbias = c.empty(DType::f32, bias.shape());
    delta_gates_backward(*c.pool, {.forward = args_of(a, b, rate, bias, g, beta),
                                   .dg = dg.view(),
                                   .dbeta = dbeta.view(),
                                   .da = da.view(),
                                   .db = db.view(),
                                   .drate = drate.view(),
                                   .dbias = dbias.view()});
    return {da, db, drate, dbias};
  }
  std::uint32_t needs_outputs() const override { return 3; }

 private:
  static DeltaGatesArgs args_of(const Tensor& a, const Tensor& b, const Tensor& rate, const Tensor& bias,
                                const Tensor& g, const Tensor& beta) {
    return {.a = a.view(),
            .b = b.view(),
            .rate = rate.view(),
            .bias = bias.view(),
            .g = g.view(),
            .beta = beta.view()};
  }
};

class GatedDeltaOp : public Op {  // inputs: q, k, v, g, beta, segments
 public:
  explicit GatedDeltaOp(const DeltaOptions& options) : options_(options) {}
  std::string_view name() const override { return "gated_delta"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {in[2]};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const auto heads = kv_heads_of(c, infos[2], infos[0]);
    const Tensor q = take_heads(c, in[0], heads), k = take_heads(c, in[1], heads),
                 out = c.empty(in[2].dtype(), in[2].shape());
    switchyard::gated_delta(*c.pool, args_of(q, k, in[2], in[3], in[4], in[5], out.view()));
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const auto heads = kv_heads_of(c, call.input_info(2), call.input_info(0));
    const Tensor q = take_heads(c, call.input(0), heads), k = take_heads(c, call.input(1), heads),
                 v = call.input(2), g = call.input(3), beta = call.input(4), segments = call.input(5);
    const Tensor dq = c.empty(q.dtype(), q.shape()), dk = c.empty(k.dtype(), k.shape()),
                 dv = c.empty(v.dtype(), v.shape()), dg = c.empty(DType::f32, g.shape()),
                 dbeta = c.empty(DType::f32, g.shape());
    gated_delta_backward(*c.pool, {.forward = args_of(q, k, v, g, beta, segments, {}),
                                   .dout = call.grad(0).view(),
                                   .dq = dq.view(),
                                   .dk = dk.view(),
                                   .dv = dv.view(),
                                   .dg = dg.view(),
                                   .dbeta = dbeta.view()});
    return {put_heads(c, dq, heads, call.input_info(0).local),
            put_heads(c, dk, heads, call.input_info(1).local),
            dv,
            dg,
            dbeta,
            Tensor()};
  }

 private:
  GatedDeltaArgs args_of(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                         const Tensor& beta, const Tensor& segments, const TensorView& out) const {
    return {.q = q.view(),
            .k = k.view(),
            .v = v.view(),
            .g = g.view(),
            .beta = beta.view(),
            .segments = segments.view(),
            .chunk = options_.chunk,
            .unit_vectors = options_.unit_vectors,
            .scale = options_.scale,
            .state = {},
            .out = out};
  }
  DeltaOptions options_;
};

// The first `tokens` tokens of a batch row.
TensorView tokens_of(const Tensor& x, std::int64_t row, std::int64_t tokens) {
  return x.view().rows(row, row + 1).slice(1, 0, tokens);
}

Tensor zeros_like(Context& c, const Tensor& x) {
  return c.zeros(x.dtype(), x.shape());
}

Tensor copy_of(Context& c, const TensorView& x) {
  const Tensor copied = c.empty(x.dtype(), x.shape());
  strided_copy(*c.pool, x, copied.view());
  return copied;
}

// Places of a call, and whether its tokens may be taken back.
class CacheOp : public Op {
 public:
  CacheOp(LayerCache& cache, std::size_t state, const TokenPlaces& places)
      : cache_(cache), state_(state), slots_(places), drafted_(places.drafted) {}
  std::vector<Tensor> backward(Context&, const BackwardCall& call) const override {
    return std::vector<Tensor>(call.inputs());
  }
  bool differentiable() const override { return false; }

 protected:
  // Calls visit(b, tokens, StateOfCall) for every batch row b that is no padding.
  template <typename Visit>
  void for_each(Context& c, std::int64_t batch, const Visit& visit) const {
    slots_.for_each(batch, [&](std::int64_t b, std::int64_t slot, std::int64_t tokens) {
      visit(b, tokens, begin_call(c, cache_, state_, slot, tokens, drafted_));
    });
  }

 private:
  LayerCache& cache_;
  std::size_t state_;
  SlotsOfCall slots_;
  bool drafted_;
};

void run_conv(Context& c, const TensorView& x, const Tensor& w, const TensorView& tail, const TensorView& y) {
  switchyard::causal_conv(*c.pool, {.x = channels_of(x),
                                    .w = taps_of(w.view()),
                                    .segments = {},
                                    .tail = channels_of(tail),
                                    .y = channels_of(y)});
}

class CacheConvOp : public CacheOp {  // inputs: x, w
 public:
  using CacheOp::CacheOp;
  std::string_view name() const override { return "causal_conv"; }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor y = zeros_like(c, in[0]);
    for_each(c, in[0].dim(0), [&](std::int64_t b, std::int64_t tokens, const StateOfCall& of) {
      const TensorView x = tokens_of(in[0], b, tokens);
      run_conv(c, x, in[1], of.state, tokens_of(y, b, tokens));
      if (of.call == nullptr) return;
      of.call->repeat = [x = copy_of(c, x), w = in[1]](Context& context, const TensorView& state,
                                                       std::int64_t kept) {
        const Tensor out = context.empty(x.dtype(), x.shape());
        run_conv(context, tokens_of(x, 0, kept), w, state, tokens_of(out, 0, kept));
      };
    });
    return {y};
  }
};

// The rule for the tokens of one slot, each [1,S,..].
struct DeltaPart {
  TensorView q, k, v, g, beta, out;
};
// Runs tokens [begin, end) from `state` on.
void run_part(Context& c, const DeltaPart& part, const TensorView& state, const DeltaOptions& options,
              std::int64_t begin, std::int64_t end) {
  const auto cut = [&](const TensorView& x) { return x.slice(1, begin, end - begin); };
  switchyard::gated_delta(*c.pool, {.q = cut(part.q),
                                    .k = cut(part.k),
                                    .v = cut(part.v),
                                    .g = cut(part.g),
                                    .beta = cut(part.beta),
                                    .segments = {},
                                    .chunk = options.chunk,
                                    .unit_vectors = options.unit_vectors,
                                    .scale = options.scale,
                                    .state = state,
                                    .out = cut(part.out)});
}
void run_each_token(Context& c, const DeltaPart& part, const TensorView& state, const DeltaOptions& options,
                    std::int64_t tokens) {
  for (std::int64_t token = 0; token < tokens; ++token) run_part(c, part, state, options, token, token + 1);
}

class CacheDeltaOp : public CacheOp {  // inputs: q, k, v, g, beta
 public:
  CacheDeltaOp(LayerCache& cache, std::size_t state, const TokenPlaces& places, const DeltaOptions& options)
      : CacheOp(cache, state, places), options_(options) {}
  std::string_view name() const override { return "gated_delta"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {in[2]};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const auto heads = kv_heads_of(c, infos[2], infos[0]);
    const Tensor q = take_heads(c, in[0], heads), k = take_heads(c, in[1], heads), out = zeros_like(c, in[2]);
    for_each(c, q.dim(0), [&](std::int64_t b, std::int64_t tokens, const StateOfCall& of) {
      const auto of_row = [&](const Tensor& x) { return tokens_of(x, b, tokens); };
      const DeltaPart part{of_row(q), of_row(k), of_row(in[2]), of_row(in[3]), of_row(in[4]), of_row(out)};
      if (of.call == nullptr) return run_part(c, part, of.state, options_, 0, tokens);
      of.call->repeat = repeated(c, part);
      run_each_token(c, part, of.state, options_, tokens);
    });
    return {out};
  }

 private:
  // Runs the part's tokens again, from copies of its inputs.
  std::function<void(Context&, const TensorView&, std::int64_t)> repeated(Context& c,
                                                                          const DeltaPart& part) const {
    return [q = copy_of(c, part.q), k = copy_of(c, part.k), v = copy_of(c, part.v), g = copy_of(c, part.g),
            beta = copy_of(c, part.beta),
            options = options_](Context& context, const TensorView& state, std::int64_t tokens) {
      const Tensor out = context.empty(v.dtype(), v.shape());
      run_each_token(context, {q.view(), k.view(), v.view(), g.view(), beta.view(), out.view()}, state,
                     options, tokens);
    };
  }
  DeltaOptions options_;
};

// The values of a state, which are zeros before the first token.
void allocate_state(Context& c, LayerCache& cache, std::size_t state, DType type, Shape of_slot) {
  if (cache.states.size() <= state) cache.states.resize(state + 1);
  of_slot.insert(of_slot.begin(), std::ssize(cache.lengths));
  if (!cache.states[state].values.defined()) cache.states[state].values = c.zeros(type, of_slot);
}

// The taps of the heads that x [B,S,N,D] has here.
Array taps_of_heads(Context& c, const Array& x, const Array& w) {
  return reshard(c, w, Sharding{{x.sharding().dims[2], {}, {}}, {}});
}

}  // namespace

Array causal_conv(Context& context, const Array& x, const Array& w, const Array& segments) {
  const Array own = reshard(context, segments, Sharding{{x.sharding().dims[0], {}}, {}});
  return apply_one(context, std::make_shared<CausalConvOp>(), {x, taps_of_heads(context, x, w), own});
}

DeltaGates delta_gates(Context& context, const Array& a, const Array& b, const Array& rate,
                       const Array& bias) {
  const Sharding heads{{a.sharding().dims[2]}, {}};
  const Array inputs[] = {a, b, reshard(context, rate, heads), reshard(context, bias, heads)};
  auto gates = apply(context, std::make_shared<DeltaGatesOp>(), inputs);
  return {gates[0], gates[1]};
}

Array gated_delta(Context& context, const Array& q, const Array& k, const Array& v, const DeltaGates& gates,
                  const Array& segments, const DeltaOptions& options) {
  const Array own = reshard(context, segments, Sharding{{v.sharding().dims[0], {}}, {}});
  return apply_one(context, std::make_shared<GatedDeltaOp>(options), {q, k, v, gates.g, gates.beta, own});
}

Array causal_conv(Context& context, LayerCache& cache, std::size_t state, const Array& x, const Array& w,
                  const TokenPlaces& places) {
  const Shape& here = x.info().local;
  allocate_state(context, cache, state, x.dtype(), {w.shape()[2] - 1, here[2], here[3]});
  return apply_one(context, std::make_shared<CacheConvOp>(cache, state, places),
                   {x, taps_of_heads(context, x, w)});
}

Array gated_delta(Context& context, LayerCache& cache, std::size_t state, const Array& q, const Array& k,
                  const Array& v, const DeltaGates& gates, const TokenPlaces& places,
                  const DeltaOptions& options) {
  allocate_state(context, cache, state, DType::f32, {v.info().local[2], q.shape()[3], v.shape()[3]});
  return apply_one(context, std::make_shared<CacheDeltaOp>(cache, state, places, options),
                   {q, k, v, gates.g, gates.beta});
}

}  // namespace switchyard
