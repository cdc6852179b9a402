// The arguments of attention's implementations, and those of GPUs. Internal to kernels/attention.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/index_keys.h"
#include "kernels/attention/visible_keys.h"

namespace switchyard {

inline constexpr std::int64_t kAttentionTile = 64;  // queries and keys of a tile: its scores are 16 KB, in L1

// Tells which of a tile's scores exist.
enum class TileMask : std::uint8_t { none, some, all };

// The ranges of index and segment in a tile of a sequence, by which whole tiles are skipped or need no mask.
// For queries also the first visible places of the first and of the last of them.
struct TileRange {
  std::int32_t min_index, max_index, min_segment, max_segment;
  std::int32_t min_visible = std::numeric_limits<std::int32_t>::min(), max_visible = min_visible;
};

// Ranges over the tiles of `tile` positions; [B][ceil(length/tile)]. Null index: 0..length-1; null segment:
// 0. `seen`: the limits of the positions as queries.
std::vector<TileRange> tile_ranges(std::int64_t batch, std::int64_t length, const std::int32_t* index,
                                   const std::int32_t* segment, std::int64_t tile, const KeyWindow& seen);

constexpr TileMask mask_of(const TileRange& q, const TileRange& kv, bool causal) {
  if (causal && (kv.min_index > q.max_index || kv.max_index < q.min_visible)) return TileMask::none;
  if (kv.min_segment > q.max_segment || kv.max_segment < q.min_segment) return TileMask::none;
  const bool before = !causal || (kv.max_index <= q.min_index && kv.min_index >= q.max_visible);
  const bool one_segment = std::min(q.min_segment, kv.min_segment) == std::max(q.max_segment, kv.max_segment);
  return before && one_segment ? TileMask::all : TileMask::some;
}

// AttentionArgs without the matrices: sizes, and which query sees which key.
struct AttentionSpec {
  std::int64_t batch = 0;
  std::int64_t q_length = 0;
  std::int64_t kv_length = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t qk_dim = 0;
  std::int64_t v_dim = 0;
  float scale = 1;
  bool causal = true;
  DType dtype = DType::f32;
  const std::int32_t* q_index = nullptr;     // [B,S]; null: 0..S-1
  const std::int32_t* kv_index = nullptr;    // [B,T]; null: 0..T-1
  const std::int32_t* q_segment = nullptr;   // [B,S]; null: one segment
  const std::int32_t* kv_segment = nullptr;  // [B,T]
  KeyWindow seen = {};                       // of causal attention
  const std::int32_t* chosen = nullptr;      // [B,S,words_of_keys(T)]; null: all
  const std::int32_t* slots = nullptr;       // [B], of a cache's keys; null: sequences have keys of their own
  const std::int32_t* lengths = nullptr;     // [B], of the keys in slots
  std::int64_t value_row = 0;                // elements from a value to the next; 0: v_dim

  constexpr std::int64_t slot_of(std::int64_t at_batch) const {
    return slots == nullptr ? at_batch : slots[at_batch];
  }
  constexpr std::int64_t keys_of(std::int64_t at_batch) const {
    return lengths == nullptr ? kv_length : lengths[at_batch];
  }
  constexpr std::int64_t row_of_value() const { return value_row == 0 ? v_dim : value_row; }

  // The words of a query's chosen keys, 32 a word.
  constexpr const std::int32_t* chosen_by(std::int64_t at_batch, std::int64_t query) const {
    return chosen + (at_batch * q_length + query) * words_of_keys(kv_length);
  }
  constexpr bool chooses(std::int64_t at_batch, std::int64_t query, std::int64_t key) const {
    if (chosen == nullptr) return true;
    return (static_cast<std::uint32_t>(chosen_by(at_batch, query)[key / 32]) >> (key % 32) & 1u) != 0;
  }
};

struct AttentionProblem {
  AttentionSpec args;
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;  // written by the forward, read by the backward pass
  float* lse = nullptr;
  float* top = nullptr;  // null: not asked for
  const void* dout = nullptr;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  std::vector<TileRange> q_tiles;   // [B][ceil(S/tile)]
  std::vector<TileRange> kv_tiles;  // [B][ceil(T/tile)]
  // With chosen keys: 1 where a tile of queries chooses any key of a tile, [B][ceil(S/tile)][ceil(T/tile)].
  std::vector<std::uint8_t> chosen_tiles;

  std::int64_t q_tile_count() const { return (args.q_length + kAttentionTile - 1) / kAttentionTile; }
  std::int64_t kv_tile_count() const { return (args.kv_length + kAttentionTile - 1) / kAttentionTile; }

  TileMask mask(std::int64_t batch, std::int64_t q_tile, std::int64_t kv_tile) const {
    const TileMask mask =
        mask_of(q_tiles[static_cast<std::size_t>(batch * q_tile_count() + q_tile)],
                kv_tiles[static_cast<std::size_t>(batch * kv_tile_count() + kv_tile)], args.causal);
    if (args.chosen == nullptr || mask == TileMask::none) return mask;
    const std::int64_t at = (batch * q_tile_count() + q_tile) * kv_tile_count() + kv_tile;
    return chosen_tiles[static_cast<std::size_t>(at)] != 0 ? TileMask::some : TileMask::none;
  }

  bool allowed(std::int64_t batch, std::int64_t query, std::int64_t key) const {
    const std::int64_t i = batch * args.q_length + query, j = batch * args.kv_length + key;
    if (args.q_segment && args.q_segment[i] != args.kv_segment[j]) return false;
    if (!args.chooses(batch, query, key)) return false;
    if (!args.causal) return true;
    const auto place = [](const std::int32_t* index, std::int64_t at, std::int64_t otherwise) {
      return index ? index[at] : static_cast<std::int32_t>(otherwise);
    };
    const std::int32_t of_query = place(args.q_index, i, query), of_key = place(args.kv_index, j, key);
    return of_key <= of_query && of_key >= args.seen.first_visible(of_query);
  }
};

// Checked arguments, as kernels take them.
AttentionSpec attention_spec(const AttentionArgs& args);
AttentionProblem attention_problem(const AttentionArgs& args);
AttentionProblem attention_problem(const AttentionBackwardArgs& args);

// Why an implementation refuses that takes keys and values apart, a sequence after the other; null: they are.
inline const char* parts_refuse(const AttentionArgs& args) {
  if (args.slots.defined()) return "keys are in slots of a cache";
  return args.v.is_contiguous() ? nullptr : "values are parts of keys";
}

// The whole pass.
using AttentionRun = void(ThreadPool&, const AttentionProblem&);
// Some tiles of queries of one head.
using AttentionTilesRun = void(const AttentionProblem&, std::int64_t batch, std::int64_t head,
                               std::int64_t q_tile_begin, std::int64_t q_tile_end);
// dk and dv of one kv head, and dq of the query heads that read it.
using AttentionHeadRun = void(const AttentionProblem&, std::int64_t batch, std::int64_t kv_head);

namespace cpu {
// In tiles (kernels/cpu/tile_target.h): bfloat16, a positive scale and no chosen keys.
namespace amx_tiles {
AttentionRun attention, attention_backward;
// Bytes of the buffers that the forward pass shares among its threads; backward has none.
std::size_t attention_workspace(const AttentionArgs& args);
}  // namespace amx_tiles
namespace soft_tiles {
AttentionRun attention, attention_backward;
std::size_t attention_workspace(const AttentionArgs& args);
}  // namespace soft_tiles
AttentionTilesRun attention_tiles_avx512, attention_tiles_avx2;
AttentionHeadRun attention_backward_head_avx512, attention_backward_head_avx2;
}  // namespace cpu

namespace gpu {
// On tensor cores; each has the reasons why it does not take its arguments.
void flash_attention(const AttentionArgs& args);
void flash_attention_backward(const AttentionBackwardArgs& args);
const char* flash_attention_refuses(const AttentionArgs& args);
const char* flash_attention_backward_refuses(const AttentionBackwardArgs& args);
// On Hopper's tensor cores, with tiles that the copy engine brings.
void hopper_attention(const AttentionArgs& args);
void hopper_attention_backward(const AttentionBackwardArgs& args);
const char* hopper_attention_refuses(const AttentionArgs& args);
const char* hopper_attention_backward_refuses(const AttentionBackwardArgs& args);
// This one takes values that are the first elements of keys of one head, in slots of a cache or not.
void hopper_latent_attention(const AttentionArgs& args);
const char* hopper_latent_refuses(const AttentionArgs& args);
// By warps, of any dtype and width.
void warp_attention(const AttentionArgs& args);
void warp_attention_backward(const AttentionBackwardArgs& args);
}  // namespace gpu

}  // namespace switchyard
