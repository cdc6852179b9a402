// Attention of bfloat16 on tensor cores, backward. Scores are made again, once for the gradients of queries,
// by rows of queries, and once for those of keys and values, by rows of keys; so no sum depends on the order
// in which blocks run.
#include "kernels/attention/cuda/flash_parts.h"

namespace switchyard::gpu {
namespace {

using namespace flash;

// delta = <dout, out> of each row [B,S,N], laid out as lse [B,N,S].
GPU_KERNEL row_deltas(AttentionSpec a, const bfloat16* dout, const bfloat16* out, float* delta) {
  const std::int64_t row = block_index() * (kThreads / kWarp) + thread_index() / kWarp;
  if (row >= a.batch * a.q_length * a.heads) return;
  float sum = 0;
  for (std::int64_t d = thread_index() % kWarp; d < a.v_dim; d += kWarp)
    sum += to_float(dout[row * a.v_dim + d]) * to_float(out[row * a.v_dim + d]);
  sum = warp_sum(sum);
  const std::int64_t head = row % a.heads, query = row / a.heads % a.q_length,
                     batch = row / a.heads / a.q_length;
  if (thread_index() % kWarp == 0) delta[(batch * a.heads + head) * a.q_length + query] = sum;
}

// `columns`: keys whose scores are made at once.
template <int qk, int vw, int columns>
GPU_KERNEL
#if defined(__CUDACC__)
__launch_bounds__(kThreads)
#endif
    flash_query_gradients(AttentionSpec a, Matrices m, std::int64_t q_tiles, std::int64_t kv_tiles,
                          bfloat16* dq) {
  GPU_SHARED(Place, keys, kRows);
  auto* const q_tile = dynamic_shared<bfloat16>();
  auto* const dout_tile = q_tile + kRows * qk;
  auto* const k_tile = dout_tile + kRows * vw;
  auto* const v_tile = k_tile + kRows * qk;
  const QueryBlock at = query_block(a, q_tiles);
  const bfloat16* const k = m.k + (at.batch * a.kv_length * a.kv_heads + at.kv_head) * a.qk_dim;
  const bfloat16* const v = m.v + (at.batch * a.kv_length * a.kv_heads + at.kv_head) * a.v_dim;
  const std::int64_t first_row = at.batch * a.q_length * a.heads + at.head;
  const int warp_row = thread_index() / kWarp * kRowsOfWarp, lane = thread_index() % kWarp;
  load_rows<qk>(q_tile, m.q + first_row * a.qk_dim, a.heads * a.qk_dim, at.tile * kRows, a.q_length,
                a.qk_dim);
  load_rows<vw>(dout_tile, m.dout + first_row * a.v_dim, a.heads * a.v_dim, at.tile * kRows, a.q_length,
                a.v_dim);
  end_copies();
  Place query[2];
  std::int32_t first[2];
  float lse[2], delta[2];
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = at.tile * kRows + warp_row + lane / 4 + half * 8;
    query[half] = place_in(a.q_index, a.q_segment, at.batch, a.q_length, row);
    first[half] = a.seen.first_visible(query[half].index);
    const std::int64_t i = (at.batch * a.heads + at.head) * a.q_length + row;
    lse[half] = row < a.q_length ? m.lse[i] * kLog2e : INFINITY;
    delta[half] = row < a.q_length ? m.delta[i] : 0.0f;
  }
  float sums[qk / 8][4];
  clear(sums);
  const TileRange range = m.q_ranges[at.batch * q_tiles + at.tile];
  for (std::int64_t tile = 0; tile < kv_tiles; ++tile) {
    const TileMask mask = mask_of(range, m.kv_ranges[at.batch * kv_tiles + tile], a.causal);
    if (mask == TileMask::none) continue;
    const bool whole = mask == TileMask::all && (tile + 1) * kRows <= a.kv_length;
    barrier();
    load_rows<qk>(k_tile, k, a.kv_heads * a.qk_dim, tile * kRows, a.kv_length, a.qk_dim);
    load_rows<vw>(v_tile, v, a.kv_heads * a.v_dim, tile * kRows, a.kv_length, a.v_dim);
    end_copies();
    if (thread_index() < kRows)
      keys[thread_index()] =
          place_in(a.kv_index, a.kv_segment, at.batch, a.kv_length, tile * kRows + thread_index());
    wait_for_copies<0>();
    barrier();
    GPU_NO_UNROLL
    for (int part = 0; part < kRows; part += columns) {
      float scores[columns / 8][4], slopes[columns / 8][4];
      clear(scores);
      clear(slopes);
      multiply_rows<columns, qk>(scores, q_tile, warp_row, k_tile, part);
      multiply_rows<columns, vw>(slopes, dout_tile, warp_row, v_tile, part);
      GPU_UNROLL
      for (int j = 0; j < columns / 8; ++j) {
        GPU_UNROLL
        for (int i = 0; i < 4; ++i) {
          const bool visible =
              whole || sees(a, query[i / 2], first[i / 2], keys[part + j * 8 + lane % 4 * 2 + i % 2]);
          const float p = visible ? exp2f(scores[j][i] * (a.scale * kLog2e) - lse[i / 2]) : 0.0f;
          scores[j][i] = p * (slopes[j][i] - delta[i / 2]) * a.scale;
        }
      }
      multiply_weights<columns, qk>(sums, scores, k_tile, part);
    }
  }
  wait_for_copies<0>();
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = at.tile * kRows + warp_row + lane / 4 + half * 8;
    if (row >= a.q_length) continue;
    bfloat16* const to = dq + (first_row + row * a.heads) * a.qk_dim;
    GPU_UNROLL
    for (int j = 0; j < qk / 8; ++j) {
      const int column = j * 8 + lane % 4 * 2;
      if (column < a.qk_dim)
        *reinterpret_cast<std::uint32_t*>(to + column) =
            rounded_pair(sums[j][half * 2], sums[j][half * 2 + 1]);
    }
  }
}

// Rows are keys here: products are transposed. `columns`: queries whose scores are made at once.
template <int qk, int vw, int columns>
GPU_KERNEL
#if defined(__CUDACC__)
__launch_bounds__(kThreads)
#endif
    flash_key_gradients(AttentionSpec a, Matrices m, std::int64_t q_tiles, std::int64_t kv_tiles,
                        bfloat16* dk, bfloat16* dv) {
  struct OfQuery {
    Place place;
    std::int32_t first;
    float lse, delta;
  };
  GPU_SHARED(OfQuery, queries, kRows);
  auto* const k_tile = dynamic_shared<bfloat16>();
  auto* const v_tile = k_tile + kRows * qk;
  auto* const q_tile = v_tile + kRows * vw;
  auto* const dout_tile = q_tile + kRows * qk;
  const std::int64_t batch = block_index_y() / a.kv_heads, kv_head = block_index_y() % a.kv_heads,
                     tile = block_index(), group = a.heads / a.kv_heads;
  const std::int64_t first_key = batch * a.kv_length * a.kv_heads + kv_head;
  const int warp_row = thread_index() / kWarp * kRowsOfWarp, lane = thread_index() % kWarp;
  load_rows<qk>(k_tile, m.k + first_key * a.qk_dim, a.kv_heads * a.qk_dim, tile * kRows, a.kv_length,
                a.qk_dim);
  load_rows<vw>(v_tile, m.v + first_key * a.v_dim, a.kv_heads * a.v_dim, tile * kRows, a.kv_length, a.v_dim);
  end_copies();
  Place key[2];
  for (int half = 0; half < 2; ++half)
    key[half] =
        place_in(a.kv_index, a.kv_segment, batch, a.kv_length, tile * kRows + warp_row + lane / 4 + half * 8);
  float k_sums[qk / 8][4], v_sums[vw / 8][4];
  clear(k_sums);
  clear(v_sums);
  const TileRange range = m.kv_ranges[batch * kv_tiles + tile];
  for (std::int64_t step = 0; step < group * q_tiles; ++step) {
    const std::int64_t head = kv_head * group + step / q_tiles, q_at = step % q_tiles;
    const TileMask mask = mask_of(m.q_ranges[batch * q_tiles + q_at], range, a.causal);
    if (mask == TileMask::none) continue;
    const bool whole = mask == TileMask::all && (q_at + 1) * kRows <= a.q_length;
    const std::int64_t first_query = batch * a.q_length * a.heads + head;
    barrier();
    load_rows<qk>(q_tile, m.q + first_query * a.qk_dim, a.heads * a.qk_dim, q_at * kRows, a.q_length,
                  a.qk_dim);
    load_rows<vw>(dout_tile, m.dout + first_query * a.v_dim, a.heads * a.v_dim, q_at * kRows, a.q_length,
                  a.v_dim);
    end_copies();
    if (thread_index() < kRows) {
      const std::int64_t row = q_at * kRows + thread_index(), i = (batch * a.heads + head) * a.q_length + row;
      const Place place = place_in(a.q_index, a.q_segment, batch, a.q_length, row);
      const bool inside = row < a.q_length;
      queries[thread_index()] = {place, a.seen.first_visible(place.index),
                                 inside ? m.lse[i] * kLog2e : INFINITY, inside ? m.delta[i] : 0.0f};
    }
    wait_for_copies<0>();
    barrier();
    GPU_NO_UNROLL
    for (int part = 0; part < kRows; part += columns) {
      float weights[columns / 8][4];
      clear(weights);
      multiply_rows<columns, qk>(weights, k_tile, warp_row, q_tile, part);
      GPU_UNROLL
      for (int j = 0; j < columns / 8; ++j) {
        GPU_UNROLL
        for (int i = 0; i < 4; ++i) {
          const OfQuery& query = queries[part + j * 8 + lane % 4 * 2 + i % 2];
          const bool visible =
              whole || (query.lse != INFINITY && sees(a, query.place, query.first, key[i / 2]));
          const float p = visible ? exp2f(weights[j][i] * (a.scale * kLog2e) - query.lse) : 0.0f;
          weights[j][i] = p;
        }
      }
      multiply_weights<columns, vw>(v_sums, weights, dout_tile, part);
      float slopes[columns / 8][4];
      clear(slopes);
      multiply_rows<columns, vw>(slopes, v_tile, warp_row, dout_tile, part);
      GPU_UNROLL
      for (int j = 0; j < columns / 8; ++j) {
        GPU_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float delta = queries[part + j * 8 + lane % 4 * 2 + i % 2].delta;
          slopes[j][i] = weights[j][i] * (slopes[j][i] - delta) * a.scale;
        }
      }
      multiply_weights<columns, qk>(k_sums, slopes, q_tile, part);
    }
  }
  wait_for_copies<0>();
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = tile * kRows + warp_row + lane / 4 + half * 8;
    if (row >= a.kv_length) continue;
    const std::int64_t at = first_key + row * a.kv_heads;
    GPU_UNROLL
    for (int j = 0; j < qk / 8; ++j) {
      const int column = j * 8 + lane % 4 * 2;
      if (column < a.qk_dim)
        *reinterpret_cast<std::uint32_t*>(dk + at * a.qk_dim + column) =
            rounded_pair(k_sums[j][half * 2], k_sums[j][half * 2 + 1]);
    }
    GPU_UNROLL
    for (int j = 0; j < vw / 8; ++j) {
      const int column = j * 8 + lane % 4 * 2;
      if (column < a.v_dim)
        *reinterpret_cast<std::uint32_t*>(dv + at * a.v_dim + column) =
            rounded_pair(v_sums[j][half * 2], v_sums[j][half * 2 + 1]);
    }
  }
}

}  // namespace

void flash_attention_backward(const AttentionBackwardArgs& args) {
  const AttentionProblem p = attention_problem(args);
  const AttentionSpec& a = p.args;
  const std::int64_t q_tiles = p.q_tile_count(), kv_tiles = p.kv_tile_count(),
                     rows = a.batch * a.q_length * a.heads;
  const Ranges ranges(a, args.dq, kRows, kRows);
  const Workspace delta(args.dq, static_cast<std::size_t>(rows) * sizeof(float));
  launch({.blocks = divide_up(rows, kThreads / kWarp), .threads = kThreads}, row_deltas, a,
         static_cast<const bfloat16*>(p.dout), static_cast<const bfloat16*>(p.out), delta.data<float>());
  const Matrices m = matrices_of(p, ranges, delta.data<float>());
  with_widths(a, [&](auto qk, auto vw) {
    constexpr std::size_t kBytes = 2 * (kTileBytes<qk()> + kTileBytes<vw()>);
    // As many as fit in registers beside the sums.
    constexpr int kKeys = qk() > 128 ? 32 : kRows, kQueries = qk() > 128 ? 16 : qk() > 64 ? 32 : kRows;
    launch(tiles_launch(q_tiles, a.batch * a.heads, kBytes), flash_query_gradients<qk(), vw(), kKeys>, a, m,
           q_tiles, kv_tiles, static_cast<bfloat16*>(p.dq));
    launch(tiles_launch(kv_tiles, a.batch * a.kv_heads, kBytes), flash_key_gradients<qk(), vw(), kQueries>, a,
           m, q_tiles, kv_tiles, static_cast<bfloat16*>(p.dk), static_cast<bfloat16*>(p.dv));
  });
}

}  // namespace switchyard::gpu
