// Attention of bfloat16 on tensor cores (FlashAttention-2, Dao 2023), forward: blocks of
// threads take rows of queries.
#include <algorithm>
#include <initializer_list>

#include "kernels/attention/cuda/flash_parts.h"

namespace switchyard::gpu {
namespace {

using namespace flash;

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

bool are_aligned(std::initializer_list<const TensorView*> operands) {
  return std::all_of(operands.begin(), operands.end(), [](const TensorView* x) {
    return reinterpret_cast<std::uintptr_t>(x->device_address()) % 16 == 0;
  });
}

}  // namespace

const char* flash_attention_refuses(const AttentionArgs& a) {
  const std::int64_t width = a.q.dim(3), values = a.v.dim(3);
  if (a.q.dtype() != DType::bf16) return "the operands are not bfloat16";
  if (a.chosen.defined()) return "keys are chosen for each query";
  if (const char* const reason = parts_refuse(a)) return reason;
  if (width == 0 || values == 0) return "heads have no elements";
  if (width % kChunk != 0 || values % kChunk != 0) return "a head's width is no multiple of 8";
  if (width > 192) return "heads of queries and keys are wider than 192";
  if (values > 128) return "heads of values are wider than 128";
  if (a.q.dim(0) * a.q.dim(2) > 65535) return "the batch has more than 65535 heads, a grid's limit";
  return are_aligned({&a.q, &a.k, &a.v, &a.out}) ? nullptr : "an operand is not aligned to 16 bytes";
}

const char* flash_attention_backward_refuses(const AttentionBackwardArgs& a) {
  if (const char* const reason = flash_attention_refuses(a.forward)) return reason;
  return are_aligned({&a.dout, &a.dq, &a.dk, &a.dv}) ? nullptr : "a gradient is not aligned to 16 bytes";
}

void flash_attention(const AttentionArgs& args) {
  const AttentionProblem p = attention_problem(args);
  const AttentionSpec& a = p.args;
  const std::int64_t q_tiles = p.q_tile_count(), kv_tiles = p.kv_tile_count();
  const Ranges ranges(a, args.q, kRows, kRows);
  with_widths(a, [&](auto qk, auto vw) {
    launch(tiles_launch(q_tiles, a.batch * a.heads, 2 * kTileBytes<qk()> + kTileBytes<vw()>),
           flash_forward<qk(), vw()>, a, matrices_of(p, ranges, nullptr), q_tiles, kv_tiles,
           static_cast<bfloat16*>(p.out), p.lse, p.top);
  });
}

}  // namespace switchyard::gpu
