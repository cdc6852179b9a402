// Attention to latents on Hopper (DeepSeek-V2, 2024): keys of 576 elements of one head, whose first 512 are
// the values. A block takes 64 rows, which are the heads of one token or of several, and brings each tile of
// 64 keys once, for scores and values. One warpgroup makes the scores and their weights; it sums the first
// half of the values' columns, and another, which reads the weights in shared memory, the second half.
// Narrower keys are filled up with zeros. Twin: warp_attention.
#include <algorithm>

#include "kernels/attention/cuda/hopper_softmax.h"

namespace switchyard::gpu {

#if defined(__CUDACC__)
#pragma nv_diag_suppress 177  // code for other GPUs leaves all of it out
#endif
namespace {

using namespace hopper;

struct LatentShape {
  static constexpr int qk = 576, vw = 512, rows = kGroupRows, keys = 64, stages = 2, half = vw / 2;
  static constexpr int threads = 3 * kGroupThreads, producer_registers = 56, consumer_registers = 224;
  static constexpr std::uint32_t tile_bytes = keys * qk * 2,  // of keys, and of queries
      weight_bytes = rows * keys * 2, half_bytes = keys * half * 2;
  static constexpr std::size_t shared_bytes = (1 + stages) * tile_bytes + weight_bytes;
  static_assert(rows == keys && shared_bytes + kStaticShared <= kMostShared);
};

struct LatentMaps {
  TensorMap q, k, out;
};

struct LatentTask {
  TileMasks masks;  // of queries that are (token, head) pairs of one head
  HeadOrder order;
  int heads, tokens;
  float *lse, *top;  // [B,heads,tokens]; top: null where nobody asked
};

// Ids of named barriers: each warpgroup meets.
constexpr int kFirstMeeting = 2;

template <typename Shape>
struct LatentShared {
  std::uint64_t q_full, q_empty, k_full[Shape::stages], k_empty[Shape::stages], weights_full, weights_empty;
  float factor[Shape::rows];  // of the rows' sums: before each tile what is left of them, at last 1 / total
};

template <typename Shape>
struct LatentTiles {
  unsigned char *q, *k, *weights;
  GPU_FUNCTION explicit LatentTiles(unsigned char* memory)
      : q(memory), k(q + Shape::tile_bytes), weights(k + Shape::stages * Shape::tile_bytes) {}
  // The columns of values that a warpgroup sums.
  GPU_FUNCTION const unsigned char* values(int stage, int half) const {
    return k + stage * Shape::tile_bytes + half * Shape::half_bytes;
  }
  GPU_FUNCTION unsigned char* result(int half) const { return q + half * Shape::half_bytes; }
};

// The masks of a sequence of the batch, which has keys of its own number.
GPU_FUNCTION TileMasks masks_of(const LatentTask& task, int batch) {
  TileMasks m = task.masks;
  m.a.kv_length = m.a.keys_of(batch);
  return m;
}
template <typename Shape>
GPU_FUNCTION TileWalk<true> walk_of(const TileMasks& m) {
  return {0, static_cast<int>((m.a.kv_length + Shape::keys - 1) / Shape::keys)};
}

// The warp that starts copies.
template <typename Shape>
GPU_FUNCTION void bring_tiles(const LatentTask& task, const LatentMaps& maps, LatentShared<Shape>& shared,
                              const LatentTiles<Shape>& tiles) {
  Stage<Shape::stages> stage;
  std::uint32_t worked = 0;
  const bool starts = thread_index() == 0;
  for (int round = 0; round < task.order.rounds(); ++round) {
    HeadTile at;
    if (!task.order.tile_of(round, at)) continue;
    if (starts) {
      wait_for_phase(&shared.q_empty, (worked & 1) ^ 1);
      expect_bytes(&shared.q_full, Shape::tile_bytes);
      copy_columns<Shape::qk, Shape::rows>(tiles.q, maps.q, 0, at.tile * Shape::rows, at.batch,
                                           &shared.q_full);
    }
    ++worked;
    const TileMasks m = masks_of(task, at.batch);
    const std::int64_t slot = m.a.slot_of(at.batch);
    TileWalk<true> walk = walk_of<Shape>(m);
    while (next_key_tile<Shape>(m, at, walk)) {
      if (starts) {
        wait_for_phase(&shared.k_empty[stage.at], stage.phase ^ 1);
        expect_bytes(&shared.k_full[stage.at], Shape::tile_bytes);
        copy_columns<Shape::qk, Shape::keys>(tiles.k + stage.at * Shape::tile_bytes, maps.k, 0,
                                             walk.tile * Shape::keys, slot, &shared.k_full[stage.at]);
      }
      stage.next();
    }
  }
}

// One of the two warpgroups that multiply.
template <typename Shape>
class LatentConsumer {
 public:
  GPU_FUNCTION LatentConsumer(const LatentTask& task, const LatentMaps& maps, LatentShared<Shape>& shared,
                              const LatentTiles<Shape>& tiles)
      : task_(task),
        maps_(maps),
        shared_(shared),
        tiles_(tiles),
        leads_(thread_index() % kGroupThreads == 0),
        row_(thread_index() % kGroupThreads / kWarp * kRowsOfWarp + thread_index() % kWarp / 4) {}

  template <int half>
  GPU_FUNCTION void run() {
    for (int round = 0; round < task_.order.rounds(); ++round) {
      HeadTile at;
      if (!task_.order.tile_of(round, at)) continue;
      float sums[Shape::half / 2];
      GPU_UNROLL
      for (float& sum : sums) sum = 0;
      if constexpr (half == 0)
        score_and_add(at, sums);
      else
        add(at, sums);
    }
    if (leads_) wait_for_stores<0, false>();
  }

 private:
  // The warpgroup that makes the weights.
  GPU_FUNCTION void score_and_add(const HeadTile& at, float (&sums)[Shape::half / 2]) {
    const TileMasks m = masks_of(task_, at.batch);
    TileWalk<true> walk = walk_of<Shape>(m);
    RunningSoftmax softmax;
    const float scale = m.a.scale * kLog2e;
    wait_for_phase(&shared_.q_full, worked_ & 1);
    ++worked_;
    while (next_key_tile<Shape>(m, at, walk)) {
      std::uint32_t weights[Shape::keys / 4];
      {
        float scores[Shape::keys / 2];
        wait_for_phase(&shared_.k_full[stage_.at], stage_.phase);
        if (m.a.lengths != nullptr) clear_past_end(m.a.kv_length - std::int64_t{walk.tile} * Shape::keys);
        multiply_rows<Shape::qk, Shape::rows, Shape::keys>(scores, tiles_.q,
                                                           tiles_.k + stage_.at * Shape::tile_bytes);
        wait_for_products<0>();
        if (!walk.is_whole)
          hide_unseen<Shape::keys, false>(m, at.batch, walk.tile, at.tile * Shape::rows + row_, scores);
        softmax.weigh<Shape::keys>(scores, scale);
        round_weights(scores, weights);
      }
      give(softmax.shrink, [&] {
        GPU_UNROLL
        for (int j = 0; j < Shape::keys / 16; ++j)
          store_tiles(place_of_tiles(tiles_.weights, 2 * j), weights[4 * j], weights[4 * j + 1],
                      weights[4 * j + 2], weights[4 * j + 3]);
        show_to_tensor_cores();
      });
      softmax.shrink_sums(sums);
      add_columns<Shape::half, Shape::keys>(sums, weights, tiles_.values(stage_.at, 0));
      wait_for_products<0>();
      if (leads_) arrive(&shared_.k_empty[stage_.at]);
      stage_.next();
    }
    float factor[2];
    for (int h = 0; h < 2; ++h) {
      float total = softmax.sum[h];
      for (int by = 1; by < 4; by *= 2) total += shuffle_xor(total, by);
      factor[h] = total > 0 ? 1 / total : 0.0f;
      put_total(m, at, h, softmax.largest[h] * m.a.scale, total);
    }
    give(factor, [] {});
    this->template store<0>(at, sums, factor);
  }

  // The other one.
  GPU_FUNCTION void add(const HeadTile& at, float (&sums)[Shape::half / 2]) {
    const TileMasks m = masks_of(task_, at.batch);
    TileWalk<true> walk = walk_of<Shape>(m);
    RunningSoftmax softmax;
    while (next_key_tile<Shape>(m, at, walk)) {
      take(softmax.shrink);
      softmax.shrink_sums(sums);
      wait_for_phase(&shared_.k_full[stage_.at], stage_.phase);
      begin_multiplying();
      GPU_UNROLL
      for (int depth = 0; depth < Shape::keys; depth += 16)
        multiply<Shape::half, 0, 1>(sums, rows_at<Shape::rows>(tiles_.weights, depth),
                                    columns_at<Shape::keys>(tiles_.values(stage_.at, 1), depth));
      end_multiplying();
      wait_for_products<0>();
      if (leads_) arrive(&shared_.k_empty[stage_.at]);
      arrive(&shared_.weights_empty);
      stage_.next();
    }
    float factor[2];
    take(factor);
    arrive(&shared_.weights_empty);
    this->template store<1>(at, sums, factor);
  }

  // Gives the factors of this thread's rows to the other warpgroup, and what `put` writes.
  template <typename Put>
  GPU_FUNCTION void give(const float (&factor)[2], const Put& put) {
    wait_for_phase(&shared_.weights_empty, (steps_ & 1) ^ 1);
    put();
    if (thread_index() % 4 == 0) {
      shared_.factor[row_] = factor[0];
      shared_.factor[row_ + 8] = factor[1];
    }
    arrive(&shared_.weights_full);
    ++steps_;
  }
  GPU_FUNCTION void take(float (&factor)[2]) {
    wait_for_phase(&shared_.weights_full, steps_ & 1);
    ++steps_;
    factor[0] = shared_.factor[row_];
    factor[1] = shared_.factor[row_ + 8];
  }

  // Values past the end of a slot's keys may be no numbers, which a weight of 0 would not take away.
  GPU_FUNCTION void clear_past_end(std::int64_t keys) {
    if (keys >= Shape::keys) return;
    const int first = static_cast<int>(keys), words = (Shape::keys - first) * kTileWidth / 4;
    for (int block = 0; block < Shape::vw / kTileWidth; ++block) {
      unsigned char* const rows =
          tiles_.k + stage_.at * Shape::tile_bytes + (block * Shape::keys + first) * kTileWidth * 2;
      for (int i = thread_index() % kGroupThreads; i < words; i += kGroupThreads)
        reinterpret_cast<std::uint64_t*>(rows)[i] = 0;
    }
    show_to_tensor_cores();
    named_barrier(kFirstMeeting, kGroupThreads);
  }

  GPU_FUNCTION void put_total(const TileMasks& m, const HeadTile& at, int half, float most, float total) {
    const int row = at.tile * Shape::rows + row_ + half * 8;
    if (thread_index() % 4 != 0 || row >= m.a.q_length) return;
    const int token = row / task_.heads, head = row % task_.heads;
    const std::int64_t to = (std::int64_t{at.batch} * task_.heads + head) * task_.tokens + token;
    task_.lse[to] = total > 0 ? most + logf(total) : -INFINITY;
    if (task_.top != nullptr) task_.top[to] = most;
  }

  // The queries have been read: their place is the result's.
  template <int half>
  GPU_FUNCTION void store(const HeadTile& at, const float (&sums)[Shape::half / 2],
                          const float (&factor)[2]) {
    unsigned char* const out = tiles_.result(half);
    put_rows<Shape::half>(out, sums, factor);
    show_to_tensor_cores();
    named_barrier(kFirstMeeting + half, kGroupThreads);
    if (!leads_) return;
    for (int block = 0; block < Shape::half / kTileWidth; ++block) {
      const int column = half * Shape::half + block * kTileWidth;
      if (column < task_.masks.a.v_dim)
        store_box(maps_.out, out + block * Shape::rows * kTileWidth * 2, column, 0, at.tile * Shape::rows,
                  at.batch);
    }
    end_stores();
    wait_for_stores<0, true>();
    arrive(&shared_.q_empty);
  }

  const LatentTask& task_;
  const LatentMaps& maps_;
  LatentShared<Shape>& shared_;
  const LatentTiles<Shape>& tiles_;
  const bool leads_;
  const int row_;  // of the tile: the first of two
  Stage<Shape::stages> stage_;
  std::uint32_t worked_ = 0, steps_ = 0;
};

template <typename Shape>
GPU_BLOCK_KERNEL(Shape::threads)
hopper_latent(GPU_CONSTANT(LatentTask) task, GPU_CONSTANT(LatentMaps) maps) {
#if defined(GPU_HAS_WGMMA)
  GPU_SHARED(LatentShared<Shape>, shared, 1);
  const LatentTiles<Shape> tiles(dynamic_shared<unsigned char>());
  if (thread_index() == 0) {
    init_barrier(&shared->q_full, 1);
    init_barrier(&shared->q_empty, 2);
    for (int stage = 0; stage < Shape::stages; ++stage) {
      init_barrier(&shared->k_full[stage], 1);
      init_barrier(&shared->k_empty[stage], 2);
    }
    init_barrier(&shared->weights_full, kGroupThreads);
    init_barrier(&shared->weights_empty, kGroupThreads);
    show_barriers();
  }
  barrier();
  // All threads of a warp have the same role, as the compiler is to see.
  const int role = shuffle(thread_index() / kGroupThreads, 0);
  if (role == 0) {
    give_up_registers<Shape::producer_registers>();
    if (thread_index() < kWarp) bring_tiles<Shape>(task, maps, *shared, tiles);
  } else {
    take_registers<Shape::consumer_registers>();
    LatentConsumer<Shape> consumer(task, maps, *shared, tiles);
    role == 1 ? consumer.template run<0>() : consumer.template run<1>();
  }
#endif
}

// Places and segments of tokens, for each of their heads.
GPU_KERNEL repeat_places(const std::int32_t* index, const std::int32_t* segment, std::int64_t tokens,
                         std::int64_t heads, std::int64_t rows, std::int32_t* to_index,
                         std::int32_t* to_segment) {
  const std::int64_t row = block_index() * thread_count() + thread_index(), token = row / heads;
  if (row >= rows) return;
  to_index[row] = index != nullptr ? index[token] : static_cast<std::int32_t>(token % tokens);
  if (segment != nullptr) to_segment[row] = segment[token];
}

}  // namespace

const char* hopper_latent_refuses(const AttentionArgs& args) {
  if (args.q.dtype() != DType::bf16) return "the operands are not bfloat16";
  if (!(args.scale > 0)) return "the scale is not positive";
  if (args.chosen.defined()) return "keys are chosen for each query";
  if (args.k.dim(2) != 1) return "there are several key heads";
  if (args.k.dim(0) * args.k.dim(1) == 0) return "there are no keys";
  if (args.v.device_address() != args.k.device_address() || args.v.dim(3) > args.k.dim(3))
    return "values are no part of keys";
  const std::int64_t width = args.q.dim(3), values = args.v.dim(3);
  if (width == 0 || values == 0) return "heads have no elements";
  if (width % kChunk != 0 || values % kChunk != 0) return "a head's width is no multiple of 8";
  if (width > LatentShape::qk || values > LatentShape::vw)
    return "keys are wider than 576, or their values than 512";
  if (args.q.dim(0) * args.q.dim(2) * args.q.dim(1) > INT32_MAX)
    return "there are more than 2^31 rows of queries";
  return are_aligned({&args.q, &args.k, &args.out}) ? nullptr : "an operand is not aligned to 16 bytes";
}

void hopper_latent_attention(const AttentionArgs& args) {
  const AttentionProblem p = attention_problem(args);
  const AttentionSpec& a = p.args;
  const std::int64_t rows = a.q_length * a.heads;
  if (a.batch == 0 || rows == 0) return;
  AttentionSpec of_rows = a;
  of_rows.q_length = rows;
  of_rows.heads = 1;
  const auto bytes = static_cast<std::size_t>(a.heads > 1 ? a.batch * rows : 0) * sizeof(std::int32_t);
  const Workspace index(args.q, bytes), segment(args.q, a.q_segment != nullptr ? bytes : 0);
  if (a.heads > 1) {
    constexpr int kThreads = 256;
    launch({.blocks = divide_up(a.batch * rows, kThreads), .threads = kThreads}, repeat_places, a.q_index,
           a.q_segment, a.q_length, a.heads, a.batch * rows, index.data<std::int32_t>(),
           segment.data<std::int32_t>());
    of_rows.q_index = index.data<std::int32_t>();
    if (a.q_segment != nullptr) of_rows.q_segment = segment.data<std::int32_t>();
  }
  // Keys whose places are their numbers need no ranges.
  const bool keys_given = a.kv_index != nullptr || a.kv_segment != nullptr;
  AttentionSpec ranged = of_rows;
  if (!keys_given) ranged.kv_length = 0;
  const Ranges ranges(ranged, args.q, LatentShape::rows, LatentShape::keys, places_are_given(of_rows));
  if (PlannedGpu::skips(1)) return;
  const std::int64_t q_tiles = divide_up(rows, LatentShape::rows), slots = args.k.dim(0);
  const LatentTask task{{of_rows, ranges.of_queries(), keys_given ? ranges.of_keys() : nullptr, q_tiles,
                         divide_up(a.kv_length, LatentShape::keys)},
                        HeadOrder(of_rows, q_tiles),
                        static_cast<int>(a.heads),
                        static_cast<int>(a.q_length),
                        p.lse,
                        p.top};
  const LatentMaps maps{map_of_heads(p.q, a.batch, rows, 1, a.qk_dim, LatentShape::rows),
                        map_of_heads(p.k, slots, a.kv_length, 1, a.qk_dim, LatentShape::keys),
                        map_of_heads(p.out, a.batch, rows, 1, a.v_dim, LatentShape::rows)};
  launch({.blocks = std::min<std::int64_t>(task.order.all, multiprocessors()),
          .threads = LatentShape::threads,
          .shared_bytes = LatentShape::shared_bytes},
         hopper_latent<LatentShape>, task, maps);
}

}  // namespace switchyard::gpu
