// Attention of one token a sequence on tensor cores (FlashDecoding, Dao et al. 2023). A block takes up to 16
// query heads of one key head, and a piece of the sequence's keys, which it reads once for all of them, 64 at
// a time; the next 64 come meanwhile. A warp scores 16 of the keys, and sums a quarter of the values' columns
// over all 64. A second kernel joins the pieces of a query, in their order.
//
// A grid has as many pieces as sizes alone say. Lengths are read on the device: a sequence's keys are shared
// out evenly to as many of its pieces as have whole tiles, and blocks of the others return at once.
#include <algorithm>

#include "kernels/attention/cuda/split_decode_parts.h"
#include "kernels/attention/decode_attention_problem.h"
#include "kernels/attention/visible_keys.h"
#include "kernels/cuda/wide.h"
#include "kernels/cuda/workspace.h"
#include "kernels/registry/row_independence.h"

namespace switchyard::gpu {
namespace {

using namespace decode;

constexpr float kLog2e = 1.44269504088896340736f;

struct SplitDecode {
  const std::int32_t *lengths, *rows;
  const float *k_scales, *v_scales, *sinks;
  DecodeAttentionSpec spec;
  KeyWindow seen;
  std::int64_t pieces, row_blocks;  // of a sequence; of the queries of a key head
  bool values_in_keys;
  int stage_bytes;
};

// The keys of a sequence, and those of each of its pieces.
struct Pieces {
  std::int64_t first, end, of_piece, count;
};

GPU_FUNCTION Pieces pieces_of(const SplitDecode& p, std::int64_t b) {
  const std::int64_t length = p.lengths[b];
  if (length <= 0) return {0, 0, kKeys, 0};
  std::int64_t first = p.seen.first_visible(static_cast<std::int32_t>(length - 1));
  first = first < 0 ? 0 : first;
  const std::int64_t tiles = (length - first + kKeys - 1) / kKeys,
                     of_piece = (tiles + p.pieces - 1) / p.pieces * kKeys;
  return {first, length, of_piece, (length - first + of_piece - 1) / of_piece};
}

// The factor that is left of a score when all are less `maximum`, both times log2(e): 0 where there is none.
GPU_FUNCTION float power(float score, float maximum) {
  return score == -INFINITY ? 0.0f : exp2f(score - maximum);
}

template <typename Stored>
GPU_FUNCTION void place_queries(unsigned char* tile, int width, const bfloat16* q, std::int64_t rows,
                                std::int64_t columns) {
  for (int i = thread_index(); i < kRows * width / 2; i += kThreads) {
    const int row = i / (width / 2), pair = i % (width / 2);
    std::uint32_t numbers = 0;
    if (row < rows && pair * 2 < columns)
      numbers = *reinterpret_cast<const std::uint32_t*>(q + row * columns + pair * 2);
    *reinterpret_cast<std::uint32_t*>(tile + place_of_pair<Stored>(row, pair)) = numbers;
  }
}

// Starts to copy `count` vectors of `columns` numbers, `stride` apart; the rest of the tile becomes zero.
template <int width, typename Stored>
GPU_FUNCTION void load_vectors(unsigned char* tile, const Stored* from, std::int64_t stride,
                               std::int64_t count, std::int64_t columns) {
  constexpr int kChunks = width / kChunkNumbers<Stored>;
  for (int i = thread_index(); i < kKeys * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks, column = chunk * kChunkNumbers<Stored>;
    const bool inside = row < count && column < columns;
    copy_async(tile + place_of_chunk<kKeys>(row, chunk), inside ? from + row * stride + column : from,
               inside ? kChunkBytes : 0);
  }
}

// The scales of a key in int8, and of its value. A thread loads those of one key of a tile.
struct Scales {
  float first, second, value;
};
GPU_FUNCTION Scales scales_of(const SplitDecode& p, std::int64_t vector, std::int64_t count) {
  Scales scales{0, 0, 0};
  if (thread_index() >= count) return scales;
  const DecodeAttentionSpec& a = p.spec;
  const std::int64_t own = vector + thread_index() * a.kv_heads;
  scales.first = p.k_scales[own * a.key_scales];
  if (a.key_scales > 1) scales.second = p.k_scales[own * a.key_scales + 1];
  scales.value = p.v_scales[own * a.v_scale_row];
  return scales;
}

// scores [16 x 16] of queries and the warp's keys, times scale and log2(e); -inf from key `count` on.
template <int qk, typename Stored>
GPU_FUNCTION void score_keys(const SplitDecode& p, const unsigned char* queries, const unsigned char* keys,
                             const Scales* scales, std::int64_t count, float (&scores)[2][4]) {
  const int first = thread_index() / kWarp * kKeysOfWarp, pair = thread_index() % 4 * 2;
  float second[2][4] = {};
  if constexpr (std::is_same_v<Stored, std::int8_t>) {
    const int part =
        static_cast<int>(p.spec.key_scales > 1 ? p.spec.first_key_part / kNumbers : qk / kNumbers);
    multiply_keys<Stored>(scores, queries, keys, first, 0, part);
    multiply_keys<Stored>(second, queries, keys, first, part, qk / kNumbers);
  } else {
    multiply_keys<Stored>(scores, queries, keys, first, 0, qk / kNumbers);
  }
  GPU_UNROLL
  for (int j = 0; j < 2; ++j) {
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int key = first + j * 8 + pair + i % 2;
      float& score = scores[j][i];
      if constexpr (std::is_same_v<Stored, std::int8_t>)
        score = score * scales[key].first + second[j][i] * scales[key].second;
      score = key < count ? score * (p.spec.scale * kLog2e) : -INFINITY;
    }
  }
}

// A thread holds parts of two rows of scores.
struct Softmax {
  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
};

// The warp's largest score of each row, for all warps. `tops`: [warps, 16].
GPU_FUNCTION void share_tops(const float (&scores)[2][4], float* tops) {
  const int warp = thread_index() / kWarp, lane = thread_index() % kWarp;
  for (int half = 0; half < 2; ++half) {
    float top = -INFINITY;
    for (int i = 0; i < 4; ++i) {
      const float score = scores[i / 2][half * 2 + i % 2];
      top = score > top ? score : top;
    }
    for (int by = 1; by < 4; by *= 2) {
      const float other = shuffle_xor(top, by);
      top = other > top ? other : top;
    }
    if (lane % 4 == 0) tops[warp * kRows + lane / 4 + half * 8] = top;
  }
}

// Scores to weights, which go to the tile `weights` of 16 x 64; `shrink`: what the sums before keep.
template <typename Stored>
GPU_FUNCTION void make_weights(const float (&scores)[2][4], const float* tops, const Scales* scales,
                               Softmax& softmax, float (&shrink)[2], unsigned char* weights) {
  const int warp = thread_index() / kWarp, lane = thread_index() % kWarp;
  GPU_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + half * 8;
    float largest = softmax.largest[half], added = 0;
    for (int i = 0; i < kWarps; ++i)
      largest = tops[i * kRows + row] > largest ? tops[i * kRows + row] : largest;
    shrink[half] = power(softmax.largest[half], largest);
    softmax.largest[half] = largest;
    GPU_UNROLL
    for (int j = 0; j < 2; ++j) {
      float weight[2];
      GPU_UNROLL
      for (int i = 0; i < 2; ++i) {
        weight[i] = power(scores[j][half * 2 + i], largest);
        added += weight[i];
        if constexpr (std::is_same_v<Stored, std::int8_t>)
          weight[i] *= scales[warp * kKeysOfWarp + j * 8 + lane % 4 * 2 + i].value;
      }
      *reinterpret_cast<std::uint32_t*>(weights + place_of_chunk<kRows>(row, warp * 2 + j) + lane % 4 * 4) =
          rounded_pair(weight[0], weight[1]);
    }
    softmax.total[half] = softmax.total[half] * shrink[half] + added;
  }
}

// The totals of all warps, in their order. `totals`: [warps, 16].
GPU_FUNCTION void join_totals(Softmax& softmax, float* totals) {
  const int warp = thread_index() / kWarp, lane = thread_index() % kWarp;
  for (int half = 0; half < 2; ++half) {
    float total = softmax.total[half];
    for (int by = 1; by < 4; by *= 2) total += shuffle_xor(total, by);
    if (lane % 4 == 0) totals[warp * kRows + lane / 4 + half * 8] = total;
  }
  barrier();
  for (int half = 0; half < 2; ++half) {
    softmax.total[half] = 0;
    for (int i = 0; i < kWarps; ++i) softmax.total[half] += totals[i * kRows + lane / 4 + half * 8];
  }
}

// Writes the result where a sequence is one piece, else stats[query, piece] (the largest score and the total)
// and the piece's sums of values.
template <int qk, int vw, typename Stored>
GPU_KERNEL
#if defined(__CUDACC__)
__launch_bounds__(kThreads, qk > 192 ? 1 : 3)  // wide heads need more registers than three blocks leave
#endif
    split_decode(SplitDecode p, const bfloat16* q, const Stored* k, const Stored* v, float* stats,
                 float* sums_to, bfloat16* out) {
  constexpr int kGroups = vw / kNumbers, kOwnGroups = (kGroups + kWarps - 1) / kWarps;
  GPU_SHARED(float, tops, kWarps* kRows);
  GPU_SHARED(Scales, scales, kKeys);
  auto* const queries = dynamic_shared<unsigned char>();
  unsigned char* const weights = queries + tile_bytes<bfloat16>(kRows, qk);
  unsigned char* const stages = weights + tile_bytes<bfloat16>(kRows, kKeys);
  const DecodeAttentionSpec& a = p.spec;
  const std::int64_t piece = block_index(), head = block_index_y() / p.row_blocks, b = block_index_z(),
                     first_row = block_index_y() % p.row_blocks * kRows, rows = a.group - first_row;
  const Pieces own = pieces_of(p, b);
  if (piece >= own.count && piece > 0) return;
  const std::int64_t query = (b * a.kv_heads + head) * a.group + first_row;
  const std::int64_t begin = own.first + piece * own.of_piece,
                     end = begin + own.of_piece < own.end ? begin + own.of_piece : own.end;
  const std::int64_t vectors = own.count == 0 ? 0 : p.rows[b] * a.capacity * a.kv_heads + head;
  const auto load = [&](std::int64_t at, int stage) {
    if (at < end) {
      unsigned char* const tile = stages + stage * p.stage_bytes;
      const std::int64_t vector = vectors + at * a.kv_heads;
      load_vectors<qk>(tile, k + vector * a.qk_dim, a.kv_heads * a.qk_dim, end - at, a.qk_dim);
      if (!p.values_in_keys)
        load_vectors<vw>(tile + tile_bytes<Stored>(kKeys, qk), v + vector * a.v_row, a.kv_heads * a.v_row,
                         end - at, a.v_dim);
    }
    end_copies();
  };
  const auto scales_at = [&](std::int64_t at) {
    if constexpr (std::is_same_v<Stored, std::int8_t>)
      return scales_of(p, vectors + at * a.kv_heads, end - at);
    return Scales{0, 0, 0};
  };
  load(begin, 0);
  Scales next = scales_at(begin);
  place_queries<Stored>(queries, qk, q + query * a.qk_dim, rows, a.qk_dim);
  float sums[kOwnGroups][2][4] = {};
  Softmax softmax;
  const int warp = thread_index() / kWarp, lane = thread_index() % kWarp;
  int stage = 0;
  for (std::int64_t at = begin; at < end; at += kKeys, stage ^= 1) {
    if (std::is_same_v<Stored, std::int8_t> && thread_index() < kKeys) scales[thread_index()] = next;
    wait_for_copies<0>();
    barrier();  // the tile is there, and the one before has been read
    load(at + kKeys, stage ^ 1);
    next = scales_at(at + kKeys);
    const unsigned char* const keys = stages + stage * p.stage_bytes;
    const unsigned char* const values = p.values_in_keys ? keys : keys + tile_bytes<Stored>(kKeys, qk);
    float scores[2][4] = {}, shrink[2];
    score_keys<qk, Stored>(p, queries, keys, scales, end - at, scores);
    share_tops(scores, tops);
    barrier();
    make_weights<Stored>(scores, tops, scales, softmax, shrink, weights);
    barrier();
    std::uint32_t all_weights[4][4];
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) load_left(weights, i, all_weights[i]);
    GPU_UNROLL
    for (int i = 0; i < kOwnGroups; ++i) {
      GPU_UNROLL
      for (int j = 0; j < 8; ++j) sums[i][j / 4][j % 4] *= shrink[j % 4 / 2];
      const int group = warp + i * kWarps;
      if (kGroups % kWarps == 0 || group < kGroups)
        multiply_values<Stored>(sums[i], all_weights, values, group);
    }
  }
  wait_for_copies<0>();
  join_totals(softmax, tops);
  GPU_UNROLL
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = lane / 4 + half * 8, of_row = query + row;
    if (row >= rows) continue;
    float factor = 1;
    if (p.pieces == 1) {
      const float sink = p.sinks == nullptr ? -INFINITY : p.sinks[of_row % (a.kv_heads * a.group)] * kLog2e;
      factor = own.count == 0 ? 0.0f : 1 / (softmax.total[half] + power(sink, softmax.largest[half]));
    } else if (lane % 4 == 0 && warp == 0) {
      stats[(of_row * p.pieces + piece) * 2] = softmax.largest[half];
      stats[(of_row * p.pieces + piece) * 2 + 1] = softmax.total[half];
    }
    GPU_UNROLL
    for (int i = 0; i < kOwnGroups; ++i) {
      GPU_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int column = column_of<Stored>(warp + i * kWarps, j / 2, j % 2);
        if (column >= a.v_dim) continue;
        const float sum = sums[i][j / 2][half * 2 + j % 2] * factor;
        if (p.pieces == 1)
          out[of_row * a.v_dim + column] = from_float<bfloat16>(sum);
        else
          sums_to[(of_row * p.pieces + piece) * a.v_dim + column] = sum;
      }
    }
  }
}

// A block takes a query. Shared: a factor for each piece.
GPU_KERNEL join_split_decode(SplitDecode p, const float* stats, const float* sums, bfloat16* out) {
  auto* const factors = dynamic_shared<float>();
  const DecodeAttentionSpec& a = p.spec;
  const std::int64_t query = block_index(), heads = a.kv_heads * a.group, head = query % heads;
  const std::int64_t count = pieces_of(p, query / heads).count, first = query * p.pieces;
  float largest = p.sinks == nullptr ? -INFINITY : p.sinks[head] * kLog2e;
  for (std::int64_t i = 0; i < count; ++i) {
    const float top = stats[(first + i) * 2];
    largest = top > largest ? top : largest;
  }
  float total = p.sinks == nullptr ? 0.0f : power(p.sinks[head] * kLog2e, largest);
  for (std::int64_t i = thread_index(); i < count; i += kThreads)
    factors[i] = power(stats[(first + i) * 2], largest);
  barrier();
  for (std::int64_t i = 0; i < count; ++i) total += factors[i] * stats[(first + i) * 2 + 1];
  for (std::int64_t d = thread_index(); d < a.v_dim; d += kThreads) {
    float sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += factors[i] * sums[(first + i) * a.v_dim + d];
    out[query * a.v_dim + d] = from_float<bfloat16>(count == 0 ? 0.0f : sum / total);
  }
}

// ---- On the host

// Calls body(width of keys, width of values) with the least widths that there are kernels for.
template <typename Body>
void with_widths(const DecodeAttentionSpec& a, const Body& body) {
  const auto call = [&](auto qk, auto vw) { body(qk, vw); };
  const std::int64_t widest = std::max(a.qk_dim, a.v_dim);
  if (widest <= 64) return call(std::integral_constant<int, 64>(), std::integral_constant<int, 64>());
  if (widest <= 96) return call(std::integral_constant<int, 96>(), std::integral_constant<int, 96>());
  if (widest <= 128) return call(std::integral_constant<int, 128>(), std::integral_constant<int, 128>());
  if (a.qk_dim <= 192 && a.v_dim <= 128)
    return call(std::integral_constant<int, 192>(), std::integral_constant<int, 128>());
  if (widest <= 256) return call(std::integral_constant<int, 256>(), std::integral_constant<int, 256>());
  call(std::integral_constant<int, 576>(), std::integral_constant<int, 512>());
}

struct SharedBytes {
  int stage, all;
};
SharedBytes shared_bytes_of(const DecodeAttentionSpec& a) {
  SharedBytes bytes{};
  with_widths(a, [&](auto qk, auto vw) {
    const auto tiles = [&]<typename Stored>(Stored) {
      return tile_bytes<Stored>(kKeys, qk()) + (a.values_in_keys() ? 0 : tile_bytes<Stored>(kKeys, vw()));
    };
    bytes.stage = a.int8 ? tiles(std::int8_t()) : tiles(bfloat16());
    bytes.all = tile_bytes<bfloat16>(kRows, qk()) + tile_bytes<bfloat16>(kRows, kKeys) + 2 * bytes.stage;
  });
  return bytes;
}

// Bytes of shared memory that a block may have, as CUDA's programming guide lists them.
int most_shared_bytes() {
  constexpr int kKilobyte = 1024, kEmulated = 227;
  static const int kilobytes = [] {
    if (!missing().empty()) return kEmulated;
    const Properties gpu = properties();
    if (gpu.major == 9 || gpu.major == 10) return 227;
    return gpu.major == 8 && (gpu.minor == 0 || gpu.minor == 7) ? 163 : 99;
  }();
  return kilobytes * kKilobyte;
}

// Pieces of a sequence: as many as keep all multiprocessors at work, by sizes alone, and by no other row's
// where rows are independent.
std::int64_t piece_count(const DecodeAttentionSpec& a, const KeyWindow& seen, std::int64_t blocks_of_row,
                         int shared_bytes) {
  constexpr int kSharedOfTwo = 112 * 1024;  // of a block, where two are on a multiprocessor of 228 KB
  const std::int64_t resident = multiprocessors() * (shared_bytes <= kSharedOfTwo ? 2 : 1),
                     blocks = (rows_are_independent() ? 1 : a.batch) * blocks_of_row;
  std::int64_t keys = a.capacity;
  if (seen.window > 0) keys = std::min(keys, seen.window);
  if (seen.chunk > 0) keys = std::min(keys, seen.chunk);
  return std::max<std::int64_t>(1, std::min(resident / blocks, divide_up(keys, kKeys)));
}

}  // namespace

const char* split_decode_refuses(const DecodeAttentionArgs& args) {
  const DecodeAttentionSpec a = decode_attention_spec(args);
  if (a.dtype != DType::bf16) return "the queries are not bfloat16";
  if (a.batch == 0 || a.group == 0) return "there are no queries";
  if (a.qk_dim == 0 || a.v_dim == 0 || a.capacity == 0) return "there are no keys";
  const std::int64_t numbers = kChunkBytes / static_cast<std::int64_t>(size_of(a.stored()));
  if (a.qk_dim % numbers != 0 || a.v_dim % numbers != 0) return "a width is no multiple of 16 bytes";
  if (a.key_scales > 1 && a.first_key_part % kNumbers != 0)
    return "a key's first scale is of numbers that are no multiple of 16";
  if (std::max(a.qk_dim, a.v_dim) > 256) {
    if (!a.values_in_keys()) return "keys or values are wider than 256";
    if (a.qk_dim > 576 || a.v_dim > 512) return "keys are wider than 576, or their values than 512";
  }
  if (shared_bytes_of(a).all > most_shared_bytes()) return "the GPU's blocks have less shared memory";
  if (a.kv_heads * divide_up(a.group, kRows) > 65535 || a.batch > 65535)
    return "more than 65535 sequences or key heads, a grid's limit";
  return are_wide({args.q.device_address(), args.k.device_address(), args.v.device_address()})
             ? nullptr
             : "an operand is not aligned to 16 bytes";
}

void split_decode_attention(const DecodeAttentionArgs& a) {
  const DecodeAttentionSpec spec = decode_attention_spec(a);
  const SharedBytes bytes = shared_bytes_of(spec);
  SplitDecode p{.lengths = a.lengths.device_data<std::int32_t>(),
                .rows = a.rows.device_data<std::int32_t>(),
                .k_scales = a.k_scales.device_data<float>(),
                .v_scales = a.v_scales.device_data<float>(),
                .sinks = a.sinks.device_data<float>(),
                .spec = spec,
                .seen = {a.window, a.chunk},
                .pieces = 0,
                .row_blocks = divide_up(spec.group, kRows),
                .values_in_keys = spec.values_in_keys(),
                .stage_bytes = bytes.stage};
  p.pieces = piece_count(spec, p.seen, spec.kv_heads * p.row_blocks, bytes.all);
  const std::int64_t queries = spec.batch * spec.kv_heads * spec.group,
                     parts = p.pieces == 1 ? 0 : queries * p.pieces;
  const Workspace stats(a.q, static_cast<std::size_t>(parts * 2) * sizeof(float)),
      sums(a.q, static_cast<std::size_t>(parts * spec.v_dim) * sizeof(float));
  const Launch how{.blocks = p.pieces,
                   .threads = kThreads,
                   .shared_bytes = static_cast<std::size_t>(bytes.all),
                   .blocks_y = static_cast<int>(spec.kv_heads * p.row_blocks),
                   .blocks_z = static_cast<int>(spec.batch)};
  with_widths(spec, [&](auto qk, auto vw) {
    const auto start = [&]<typename Stored>(Stored) {
      launch(how, split_decode<qk(), vw(), Stored>, p, a.q.device_data<bfloat16>(), a.k.device_data<Stored>(),
             a.v.device_data<Stored>(), stats.data<float>(), sums.data<float>(),
             a.out.device_data<bfloat16>());
    };
    spec.int8 ? start(std::int8_t()) : start(bfloat16());
  });
  if (p.pieces == 1) return;
  launch({.blocks = queries,
          .threads = kThreads,
          .shared_bytes = static_cast<std::size_t>(p.pieces) * sizeof(float)},
         join_split_decode, p, stats.data<float>(), sums.data<float>(), a.out.device_data<bfloat16>());
}

}  // namespace switchyard::gpu
