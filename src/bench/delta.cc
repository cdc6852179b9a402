// Measures the gated delta rule on one or more sequences, forward and with backward.
#include <cmath>

#include "bench/cases.h"
#include "bench/random_tensor.h"
#include "core/error.h"
#include "kernels/delta_net/gated_delta.h"

namespace switchyard::bench {
namespace {

struct DeltaBench {
  std::int64_t batch = 0, length = 0, key_heads = 0, value_heads = 0, key_width = 0, value_width = 0,
               chunk = 0;
  DType dtype = DType::f32;
};

// FLOPs: each token's three products with a state of each value head, as the rule itself has them; backward
// makes them again and has seven.
double flops_of_rule(const DeltaBench& d, bool backward) {
  const double state = static_cast<double>(d.key_width * d.value_width);
  return 2 * static_cast<double>(d.batch * d.length * d.value_heads) * state * (backward ? 3 + 10 : 3);
}

Measurement measure_gated_delta(Bench& bench, const DeltaBench& d, const std::string& direction) {
  const bool backward = direction == "fwd+bwd";
  const auto make = [&](DType dtype, Shape shape, std::uint32_t seed) {
    return to_device(bench.memory, random_tensor(bench.pool, dtype, shape, seed));
  };
  // A gate's logarithm is below 0, and beta between 0 and 1.
  const auto changed = [&](const Shape& shape, std::uint32_t seed, float (*change)(float)) {
    const Tensor made = random_tensor(bench.pool, DType::f32, shape, seed);
    for (float& x : made.span<float>()) x = change(x);
    return to_device(bench.memory, made);
  };
  const Shape keys{d.batch, d.length, d.key_heads, d.key_width},
      values{d.batch, d.length, d.value_heads, d.value_width}, numbers{d.batch, d.length, d.value_heads};
  const Tensor q = make(d.dtype, keys, 1), k = make(d.dtype, keys, 2), v = make(d.dtype, values, 3),
               dout = make(d.dtype, values, 4), out = make(d.dtype, values, 5), dq = make(d.dtype, keys, 6),
               dk = make(d.dtype, keys, 7), dv = make(d.dtype, values, 8),
               g = changed(numbers, 9, [](float x) { return -0.1f * std::abs(x); }),
               beta = changed(numbers, 10, [](float x) { return 1 / (1 + std::exp(-x)); }),
               dg = make(DType::f32, numbers, 11), dbeta = make(DType::f32, numbers, 12);
  const GatedDeltaArgs args{.q = q.view(),
                            .k = k.view(),
                            .v = v.view(),
                            .g = g.view(),
                            .beta = beta.view(),
                            .segments = {},
                            .chunk = d.chunk,
                            .scale = 1 / std::sqrt(static_cast<float>(d.key_width)),
                            .state = {},
                            .out = out.view()};
  Measurement m;
  m.name = "delta";
  m.shape = {{"batch", d.batch},         {"seq", d.length},
             {"key_heads", d.key_heads}, {"value_heads", d.value_heads},
             {"key_dim", d.key_width},   {"value_dim", d.value_width},
             {"chunk", d.chunk}};
  m.dtype = d.dtype;
  m.threads = bench.pool.threads();
  m.direction = direction;
  m.flops = flops_of_rule(d, backward);
  m.bytes = static_cast<double>(q.bytes() + k.bytes() + v.bytes() + out.bytes());
  if (backward) m.bytes += static_cast<double>(dout.bytes() + dq.bytes() + dk.bytes() + dv.bytes());
  m.time = time_rounds(bench, [&] {
    gated_delta(bench.pool, args);
    if (backward)
      gated_delta_backward(bench.pool, {.forward = args,
                                        .dout = dout.view(),
                                        .dq = dq.view(),
                                        .dk = dk.view(),
                                        .dv = dv.view(),
                                        .dg = dg.view(),
                                        .dbeta = dbeta.view()});
  });
  return m;
}

}  // namespace

std::vector<Key> gated_delta_keys() {
  return {{"batch", "1", "sequences"},
          {"seq", "2048", "tokens of a sequence; several"},
          {"key_heads", "16", "heads of queries and keys"},
          {"value_heads", "32", "heads of values"},
          {"key_dim", "128", "of queries and keys"},
          {"value_dim", "128", "of values"},
          {"chunk", "64", "tokens that products take at once"},
          {"direction", "all", "fwd, fwd+bwd; or all"},
          {"dtype", "f32", "bf16 or f32"}};
}

std::vector<Job> gated_delta_jobs(const Keys& keys) {
  DeltaBench d;
  d.batch = keys.integer("batch");
  d.key_heads = keys.integer("key_heads");
  d.value_heads = keys.integer("value_heads");
  d.key_width = keys.integer("key_dim");
  d.value_width = keys.integer("value_dim");
  d.chunk = keys.integer("chunk");
  d.dtype = parse_float_dtype(keys.text("dtype"), "dtype");
  if (d.value_heads % d.key_heads != 0)
    fail_usage("[bench] delta value_heads={}: expected a multiple of key_heads={}", d.value_heads,
               d.key_heads);
  std::vector<Job> jobs;
  for (const std::int64_t seq : keys.integers("seq")) {
    d.length = seq;
    const double bytes = static_cast<double>(size_of(d.dtype)) * static_cast<double>(d.batch * seq) * 4 *
                         static_cast<double>(d.key_heads * d.key_width + d.value_heads * d.value_width);
    for (const auto& direction : keys.words("direction", {"fwd", "fwd+bwd"})) {
      jobs.push_back({fmt::format("delta {} seq={}", direction, seq), bytes, [d, direction](Bench& bench) {
                        return std::vector{measure_gated_delta(bench, d, direction)};
                      }});
    }
  }
  return jobs;
}

}  // namespace switchyard::bench
