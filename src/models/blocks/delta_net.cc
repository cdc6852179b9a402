// The gated delta net.
#include "ops/delta_net.h"

#include <cmath>

#include "models/blocks/mixer.h"
#include "models/blocks/spec_list.h"
#include "ops/basic.h"
#include "ops/norm.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

// The states of the layer's cache, in order.
enum : std::size_t { kQueryTail, kKeyTail, kValueTail, kDeltaState };

// Sharding of [B,S,N,D], with N heads of keys or values. The sequence is whole. Batch rows are split as in
// attention, since the cache splits them alike in all layers.
Sharding delta_heads(const LayerCall& call, const Shape& x, std::int64_t heads) {
  const Context& c = call.context;
  Sharding s = c.rules->sharding({"", "", "activation_heads", ""}, {x[0], x[1], heads, 1});
  s.dims[0] = attention_tokens(c, call.model, x[0], x[1]).dims[0];
  s.dims[2] = axes_before(s.dims[2], Sharding{{s.dims[0]}, {}});
  return s;
}

Array gated_delta_net(const LayerCall& call, const Array& x) {
  Context& c = call.context;
  const ModelConfig& m = call.model;
  const DeltaKind& kind = call.delta();
  const Sharding values = delta_heads(call, x.shape(), kind.value_heads),
                 numbers{{values.dims[0], {}, values.dims[2]}, {}};
  Sharding keys = delta_heads(call, x.shape(), kind.key_heads);
  if (keys.dims[2] != values.dims[2]) keys.dims[2].clear();
  const Array h = reshard(c, x, Sharding{{values.dims[0], {}, {}}, {}});
  const auto wide = [&](const char* name) { return cast(c, call.parameter(name), DType::f32); };
  const Linear to_heads[] = {linear(call, "delta.query"), linear(call, "delta.key"),
                             linear(call, "delta.value"), linear(call, "delta.gate")};
  const Sharding* const layouts[] = {&keys, &keys, &values, &values};
  const std::vector<Array> heads = project_each(c, "BSM,MND->BSND", h, to_heads, layouts);
  const Linear to_numbers[] = {linear(call, "delta.decay"), linear(call, "delta.strength")};
  const std::vector<Array> of_heads = apply_each(c, "BSM,MN->BSN", h, to_numbers, numbers);
  const auto filtered = [&](const Array& y, const char* taps, std::size_t state) {
    if (call.cache == nullptr) return causal_conv(c, y, wide(taps), call.segments);
    return causal_conv(c, *call.cache, state, y, wide(taps), *call.places);
  };
  const Array q = filtered(checkpoint_name(heads[0], "query_proj"), "delta.query_conv", kQueryTail),
              k = filtered(checkpoint_name(heads[1], "key_proj"), "delta.key_conv", kKeyTail),
              v = filtered(checkpoint_name(heads[2], "value_proj"), "delta.value_conv", kValueTail),
              gate = checkpoint_name(heads[3], "qkv_proj");
  const DeltaGates gates =
      delta_gates(c, of_heads[0], of_heads[1], wide("delta.decay_rate"), wide("delta.decay_bias"));
  const DeltaOptions options{.chunk = m.delta_chunk,
                             .unit_vectors = kind.unit_vectors,
                             .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(kind.key_dim)))};
  Array out;
  if (call.cache == nullptr) {
    out = checkpoint_name(gated_delta(c, q, k, v, gates, call.segments, options), "context");
  } else {
    out = gated_delta(c, *call.cache, kDeltaState, q, k, v, gates, *call.places, options);
    count_tokens(*call.cache, *call.places);
  }
  const Array normed = rms_norm(c, out, call.parameter("delta.norm"), m.norm_epsilon);
  return checkpoint_name(project_heads(call, swiglu(c, gate, normed), linear(call, "delta.out")), "out_proj");
}

// Heads are a dim of their own.
void delta_specs(const ModelConfig& m, const LayerSpec& layer, const std::string& prefix, SpecList& list) {
  const DeltaKind& k = m.delta_of(layer);
  const std::string p = prefix + "delta.";
  const std::int64_t key_heads = k.key_heads, heads = k.value_heads;
  const auto kernel_of = [&](const char* name, std::int64_t count, std::int64_t width) {
    list.kernel(p + name, {m.emb, count, width}, {"embed_attn", "gdn_head", ""}, m.emb);
  };
  kernel_of("query", key_heads, k.key_dim);
  kernel_of("key", key_heads, k.key_dim);
  kernel_of("value", heads, k.value_dim);
  kernel_of("gate", heads, k.value_dim);
  list.kernel(p + "strength", {m.emb, heads}, {"embed_attn", "gdn_head"}, m.emb);
  list.kernel(p + "decay", {m.emb, heads}, {"embed_attn", "gdn_head"}, m.emb);
  const auto taps = [&](const char* name, std::int64_t count, std::int64_t width) {
    list.kernel(p + name, {count, width, k.taps}, {"gdn_head", "", ""}, k.taps, {});
  };
  taps("query_conv", key_heads, k.key_dim);
  taps("key_conv", key_heads, k.key_dim);
  taps("value_conv", heads, k.value_dim);
  constexpr double kFastestDecay = 16;
  list.add(p + "decay_rate", {heads}, {"gdn_head"}, Initializer::log_uniform, kFastestDecay);
  list.add(p + "decay_bias", {heads}, {"gdn_head"}, Initializer::ones, 0);
  list.add(p + "norm", {k.value_dim}, {""}, Initializer::ones, 0);
  list.kernel(p + "out", {heads, k.value_dim, m.emb}, {"gdn_head", "", "embed_attn"}, heads * k.value_dim,
              {0, 2});
}

// A token has three products with the state.
double delta_products(const ModelConfig& m, const LayerSpec& layer, std::int64_t) {
  const auto d = [](std::int64_t x) { return static_cast<double>(x); };
  const DeltaKind& k = m.delta_of(layer);
  const double v = d(k.value_heads * k.value_dim), qk = 2 * d(k.key_heads * k.key_dim);
  return d(m.emb) * (qk + 3 * v + 2 * d(k.value_heads)) + d(k.taps) * (qk + v) + 3 * v * d(k.key_dim);
}

}  // namespace

const Mixer kGatedDeltaNet{
    .add_specs = delta_specs, .forward = gated_delta_net, .products = delta_products, .keeps_states = true};

}  // namespace switchyard
