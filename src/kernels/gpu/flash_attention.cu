// Attention of bfloat16 on tensor cores (FlashAttention-2, Dao 2023): four warps take 64 rows of queries, 16
// each, and go through the keys 64 at a time, with scores in registers. Backward makes them again, once for
// the gradients of queries, by rows of queries, and once for those of keys and values, by rows of keys; so no
// sum depends on the order in which blocks run. Scores of tiles without a visible key are never made.
#include "kernels/attention_problem.h"
#include "kernels/gpu/code.h"
#include "kernels/gpu/flash_attention.h"
#include "kernels/gpu/product_parts.h"
#include "kernels/gpu/workspace.h"

namespace switchyard::gpu {
namespace {

constexpr int kRows = 64, kThreads = 128, kRowsOfWarp = 16;
constexpr int kBlockElements = kRows * kTileWidth;  // of 64 rows and 64 columns
static_assert(kAttentionTile == kRows);
constexpr float kLog2e = 1.44269504088896340736f;

// Both widths, in whole blocks of columns.
template <int width>
constexpr std::size_t kTileBytes = std::size_t{kRows} * width * sizeof(bfloat16);

struct Matrices {
  const bfloat16 *q, *k, *v, *out, *dout;
  const float *lse, *delta;
  const TileRange *q_ranges, *kv_ranges;
};

GPU_KERNEL find_ranges(const std::int32_t* index, const std::int32_t* segment, std::int64_t length,
                       std::int64_t tiles, KeyWindow seen, TileRange* ranges) {
  const std::int64_t batch = block_index() / tiles, first = block_index() % tiles * kRows;
  if (thread_index() != 0) return;
  TileRange range{INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN};
  for (std::int64_t i = first; i < first + kRows && i < length; ++i) {
    const std::int32_t at = index != nullptr ? index[batch * length + i] : static_cast<std::int32_t>(i);
    const std::int32_t of = segment != nullptr ? segment[batch * length + i] : 0;
    range.min_index = at < range.min_index ? at : range.min_index;
    range.max_index = at > range.max_index ? at : range.max_index;
    range.min_segment = of < range.min_segment ? of : range.min_segment;
    range.max_segment = of > range.max_segment ? of : range.max_segment;
  }
  range.min_visible = seen.first_visible(range.min_index);
  range.max_visible = seen.first_visible(range.max_index);
  ranges[block_index()] = range;
}

// Starts to copy rows [first, first + 64) of one head.
template <int width>
GPU_FUNCTION void load_rows(bfloat16* tile, const bfloat16* data, std::int64_t leading, std::int64_t first,
                            std::int64_t end, std::int64_t columns) {
  GPU_UNROLL
  for (int block = 0; block < width / kTileWidth; ++block)
    load_tile<kRows, kTileWidth, kThreads, true>(
        tile + block * kBlockElements, {data, nullptr, leading, first, end, block * kTileWidth, columns});
}

// Four tiles of 16 rows (or columns of the product) at 16 of the depth; see multiply_tiles.
GPU_FUNCTION void load_rows_of(const bfloat16* tile, int row, int depth, std::uint32_t (&tiles)[4]) {
  const int lane = thread_index() % kWarp, which = lane / 8;
  load_tiles(tile + place_of<kRows>(row + which % 2 * 8 + lane % 8, depth / kChunk + which / 2), tiles);
}
GPU_FUNCTION void load_columns_of(const bfloat16* tile, int column, int depth, std::uint32_t (&tiles)[4]) {
  const int lane = thread_index() % kWarp, which = lane / 8;
  load_tiles_transposed(tile + place_of<kRows>(depth + which / 2 * 8 + lane % 8, column / kChunk + which % 2),
                        tiles);
}

// sums [16 x columns] += rows of `a` from `row` on · (rows of `b` from `first` on)ᵀ, over a depth of `width`.
template <int columns, int width>
GPU_FUNCTION void multiply_rows(float (&sums)[columns / 8][4], const bfloat16* a, int row, const bfloat16* b,
                                int first) {
  GPU_NO_UNROLL
  for (int depth = 0; depth < width; depth += 16) {
    std::uint32_t x[4];
    load_rows_of(a, row, depth, x);
    GPU_UNROLL
    for (int j = 0; j < columns / 16; ++j) {
      std::uint32_t y[4];
      load_rows_of(b, first + j * 16, depth, y);
      multiply_tiles(sums[2 * j], x, y[0], y[2]);
      multiply_tiles(sums[2 * j + 1], x, y[1], y[3]);
    }
  }
}

// sums [16 x width] += weights [16 x depth], of a product like the one above, rounded · rows of `b` from
// `first` on.
template <int depth, int width>
GPU_FUNCTION void multiply_weights(float (&sums)[width / 8][4], const float (&weights)[depth / 8][4],
                                   const bfloat16* b, int first) {
  GPU_UNROLL
  for (int d = 0; d < depth / 16; ++d) {
    const float(&left)[4] = weights[2 * d];
    const float(&right)[4] = weights[2 * d + 1];
    const std::uint32_t x[4] = {rounded_pair(left[0], left[1]), rounded_pair(left[2], left[3]),
                                rounded_pair(right[0], right[1]), rounded_pair(right[2], right[3])};
    GPU_UNROLL
    for (int j = 0; j < width / 16; ++j) {
      std::uint32_t y[4];
      load_columns_of(b, j * 16, first + d * 16, y);
      multiply_tiles(sums[2 * j], x, y[0], y[2]);
      multiply_tiles(sums[2 * j + 1], x, y[1], y[3]);
    }
  }
}

// A position of a sequence, as masks see it.
struct Place {
  std::int32_t index, segment;
};

GPU_FUNCTION Place place_in(const std::int32_t* index, const std::int32_t* segment, std::int64_t sequence,
                            std::int64_t length, std::int64_t at) {
  if (at >= length) return {INT32_MAX, INT32_MIN};
  const std::int64_t i = sequence * length + at;
  return {index != nullptr ? index[i] : static_cast<std::int32_t>(at), segment != nullptr ? segment[i] : 0};
}

// `first`: the first place that the query sees.
GPU_FUNCTION bool sees(const AttentionSpec& a, Place query, std::int32_t first, Place key) {
  if (query.segment != key.segment) return false;
  return !a.causal || (key.index <= query.index && key.index >= first);
}

template <typename T, int count>
GPU_FUNCTION void clear(T (&sums)[count][4]) {
  GPU_UNROLL
  for (int i = 0; i < count; ++i) {
    GPU_UNROLL
    for (int j = 0; j < 4; ++j) sums[i][j] = 0;
  }
}

// Where a block of threads of a pass over queries works; rows of this thread are `row` and 8 more.
struct QueryBlock {
  std::int64_t batch, head, kv_head, tile;
};
GPU_FUNCTION QueryBlock query_block(const AttentionSpec& a, std::int64_t tiles) {
  const std::int64_t head = block_index_y() % a.heads;
  // The last tiles, which have most keys, first.
  return {block_index_y() / a.heads, head, head / (a.heads / a.kv_heads), tiles - 1 - block_index()};
}

// The factor that is left of a score when all are less `maximum`, both times log2(e): 0 where there is none.
GPU_FUNCTION float power(float score, float maximum) {
  return score == -INFINITY ? 0.0f : exp2f(score - maximum);
}

template <int qk, int vw>
GPU_KERNEL
#if defined(__CUDACC__)
__launch_bounds__(kThreads)
#endif
    flash_forward(AttentionSpec a, Matrices m, std::int64_t q_tiles, std::int64_t kv_tiles, bfloat16* out,
                  float* lse, float* top) {
  GPU_SHARED(Place, keys, kRows);
  auto* const q_tile = dynamic_shared<bfloat16>();
  auto* const k_tile = q_tile + kRows * qk;
  auto* const v_tile = k_tile + kRows * qk;
  const QueryBlock at = query_block(a, q_tiles);
  const std::int64_t q_leading = a.heads * a.qk_dim, k_leading = a.kv_heads * a.qk_dim,
                     v_leading = a.kv_heads * a.v_dim;
  const bfloat16* const q = m.q + (at.batch * a.q_length * a.heads + at.head) * a.qk_dim;
  const bfloat16* const k = m.k + (at.batch * a.kv_length * a.kv_heads + at.kv_head) * a.qk_dim;
  const bfloat16* const v = m.v + (at.batch * a.kv_length * a.kv_heads + at.kv_head) * a.v_dim;
  const int warp_row = thread_index() / kWarp * kRowsOfWarp, lane = thread_index() % kWarp;
  load_rows<qk>(q_tile, q, q_leading, at.tile * kRows, a.q_length, a.qk_dim);
  end_copies();
  Place query[2];
  std::int32_t first[2];
  for (int half = 0; half < 2; ++half) {
    query[half] = place_in(a.q_index, a.q_segment, at.batch, a.q_length,
                           at.tile * kRows + warp_row + lane / 4 + half * 8);
    first[half] = a.seen.first_visible(query[half].index);
  }
  float sums[vw / 8][4], maximum[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
  clear(sums);
  const TileRange range = m.q_ranges[at.batch * q_tiles + at.tile];
  for (std::int64_t tile = 0; tile < kv_tiles; ++tile) {
    const TileMask mask = mask_of(range, m.kv_ranges[at.batch * kv_tiles + tile], a.causal);
    if (mask == TileMask::none) continue;  // the whole block
    const bool whole = mask == TileMask::all && (tile + 1) * kRows <= a.kv_length;
    barrier();  // the tile before has been read
    load_rows<qk>(k_tile, k, k_leading, tile * kRows, a.kv_length, a.qk_dim);
    end_copies();
    load_rows<vw>(v_tile, v, v_leading, tile * kRows, a.kv_length, a.v_dim);
    end_copies();
    if (thread_index() < kRows)
      keys[thread_index()] =
          place_in(a.kv_index, a.kv_segment, at.batch, a.kv_length, tile * kRows + thread_index());
    wait_for_copies<1>();
    barrier();
    float scores[kRows / 8][4];
    clear(scores);
    multiply_rows<kRows, qk>(scores, q_tile, warp_row, k_tile, 0);
    float largest[2] = {maximum[0], maximum[1]};
    GPU_UNROLL
    for (int j = 0; j < kRows / 8; ++j) {
      GPU_UNROLL
      for (int i = 0; i < 4; ++i) {
        float& score = scores[j][i];
        score *= a.scale * kLog2e;
        if (!whole && !sees(a, query[i / 2], first[i / 2], keys[j * 8 + lane % 4 * 2 + i % 2]))
          score = -INFINITY;
        largest[i / 2] = score > largest[i / 2] ? score : largest[i / 2];
      }
    }
    float shrink[2], added[2] = {0, 0};
    GPU_UNROLL
    for (int half = 0; half < 2; ++half) {
      for (int by = 1; by < 4; by *= 2) {
        const float other = shuffle_xor(largest[half], by);
        largest[half] = other > largest[half] ? other : largest[half];
      }
      shrink[half] = power(maximum[half], largest[half]);
      maximum[half] = largest[half];
    }
    GPU_UNROLL
    for (int j = 0; j < kRows / 8; ++j) {
      GPU_UNROLL
      for (int i = 0; i < 4; ++i) {
        scores[j][i] = power(scores[j][i], maximum[i / 2]);
        added[i / 2] += scores[j][i];
      }
    }
    for (int half = 0; half < 2; ++half) total[half] = total[half] * shrink[half] + added[half];
    GPU_UNROLL
    for (int j = 0; j < vw / 8; ++j) {
      GPU_UNROLL
      for (int i = 0; i < 4; ++i) sums[j][i] *= shrink[i / 2];
    }
    wait_for_copies<0>();
    barrier();
    multiply_weights<kRows, vw>(sums, scores, v_tile, 0);
  }
  wait_for_copies<0>();
  for (int half = 0; half < 2; ++half) {
    for (int by = 1; by < 4; by *= 2) total[half] += shuffle_xor(total[half], by);
    const std::int64_t row = at.tile * kRows + warp_row + lane / 4 + half * 8;
    if (row >= a.q_length) continue;
    const float factor = total[half] > 0 ? 1 / total[half] : 0.0f;
    bfloat16* const to = out + ((at.batch * a.q_length + row) * a.heads + at.head) * a.v_dim;
    GPU_UNROLL
    for (int j = 0; j < vw / 8; ++j) {
      const int column = j * 8 + lane % 4 * 2;
      if (column < a.v_dim)  // widths are multiples of 8
        *reinterpret_cast<std::uint32_t*>(to + column) =
            rounded_pair(sums[j][half * 2] * factor, sums[j][half * 2 + 1] * factor);
    }
    if (lane % 4 != 0) continue;
    const std::int64_t of_row = (at.batch * a.heads + at.head) * a.q_length + row;
    lse[of_row] = total[half] > 0 ? maximum[half] / kLog2e + logf(total[half]) : -INFINITY;
    if (top != nullptr) top[of_row] = maximum[half] / kLog2e;
  }
}

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
      float weights[columns / 8][4], slopes[columns / 8][4];
      clear(weights);
      clear(slopes);
      multiply_rows<columns, qk>(weights, k_tile, warp_row, q_tile, part);
      multiply_rows<columns, vw>(slopes, v_tile, warp_row, dout_tile, part);
      GPU_UNROLL
      for (int j = 0; j < columns / 8; ++j) {
        GPU_UNROLL
        for (int i = 0; i < 4; ++i) {
          const OfQuery& query = queries[part + j * 8 + lane % 4 * 2 + i % 2];
          const bool visible =
              whole || (query.lse != INFINITY && sees(a, query.place, query.first, key[i / 2]));
          const float p = visible ? exp2f(weights[j][i] * (a.scale * kLog2e) - query.lse) : 0.0f;
          weights[j][i] = p;
          slopes[j][i] = p * (slopes[j][i] - query.delta) * a.scale;
        }
      }
      multiply_weights<columns, vw>(v_sums, weights, dout_tile, part);
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

// Ranges of index and segment over the tiles of both sequences.
class Ranges {
 public:
  Ranges(const AttentionSpec& a, const TensorView& like, std::int64_t q_tiles, std::int64_t kv_tiles)
      : q_count_(a.batch * q_tiles),
        memory_(like, static_cast<std::size_t>(q_count_ + a.batch * kv_tiles) * sizeof(TileRange)) {
    launch({.blocks = a.batch * q_tiles, .threads = kWarp}, find_ranges, a.q_index, a.q_segment, a.q_length,
           q_tiles, a.seen, memory_.data<TileRange>());
    launch({.blocks = a.batch * kv_tiles, .threads = kWarp}, find_ranges, a.kv_index, a.kv_segment,
           a.kv_length, kv_tiles, KeyWindow{}, memory_.data<TileRange>() + q_count_);
  }
  const TileRange* of_queries() const { return memory_.data<TileRange>(); }
  const TileRange* of_keys() const { return memory_.data<TileRange>() + q_count_; }

 private:
  const std::int64_t q_count_;
  const Workspace memory_;
};

Matrices matrices_of(const AttentionProblem& p, const Ranges& ranges, const float* delta) {
  return {static_cast<const bfloat16*>(p.q),
          static_cast<const bfloat16*>(p.k),
          static_cast<const bfloat16*>(p.v),
          static_cast<const bfloat16*>(p.out),
          static_cast<const bfloat16*>(p.dout),
          p.lse,
          delta,
          ranges.of_queries(),
          ranges.of_keys()};
}

Launch tiles_launch(std::int64_t tiles, std::int64_t heads, std::size_t shared_bytes) {
  return {.blocks = tiles,
          .threads = kThreads,
          .shared_bytes = shared_bytes,
          .blocks_y = static_cast<int>(heads)};
}

// Calls body(width of queries and keys, width of values) with the least of the widths that there are kernels
// for.
template <typename Body>
void with_widths(const AttentionSpec& a, const Body& body) {
  const auto widest = a.qk_dim > a.v_dim ? a.qk_dim : a.v_dim;
  if (widest <= 64) return body(std::integral_constant<int, 64>(), std::integral_constant<int, 64>());
  if (widest <= 128) return body(std::integral_constant<int, 128>(), std::integral_constant<int, 128>());
  body(std::integral_constant<int, 192>(), std::integral_constant<int, 128>());
}

}  // namespace

bool flash_attention_takes(const AttentionProblem& p) {
  const auto aligned = [](const void* x) { return reinterpret_cast<std::uintptr_t>(x) % 16 == 0; };
  const AttentionSpec& a = p.args;
  return a.dtype == DType::bf16 && a.qk_dim % kChunk == 0 && a.v_dim % kChunk == 0 && a.qk_dim <= 192 &&
         a.v_dim <= 128 && a.qk_dim > 0 && a.v_dim > 0 && a.batch * a.heads <= 65535 && aligned(p.q) &&
         aligned(p.k) && aligned(p.v) && aligned(p.out) && aligned(p.dout) && aligned(p.dq) &&
         aligned(p.dk) && aligned(p.dv);
}

void flash_attention(const AttentionProblem& p, const TensorView& like) {
  const AttentionSpec& a = p.args;
  const std::int64_t q_tiles = p.q_tile_count(), kv_tiles = p.kv_tile_count();
  const Ranges ranges(a, like, q_tiles, kv_tiles);
  with_widths(a, [&](auto qk, auto vw) {
    launch(tiles_launch(q_tiles, a.batch * a.heads, 2 * kTileBytes<qk()> + kTileBytes<vw()>),
           flash_forward<qk(), vw()>, a, matrices_of(p, ranges, nullptr), q_tiles, kv_tiles,
           static_cast<bfloat16*>(p.out), p.lse, p.top);
  });
}

void flash_attention_backward(const AttentionProblem& p, const TensorView& like) {
  const AttentionSpec& a = p.args;
  const std::int64_t q_tiles = p.q_tile_count(), kv_tiles = p.kv_tile_count(),
                     rows = a.batch * a.q_length * a.heads;
  const Ranges ranges(a, like, q_tiles, kv_tiles);
  const Workspace delta(like, static_cast<std::size_t>(rows) * sizeof(float));
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
