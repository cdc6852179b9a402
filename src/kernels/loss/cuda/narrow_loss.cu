// Projection and cross-entropy of narrow models on Hopper, forward: as attention without values. One warp
// brings tiles of the vocabulary by the copy engine, three warpgroups take 64 rows of hidden each and keep
// the largest logit of a row and the sum of powers of the others' distance to it. Logits never leave
// registers. Twin: linear_cross_entropy of cross_entropy.cu.
#include "kernels/attention/cuda/hopper_softmax.h"
#include "kernels/loss/cuda/narrow_loss_parts.h"

namespace switchyard::gpu {

#if defined(__CUDACC__)
#pragma nv_diag_suppress 177  // code for other GPUs leaves all of it out
#endif
namespace {

using namespace hopper;

template <int hidden_width, bool vocabulary_first>
struct SumShape : NarrowShape<hidden_width, vocabulary_first> {
  using Base = NarrowShape<hidden_width, vocabulary_first>;
  static constexpr int groups = 3, rows = groups * kGroupRows, threads = (groups + 1) * kGroupThreads;
  static constexpr std::uint32_t group_bytes = kGroupRows * Base::width * 2;
  static constexpr std::size_t shared_bytes = groups * group_bytes + Base::stages * Base::tile_bytes;
  static_assert(shared_bytes + kStaticShared <= kMostShared);
};

struct SumTask {
  NarrowLogits logits;
  Pieces order;  // tiles of rows, pieces of the vocabulary
  RowSum* sums;  // [pieces, rows]
  float* target_logit;
};

template <typename Shape>
struct SumShared {
  std::uint64_t hidden_full, full[Shape::stages], empty[Shape::stages];
};

// The thread that starts copies.
template <typename Shape>
GPU_FUNCTION void bring_vocabulary(const SumTask& task, const NarrowMaps& maps, SumShared<Shape>& shared,
                                   unsigned char* hidden, unsigned char* weight) {
  expect_bytes(&shared.hidden_full, Shape::groups * Shape::group_bytes);
  for (int group = 0; group < Shape::groups; ++group)
    copy_hidden<Shape::width, kGroupRows>(hidden + group * Shape::group_bytes, maps.hidden,
                                          task.order.tile() * Shape::rows + group * kGroupRows,
                                          &shared.hidden_full);
  const int piece = task.order.piece(), end = task.order.begin(piece + 1);
  Stage<Shape::stages> stage;
  for (int step = task.order.begin(piece); step < end; ++step, stage.next()) {
    wait_for_phase(&shared.empty[stage.at], stage.phase ^ 1);
    expect_bytes(&shared.full[stage.at], Shape::tile_bytes);
    copy_weight<Shape>(weight + stage.at * Shape::tile_bytes, maps.weight, step * kTile,
                       &shared.full[stage.at]);
  }
}

// One of the warpgroups that multiply; `hidden`: its rows.
template <typename Shape>
GPU_FUNCTION void sum_rows(const SumTask& task, SumShared<Shape>& shared, const unsigned char* hidden,
                           const unsigned char* weight, int group) {
  const NarrowLogits& of = task.logits;
  const int lane = thread_index() % kWarp, warp = thread_index() % kGroupThreads / kWarp,
            row = task.order.tile() * Shape::rows + group * kGroupRows + warp * kRowsOfWarp + lane / 4,
            piece = task.order.piece(), end = task.order.begin(piece + 1);
  const int target[2] = {of.target(row), of.target(row + 8)};
  const float inverse_cap = of.soft_cap > 0 ? 1 / of.soft_cap : 0.0f;
  RunningSoftmax softmax;
  Stage<Shape::stages> stage;
  wait_for_phase(&shared.hidden_full, 0);
  for (int step = task.order.begin(piece); step < end; ++step, stage.next()) {
    float logits[kTile / 2];
    wait_for_phase(&shared.full[stage.at], stage.phase);
    multiply_hidden<Shape>(logits, hidden, weight + stage.at * Shape::tile_bytes);
    wait_for_products<0>();
    if (thread_index() % kGroupThreads == 0) arrive(&shared.empty[stage.at]);
    if (of.soft_cap > 0) {
      GPU_UNROLL
      for (float& logit : logits) logit = of.soft_cap * tanhf(logit * inverse_cap);
    }
    const int first = step * kTile;
    GPU_UNROLL
    for (int half = 0; half < 2; ++half) {
      if (target[half] < first || target[half] >= first + kTile) continue;
      for_pairs([&](int j, int which, int column) {
        for (int e = 0; e < 2; ++e) {
          if (which == half && first + column + e == target[half])
            task.target_logit[row + half * 8] = logits[j * 4 + half * 2 + e];
        }
      });
    }
    if (first + kTile > of.columns) {
      for_pairs([&](int j, int half, int column) {
        for (int e = 0; e < 2; ++e) {
          if (first + column + e >= of.columns) logits[j * 4 + half * 2 + e] = -INFINITY;
        }
      });
    }
    softmax.weigh<kTile>(logits, kLog2e);
  }
  GPU_UNROLL
  for (int half = 0; half < 2; ++half) {
    float total = softmax.sum[half];
    for (int by = 1; by < 4; by *= 2) total += shuffle_xor(total, by);
    const int at = row + half * 8;
    if (lane % 4 == 0 && at < of.rows)
      task.sums[static_cast<std::int64_t>(piece) * of.rows + at] = {softmax.largest[half], total};
  }
}

template <typename Shape>
GPU_BLOCK_KERNEL(Shape::threads)
narrow_sums(GPU_CONSTANT(SumTask) task, GPU_CONSTANT(NarrowMaps) maps) {
#if defined(GPU_HAS_WGMMA)
  GPU_SHARED(SumShared<Shape>, shared, 1);
  unsigned char* const hidden = dynamic_shared<unsigned char>();
  unsigned char* const weight = hidden + Shape::groups * Shape::group_bytes;
  if (thread_index() == 0) {
    init_barrier(&shared->hidden_full, 1);
    for (int stage = 0; stage < Shape::stages; ++stage) {
      init_barrier(&shared->full[stage], 1);
      init_barrier(&shared->empty[stage], Shape::groups);
    }
    show_barriers();
  }
  barrier();
  // All threads of a warp have the same role, as the compiler is to see.
  const int role = shuffle(thread_index() / kGroupThreads, 0);
  if (role == 0) {
    give_up_registers<56>();
    if (thread_index() == 0) bring_vocabulary<Shape>(task, maps, *shared, hidden, weight);
  } else {
    take_registers<152>();
    sum_rows<Shape>(task, *shared, hidden + (role - 1) * Shape::group_bytes, weight, role - 1);
  }
#endif
}

// A thread joins the pieces of a row in their order.
GPU_KERNEL join_sums(SumTask task, float* lse) {
  const auto row = static_cast<int>(block_index() * thread_count() + thread_index());
  if (row >= task.logits.rows) return;
  const auto sum_of = [&](int piece) {
    return task.sums[static_cast<std::int64_t>(piece) * task.logits.rows + row];
  };
  float maximum = -INFINITY, total = 0;
  for (int piece = 0; piece < task.order.pieces; ++piece) maximum = larger(maximum, sum_of(piece).maximum);
  for (int piece = 0; piece < task.order.pieces; ++piece) {
    const RowSum of_piece = sum_of(piece);
    total += of_piece.maximum == maximum ? of_piece.sum : of_piece.sum * expf(of_piece.maximum - maximum);
  }
  lse[row] = maximum + logf(total);
  if (task.logits.target(row) < 0) task.target_logit[row] = 0;
}

}  // namespace

const char* narrow_loss_refuses(const CrossEntropyLogits& a) {
  const std::int64_t emb = a.hidden.shape().back(), columns = local_columns(a);
  if (a.hidden.dtype() != DType::bf16) return "the operands are not bfloat16";
  if (emb == 0 || emb > 2 * kTileWidth) return "the model is wider than 128, or has no width";
  if (emb % kChunk != 0) return "the model's width is no multiple of 8";
  if (a.targets.size() == 0 || columns == 0) return "there are no rows or no columns";
  if (!a.weight_vocab_major && columns % kChunk != 0) return "rows of the weight are no multiple of 16 bytes";
  if (std::max(a.targets.size(), columns) > INT32_MAX / 2) return "there are more than 2^30 rows or columns";
  return are_aligned({&a.hidden, &a.weight}) ? nullptr : "an operand is not aligned to 16 bytes";
}

void narrow_cross_entropy(const LinearCrossEntropyArgs& args) {
  with_narrow_shape<SumShape>(args.logits, [&]<typename Shape>(Shape) {
    const NarrowLogits logits = narrow_logits(args.logits);
    const Pieces order = pieces_of(divide_up(logits.rows, Shape::rows), divide_up(logits.columns, kTile));
    const Workspace sums(args.lse, static_cast<std::size_t>(logits.rows) *
                                       static_cast<std::size_t>(order.pieces) * sizeof(RowSum));
    if (PlannedGpu::skips(2)) return;
    const SumTask task{logits, order, sums.data<RowSum>(), args.target_logit.device_data<float>()};
    launch({.blocks = std::int64_t{order.tiles} * order.pieces,
            .threads = Shape::threads,
            .shared_bytes = Shape::shared_bytes},
           narrow_sums<Shape>, task, narrow_maps<Shape>(args.logits, kGroupRows));
    constexpr int kThreads = 128;
    launch({.blocks = divide_up(logits.rows, kThreads), .threads = kThreads}, join_sums, task,
           args.lse.device_data<float>());
  });
}

}  // namespace switchyard::gpu
