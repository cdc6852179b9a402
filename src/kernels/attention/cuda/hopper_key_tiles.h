// The pass over tiles of keys on Hopper: its sizes, what its warps share, the warp that brings queries, and
// the one that adds their gradients.
#pragma once

#include "kernels/attention/cuda/hopper_backward_parts.h"

namespace switchyard::gpu::hopper {

// Which gradients the kernel makes. The sums of heads of 256 fill the registers of two warpgroups: one makes
// the gradients of keys, the other, of the same keys, those of values.
enum class Makes { keys_and_queries, keys, keys_and_values_apart };

// Sizes of the kernel: both widths in whole blocks of columns, and queries of a step.
template <int qk_width, int v_width, int queries_of_step, Makes what>
struct KeyShape {
  static constexpr int qk = qk_width, vw = v_width, rows = queries_of_step;
  static constexpr bool once = what == Makes::keys_and_queries, apart = what == Makes::keys_and_values_apart;
  // Consumers of heads of 128 would keep nine registers in memory with 224, the warps that bring and add keep
  // seven there with 40, and these are not in their way.
  static constexpr int producer_registers = once && qk == 128 ? 40 : 56,
                       consumer_registers = once && qk == 128 ? 232 : 224;
  static constexpr int keys = apart ? kGroupRows : 2 * kGroupRows, stages = 2, threads = 3 * kGroupThreads;
  static constexpr std::uint32_t k_bytes = keys * qk * 2, v_bytes = keys * vw * 2, q_bytes = rows * qk * 2,
                                 dout_bytes = rows * vw * 2, number_bytes = rows * 4,
                                 slope_bytes = once ? keys * rows * 2 : 0;
  // Each warpgroup makes half of the columns of the queries' gradients, or all of them in every second step
  // where half would be less than a block of columns.
  static constexpr bool in_halves = qk > kTileWidth;
  static constexpr int sum_columns = in_halves ? qk / 2 : qk;
  static constexpr std::uint32_t sum_bytes = once ? rows * sum_columns * 4 : 0;  // of one warpgroup
  static constexpr std::size_t shared_bytes =
      k_bytes + v_bytes + stages * (q_bytes + dout_bytes) + 2 * slope_bytes + 2 * sum_bytes;
  static_assert(shared_bytes + 2 * kStaticShared <= kMostShared && (!once || rows == kGroupRows));
};

struct KeyMaps {
  TensorMap q, k, v, dout, dk, dv;
};

struct KeyTask {
  TileMasks masks;
  RowNumbers numbers;
  float* sums;            // [B,N,q tiles] of Shape's rows x qk, as threads hold them
  std::int32_t* added;    // [B,N,q tiles]: how many tiles of keys have added theirs
  std::int32_t* started;  // blocks
};

// Ids of named barriers: a meeting of both warpgroups, of one, and of one and the warp that adds.
constexpr int kBothMeet = 1, kOneMeets = 2, kSumsFull = 4, kSumsEmpty = 6;
constexpr int kWithAdder = kGroupThreads + kWarp;

template <typename Shape>
struct KeyShared {
  std::uint64_t kv_full;
  std::uint64_t q_full[Shape::stages], q_empty[Shape::stages], dout_full[Shape::stages],
      dout_empty[Shape::stages];
  std::int64_t taken;  // the block's number in the order of starts
  alignas(16) float lse[Shape::stages][Shape::rows];
  alignas(16) float delta[Shape::stages][Shape::rows];
};

template <typename Shape>
struct KeyTiles {
  unsigned char *k, *v, *q, *dout, *slopes;
  float* sums;
  GPU_FUNCTION explicit KeyTiles(unsigned char* memory)
      : k(memory),
        v(k + Shape::k_bytes),
        q(v + Shape::v_bytes),
        dout(q + Shape::stages * Shape::q_bytes),
        slopes(dout + Shape::stages * Shape::dout_bytes),
        sums(reinterpret_cast<float*>(slopes + 2 * Shape::slope_bytes)) {}
};

// The tile of keys of a block.
struct KeyTile {
  int batch, kv_head, tile;
  GPU_FUNCTION static KeyTile of(const TileMasks& m, std::int64_t number) {
    const auto tiles = static_cast<int>(m.kv_tiles), of_all_heads = static_cast<int>(number / tiles),
               heads = static_cast<int>(m.a.kv_heads);
    return {of_all_heads / heads, of_all_heads % heads, tiles - 1 - static_cast<int>(number % tiles)};
  }
};

template <typename Shape>
GPU_FUNCTION TileMask mask_of_pair(const TileMasks& m, int batch, int q_tile, int kv_tile) {
  return mask_of(range_of_queries(m, batch, q_tile, Shape::rows),
                 range_of_keys(m, batch, kv_tile, Shape::keys), m.a.causal);
}

// Calls body(head, tile of queries, is it seen whole) for all that see the keys, in the order that all roles
// have. A whole warp calls.
template <typename Shape, typename Body>
GPU_FUNCTION void for_seeing_tiles(const TileMasks& m, const KeyTile& at, const Body& body) {
  const auto group = static_cast<int>(m.a.heads / m.a.kv_heads);
  for (int head = at.kv_head * group; head < (at.kv_head + 1) * group; ++head) {
    TileWalk<false> walk(0, static_cast<int>(m.q_tiles));
    while (walk.next([&](int tile) { return mask_of_pair<Shape>(m, at.batch, tile, at.tile); }))
      body(head, walk.tile, walk.is_whole && std::int64_t{at.tile + 1} * Shape::keys <= m.a.kv_length);
  }
}

// The warp that starts copies.
template <typename Shape>
GPU_FUNCTION void bring_queries(const KeyTask& task, const KeyMaps& maps, KeyShared<Shape>& shared,
                                const KeyTiles<Shape>& tiles, const KeyTile& at) {
  const bool starts = thread_index() == 0;
  if (starts) {
    expect_bytes(&shared.kv_full, Shape::k_bytes + Shape::v_bytes);
    copy_columns<Shape::qk, Shape::keys>(tiles.k, maps.k, at.kv_head, at.tile * Shape::keys, at.batch,
                                         &shared.kv_full);
    copy_columns<Shape::vw, Shape::keys>(tiles.v, maps.v, at.kv_head, at.tile * Shape::keys, at.batch,
                                         &shared.kv_full);
  }
  Stage<Shape::stages> stage;
  for_seeing_tiles<Shape>(task.masks, at, [&](int head, int tile, bool) {
    if (starts) {
      const int s = stage.at;
      const std::int64_t of_row =
          (std::int64_t{at.batch} * task.masks.a.heads + head) * task.numbers.padded + tile * Shape::rows;
      wait_for_phase(&shared.q_empty[s], stage.phase ^ 1);
      expect_bytes(&shared.q_full[s], Shape::q_bytes + Shape::number_bytes);
      copy_columns<Shape::qk, Shape::rows>(tiles.q + s * Shape::q_bytes, maps.q, head, tile * Shape::rows,
                                           at.batch, &shared.q_full[s]);
      copy_bytes(shared.lse[s], task.numbers.lse + of_row, Shape::number_bytes, &shared.q_full[s]);
      wait_for_phase(&shared.dout_empty[s], stage.phase ^ 1);
      expect_bytes(&shared.dout_full[s], Shape::dout_bytes + Shape::number_bytes);
      copy_columns<Shape::vw, Shape::rows>(tiles.dout + s * Shape::dout_bytes, maps.dout, head,
                                           tile * Shape::rows, at.batch, &shared.dout_full[s]);
      copy_bytes(shared.delta[s], task.numbers.delta + of_row, Shape::number_bytes, &shared.dout_full[s]);
    }
    stage.next();
  });
}

// How many tiles of keys after this one the queries see: they add first.
template <typename Shape>
GPU_FUNCTION int tiles_before(const TileMasks& m, const KeyTile& at, int q_tile) {
  int count = 0;
  for (int base = at.tile + 1; base < m.kv_tiles; base += kWarp) {
    const int own = base + thread_index() % kWarp;
    const bool seen = own < m.kv_tiles && mask_of_pair<Shape>(m, at.batch, q_tile, own) != TileMask::none;
    count += bits_set(ballot(seen));
  }
  return count;
}

// The warp that adds gradients of queries, each tile in its turn.
template <typename Shape>
GPU_FUNCTION void add_queries(const KeyTask& task, const KeyTiles<Shape>& tiles, const KeyTile& at) {
  constexpr int kSums = Shape::rows * Shape::sum_columns;  // of one warpgroup
  const bool adds = thread_index() % kWarp == 0;
  int step = 0;
  for_seeing_tiles<Shape>(task.masks, at, [&](int head, int tile, bool) {
    const std::int64_t of_tile =
        (std::int64_t{at.batch} * task.masks.a.heads + head) * task.masks.q_tiles + tile;
    const int before = tiles_before<Shape>(task.masks, at, tile);
    if (adds) wait_for_number(task.added + of_tile, before);
    warp_barrier();
    const int first = Shape::in_halves ? 0 : step % 2, last = Shape::in_halves ? 1 : first;
    for (int group = first; group <= last; ++group) {
      named_barrier(kSumsFull + group, kWithAdder);
      if (!adds) continue;
      float* const to = task.sums + (of_tile * (last - first + 1) + group - first) * kSums;
      const float* const from = tiles.sums + group * kSums;
      before == 0 ? store_floats(to, from, kSums) : add_floats(to, from, kSums);
      end_stores();
    }
    if (adds) {
      wait_for_stores<0, false>();
      raise_number(task.added + of_tile);
    }
    warp_barrier();
    for (int group = first; group <= last; ++group) named_arrive(kSumsEmpty + group, kWithAdder);
    ++step;
  });
}

}  // namespace switchyard::gpu::hopper
