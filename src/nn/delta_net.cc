#include "nn/delta_net.h"

#include <cmath>

#include "ops/basic.h"
#include "ops/delta_net.h"
#include "ops/einsum.h"
#include "ops/norm.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

// Of [B,S,N] or [B,S,N,D], N heads of keys or of values. The sequence is whole.
Sharding delta_heads(const Context& c, std::int64_t batch, std::int64_t heads, bool with_width) {
  Sharding s = c.rules->sharding({"activation_batch_attn", "", "activation_heads", ""}, {batch, 1, heads, 1});
  if (!with_width) s.dims.pop_back();
  return s;
}

}  // namespace

Array gated_delta_net(const LayerCall& call, const Array& x) {
  Context& c = call.context;
  const ModelConfig& m = call.model;
  const std::int64_t batch = x.shape()[0];
  const Sharding values = delta_heads(c, batch, m.delta_value_heads, true),
                 numbers = delta_heads(c, batch, m.delta_value_heads, false);
  Sharding keys = delta_heads(c, batch, m.delta_key_heads, true);
  if (keys.dims[2] != values.dims[2]) keys.dims[2].clear();
  const Array h = reshard(c, x, Sharding{{values.dims[0], {}, {}}, {}});
  const auto parameter = [&](const char* name) -> const Array& {
    return call.parameters[call.prefix + name];
  };
  const auto wide = [&](const char* name) { return cast(c, parameter(name), DType::f32); };
  const auto heads = [&](const char* name, const Sharding& layout) {
    return einsum(c, "BSM,MND->BSND", h, weight(call, name), &layout);
  };
  const auto of_heads = [&](const char* name) {
    return einsum(c, "BSM,MN->BSN", h, weight(call, name), &numbers);
  };
  const auto filtered = [&](const Array& y, const char* taps, Tensor DeltaMemory::*tail) {
    if (call.cache == nullptr) return causal_conv(c, y, wide(taps), call.segments);
    return causal_conv(c, *call.cache, call.cache->delta.*tail, y, wide(taps), *call.places);
  };
  const Array q = filtered(checkpoint_name(heads("delta.query", keys), "query_proj"), "delta.query_conv",
                           &DeltaMemory::query_tail),
              k = filtered(checkpoint_name(heads("delta.key", keys), "key_proj"), "delta.key_conv",
                           &DeltaMemory::key_tail),
              v = filtered(checkpoint_name(heads("delta.value", values), "value_proj"), "delta.value_conv",
                           &DeltaMemory::value_tail),
              gate = checkpoint_name(heads("delta.gate", values), "qkv_proj");
  const DeltaGates gates = delta_gates(c, of_heads("delta.decay"), of_heads("delta.strength"),
                                       wide("delta.decay_rate"), wide("delta.decay_bias"));
  const DeltaOptions options{
      .chunk = m.delta_chunk,
      .unit_vectors = m.delta_unit_vectors,
      .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(m.delta_key_dim)))};
  Array out;
  if (call.cache == nullptr) {
    out = checkpoint_name(gated_delta(c, q, k, v, gates, call.segments, options), "context");
  } else {
    out = gated_delta(c, *call.cache, q, k, v, gates, *call.places, options);
    count_tokens(*call.cache, *call.places);
  }
  const Array normed = rms_norm(c, out, parameter("delta.norm"), m.norm_epsilon);
  return checkpoint_name(project_heads(call, swiglu(c, gate, normed), "delta.out"), "out_proj");
}

}  // namespace switchyard
