// Bounds how far rounding inside attention's kernels of tiles may move a result. They round the softmax
// weights P and their gradients dS to bf16 before they multiply them: each moves by at most 2^-8 of itself,
// so a result by at most 2^-8 of the sum of its terms' magnitudes.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/attention/reference/attention_reference.h"

namespace switchyard::reference {

// P . |v|, |dS| . |k|, |dS|^T . |q| and P^T . |dout|, in the shapes of out, dq, dk and dv.
struct AttentionMagnitudes {
  std::vector<double> out, dq, dk, dv;
};

// Arguments as those of attention_backward.
template <typename T, typename R>
AttentionMagnitudes attention_magnitudes(const AttentionSpec& args, const T* q, const T* k, const T* v,
                                         const T* out, const R* lse, const T* dout) {
  const auto zeros = [](std::int64_t vectors, std::int64_t width) {
    return std::vector<double>(static_cast<std::size_t>(vectors * width));
  };
  const std::int64_t queries = args.batch * args.q_length * args.heads,
                     keys = args.batch * args.kv_length * args.kv_heads;
  AttentionMagnitudes m{zeros(queries, args.v_dim), zeros(queries, args.qk_dim), zeros(keys, args.qk_dim),
                        zeros(keys, args.v_dim)};
  const auto add = [](std::vector<double>& sums, std::int64_t row, double factor, const T* x,
                      std::int64_t width) {
    for (std::int64_t d = 0; d < width; ++d)
      sums[static_cast<std::size_t>(row * width + d)] += factor * std::abs(to_double(x[d]));
  };
  const double scale = static_cast<double>(args.scale);
  for_each_query(
      args, [&](std::int64_t b, std::int64_t i, std::int64_t n, std::int64_t q_row, std::int64_t kv_row) {
        const double row_lse = to_double(lse[(b * args.heads + n) * args.q_length + i]);
        const T *q_at = q + q_row * args.qk_dim, *dout_at = dout + q_row * args.v_dim;
        const double delta = dot(dout_at, out + q_row * args.v_dim, args.v_dim);
        for (std::int64_t j = 0; j < args.kv_length; ++j) {
          if (!attention_allowed(args, b, i, j)) continue;
          const std::int64_t row = kv_row + j * args.kv_heads;
          const T *k_at = k + row * args.qk_dim, *v_at = v + row * args.row_of_value();
          const double p = std::exp(scale * dot(q_at, k_at, args.qk_dim) - row_lse);
          const double ds = std::abs(p * (dot(dout_at, v_at, args.v_dim) - delta) * scale);
          add(m.out, q_row, p, v_at, args.v_dim);
          add(m.dq, q_row, ds, k_at, args.qk_dim);
          add(m.dk, row, ds, q_at, args.qk_dim);
          add(m.dv, row, p, dout_at, args.v_dim);
        }
      });
  return m;
}

}  // namespace switchyard::reference
