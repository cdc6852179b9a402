// The gradients of queries on Hopper, by tiles of queries: scores and slopes of the next keys are multiplied
// while those before are added. For heads whose gradients of keys leave no registers for those of queries.
#include <algorithm>

#include "kernels/attention/cuda/hopper_backward_parts.h"

namespace switchyard::gpu {

#if defined(__CUDACC__)
#pragma nv_diag_suppress 177  // code for other GPUs leaves all of it out
#endif
namespace {

using namespace hopper;

template <int qk_width, int v_width, int keys_of_tile>
struct QueryShape {
  static constexpr int qk = qk_width, vw = v_width, keys = keys_of_tile, stages = 2;
  static constexpr int groups = 2, rows = groups * kGroupRows, threads = (groups + 1) * kGroupThreads;
  static constexpr std::uint32_t q_bytes = rows * qk * 2, dout_bytes = rows * vw * 2, k_bytes = keys * qk * 2,
                                 v_bytes = keys * vw * 2;
  static constexpr std::size_t shared_bytes = q_bytes + dout_bytes + stages * (k_bytes + v_bytes);
  static_assert(shared_bytes + kStaticShared <= kMostShared);
};

struct QueryMaps {
  TensorMap q, k, v, dout, dq;
};

struct QueryTask {
  TileMasks masks;
  HeadOrder order;
  RowNumbers numbers;
};

constexpr int kFirstMeeting = 1;  // ids of named barriers, of each warpgroup

template <typename Shape>
struct QueryShared {
  std::uint64_t q_full, q_empty, full[Shape::stages], empty[Shape::stages];
};

template <typename Shape>
struct QueryTiles {
  unsigned char *q, *dout, *k, *v;
  GPU_FUNCTION explicit QueryTiles(unsigned char* memory)
      : q(memory),
        dout(q + Shape::q_bytes),
        k(dout + Shape::dout_bytes),
        v(k + Shape::stages * Shape::k_bytes) {}
};

// The warp that starts copies.
template <typename Shape>
GPU_FUNCTION void bring_keys(const QueryTask& task, const QueryMaps& maps, QueryShared<Shape>& barriers,
                             const QueryTiles<Shape>& tiles) {
  Stage<Shape::stages> stage;
  std::uint32_t worked = 0;
  const bool starts = thread_index() == 0;
  for (int round = 0; round < task.order.rounds(); ++round) {
    HeadTile at;
    if (!task.order.tile_of(round, at)) continue;
    if (starts) {
      wait_for_phase(&barriers.q_empty, (worked & 1) ^ 1);
      expect_bytes(&barriers.q_full, Shape::q_bytes + Shape::dout_bytes);
      for (int group = 0; group < Shape::groups; ++group) {
        const int first = at.tile * Shape::rows + group * kGroupRows;
        copy_columns<Shape::qk, kGroupRows>(tiles.q + group * kGroupRows * Shape::qk * 2, maps.q, at.head,
                                            first, at.batch, &barriers.q_full);
        copy_columns<Shape::vw, kGroupRows>(tiles.dout + group * kGroupRows * Shape::vw * 2, maps.dout,
                                            at.head, first, at.batch, &barriers.q_full);
      }
    }
    ++worked;
    TileWalk<true> walk(0, static_cast<int>(task.masks.kv_tiles));
    while (next_key_tile<Shape>(task.masks, at, walk)) {
      if (starts) {
        wait_for_phase(&barriers.empty[stage.at], stage.phase ^ 1);
        expect_bytes(&barriers.full[stage.at], Shape::k_bytes + Shape::v_bytes);
        copy_columns<Shape::qk, Shape::keys>(tiles.k + stage.at * Shape::k_bytes, maps.k, at.kv_head,
                                             walk.tile * Shape::keys, at.batch, &barriers.full[stage.at]);
        copy_columns<Shape::vw, Shape::keys>(tiles.v + stage.at * Shape::v_bytes, maps.v, at.kv_head,
                                             walk.tile * Shape::keys, at.batch, &barriers.full[stage.at]);
      }
      stage.next();
    }
  }
}

// One of the warpgroups that multiply: 64 queries.
template <typename Shape>
class QueryConsumer {
 public:
  GPU_FUNCTION QueryConsumer(const QueryTask& task, const QueryMaps& maps, QueryShared<Shape>& barriers,
                             const QueryTiles<Shape>& tiles, int group)
      : task_(task),
        maps_(maps),
        barriers_(barriers),
        tiles_(tiles),
        group_(group),
        leads_(thread_index() % kGroupThreads == 0),
        scale_(task.masks.a.scale * kLog2e) {}

  GPU_FUNCTION void run() {
    for (int round = 0; round < task_.order.rounds(); ++round) {
      HeadTile at;
      if (task_.order.tile_of(round, at)) make(at);
    }
    if (leads_) wait_for_stores<0, false>();
  }

 private:
  GPU_FUNCTION void make(const HeadTile& at) {
    const TileMasks& m = task_.masks;
    const int lane = thread_index() % kWarp, warp = thread_index() % kGroupThreads / kWarp,
              row = at.tile * Shape::rows + group_ * kGroupRows + warp * kRowsOfWarp + lane / 4;
    const std::int64_t of_row = (std::int64_t{at.batch} * m.a.heads + at.head) * task_.numbers.padded + row;
    const float lse[2] = {task_.numbers.lse[of_row], task_.numbers.lse[of_row + 8]},
                delta[2] = {task_.numbers.delta[of_row], task_.numbers.delta[of_row + 8]};
    float sums[Shape::qk / 2];
    GPU_UNROLL
    for (float& sum : sums) sum = 0;
    TileWalk<true> walk(0, static_cast<int>(m.kv_tiles));
    wait_for_phase(&barriers_.q_full, worked_ & 1);
    ++worked_;
    if (next_key_tile<Shape>(m, at, walk)) {
      std::uint32_t factors[Shape::keys / 4];
      {
        float weights[Shape::keys / 2], slopes[Shape::keys / 2];
        wait_for_phase(&barriers_.full[stage_.at], stage_.phase);
        multiply_scores(weights, slopes);
        wait_for_products<1>();
        weigh(weights, at, walk, row, lse);
        wait_for_products<0>();
        round(weights, slopes, delta, factors);
      }
      while (next_key_tile<Shape>(m, at, walk)) {
        const int before = stage_.at;
        stage_.next();
        float weights[Shape::keys / 2], slopes[Shape::keys / 2];
        wait_for_phase(&barriers_.full[stage_.at], stage_.phase);
        multiply_scores(weights, slopes);
        add_keys(sums, factors, before);
        wait_for_products<2>();
        weigh(weights, at, walk, row, lse);
        wait_for_products<0>();
        if (leads_) arrive(&barriers_.empty[before]);
        round(weights, slopes, delta, factors);
      }
      add_keys(sums, factors, stage_.at);
      wait_for_products<0>();
      if (leads_) arrive(&barriers_.empty[stage_.at]);
      stage_.next();
    }
    store(at, sums);
  }

  // Begins two groups of products: scores, and gradients of weights.
  GPU_FUNCTION void multiply_scores(float (&weights)[Shape::keys / 2], float (&slopes)[Shape::keys / 2]) {
    const int first = computed_again(group_) * kGroupRows * 2;
    multiply_rows<Shape::qk, kGroupRows, Shape::keys>(weights, tiles_.q + first * Shape::qk,
                                                      tiles_.k + stage_.at * Shape::k_bytes);
    multiply_rows<Shape::vw, kGroupRows, Shape::keys>(slopes, tiles_.dout + first * Shape::vw,
                                                      tiles_.v + stage_.at * Shape::v_bytes);
  }

  GPU_FUNCTION void add_keys(float (&sums)[Shape::qk / 2], const std::uint32_t (&factors)[Shape::keys / 4],
                             int stage) {
    add_columns<Shape::qk, Shape::keys>(sums, factors, tiles_.k + stage * Shape::k_bytes);
  }

  GPU_FUNCTION void weigh(float (&weights)[Shape::keys / 2], const HeadTile& at, const TileWalk<true>& walk,
                          int row, const float (&lse)[2]) {
    if (!walk.is_whole) hide_unseen<Shape::keys, false>(task_.masks, at.batch, walk.tile, row, weights);
    GPU_UNROLL
    for (int i = 0; i < Shape::keys / 2; ++i)
      weights[i] = power_of_two(fmaf(weights[i], scale_, -lse[i / 2 % 2]));
  }

  GPU_FUNCTION static void round(const float (&weights)[Shape::keys / 2],
                                 const float (&slopes)[Shape::keys / 2], const float (&delta)[2],
                                 std::uint32_t (&factors)[Shape::keys / 4]) {
    GPU_UNROLL
    for (int i = 0; i < Shape::keys / 4; ++i)
      factors[i] = rounded_pair(weights[2 * i] * (slopes[2 * i] - delta[i % 2]),
                                weights[2 * i + 1] * (slopes[2 * i + 1] - delta[i % 2]));
  }

  // The queries' own memory takes the result.
  GPU_FUNCTION void store(const HeadTile& at, const float (&sums)[Shape::qk / 2]) {
    unsigned char* const out = tiles_.q + group_ * kGroupRows * Shape::qk * 2;
    const float scale[2] = {task_.masks.a.scale, task_.masks.a.scale};
    put_rows<Shape::qk>(out, sums, scale);
    show_to_tensor_cores();
    named_barrier(kFirstMeeting + group_, kGroupThreads);
    if (!leads_) return;
    store_columns<Shape::qk, kGroupRows>(maps_.dq, out, at.head, at.tile * Shape::rows + group_ * kGroupRows,
                                         at.batch);
    end_stores();
    wait_for_stores<0, true>();
    arrive(&barriers_.q_empty);
  }

  const QueryTask& task_;
  const QueryMaps& maps_;
  QueryShared<Shape>& barriers_;
  const QueryTiles<Shape>& tiles_;
  const int group_;
  const bool leads_;
  const float scale_;
  Stage<Shape::stages> stage_;
  std::uint32_t worked_ = 0;
};

template <typename Shape>
GPU_BLOCK_KERNEL(Shape::threads)
query_gradients(GPU_CONSTANT(QueryTask) task, GPU_CONSTANT(QueryMaps) maps) {
#if defined(GPU_HAS_WGMMA)
  GPU_SHARED(QueryShared<Shape>, barriers, 1);
  const QueryTiles<Shape> tiles(dynamic_shared<unsigned char>());
  if (thread_index() == 0) {
    init_barrier(&barriers->q_full, 1);
    init_barrier(&barriers->q_empty, Shape::groups);
    for (int stage = 0; stage < Shape::stages; ++stage) {
      init_barrier(&barriers->full[stage], 1);
      init_barrier(&barriers->empty[stage], Shape::groups);
    }
    show_barriers();
  }
  barrier();
  // All threads of a warp have the same role, as the compiler is to see.
  const int role = shuffle(thread_index() / kGroupThreads, 0);
  if (role == 0) {
    give_up_registers<56>();
    if (thread_index() < kWarp) bring_keys<Shape>(task, maps, *barriers, tiles);
  } else {
    take_registers<224>();
    QueryConsumer<Shape>(task, maps, *barriers, tiles, role - 1).run();
  }
#endif
}

template <typename Shape>
void run_query_gradients(const AttentionBackwardArgs& args, const AttentionProblem& p,
                         const RowNumbers& numbers) {
  const AttentionSpec& a = p.args;
  const std::int64_t q_tiles = divide_up(a.q_length, Shape::rows),
                     kv_tiles = divide_up(a.kv_length, Shape::keys);
  const Ranges ranges(a, args.dq, Shape::rows, Shape::keys, places_are_given(a));
  if (PlannedGpu::skips(1)) return;
  const QueryTask task{
      {a, ranges.of_queries(), ranges.of_keys(), q_tiles, kv_tiles}, HeadOrder(a, q_tiles), numbers};
  const auto queries = [&](const void* data, std::int64_t width) {
    return map_of_heads(data, a.batch, a.q_length, a.heads, width, kGroupRows);
  };
  const auto keys = [&](const void* data, std::int64_t width) {
    return map_of_heads(data, a.batch, a.kv_length, a.kv_heads, width, Shape::keys);
  };
  const QueryMaps maps{queries(p.q, a.qk_dim), keys(p.k, a.qk_dim), keys(p.v, a.v_dim),
                       queries(p.dout, a.v_dim), queries(p.dq, a.qk_dim)};
  launch({.blocks = std::min<std::int64_t>(task.order.all, multiprocessors()),
          .threads = Shape::threads,
          .shared_bytes = Shape::shared_bytes},
         query_gradients<Shape>, task, maps);
}

}  // namespace

void hopper_query_gradients(const AttentionBackwardArgs& args, const AttentionProblem& p,
                            const hopper::RowNumbers& numbers) {
  if (p.args.qk_dim <= 192 && p.args.v_dim <= 128)
    run_query_gradients<QueryShape<192, 128, 64>>(args, p, numbers);
  else
    run_query_gradients<QueryShape<256, 256, 32>>(args, p, numbers);
}

}  // namespace switchyard::gpu
