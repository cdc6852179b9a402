// Measures causal attention on one or more sequences, forward and with backward.
#include "kernels/attention/attention.h"

#include <cmath>

#include "bench/cases.h"
#include "bench/random_tensor.h"
#include "core/error.h"
#include "kernels/attention/visible_keys.h"

namespace switchyard::bench {
namespace {

const std::vector<std::string> kAttentionDirections{"fwd", "fwd+bwd"};

struct AttentionSizes {
  std::int64_t batch = 0;
  std::int64_t length = 0;  // of queries and keys
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t qk_dim = 0;
  std::int64_t v_dim = 0;
  KeyWindow seen = {};
  std::int64_t documents = 1;  // of equal length, packed into each sequence
  DType dtype = DType::bf16;
};

// FLOPs of a pair of query and key: q.k and the sum of v; backward makes q.k again, and has two
// products for v and two for q and k.
double flops_of(const AttentionSizes& a, bool backward) {
  const auto d = static_cast<double>(a.qk_dim), dv = static_cast<double>(a.v_dim);
  const double pairs =
      static_cast<double>(a.batch * a.heads * a.documents) * a.seen.pairs(a.length / a.documents);
  return 2 * pairs * (backward ? (d + dv) + (3 * d + 2 * dv) : d + dv);
}

// The document of each token, [batch,length]; undefined where there is one.
Tensor documents_of(const AttentionSizes& a, const Memory& memory) {
  if (a.documents == 1) return {};
  const Tensor segments(DType::i32, {a.batch, a.length});
  for (std::int64_t i = 0; i < segments.size(); ++i)
    segments.data<std::int32_t>()[i] = static_cast<std::int32_t>(1 + i % a.length / (a.length / a.documents));
  return to_device(memory, segments);
}

Measurement measure_attention(Bench& bench, const AttentionSizes& a, const std::string& direction) {
  const bool backward = direction == "fwd+bwd";
  const auto make = [&](std::int64_t heads, std::int64_t dim, std::uint32_t seed) {
    return random_tensor(bench, a.dtype, {a.batch, a.length, heads, dim}, seed);
  };
  const Tensor q = make(a.heads, a.qk_dim, 1), k = make(a.kv_heads, a.qk_dim, 2),
               v = make(a.kv_heads, a.v_dim, 3), dout = make(a.heads, a.v_dim, 4),
               out = make(a.heads, a.v_dim, 5), dq = make(a.heads, a.qk_dim, 6),
               dk = make(a.kv_heads, a.qk_dim, 7), dv = make(a.kv_heads, a.v_dim, 8),
               lse = bench.memory.zeros(DType::f32, {a.batch, a.heads, a.length});
  const Tensor segments = documents_of(a, bench.memory);
  const TensorView segment = segments.defined() ? segments.view() : TensorView();
  const AttentionArgs args{.q = q.view(),
                           .k = k.view(),
                           .v = v.view(),
                           .q_segment = segment,
                           .kv_segment = segment,
                           .scale = 1 / std::sqrt(static_cast<float>(a.qk_dim)),
                           .window = a.seen.window,
                           .chunk = a.seen.chunk,
                           .out = out.view(),
                           .lse = lse.view()};
  Measurement m;
  m.name = "attention";
  m.shape = {{"batch", a.batch},       {"seq", a.length},      {"heads", a.heads},
             {"kv_heads", a.kv_heads}, {"head_dim", a.qk_dim}, {"v_dim", a.v_dim}};
  if (a.seen.window > 0) m.shape["window"] = a.seen.window;
  if (a.seen.chunk > 0) m.shape["chunk"] = a.seen.chunk;
  if (a.documents > 1) m.shape["documents"] = a.documents;
  m.dtype = a.dtype;
  m.threads = bench.pool.threads();
  m.direction = direction;
  m.flops = flops_of(a, backward);
  m.bytes = static_cast<double>(q.bytes() + k.bytes() + v.bytes() + out.bytes());
  m.bytes +=
      static_cast<double>(backward ? dout.bytes() + dq.bytes() + dk.bytes() + dv.bytes() : lse.bytes());
  m.time = time_rounds(bench, [&] {
    attention(bench.pool, args);
    if (backward) attention_backward(bench.pool, {args, dout.view(), dq.view(), dk.view(), dv.view()});
  });
  return m;
}

}  // namespace

std::vector<Key> attention_keys() {
  return {{"batch", "1", "sequences"},
          {"seq", "4096", "tokens of a sequence; several"},
          {"heads", "8", "query heads"},
          {"kv_heads", "", "key and value heads (default heads)"},
          {"head_dim", "128", "of queries and keys"},
          {"v_dim", "", "of values (default head_dim)"},
          {"window", "0", "keys that a query sees (0: all)"},
          {"chunk", "0", "tokens of a chunk, whose queries see its keys only (0: none)"},
          {"documents", "1", "documents of equal length, packed into a sequence; they do not see each other"},
          {"direction", "all", "fwd, fwd+bwd; or all"},
          {"dtype", "bf16", "bf16 or f32"}};
}

std::vector<Job> attention_jobs(const Keys& keys) {
  AttentionSizes a;
  a.batch = keys.integer("batch");
  a.heads = keys.integer("heads");
  a.kv_heads = keys.given("kv_heads") ? keys.integer("kv_heads") : a.heads;
  a.qk_dim = keys.integer("head_dim");
  a.v_dim = keys.given("v_dim") ? keys.integer("v_dim") : a.qk_dim;
  a.seen = {keys.integer("window", 0), keys.integer("chunk", 0)};
  a.dtype = parse_float_dtype(keys.text("dtype"), "dtype");
  if (a.heads % a.kv_heads != 0)
    fail_usage("[bench] attention kv_heads={}: expected a divisor of heads={}", a.kv_heads, a.heads);
  a.documents = keys.integer("documents");
  if (a.documents > 1 && a.seen.chunk > 0)
    fail_usage("[bench] attention documents={}: expected 1 with chunk={}", a.documents, a.seen.chunk);
  std::vector<Job> jobs;
  for (const std::int64_t seq : keys.integers("seq")) {
    if (seq % a.documents != 0)
      fail_usage("[bench] attention documents={}: expected a divisor of seq={}", a.documents, seq);
    a.length = seq;
    const double bytes = static_cast<double>(size_of(a.dtype)) * static_cast<double>(a.batch * seq) * 4 *
                         static_cast<double>(a.heads * (a.qk_dim + a.v_dim));
    for (const auto& direction : keys.words("direction", kAttentionDirections)) {
      jobs.push_back(
          {fmt::format("attention {} seq={}", direction, seq), bytes,
           [a, direction](Bench& bench) { return std::vector{measure_attention(bench, a, direction)}; }});
    }
  }
  return jobs;
}

}  // namespace switchyard::bench
