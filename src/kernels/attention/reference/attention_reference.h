// Scalar truth for attention.h, in double, one query at a time. Shapes as there; T is float, bfloat16 or
// double and args.dtype is not read.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/attention/attention_problem.h"
#include "kernels/pointwise/reference/reference_element.h"

namespace switchyard::reference {

// The arguments of attention() in memory of the host, with the sizes of `s`.
inline AttentionArgs attention_args(const AttentionSpec& s, const void* q, const void* k, const void* v,
                                    const void* out, const float* lse) {
  const Shape queries{s.batch, s.q_length}, keys{s.batch, s.kv_length};
  return {.q = TensorView::of_host(s.dtype, q, {s.batch, s.q_length, s.heads, s.qk_dim}),
          .k = TensorView::of_host(s.dtype, k, {s.batch, s.kv_length, s.kv_heads, s.qk_dim}),
          .v = TensorView::of_host(s.dtype, v, {s.batch, s.kv_length, s.kv_heads, s.v_dim}),
          .q_index = TensorView::of_host(s.q_index, queries),
          .kv_index = TensorView::of_host(s.kv_index, keys),
          .q_segment = TensorView::of_host(s.q_segment, queries),
          .kv_segment = TensorView::of_host(s.kv_segment, keys),
          .scale = s.scale,
          .causal = s.causal,
          .window = s.seen.window,
          .chunk = s.seen.chunk,
          .chosen = TensorView::of_host(s.chosen, {s.batch, s.q_length, words_of_keys(s.kv_length)}),
          .out = TensorView::of_host(s.dtype, out, {s.batch, s.q_length, s.heads, s.v_dim}),
          .lse = TensorView::of_host(lse, {s.batch, s.heads, s.q_length})};
}

inline bool attention_allowed(const AttentionSpec& a, std::int64_t b, std::int64_t i, std::int64_t j) {
  if (a.q_segment && a.q_segment[b * a.q_length + i] != a.kv_segment[b * a.kv_length + j]) return false;
  if (!a.chooses(b, i, j) || j >= a.keys_of(b)) return false;
  const std::int64_t query = a.q_index ? a.q_index[b * a.q_length + i] : i;
  const std::int64_t key = a.kv_index ? a.kv_index[b * a.kv_length + j] : j;
  if (!a.causal) return true;
  // Written apart from KeyWindow, which it checks.
  const auto chunk_of = [&](std::int64_t place) {
    return std::floor(static_cast<double>(place) / static_cast<double>(a.seen.chunk));
  };
  return key <= query && (a.seen.window == 0 || key > query - a.seen.window) &&
         (a.seen.chunk == 0 || chunk_of(key) == chunk_of(query));
}

template <typename T>
double dot(const T* x, const T* y, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += to_double(x[i]) * to_double(y[i]);
  return sum;
}

// Calls body(b, i, n, q_row, kv_row) for every query and head; rows count vectors in
// q [B,S,N] and k [B,T,Nkv].
template <typename Body>
void for_each_query(const AttentionSpec& a, const Body& body) {
  for (std::int64_t b = 0; b < a.batch; ++b) {
    for (std::int64_t n = 0; n < a.heads; ++n) {
      for (std::int64_t i = 0; i < a.q_length; ++i) {
        const std::int64_t kv_head = n / (a.heads / a.kv_heads);
        body(b, i, n, (b * a.q_length + i) * a.heads + n, a.slot_of(b) * a.kv_length * a.kv_heads + kv_head);
      }
    }
  }
}

template <typename T, typename R>
void attention(const AttentionSpec& a, const T* q, const T* k, const T* v, T* out, R* lse, R* top = nullptr) {
  const double infinity = std::numeric_limits<double>::infinity();
  std::vector<double> score(static_cast<std::size_t>(a.kv_length));
  std::vector<double> sum(static_cast<std::size_t>(a.v_dim));
  for_each_query(a, [&](std::int64_t b, std::int64_t i, std::int64_t n, std::int64_t q_row,
                        std::int64_t kv_row) {
    double maximum = -infinity;
    for (std::int64_t j = 0; j < a.kv_length; ++j) {
      auto& s = score[static_cast<std::size_t>(j)];
      s = -infinity;
      if (!attention_allowed(a, b, i, j)) continue;
      s = static_cast<double>(a.scale) *
          dot(q + q_row * a.qk_dim, k + (kv_row + j * a.kv_heads) * a.qk_dim, a.qk_dim);
      maximum = std::max(maximum, s);
    }
    double total = 0;
    std::fill(sum.begin(), sum.end(), 0.0);
    for (std::int64_t j = 0; j < a.kv_length; ++j) {
      const double s = score[static_cast<std::size_t>(j)];
      if (s == -infinity) continue;
      const double p = std::exp(s - maximum);
      total += p;
      for (std::int64_t d = 0; d < a.v_dim; ++d) {
        sum[static_cast<std::size_t>(d)] +=
            p * to_double(v[(kv_row + j * a.kv_heads) * a.row_of_value() + d]);
      }
    }
    if (top != nullptr) top[(b * a.heads + n) * a.q_length + i] = static_cast<R>(maximum);
    lse[(b * a.heads + n) * a.q_length + i] =
        static_cast<R>(total != 0 ? maximum + std::log(total) : -infinity);
    for (std::int64_t d = 0; d < a.v_dim; ++d) {
      out[q_row * a.v_dim + d] = from_double<T>(total != 0 ? sum[static_cast<std::size_t>(d)] / total : 0.0);
    }
  });
}

// With p = exp(s - lse), dp = dout.v and delta = dout.out: dv += p dout, ds = p (dp - delta) scale, dq += ds
// k, dk += ds q.
template <typename T, typename R>
void attention_backward(const AttentionSpec& a, const T* q, const T* k, const T* v, const T* out,
                        const R* lse, const T* dout, T* dq, T* dk, T* dv) {
  const std::int64_t keys = a.batch * a.kv_length * a.kv_heads;
  const std::int64_t queries = a.batch * a.q_length * a.heads;
  std::vector<double> q_sum(static_cast<std::size_t>(queries * a.qk_dim));
  std::vector<double> k_sum(static_cast<std::size_t>(keys * a.qk_dim));
  std::vector<double> v_sum(static_cast<std::size_t>(keys * a.v_dim));
  for_each_query(
      a, [&](std::int64_t b, std::int64_t i, std::int64_t n, std::int64_t q_row, std::int64_t kv_row) {
        const double delta = dot(dout + q_row * a.v_dim, out + q_row * a.v_dim, a.v_dim);
        const double row_lse = to_double(lse[(b * a.heads + n) * a.q_length + i]);
        for (std::int64_t j = 0; j < a.kv_length; ++j) {
          if (!attention_allowed(a, b, i, j)) continue;
          const std::int64_t row = kv_row + j * a.kv_heads;
          const double score =
              static_cast<double>(a.scale) * dot(q + q_row * a.qk_dim, k + row * a.qk_dim, a.qk_dim);
          const double p = std::exp(score - row_lse);
          const double dp = dot(dout + q_row * a.v_dim, v + row * a.v_dim, a.v_dim);
          const double ds = p * (dp - delta) * static_cast<double>(a.scale);
          for (std::int64_t d = 0; d < a.v_dim; ++d) {
            v_sum[static_cast<std::size_t>(row * a.v_dim + d)] += p * to_double(dout[q_row * a.v_dim + d]);
          }
          for (std::int64_t d = 0; d < a.qk_dim; ++d) {
            q_sum[static_cast<std::size_t>(q_row * a.qk_dim + d)] += ds * to_double(k[row * a.qk_dim + d]);
            k_sum[static_cast<std::size_t>(row * a.qk_dim + d)] += ds * to_double(q[q_row * a.qk_dim + d]);
          }
        }
      });
  for (std::size_t i = 0; i < q_sum.size(); ++i) dq[i] = from_double<T>(q_sum[i]);
  for (std::size_t i = 0; i < k_sum.size(); ++i) dk[i] = from_double<T>(k_sum[i]);
  for (std::size_t i = 0; i < v_sum.size(); ++i) dv[i] = from_double<T>(v_sum[i]);
}

}  // namespace switchyard::reference
