// Attention of bfloat16 on Hopper, backward, by tiles of keys: scores are made again, transposed, so that
// weights and their gradients are operands in registers. Gradients of keys and values stay in registers while
// a block goes through the queries. The copy engine adds the queries' gradients in the GPU's memory, one
// block after the other: blocks take tiles from the last on, and a block waits until those of later keys have
// added theirs, so every run has the same bits (FlashAttention's deterministic mode, Dao et al.). Wider heads
// have a second pass instead (hopper_query_gradients.cu). Twin: flash_attention_backward.
#include <algorithm>

#include "kernels/attention/cuda/hopper_key_tiles.h"

namespace switchyard::gpu {

#if defined(__CUDACC__)
#pragma nv_diag_suppress 177  // code for other GPUs leaves all of it out
#endif
namespace {

using namespace hopper;

// A warpgroup that multiplies: 64 keys.
template <typename Shape, bool makes_keys, bool makes_values>
class KeyConsumer {
 public:
  GPU_FUNCTION KeyConsumer(const KeyTask& task, KeyShared<Shape>& shared, const KeyTiles<Shape>& tiles,
                           int group)
      : task_(task),
        shared_(shared),
        tiles_(tiles),
        group_(group),
        leads_(thread_index() % kGroupThreads == 0),
        scale_(task.masks.a.scale * kLog2e) {}

  GPU_FUNCTION void run(const KeyMaps& maps, const KeyTile& at) {
    const int lane = thread_index() % kWarp, warp = thread_index() % kGroupThreads / kWarp,
              row = at.tile * Shape::keys + (Shape::apart ? 0 : group_ * kGroupRows) + warp * kRowsOfWarp +
                    lane / 4;
    float dk[Shape::qk / 2], dv[Shape::vw / 2];
    GPU_UNROLL
    for (float& sum : dk) sum = 0;
    GPU_UNROLL
    for (float& sum : dv) sum = 0;
    wait_for_phase(&shared_.kv_full, 0);
    for_seeing_tiles<Shape>(task_.masks, at, [&](int, int tile, bool is_whole) {
      step(at, row, tile, is_whole, dk, dv);
      stage_.next();
      ++step_;
    });
    named_barrier(kBothMeet, 2 * kGroupThreads);  // both have read the keys and values
    const float one[2] = {1, 1}, scale[2] = {task_.masks.a.scale, task_.masks.a.scale};
    unsigned char *const k = own_rows(tiles_.k), *const v = own_rows(tiles_.v);
    if constexpr (makes_keys) put_rows<Shape::qk, Shape::keys>(k, dk, scale);
    if constexpr (makes_values) put_rows<Shape::vw, Shape::keys>(v, dv, one);
    show_to_tensor_cores();
    named_barrier(kOneMeets + group_, kGroupThreads);
    if (!leads_) return;
    const int first = at.tile * Shape::keys + (Shape::apart ? 0 : group_ * kGroupRows);
    if constexpr (makes_keys) store_columns<Shape::qk, Shape::keys>(maps.dk, k, at.kv_head, first, at.batch);
    if constexpr (makes_values)
      store_columns<Shape::vw, Shape::keys>(maps.dv, v, at.kv_head, first, at.batch);
    end_stores();
    wait_for_stores<0, false>();
  }

 private:
  GPU_FUNCTION unsigned char* own_rows(unsigned char* tile) const {
    return tile + (Shape::apart ? 0 : group_ * kGroupRows) * kTileWidth * 2;
  }
  GPU_FUNCTION void release(std::uint64_t* empty) {
    if (leads_) arrive(empty);
  }

  GPU_FUNCTION void step(const KeyTile& at, int row, int tile, bool is_whole, float (&dk)[Shape::qk / 2],
                         float (&dv)[Shape::vw / 2]) {
    const int s = stage_.at;
    const unsigned char *const q = tiles_.q + s * Shape::q_bytes, *const dout =
                                                                      tiles_.dout + s * Shape::dout_bytes;
    float weights[Shape::rows / 2];
    wait_for_phase(&shared_.q_full[s], stage_.phase);
    multiply_rows<Shape::qk, Shape::keys, Shape::rows>(weights, own_rows(tiles_.k), q);
    wait_for_phase(&shared_.dout_full[s], stage_.phase);
    [[maybe_unused]] float slopes[Shape::rows / 2];
    if constexpr (makes_keys)
      multiply_rows<Shape::vw, Shape::keys, Shape::rows>(slopes, own_rows(tiles_.v), dout);
    wait_for_products<makes_keys ? 1 : 0>();
    if constexpr (!makes_keys) release(&shared_.q_empty[s]);
    if (!is_whole) hide_unseen<Shape::rows, true>(task_.masks, at.batch, tile, row, weights);
    [[maybe_unused]] std::uint32_t rounded_weights[Shape::rows / 4], rounded_slopes[Shape::rows / 4];
    for_pairs([&](int j, int half, int column) {
      float* const x = weights + j * 4 + half * 2;
      x[0] = power_of_two(fmaf(x[0], scale_, -shared_.lse[s][column]));
      x[1] = power_of_two(fmaf(x[1], scale_, -shared_.lse[s][column + 1]));
      if constexpr (makes_values) rounded_weights[j * 2 + half] = rounded_pair(x[0], x[1]);
    });
    if constexpr (makes_keys) {
      wait_for_products<0>();
      if constexpr (!makes_values) release(&shared_.dout_empty[s]);
      for_pairs([&](int j, int half, int column) {
        const float *const x = weights + j * 4 + half * 2, *const y = slopes + j * 4 + half * 2;
        rounded_slopes[j * 2 + half] = rounded_pair(x[0] * (y[0] - shared_.delta[s][column]),
                                                    x[1] * (y[1] - shared_.delta[s][column + 1]));
      });
    }
    if constexpr (Shape::once) put_slopes(rounded_slopes);
    if constexpr (makes_values) add_columns<Shape::vw, Shape::rows>(dv, rounded_weights, dout);
    if constexpr (Shape::once) {
      show_to_tensor_cores();
      named_barrier(kBothMeet, 2 * kGroupThreads);  // the slopes of both are there
      if (Shape::in_halves || step_ % 2 == group_) return end_step_with_queries(q, rounded_slopes, dk);
    }
    if constexpr (makes_keys) add_columns<Shape::qk, Shape::rows>(dk, rounded_slopes, q);
    wait_for_products<makes_keys && makes_values ? 1 : 0>();
    if constexpr (makes_values) release(&shared_.dout_empty[s]);
    wait_for_products<0>();
    if constexpr (makes_keys) release(&shared_.q_empty[s]);
  }

  // Calls body(j, half, column) for each pair of columns of both rows.
  template <typename Body>
  GPU_FUNCTION static void for_pairs(const Body& body) {
    GPU_UNROLL
    for (int j = 0; j < Shape::rows / 8; ++j) {
      GPU_UNROLL
      for (int half = 0; half < 2; ++half) body(j, half, j * 8 + thread_index() % 4 * 2);
    }
  }

  // Slopes [keys, queries] in shared memory: an operand that is transposed.
  GPU_FUNCTION void put_slopes(const std::uint32_t (&slopes)[Shape::rows / 4]) {
    unsigned char* const to = own_rows(tiles_.slopes + step_ % 2 * Shape::slope_bytes);
    GPU_UNROLL
    for (int j = 0; j < Shape::rows / 16; ++j)
      store_tiles(place_of_tiles(to, 2 * j), slopes[4 * j], slopes[4 * j + 1], slopes[4 * j + 2],
                  slopes[4 * j + 3]);
  }

  GPU_FUNCTION void end_step_with_queries(const unsigned char* q,
                                          const std::uint32_t (&rounded_slopes)[Shape::rows / 4],
                                          float (&dk)[Shape::qk / 2]) {
    const int s = stage_.at;
    constexpr int kSums = Shape::sum_columns / 2;  // of a thread
    const unsigned char *const slopes = tiles_.slopes + step_ % 2 * Shape::slope_bytes,
                               *const k = tiles_.k + (Shape::in_halves ? group_ : 0) *
                                                         (Shape::sum_columns / kTileWidth) * Shape::keys *
                                                         kTileWidth * 2;
    float dq[kSums];
    begin_multiplying();
    GPU_UNROLL
    for (int depth = 0; depth < Shape::keys; depth += 16)
      multiply<Shape::sum_columns, 1, 1>(dq, columns_at<Shape::keys>(slopes, depth),
                                         columns_at<Shape::keys>(k, depth), depth > 0);
    end_multiplying();
    wait_for_products<1>();
    release(&shared_.dout_empty[s]);
    add_columns<Shape::qk, Shape::rows>(dk, rounded_slopes, q);
    wait_for_products<1>();
    if (has_given_sums_) named_barrier(kSumsEmpty + group_, kWithAdder);  // the last sums have left
    has_given_sums_ = true;
    auto* const to =
        reinterpret_cast<Vector<float, 4>*>(tiles_.sums + group_ * Shape::rows * Shape::sum_columns) +
        thread_index() % kGroupThreads;
    GPU_UNROLL
    for (int j = 0; j < kSums / 4; ++j)
      to[j * kGroupThreads] = {dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]};
    show_to_tensor_cores();
    named_arrive(kSumsFull + group_, kWithAdder);
    wait_for_products<0>();
    release(&shared_.q_empty[s]);
  }

  const KeyTask& task_;
  KeyShared<Shape>& shared_;
  const KeyTiles<Shape>& tiles_;
  const int group_;
  const bool leads_;
  const float scale_;
  Stage<Shape::stages> stage_;
  int step_ = 0;
  bool has_given_sums_ = false;
};

template <typename Shape>
GPU_BLOCK_KERNEL(Shape::threads)
hopper_key_gradients(GPU_CONSTANT(KeyTask) task, GPU_CONSTANT(KeyMaps) maps) {
#if defined(GPU_HAS_WGMMA)
  GPU_SHARED(KeyShared<Shape>, shared, 1);
  const KeyTiles<Shape> tiles(dynamic_shared<unsigned char>());
  if (thread_index() == 0) {
    init_barrier(&shared->kv_full, 1);
    for (int stage = 0; stage < Shape::stages; ++stage) {
      init_barrier(&shared->q_full[stage], 1);
      init_barrier(&shared->dout_full[stage], 1);
      init_barrier(&shared->q_empty[stage], 2);
      init_barrier(&shared->dout_empty[stage], 2);
    }
    show_barriers();
    // In the order in which blocks start: who is waited for has started.
    shared->taken = Shape::once ? atomic_add(task.started, 1) : block_index();
  }
  barrier();
  const KeyTile at = KeyTile::of(task.masks, shared->taken);
  // All threads of a warp have the same role, as the compiler is to see.
  const int role = shuffle(thread_index() / kGroupThreads, 0);
  if (role == 0) {
    give_up_registers<Shape::producer_registers>();
    if (thread_index() < kWarp)
      bring_queries<Shape>(task, maps, *shared, tiles, at);
    else if (Shape::once && thread_index() < 2 * kWarp)
      add_queries<Shape>(task, tiles, at);
  } else {
    take_registers<Shape::consumer_registers>();
    const int group = role - 1;
    if constexpr (!Shape::apart)
      KeyConsumer<Shape, true, true>(task, *shared, tiles, group).run(maps, at);
    else if (group == 0)
      KeyConsumer<Shape, true, false>(task, *shared, tiles, group).run(maps, at);
    else
      KeyConsumer<Shape, false, true>(task, *shared, tiles, group).run(maps, at);
  }
#endif
}

// Rounds the sums of the queries' gradients, times the scale. What no tile of keys has added to is 0.
template <typename Shape>
GPU_KERNEL round_query_sums(KeyTask task, bfloat16* dq) {
  const AttentionSpec& a = task.masks.a;
  constexpr int kOfTile = Shape::rows * Shape::qk / 4, kOfGroup = Shape::rows * Shape::sum_columns / 4;
  const std::int64_t i = block_index() * thread_count() + thread_index(), tile = i / kOfTile;
  if (tile >= a.batch * a.heads * task.masks.q_tiles) return;
  const int within = static_cast<int>(i % kOfTile), group = within / kOfGroup,
            thread = within % kOfGroup % kGroupThreads, j = within % kOfGroup / kGroupThreads;
  const std::int64_t head = tile / task.masks.q_tiles % a.heads, batch = tile / task.masks.q_tiles / a.heads;
  const int column = group * Shape::sum_columns + j * 8 + thread % 4 * 2;
  if (column >= a.qk_dim) return;
  Vector<float, 4> sums{};
  if (task.added[tile] > 0) sums = reinterpret_cast<const Vector<float, 4>*>(task.sums)[i];
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = tile % task.masks.q_tiles * Shape::rows + thread / kWarp * kRowsOfWarp +
                             thread % kWarp / 4 + half * 8;
    if (row >= a.q_length) continue;
    *reinterpret_cast<std::uint32_t*>(dq + ((batch * a.q_length + row) * a.heads + head) * a.qk_dim +
                                      column) =
        rounded_pair(sums.at[half * 2] * a.scale, sums.at[half * 2 + 1] * a.scale);
  }
}

template <typename Shape>
void run_key_gradients(const AttentionBackwardArgs& args, const AttentionProblem& p) {
  const AttentionSpec& a = p.args;
  const std::int64_t q_tiles = divide_up(a.q_length, Shape::rows),
                     kv_tiles = divide_up(a.kv_length, Shape::keys),
                     all_q_tiles = a.batch * a.heads * q_tiles, sums = all_q_tiles * Shape::rows * Shape::qk;
  const Ranges ranges(a, args.dq, Shape::rows, Shape::keys, places_are_given(a));
  const Workspace of_sums(args.dq, Shape::once ? static_cast<std::size_t>(sums) * sizeof(float) : 0);
  const std::int64_t count = Shape::once ? all_q_tiles + 1 : 0;
  const Workspace counts(args.dq, static_cast<std::size_t>(count) * sizeof(std::int32_t));
  const RowNumberMemory numbers(args, p, counts.data<std::int32_t>(), count);
  if constexpr (!Shape::once) hopper_query_gradients(args, p, numbers.get());
  if (PlannedGpu::skips(Shape::once ? 2 : 1)) return;
  const KeyTask task{{a, ranges.of_queries(), ranges.of_keys(), q_tiles, kv_tiles},
                     numbers.get(),
                     of_sums.data<float>(),
                     Shape::once ? counts.data<std::int32_t>() + 1 : nullptr,
                     counts.data<std::int32_t>()};
  const auto queries = [&](const void* data, std::int64_t width) {
    return map_of_heads(data, a.batch, a.q_length, a.heads, width, Shape::rows);
  };
  const auto keys = [&](const void* data, std::int64_t width, int rows) {
    return map_of_heads(data, a.batch, a.kv_length, a.kv_heads, width, rows);
  };
  const KeyMaps maps{queries(p.q, a.qk_dim),           keys(p.k, a.qk_dim, Shape::keys),
                     keys(p.v, a.v_dim, Shape::keys),  queries(p.dout, a.v_dim),
                     keys(p.dk, a.qk_dim, kGroupRows), keys(p.dv, a.v_dim, kGroupRows)};
  launch({.blocks = kv_tiles * a.kv_heads * a.batch,
          .threads = Shape::threads,
          .shared_bytes = Shape::shared_bytes},
         hopper_key_gradients<Shape>, task, maps);
  if constexpr (Shape::once)
    launch({.blocks = divide_up(sums / 4, 256), .threads = 256}, round_query_sums<Shape>, task,
           static_cast<bfloat16*>(p.dq));
}

}  // namespace

const char* hopper_attention_backward_refuses(const AttentionBackwardArgs& args) {
  const AttentionArgs& a = args.forward;
  if (const char* const reason = hopper_attention_refuses(a)) return reason;
  if (a.q.dim(1) == 0) return "there are no queries";
  return are_aligned({&args.dout, &args.dq, &args.dk, &args.dv}) ? nullptr
                                                                 : "a gradient is not aligned to 16 bytes";
}

void hopper_attention_backward(const AttentionBackwardArgs& args) {
  const AttentionProblem p = attention_problem(args);
  const AttentionSpec& a = p.args;
  if (a.batch == 0 || a.heads == 0) return;
  if (a.qk_dim <= 64 && a.v_dim <= 64)
    return run_key_gradients<KeyShape<64, 64, 64, Makes::keys_and_queries>>(args, p);
  if (a.qk_dim <= 128 && a.v_dim <= 128)
    return run_key_gradients<KeyShape<128, 128, 64, Makes::keys_and_queries>>(args, p);
  if (a.qk_dim <= 192 && a.v_dim <= 128)
    return run_key_gradients<KeyShape<192, 128, 32, Makes::keys>>(args, p);
  run_key_gradients<KeyShape<256, 256, 64, Makes::keys_and_values_apart>>(args, p);
}

}  // namespace switchyard::gpu
