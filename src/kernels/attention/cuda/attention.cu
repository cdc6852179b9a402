// Attention by warps: a warp takes a query (or, for the gradients of keys and values, a key) and goes through
// the others 32 at a time, each lane with a score of its own. Any dtype and width, all sums in float32.
#include "kernels/attention/attention_problem.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/workspace.h"

namespace switchyard::gpu {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;

GPU_FUNCTION std::int32_t place_of(const std::int32_t* index, std::int64_t at, std::int64_t otherwise) {
  return index != nullptr ? index[at] : static_cast<std::int32_t>(otherwise);
}

GPU_FUNCTION bool is_allowed(const AttentionSpec& a, std::int64_t batch, std::int64_t query,
                             std::int64_t key) {
  const std::int64_t i = batch * a.q_length + query, j = batch * a.kv_length + key;
  if (a.q_segment != nullptr && a.q_segment[i] != a.kv_segment[j]) return false;
  if (!a.chooses(batch, query, key)) return false;
  if (!a.causal) return true;
  const std::int32_t of_query = place_of(a.q_index, i, query), of_key = place_of(a.kv_index, j, key);
  return of_key <= of_query && of_key >= a.seen.first_visible(of_query);
}

// The scalar product of a vector of this warp, in shared memory, and one in memory.
template <typename T>
GPU_FUNCTION float dot(const float* x, const T* y, std::int64_t width) {
  float sum = 0;
  for (std::int64_t d = 0; d < width; ++d) sum += x[d] * to_float(y[d]);
  return sum;
}

template <typename T>
GPU_FUNCTION void load_vector(const T* from, float* to, std::int64_t width) {
  for (std::int64_t d = thread_index() % kWarp; d < width; d += kWarp) to[d] = to_float(from[d]);
}

// A vector of up to 32 · kParts elements, in the lanes of a warp.
template <int kParts>
struct Spread {
  float at[kParts] = {};

  // Adds `factor` times a vector of `width`.
  template <typename T>
  GPU_FUNCTION static void add(Spread& sums, float factor, const T* x, std::int64_t width) {
    for (int part = 0; part < kParts; ++part) {
      const std::int64_t d = part * kWarp + thread_index() % kWarp;
      if (d < width) sums.at[part] += factor * to_float(x[d]);
    }
  }
  template <typename T>
  GPU_FUNCTION static void store(const Spread& sums, float factor, T* to, std::int64_t width) {
    for (int part = 0; part < kParts; ++part) {
      const std::int64_t d = part * kWarp + thread_index() % kWarp;
      if (d < width) to[d] = from_float<T>(sums.at[part] * factor);
    }
  }
};

// Keys that a query may see, of those in the order of places: the rest need not be looked at.
struct KeyRange {
  std::int64_t begin, end;
};
GPU_FUNCTION KeyRange keys_of(const AttentionSpec& a, std::int64_t batch, std::int64_t query) {
  KeyRange range{0, a.keys_of(batch)};
  if (!a.causal || a.kv_index != nullptr) return range;
  const std::int32_t place = place_of(a.q_index, batch * a.q_length + query, query),
                     first = a.seen.first_visible(place);
  if (first > 0) range.begin = first / kWarp * kWarp;
  if (std::int64_t{place} + 1 < range.end) range.end = std::int64_t{place} + 1;
  return range;
}

template <typename T, int kParts>
GPU_KERNEL forward(AttentionSpec a, const T* q, const T* k, const T* v, T* out, float* lse, float* top) {
  const int warp = thread_index() / kWarp, lane = thread_index() % kWarp;
  const std::int64_t row = block_index() * kWarps + warp;  // [B,S,N]
  if (row >= a.batch * a.q_length * a.heads) return;
  const std::int64_t head = row % a.heads, query = row / a.heads % a.q_length,
                     batch = row / a.heads / a.q_length;
  const std::int64_t kv_head = head / (a.heads / a.kv_heads);
  float* const own_q = dynamic_shared<float>() + warp * a.qk_dim;
  load_vector(q + row * a.qk_dim, own_q, a.qk_dim);
  warp_barrier();
  const std::int64_t slot = a.slot_of(batch), value_row = a.row_of_value();
  const auto key_row = [&](std::int64_t key) { return (slot * a.kv_length + key) * a.kv_heads + kv_head; };
  Spread<kParts> sums;
  float maximum = -INFINITY, total = 0;
  const KeyRange keys = keys_of(a, batch, query);
  for (std::int64_t first = keys.begin; first < keys.end; first += kWarp) {
    const std::int64_t key = first + lane;
    float score = -INFINITY;
    if (key < keys.end && is_allowed(a, batch, query, key))
      score = a.scale * dot(own_q, k + key_row(key) * a.qk_dim, a.qk_dim);
    // The whole warp: what is not a number has no largest on which lanes agree.
    if (ballot(score != -INFINITY) == 0) continue;
    const float largest = warp_max(score), before = maximum;
    if (largest > maximum) maximum = largest;
    const float p = score == -INFINITY ? 0.0f : expf(score - maximum);
    const float shrink = before == -INFINITY ? 0.0f : expf(before - maximum);
    total = total * shrink + warp_sum(p);
    for (int part = 0; part < kParts; ++part) sums.at[part] *= shrink;
    const std::int64_t count = keys.end - first < kWarp ? keys.end - first : kWarp;
    for (int j = 0; j < count; ++j) {
      const float weight = shuffle(p, j);
      if (weight != 0) Spread<kParts>::add(sums, weight, v + key_row(first + j) * value_row, a.v_dim);
    }
  }
  Spread<kParts>::store(sums, total > 0 ? 1.0f / total : 0.0f, out + row * a.v_dim, a.v_dim);
  const std::int64_t of_row = (batch * a.heads + head) * a.q_length + query;
  if (lane == 0) lse[of_row] = total > 0 ? maximum + logf(total) : -INFINITY;
  if (lane == 0 && top != nullptr) top[of_row] = maximum;
}

// delta[row] = <dout, out>
template <typename T>
GPU_KERNEL row_products(const T* dout, const T* out, std::int64_t rows, std::int64_t width, float* delta) {
  const std::int64_t row = block_index() * kWarps + thread_index() / kWarp;
  if (row >= rows) return;
  float sum = 0;
  for (std::int64_t d = thread_index() % kWarp; d < width; d += kWarp)
    sum += to_float(dout[row * width + d]) * to_float(out[row * width + d]);
  sum = warp_sum(sum);
  if (thread_index() % kWarp == 0) delta[row] = sum;
}

template <typename T, int kParts>
GPU_KERNEL backward_queries(AttentionSpec a, const T* q, const T* k, const T* v, const T* dout,
                            const float* lse, const float* delta, T* dq) {
  const int warp = thread_index() / kWarp, lane = thread_index() % kWarp;
  const std::int64_t row = block_index() * kWarps + warp;
  if (row >= a.batch * a.q_length * a.heads) return;
  const std::int64_t head = row % a.heads, query = row / a.heads % a.q_length,
                     batch = row / a.heads / a.q_length;
  const std::int64_t kv_head = head / (a.heads / a.kv_heads);
  float* const own_q = dynamic_shared<float>() + warp * (a.qk_dim + a.v_dim);
  float* const own_dout = own_q + a.qk_dim;
  load_vector(q + row * a.qk_dim, own_q, a.qk_dim);
  load_vector(dout + row * a.v_dim, own_dout, a.v_dim);
  warp_barrier();
  const auto key_row = [&](std::int64_t key) { return (batch * a.kv_length + key) * a.kv_heads + kv_head; };
  const float own_lse = lse[(batch * a.heads + head) * a.q_length + query], own_delta = delta[row];
  Spread<kParts> sums;
  const KeyRange keys = keys_of(a, batch, query);
  for (std::int64_t first = keys.begin; first < keys.end; first += kWarp) {
    const std::int64_t key = first + lane;
    float ds = 0;
    if (key < keys.end && is_allowed(a, batch, query, key)) {
      const float score = a.scale * dot(own_q, k + key_row(key) * a.qk_dim, a.qk_dim);
      const float dp = dot(own_dout, v + key_row(key) * a.v_dim, a.v_dim);
      ds = expf(score - own_lse) * (dp - own_delta) * a.scale;
    }
    const std::int64_t count = keys.end - first < kWarp ? keys.end - first : kWarp;
    for (int j = 0; j < count; ++j) {
      const float factor = shuffle(ds, j);
      if (factor != 0) Spread<kParts>::add(sums, factor, k + key_row(first + j) * a.qk_dim, a.qk_dim);
    }
  }
  Spread<kParts>::store(sums, 1.0f, dq + row * a.qk_dim, a.qk_dim);
}

template <typename T, int kParts>
GPU_KERNEL backward_keys(AttentionSpec a, const T* q, const T* k, const T* v, const T* dout, const float* lse,
                         const float* delta, T* dk, T* dv) {
  const int warp = thread_index() / kWarp, lane = thread_index() % kWarp;
  const std::int64_t row = block_index() * kWarps + warp;  // [B,T,Nkv]
  if (row >= a.batch * a.kv_length * a.kv_heads) return;
  const std::int64_t kv_head = row % a.kv_heads, key = row / a.kv_heads % a.kv_length,
                     batch = row / a.kv_heads / a.kv_length;
  float* const own_k = dynamic_shared<float>() + warp * (a.qk_dim + a.v_dim);
  float* const own_v = own_k + a.qk_dim;
  load_vector(k + row * a.qk_dim, own_k, a.qk_dim);
  load_vector(v + row * a.v_dim, own_v, a.v_dim);
  warp_barrier();
  Spread<kParts> sums_k, sums_v;
  // Queries before the key see it in no case, where both are in the order of places.
  const bool ordered = a.causal && a.q_index == nullptr && a.kv_index == nullptr;
  const std::int64_t queries_begin = ordered ? key / kWarp * kWarp : 0, group = a.heads / a.kv_heads;
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const auto query_row = [&](std::int64_t query) { return (batch * a.q_length + query) * a.heads + head; };
    for (std::int64_t first = queries_begin; first < a.q_length; first += kWarp) {
      const std::int64_t query = first + lane;
      float p = 0, ds = 0;
      if (query < a.q_length && is_allowed(a, batch, query, key)) {
        const float score = a.scale * dot(own_k, q + query_row(query) * a.qk_dim, a.qk_dim);
        const float dp = dot(own_v, dout + query_row(query) * a.v_dim, a.v_dim);
        p = expf(score - lse[(batch * a.heads + head) * a.q_length + query]);
        ds = p * (dp - delta[query_row(query)]) * a.scale;
      }
      if (ballot(p != 0) == 0) continue;
      const std::int64_t count = a.q_length - first < kWarp ? a.q_length - first : kWarp;
      for (int i = 0; i < count; ++i) {
        const float factor = shuffle(ds, i), weight = shuffle(p, i);
        if (weight == 0) continue;
        Spread<kParts>::add(sums_k, factor, q + query_row(first + i) * a.qk_dim, a.qk_dim);
        Spread<kParts>::add(sums_v, weight, dout + query_row(first + i) * a.v_dim, a.v_dim);
      }
    }
  }
  Spread<kParts>::store(sums_k, 1.0f, dk + row * a.qk_dim, a.qk_dim);
  Spread<kParts>::store(sums_v, 1.0f, dv + row * a.v_dim, a.v_dim);
}

// Calls body(parts) with the fewest parts of 32 elements that hold `width`.
template <typename Body>
void with_parts(std::int64_t width, const Body& body) {
  if (width <= 1 * kWarp) return body(std::integral_constant<int, 1>());
  if (width <= 2 * kWarp) return body(std::integral_constant<int, 2>());
  if (width <= 4 * kWarp) return body(std::integral_constant<int, 4>());
  if (width <= 8 * kWarp) return body(std::integral_constant<int, 8>());
  if (width <= 18 * kWarp) return body(std::integral_constant<int, 18>());
  fail_runtime("[attention] the GPU has no kernel for heads of {} elements: expected at most {}", width,
               18 * kWarp);
}

Launch warps_for(std::int64_t rows, std::int64_t floats_of_warp) {
  return {.blocks = divide_up(rows, kWarps),
          .threads = kThreads,
          .shared_bytes = static_cast<std::size_t>(kWarps * floats_of_warp) * sizeof(float)};
}

}  // namespace

void warp_attention(const AttentionArgs& args) {
  const AttentionProblem p = attention_problem(args);
  const AttentionSpec& a = p.args;
  with_float_type(a.dtype, [&]<typename T>(T) {
    with_parts(a.v_dim, [&](auto parts) {
      launch(warps_for(a.batch * a.q_length * a.heads, a.qk_dim), forward<T, parts()>, a,
             static_cast<const T*>(p.q), static_cast<const T*>(p.k), static_cast<const T*>(p.v),
             static_cast<T*>(p.out), p.lse, p.top);
    });
  });
}

void warp_attention_backward(const AttentionBackwardArgs& args) {
  const AttentionProblem p = attention_problem(args);
  const AttentionSpec& a = p.args;
  const std::int64_t rows = a.batch * a.q_length * a.heads;
  const Workspace delta(args.dq, static_cast<std::size_t>(rows) * sizeof(float));
  with_float_type(a.dtype, [&]<typename T>(T) {
    const T *const k = static_cast<const T*>(p.k), *const v = static_cast<const T*>(p.v),
                   *const queries = static_cast<const T*>(p.q), *const dout = static_cast<const T*>(p.dout);
    launch({.blocks = divide_up(rows, kWarps), .threads = kThreads}, row_products<T>, dout,
           static_cast<const T*>(p.out), rows, a.v_dim, delta.data<float>());
    with_parts(a.qk_dim > a.v_dim ? a.qk_dim : a.v_dim, [&](auto parts) {
      launch(warps_for(rows, a.qk_dim + a.v_dim), backward_queries<T, parts()>, a, queries, k, v, dout, p.lse,
             delta.data<float>(), static_cast<T*>(p.dq));
      launch(warps_for(a.batch * a.kv_length * a.kv_heads, a.qk_dim + a.v_dim), backward_keys<T, parts()>, a,
             queries, k, v, dout, p.lse, delta.data<float>(), static_cast<T*>(p.dk), static_cast<T*>(p.dv));
    });
  });
}

}  // namespace switchyard::gpu
