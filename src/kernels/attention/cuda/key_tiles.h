// Which tiles of keys a tile of queries sees, and which keys of such a tile. Tiles without a visible key are
// passed over, tiles that are seen whole need no mask.
#pragma once

#include "kernels/attention/attention_problem.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/workspace.h"

namespace switchyard::gpu {

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

// ---- Ranges of tiles

// A warp finds the range of one tile of `rows` positions.
static GPU_KERNEL find_ranges(const std::int32_t* index, const std::int32_t* segment, std::int64_t length,
                              std::int64_t rows, std::int64_t tiles, KeyWindow seen, TileRange* ranges) {
  const std::int64_t batch = block_index() / tiles, first = block_index() % tiles * rows;
  TileRange range{INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN};
  for (std::int64_t i = first + thread_index(); i < first + rows && i < length; i += kWarp) {
    const Place at = place_in(index, segment, batch, length, i);
    range.min_index = at.index < range.min_index ? at.index : range.min_index;
    range.max_index = at.index > range.max_index ? at.index : range.max_index;
    range.min_segment = at.segment < range.min_segment ? at.segment : range.min_segment;
    range.max_segment = at.segment > range.max_segment ? at.segment : range.max_segment;
  }
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const std::int32_t min_index = shuffle_xor(range.min_index, mask),
                       max_index = shuffle_xor(range.max_index, mask),
                       min_segment = shuffle_xor(range.min_segment, mask),
                       max_segment = shuffle_xor(range.max_segment, mask);
    range.min_index = min_index < range.min_index ? min_index : range.min_index;
    range.max_index = max_index > range.max_index ? max_index : range.max_index;
    range.min_segment = min_segment < range.min_segment ? min_segment : range.min_segment;
    range.max_segment = max_segment > range.max_segment ? max_segment : range.max_segment;
  }
  range.min_visible = seen.first_visible(range.min_index);
  range.max_visible = seen.first_visible(range.max_index);
  if (thread_index() == 0) ranges[block_index()] = range;
}

// Ranges of index and segment over the tiles of both sequences, in the GPU's memory.
class Ranges {
 public:
  // Not `wanted`: both are null.
  Ranges(const AttentionSpec& a, const TensorView& like, std::int64_t q_rows, std::int64_t kv_rows,
         bool wanted = true)
      : q_count_(wanted ? a.batch * divide_up(a.q_length, q_rows) : 0),
        kv_count_(wanted ? a.batch * divide_up(a.kv_length, kv_rows) : 0),
        memory_(like, static_cast<std::size_t>(q_count_ + kv_count_) * sizeof(TileRange)) {
    if (!wanted) return;
    const auto find = [&](const std::int32_t* index, const std::int32_t* segment, std::int64_t length,
                          std::int64_t rows, const KeyWindow& seen, TileRange* to) {
      const std::int64_t tiles = divide_up(length, rows);
      launch({.blocks = a.batch * tiles, .threads = kWarp}, find_ranges, index, segment, length, rows, tiles,
             seen, to);
    };
    find(a.q_index, a.q_segment, a.q_length, q_rows, a.seen, memory_.data<TileRange>());
    find(a.kv_index, a.kv_segment, a.kv_length, kv_rows, {}, memory_.data<TileRange>() + q_count_);
  }
  const TileRange* of_queries() const { return memory_.data<TileRange>(); }
  const TileRange* of_keys() const { return memory_.data<TileRange>() + q_count_; }

 private:
  const std::int64_t q_count_, kv_count_;
  const Workspace memory_;
};

// ---- Masks by tiles

// Null ranges: positions are row numbers, and all of one segment.
struct TileMasks {
  AttentionSpec a;
  const TileRange *q_ranges, *kv_ranges;
  std::int64_t q_tiles, kv_tiles;
};

inline bool places_are_given(const AttentionSpec& a) {
  return a.q_index != nullptr || a.kv_index != nullptr || a.q_segment != nullptr;
}

// The range of tile `tile` of `rows` positions that are row numbers.
GPU_FUNCTION TileRange range_of_rows(std::int64_t tile, std::int64_t rows, std::int64_t length,
                                     const KeyWindow& seen) {
  const auto first = static_cast<std::int32_t>(tile * rows),
             last =
                 static_cast<std::int32_t>((tile + 1) * rows < length ? (tile + 1) * rows - 1 : length - 1);
  return {first, last, 0, 0, seen.first_visible(first), seen.first_visible(last)};
}
GPU_FUNCTION TileRange range_of_queries(const TileMasks& m, std::int64_t batch, std::int64_t tile,
                                        std::int64_t rows) {
  if (m.q_ranges != nullptr) return m.q_ranges[batch * m.q_tiles + tile];
  return range_of_rows(tile, rows, m.a.q_length, m.a.seen);
}
GPU_FUNCTION TileRange range_of_keys(const TileMasks& m, std::int64_t batch, std::int64_t tile,
                                     std::int64_t rows) {
  if (m.kv_ranges != nullptr) return m.kv_ranges[batch * m.kv_tiles + tile];
  return range_of_rows(tile, rows, m.a.kv_length, {});
}

// Walks through tiles in falling or rising order: 32 at a time are judged, one by each lane of the warp, all
// of whose threads must call. `mask_of_tile(tile)` tells what is seen of a tile.
template <bool falling>
class TileWalk {
 public:
  GPU_FUNCTION TileWalk(int begin, int end)
      : begin_(begin), end_(end), base_(falling ? end : begin - kWarp) {}

  // Goes to the next visible tile. False: there is none.
  template <typename MaskOfTile>
  GPU_FUNCTION bool next(const MaskOfTile& mask_of_tile) {
    while (visible_ == 0) {
      base_ += falling ? -kWarp : kWarp;
      if (falling ? base_ <= begin_ - kWarp : base_ >= end_) return false;
      const int own = place_of(thread_index() % kWarp);
      const TileMask mask = own >= begin_ && own < end_ ? mask_of_tile(own) : TileMask::none;
      visible_ = ballot(mask != TileMask::none);
      whole_ = ballot(mask == TileMask::all);
    }
    const int lane = first_bit(visible_);
    visible_ &= visible_ - 1;
    tile = place_of(lane);
    is_whole = (whole_ >> lane & 1u) != 0;
    return true;
  }

  int tile = 0;
  bool is_whole = false;

 private:
  GPU_FUNCTION int place_of(int lane) const { return falling ? base_ + kWarp - 1 - lane : base_ + lane; }

  const int begin_, end_;
  int base_;
  std::uint32_t visible_ = 0, whole_ = 0;
};

// ---- Masks by keys

// The lowest `count` bits; none for counts below 0, all for those above 32.
GPU_FUNCTION std::uint32_t low_bits(std::int64_t count) {
  if (count <= 0) return 0;
  return count >= 32 ? ~0u : (1u << count) - 1;
}

// Bits of `columns` columns of a tile, for two rows of a thread. `seen(column)` has a bit for each row. The
// four lanes of a row share the work; all lanes of the warp must call.
template <int columns, int words_of_tile = (columns + 31) / 32, typename Seen>
GPU_FUNCTION void ask_columns(const Seen& seen, std::uint32_t (&words)[2][words_of_tile]) {
  const int own = thread_index() % 4, first_lane = thread_index() % kWarp / 4 * 4;
  GPU_UNROLL
  for (int w = 0; w < words_of_tile; w += 4) {
    std::uint32_t found[2] = {0, 0};
    GPU_NO_UNROLL
    for (int i = 0; i < 32; ++i) {
      const int column = (w + own) * 32 + i;
      if (column >= columns) break;
      const std::uint32_t by = seen(column);
      found[0] |= (by & 1u) << i;
      found[1] |= (by >> 1) << i;
    }
    GPU_UNROLL
    for (int of = 0; of < 4 && w + of < words_of_tile; ++of) {
      for (int half = 0; half < 2; ++half) words[half][w + of] = shuffle(found[half], first_lane + of);
    }
  }
}

// Bits of the places [begin, end), of words from place `origin` on.
template <int words_of_tile>
GPU_FUNCTION void fill_words(std::int64_t begin, std::int64_t end, std::int64_t origin,
                             std::uint32_t (&words)[words_of_tile]) {
  GPU_UNROLL
  for (int w = 0; w < words_of_tile; ++w)
    words[w] = low_bits(end - origin - w * 32) & ~low_bits(begin - origin - w * 32);
}

// Bit i of words[half][w]: query `row` + half · 8 sees key w · 32 + i of the tile of keys.
template <int keys, int words_of_tile = (keys + 31) / 32>
GPU_FUNCTION void find_seen_keys(const TileMasks& m, std::int64_t batch, std::int64_t tile, int row,
                                 std::uint32_t (&words)[2][words_of_tile]) {
  const AttentionSpec& a = m.a;
  const std::int64_t origin = tile * keys;
  Place query[2];
  std::int32_t first[2];
  for (int half = 0; half < 2; ++half) {
    query[half] = place_in(a.q_index, a.q_segment, batch, a.q_length, row + half * 8);
    first[half] = a.seen.first_visible(query[half].index);
    if (m.kv_ranges != nullptr) continue;
    const std::int64_t next = a.causal ? std::int64_t{query[half].index} + 1 : a.kv_length;
    fill_words(a.causal ? first[half] : origin, next < a.kv_length ? next : a.kv_length, origin, words[half]);
  }
  if (m.kv_ranges == nullptr) return;
  ask_columns<keys>(
      [&](int column) {
        const std::int64_t at = origin + column;
        if (at >= a.kv_length) return 0u;
        const Place key = place_in(a.kv_index, a.kv_segment, batch, a.kv_length, at);
        return (sees(a, query[0], first[0], key) ? 1u : 0u) | (sees(a, query[1], first[1], key) ? 2u : 0u);
      },
      words);
}

// Bit i of words[half][w]: key `row` + half · 8 is seen by query w · 32 + i of the tile of queries. Queries
// past the end see some.
template <int queries, int words_of_tile = (queries + 31) / 32>
GPU_FUNCTION void find_seeing_queries(const TileMasks& m, std::int64_t batch, std::int64_t tile, int row,
                                      std::uint32_t (&words)[2][words_of_tile]) {
  const AttentionSpec& a = m.a;
  const std::int64_t origin = tile * queries;
  Place key[2];
  for (int half = 0; half < 2; ++half) {
    key[half] = place_in(a.kv_index, a.kv_segment, batch, a.kv_length, row + half * 8);
    if (m.kv_ranges != nullptr) continue;
    const bool is_there = row + half * 8 < a.kv_length;
    const std::int64_t begin = a.causal ? key[half].index : origin,
                       end = a.causal ? a.seen.end_of_seers(key[half].index) : origin + queries;
    fill_words(is_there ? begin : origin + queries, end, origin, words[half]);
  }
  if (m.kv_ranges == nullptr) return;
  ask_columns<queries>(
      [&](int column) {
        const Place query = place_in(a.q_index, a.q_segment, batch, a.q_length, origin + column);
        const std::int32_t first = a.seen.first_visible(query.index);
        std::uint32_t seen = 0;
        for (int half = 0; half < 2; ++half)
          seen |= row + half * 8 < a.kv_length && sees(a, query, first, key[half]) ? 1u << half : 0u;
        return seen;
      },
      words);
}

// Scores of keys that are not seen become -infinity. Rows of scores are queries; if `transposed`, keys.
template <int columns, bool transposed>
GPU_FUNCTION void hide_unseen(const TileMasks& m, std::int64_t batch, std::int64_t tile, int row,
                              float (&scores)[columns / 2]) {
  constexpr int kWords = (columns + 31) / 32;
  std::uint32_t words[2][kWords] = {};
  if constexpr (transposed)
    find_seeing_queries<columns>(m, batch, tile, row, words);
  else
    find_seen_keys<columns>(m, batch, tile, row, words);
  GPU_UNROLL
  for (int half = 0; half < 2; ++half) {
    GPU_UNROLL
    for (int w = 0; w < kWords; ++w) words[half][w] >>= thread_index() % 4 * 2;
    GPU_UNROLL
    for (int j = 0; j < columns / 8; ++j) {
      GPU_UNROLL
      for (int e = 0; e < 2; ++e) {
        if ((words[half][j / 4] & 1u << (j % 4 * 8 + e)) == 0) scores[j * 4 + half * 2 + e] = -INFINITY;
      }
    }
  }
}

}  // namespace switchyard::gpu
