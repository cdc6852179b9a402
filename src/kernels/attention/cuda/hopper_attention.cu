// Attention of bfloat16 on Hopper, forward (FlashAttention-3, Shah et al. 2024): one warp brings tiles by the
// copy engine, two or three warpgroups take 64 queries each, and multiply scores of a tile while they weigh
// those of the tile before. Twin: flash_attention, which has the same masks.
#include <algorithm>
#include <array>

#include "kernels/attention/cuda/hopper_softmax.h"

namespace switchyard::gpu {

#if defined(__CUDACC__)
#pragma nv_diag_suppress 177  // code for other GPUs leaves all of it out
#endif
namespace {

using namespace hopper;

// Sizes of a kernel: both widths in whole blocks of columns, keys of a tile, warpgroups of queries, and tiles
// that may be on their way.
template <int qk_width, int v_width, int keys_of_tile, int groups_of_queries, int stages_of_tiles>
struct ForwardShape {
  static constexpr int qk = qk_width, vw = v_width, keys = keys_of_tile, groups = groups_of_queries,
                       stages = stages_of_tiles;
  static constexpr int rows = groups * kGroupRows, threads = (groups + 1) * kGroupThreads;
  static constexpr std::uint32_t q_bytes = rows * qk * 2, k_bytes = keys * qk * 2, v_bytes = keys * vw * 2,
                                 out_bytes = rows * vw * 2;
  // The result has memory of its own where there is room: then the next queries come while it is stored.
  static constexpr bool result_apart =
      q_bytes + out_bytes + stages * (k_bytes + v_bytes) + kStaticShared <= kMostShared;
  static constexpr std::size_t shared_bytes =
      q_bytes + stages * (k_bytes + v_bytes) + (result_apart ? out_bytes : 0);
  static_assert(shared_bytes + kStaticShared <= kMostShared && (result_apart || vw <= qk));
  // Warpgroups multiply in turns, so that one weighs scores while another multiplies. Wider heads have too
  // few keys a tile for that to pay.
  static constexpr bool in_turns = qk <= 128;
  static constexpr int producer_registers = 56, consumer_registers = groups == 2 ? 224 : 152;
};

struct ForwardMaps {
  TensorMap q, k, v, out;
};

struct ForwardTask {
  TileMasks masks;
  HeadOrder order;
  float *lse, *top;  // top: null where nobody asked
};

// Ids of named barriers: the turns of warpgroups, and the meetings of one.
constexpr int kFirstTurn = 2, kFirstMeeting = 5;

template <typename Shape>
struct ForwardShared {
  std::uint64_t q_full, q_empty;
  std::uint64_t k_full[Shape::stages], k_empty[Shape::stages], v_full[Shape::stages], v_empty[Shape::stages];
};

// Tiles in shared memory, in blocks of 64 columns.
template <typename Shape>
struct ForwardTiles {
  unsigned char *q, *k, *v, *out;
  GPU_FUNCTION explicit ForwardTiles(unsigned char* memory)
      : q(memory),
        k(q + Shape::q_bytes),
        v(k + Shape::stages * Shape::k_bytes),
        out(Shape::result_apart ? v + Shape::stages * Shape::v_bytes : q) {}
};

// The warp that starts copies.
template <typename Shape>
GPU_FUNCTION void bring_tiles(const ForwardTask& task, const ForwardMaps& maps,
                              ForwardShared<Shape>& barriers, const ForwardTiles<Shape>& tiles) {
  Stage<Shape::stages> stage;
  std::uint32_t worked = 0;
  const bool starts = thread_index() == 0;
  for (int round = 0; round < task.order.rounds(); ++round) {
    HeadTile at;
    if (!task.order.tile_of(round, at)) continue;
    if (starts) {
      wait_for_phase(&barriers.q_empty, (worked & 1) ^ 1);
      expect_bytes(&barriers.q_full, Shape::q_bytes);
      for (int group = 0; group < Shape::groups; ++group)
        copy_columns<Shape::qk, kGroupRows>(tiles.q + group * kGroupRows * Shape::qk * 2, maps.q, at.head,
                                            at.tile * Shape::rows + group * kGroupRows, at.batch,
                                            &barriers.q_full);
    }
    ++worked;
    TileWalk<true> walk(0, static_cast<int>(task.masks.kv_tiles));
    while (next_key_tile<Shape>(task.masks, at, walk)) {
      if (starts) {
        wait_for_phase(&barriers.k_empty[stage.at], stage.phase ^ 1);
        expect_bytes(&barriers.k_full[stage.at], Shape::k_bytes);
        copy_columns<Shape::qk, Shape::keys>(tiles.k + stage.at * Shape::k_bytes, maps.k, at.kv_head,
                                             walk.tile * Shape::keys, at.batch, &barriers.k_full[stage.at]);
        wait_for_phase(&barriers.v_empty[stage.at], stage.phase ^ 1);
        expect_bytes(&barriers.v_full[stage.at], Shape::v_bytes);
        copy_columns<Shape::vw, Shape::keys>(tiles.v + stage.at * Shape::v_bytes, maps.v, at.kv_head,
                                             walk.tile * Shape::keys, at.batch, &barriers.v_full[stage.at]);
      }
      stage.next();
    }
  }
}

// One of the warpgroups that multiply.
template <typename Shape>
class ForwardConsumer {
 public:
  GPU_FUNCTION ForwardConsumer(const ForwardTask& task, const ForwardMaps& maps,
                               ForwardShared<Shape>& barriers, const ForwardTiles<Shape>& tiles, int group)
      : task_(task),
        maps_(maps),
        barriers_(barriers),
        tiles_(tiles),
        group_(group),
        leads_(thread_index() % kGroupThreads == 0),
        scale_(task.masks.a.scale * kLog2e) {}

  GPU_FUNCTION void run() {
    if (Shape::in_turns && group_ == Shape::groups - 1) named_arrive(kFirstTurn, 2 * kGroupThreads);
    for (int round = 0; round < task_.order.rounds(); ++round) {
      HeadTile at;
      if (task_.order.tile_of(round, at)) attend(at);
    }
    if (leads_) wait_for_stores<0, false>();
  }

 private:
  GPU_FUNCTION void attend(const HeadTile& at) {
    const TileMasks& m = task_.masks;
    const int lane = thread_index() % kWarp, warp = thread_index() % kGroupThreads / kWarp;
    const int row = at.tile * Shape::rows + group_ * kGroupRows + warp * kRowsOfWarp + lane / 4;
    TileWalk<true> walk(0, static_cast<int>(m.kv_tiles));
    RunningSoftmax softmax;
    float sums[Shape::vw / 2];
    GPU_UNROLL
    for (float& sum : sums) sum = 0;
    wait_for_phase(&barriers_.q_full, worked_ & 1);
    ++worked_;
    if (next_key_tile<Shape>(m, at, walk)) {
      std::uint32_t weights[Shape::keys / 4];
      {
        float scores[Shape::keys / 2];
        wait_for_phase(&barriers_.k_full[stage_.at], stage_.phase);
        multiply_keys(scores);
        wait_for_products<0>();
        release(&barriers_.k_empty[stage_.at]);
        weigh(scores, softmax, at, walk, row);
        round_weights(scores, weights);
      }
      while (next_key_tile<Shape>(m, at, walk)) {
        const Stage<Shape::stages> before = stage_;
        stage_.next();
        float scores[Shape::keys / 2];
        wait_for_phase(&barriers_.k_full[stage_.at], stage_.phase);
        if constexpr (Shape::in_turns) named_barrier(kFirstTurn + group_, 2 * kGroupThreads);
        multiply_keys(scores);
        softmax.shrink_sums(sums);
        wait_for_phase(&barriers_.v_full[before.at], before.phase);
        multiply_values(sums, weights, before.at);
        if constexpr (Shape::in_turns)
          named_arrive(kFirstTurn + (group_ + 1) % Shape::groups, 2 * kGroupThreads);
        wait_for_products<1>();
        release(&barriers_.k_empty[stage_.at]);
        weigh(scores, softmax, at, walk, row);
        wait_for_products<0>();
        release(&barriers_.v_empty[before.at]);
        round_weights(scores, weights);  // the product has read the weights of the tile before
      }
      if constexpr (Shape::result_apart) release(&barriers_.q_empty);
      softmax.shrink_sums(sums);
      wait_for_phase(&barriers_.v_full[stage_.at], stage_.phase);
      multiply_values(sums, weights, stage_.at);
      wait_for_products<0>();
      release(&barriers_.v_empty[stage_.at]);
      stage_.next();
    } else if constexpr (Shape::result_apart) {
      release(&barriers_.q_empty);
    }
    store(at, row, softmax, sums);
  }

  // This warpgroup has read what the barrier says.
  GPU_FUNCTION void release(std::uint64_t* empty) {
    if (leads_) arrive(empty);
  }

  GPU_FUNCTION void multiply_keys(float (&scores)[Shape::keys / 2]) {
    multiply_rows<Shape::qk, kGroupRows, Shape::keys>(scores, tiles_.q + group_ * kGroupRows * Shape::qk * 2,
                                                      tiles_.k + stage_.at * Shape::k_bytes);
  }

  GPU_FUNCTION void multiply_values(float (&sums)[Shape::vw / 2],
                                    const std::uint32_t (&weights)[Shape::keys / 4], int stage) {
    add_columns<Shape::vw, Shape::keys>(sums, weights, tiles_.v + stage * Shape::v_bytes);
  }

  GPU_FUNCTION void weigh(float (&scores)[Shape::keys / 2], RunningSoftmax& softmax, const HeadTile& at,
                          const TileWalk<true>& walk, int row) {
    if (!walk.is_whole) hide_unseen<Shape::keys, false>(task_.masks, at.batch, walk.tile, row, scores);
    softmax.weigh<Shape::keys>(scores, scale_);
  }

  GPU_FUNCTION void store(const HeadTile& at, int row, const RunningSoftmax& softmax,
                          const float (&sums)[Shape::vw / 2]) {
    const AttentionSpec& a = task_.masks.a;
    float factor[2];
    for (int half = 0; half < 2; ++half) {
      float total = softmax.sum[half];
      for (int by = 1; by < 4; by *= 2) total += shuffle_xor(total, by);
      factor[half] = total > 0 ? 1 / total : 0.0f;
      const int at_row = row + half * 8;
      if (thread_index() % 4 != 0 || at_row >= a.q_length) continue;
      const std::int64_t of_row = (std::int64_t{at.batch} * a.heads + at.head) * a.q_length + at_row;
      const float most = softmax.largest[half] * a.scale;
      task_.lse[of_row] = total > 0 ? most + logf(total) : -INFINITY;
      if (task_.top != nullptr) task_.top[of_row] = most;
    }
    unsigned char* const out =
        tiles_.out + group_ * kGroupRows * (Shape::result_apart ? Shape::vw : Shape::qk) * 2;
    if constexpr (Shape::result_apart) {
      if (leads_) wait_for_stores<0, true>();
      named_barrier(kFirstMeeting + group_, kGroupThreads);
    }
    put_rows<Shape::vw>(out, sums, factor);
    show_to_tensor_cores();
    named_barrier(kFirstMeeting + group_, kGroupThreads);
    if (!leads_) return;
    store_columns<Shape::vw, kGroupRows>(maps_.out, out, at.head, at.tile * Shape::rows + group_ * kGroupRows,
                                         at.batch);
    end_stores();
    if constexpr (!Shape::result_apart) {
      wait_for_stores<0, true>();
      arrive(&barriers_.q_empty);
    }
  }

  const ForwardTask& task_;
  const ForwardMaps& maps_;
  ForwardShared<Shape>& barriers_;
  const ForwardTiles<Shape>& tiles_;
  const int group_;
  const bool leads_;
  const float scale_;
  Stage<Shape::stages> stage_;
  std::uint32_t worked_ = 0;
};

template <typename Shape>
GPU_BLOCK_KERNEL(Shape::threads)
hopper_forward(GPU_CONSTANT(ForwardTask) task, GPU_CONSTANT(ForwardMaps) maps) {
#if defined(GPU_HAS_WGMMA)
  GPU_SHARED(ForwardShared<Shape>, barriers, 1);
  const ForwardTiles<Shape> tiles(dynamic_shared<unsigned char>());
  if (thread_index() == 0) {
    init_barrier(&barriers->q_full, 1);
    init_barrier(&barriers->q_empty, Shape::groups);
    for (int stage = 0; stage < Shape::stages; ++stage) {
      init_barrier(&barriers->k_full[stage], 1);
      init_barrier(&barriers->v_full[stage], 1);
      init_barrier(&barriers->k_empty[stage], Shape::groups);
      init_barrier(&barriers->v_empty[stage], Shape::groups);
    }
    show_barriers();
  }
  barrier();
  // All threads of a warp have the same role, as the compiler is to see.
  const int role = shuffle(thread_index() / kGroupThreads, 0);
  if (role == 0) {
    give_up_registers<Shape::producer_registers>();
    if (thread_index() < kWarp) bring_tiles<Shape>(task, maps, *barriers, tiles);
  } else {
    take_registers<Shape::consumer_registers>();
    ForwardConsumer<Shape>(task, maps, *barriers, tiles, role - 1).run();
  }
#endif
}

// Calls body with the shape for these widths.
template <typename Body>
void with_forward_shape(const AttentionSpec& a, const Body& body) {
  if (a.qk_dim <= 64 && a.v_dim <= 64) return body(ForwardShape<64, 64, 96, 3, 3>());
  if (a.qk_dim <= 128 && a.v_dim <= 128) return body(ForwardShape<128, 128, 128, 2, 2>());
  if (a.qk_dim <= 192 && a.v_dim <= 128) return body(ForwardShape<192, 128, 128, 2, 2>());
  body(ForwardShape<256, 256, 80, 2, 2>());
}

template <typename Shape>
void run_forward(const AttentionArgs& args, const AttentionProblem& p) {
  const AttentionSpec& a = p.args;
  const bool given = places_are_given(a);
  const Ranges ranges(a, args.q, Shape::rows, Shape::keys, given);
  if (PlannedGpu::skips(1)) return;
  const std::int64_t q_tiles = divide_up(a.q_length, Shape::rows),
                     kv_tiles = divide_up(a.kv_length, Shape::keys);
  const ForwardTask task{
      {a, ranges.of_queries(), ranges.of_keys(), q_tiles, kv_tiles}, HeadOrder(a, q_tiles), p.lse, p.top};
  const ForwardMaps maps{
      map_of_heads(p.q, a.batch, a.q_length, a.heads, a.qk_dim, kGroupRows),
      map_of_heads(p.k, a.batch, a.kv_length, a.kv_heads, a.qk_dim, Shape::keys),
      map_of_heads(p.v, a.batch, a.kv_length, a.kv_heads, a.v_dim, Shape::keys),
      map_of_heads(p.out, a.batch, a.q_length, a.heads, a.v_dim, kGroupRows),
  };
  launch({.blocks = std::min<std::int64_t>(task.order.all, multiprocessors()),
          .threads = Shape::threads,
          .shared_bytes = Shape::shared_bytes},
         hopper_forward<Shape>, task, maps);
}

}  // namespace

const char* hopper_attention_refuses(const AttentionArgs& args) {
  const std::int64_t width = args.q.dim(3), values = args.v.dim(3);
  if (args.q.dtype() != DType::bf16) return "the operands are not bfloat16";
  if (!(args.scale > 0)) return "the scale is not positive";
  if (args.chosen.defined()) return "keys are chosen for each query";
  if (const char* const reason = parts_refuse(args)) return reason;
  if (args.k.dim(1) == 0) return "there are no keys";
  if (args.q.dim(0) * args.q.dim(2) * args.q.dim(1) > INT32_MAX)
    return "there are more than 2^31 rows of queries";
  if (width == 0 || values == 0) return "heads have no elements";
  if (width % kChunk != 0 || values % kChunk != 0) return "a head's width is no multiple of 8";
  if (width > 256 || values > 256) return "heads are wider than 256";
  return are_aligned({&args.q, &args.k, &args.v, &args.out}) ? nullptr
                                                             : "an operand is not aligned to 16 bytes";
}

void hopper_attention(const AttentionArgs& args) {
  const AttentionProblem p = attention_problem(args);
  const AttentionSpec& a = p.args;
  if (a.batch == 0 || a.q_length == 0 || a.heads == 0) return;
  with_forward_shape(a, [&]<typename Shape>(Shape) { run_forward<Shape>(args, p); });
}

}  // namespace switchyard::gpu
