// Projection and cross-entropy of narrow models on Hopper, backward: logits of a tile are made again, and
// their gradients, rounded, are operands in registers. One pass makes hidden's gradient: rows of hidden stay,
// the vocabulary passes by. The other makes the weight's: a tile of the vocabulary stays, hidden passes by.
// Twin: linear_cross_entropy_backward of cross_entropy.cu.
#include "kernels/loss/cuda/narrow_loss_parts.h"

namespace switchyard::gpu {

#if defined(__CUDACC__)
#pragma nv_diag_suppress 177  // code for other GPUs leaves all of it out
#endif
namespace {

using namespace hopper;

// The gradient of a row's logits depends on these.
struct alignas(16) RowOfLoss {
  float power_lse;  // lse in powers of two
  float softmax, target;
  std::int32_t target_column;  // -1: none
};

// `makes_weight`: the pass that makes the weight's gradient.
template <int hidden_width, bool vocabulary_first, bool makes_weight>
struct GradientShape : NarrowShape<hidden_width, vocabulary_first> {
  using Base = NarrowShape<hidden_width, vocabulary_first>;
  static constexpr bool of_weight = makes_weight;
  // Slopes are added while the next logits are differentiated, where registers hold both and all sums.
  static constexpr bool adds_meanwhile = !of_weight || Base::width == kTileWidth;
  static constexpr int groups = 2, threads = (groups + 1) * kGroupThreads;
  // From one warpgroup's part of what stays to the other's.
  static constexpr std::uint32_t group_bytes =
      of_weight && Base::vocab_major ? kGroupRows * kTileWidth * 2 : Base::tile_bytes / 2;
  static constexpr std::uint32_t row_bytes = of_weight ? kTile * sizeof(RowOfLoss) : 0;
  static constexpr std::size_t shared_bytes = (1 + Base::stages) * Base::tile_bytes;
  static_assert(shared_bytes + Base::stages * row_bytes + kStaticShared <= kMostShared);
};
template <int width, bool vocabulary_first>
using HiddenGradientShape = GradientShape<width, vocabulary_first, false>;
template <int width, bool vocabulary_first>
using WeightGradientShape = GradientShape<width, vocabulary_first, true>;

struct GradientTask {
  NarrowLogits logits;
  Pieces order;           // tiles of what stays, pieces of what passes by
  const RowOfLoss* rows;  // in whole tiles: rows that are not there have weights of 0
  float* sums;            // [pieces] of what the gradient has; null: it is written at once
  float* dhidden;
  bfloat16* dweight;
};

template <typename Shape>
struct GradientShared {
  std::uint64_t own_full, full[Shape::stages], empty[Shape::stages];
  alignas(16) RowOfLoss rows[Shape::stages][Shape::of_weight ? kTile : 1];
};

GPU_KERNEL find_rows_of_loss(NarrowLogits logits, int padded, const float* lse, const float* softmax,
                             const float* target, RowOfLoss* rows) {
  const auto row = static_cast<int>(block_index() * thread_count() + thread_index());
  if (row >= padded) return;
  if (row < logits.rows)
    rows[row] = {lse[row] * kLog2e, softmax[row], target[row], logits.target(row)};
  else
    rows[row] = {INFINITY, 0, 0, -1};
}

// Within 2^-22 of it.
GPU_FUNCTION float reciprocal(float x) {
#if defined(__CUDACC__)
  float of_x;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(of_x) : "f"(x));
  return of_x;
#else
  return 1 / x;
#endif
}

// The gradient of a logit of the row, which must have been multiplied.
struct GradientOfLogit {
  float soft_cap, power_by_product;  // 2 log2(e) / soft_cap

  GPU_FUNCTION float plain(const RowOfLoss& row, float logit) const {
    return row.softmax * power_of_two(fmaf(logit, kLog2e, -row.power_lse));
  }
  GPU_FUNCTION float capped(const RowOfLoss& row, float product, int column) const {
    // tanh within 2^-22, which is enough for what is rounded to bfloat16, in fewer registers than tanhf().
    const float of_cap = 1 - 2 * reciprocal(1 + power_of_two(product * power_by_product));
    const float gradient = plain(row, soft_cap * of_cap) - (column == row.target_column ? row.target : 0.0f);
    return gradient * (1 - of_cap * of_cap);
  }
};

// The thread that starts copies.
template <typename Shape>
GPU_FUNCTION void bring_gradient_tiles(const GradientTask& task, const NarrowMaps& maps,
                                       GradientShared<Shape>& shared, unsigned char* own,
                                       unsigned char* passing) {
  expect_bytes(&shared.own_full, Shape::tile_bytes);
  const int first = task.order.tile() * kTile;
  if constexpr (Shape::of_weight) {
    copy_weight<Shape>(own, maps.weight, first, &shared.own_full);
  } else {
    for (int group = 0; group < Shape::groups; ++group)
      copy_hidden<Shape::width, kGroupRows>(own + group * Shape::group_bytes, maps.hidden,
                                            first + group * kGroupRows, &shared.own_full);
  }
  const int piece = task.order.piece(), end = task.order.begin(piece + 1);
  Stage<Shape::stages> stage;
  for (int step = task.order.begin(piece); step < end; ++step, stage.next()) {
    const int s = stage.at;
    unsigned char* const to = passing + s * Shape::tile_bytes;
    wait_for_phase(&shared.empty[s], stage.phase ^ 1);
    expect_bytes(&shared.full[s], Shape::tile_bytes + Shape::row_bytes);
    if constexpr (Shape::of_weight) {
      copy_hidden<Shape::width, kTile>(to, maps.hidden, step * kTile, &shared.full[s]);
      copy_bytes(shared.rows[s], task.rows + step * kTile, Shape::row_bytes, &shared.full[s]);
    } else {
      copy_weight<Shape>(to, maps.weight, step * kTile, &shared.full[s]);
    }
  }
}

// A warpgroup that multiplies: 64 rows of hidden, or 64 columns of logits, which are its rows then.
template <typename Shape>
class GradientConsumer {
 public:
  GPU_FUNCTION GradientConsumer(const GradientTask& task, GradientShared<Shape>& shared,
                                const unsigned char* own, const unsigned char* passing, int group)
      : task_(task),
        shared_(shared),
        own_(own + group * Shape::group_bytes),
        passing_(passing),
        row_(task.order.tile() * kTile + group * kGroupRows +
             thread_index() % kGroupThreads / kWarp * kRowsOfWarp + thread_index() % kWarp / 4),
        of_logit_{task.logits.soft_cap, task.logits.soft_cap > 0 ? 2 * kLog2e / task.logits.soft_cap : 0.0f} {
  }

  GPU_FUNCTION void run() {
    if constexpr (!Shape::of_weight) {
      for (int half = 0; half < 2; ++half) rows_[half] = task_.rows[row_ + half * 8];
    }
    const int piece = task_.order.piece(), end = task_.order.begin(piece + 1);
    int step = task_.order.begin(piece);
    float sums[Shape::width / 2];
    GPU_UNROLL
    for (float& sum : sums) sum = 0;
    std::uint32_t slopes[kTile / 4];
    wait_for_phase(&shared_.own_full, 0);
    {
      float logits[kTile / 2];
      wait_for_phase(&shared_.full[stage_.at], stage_.phase);
      make_logits(logits);
      wait_for_products<0>();
      differentiate(logits, step);
      round(logits, slopes);
    }
    while (++step < end) {
      const int before = stage_.at;
      stage_.next();
      float logits[kTile / 2];
      wait_for_phase(&shared_.full[stage_.at], stage_.phase);
      make_logits(logits);
      add_slopes(sums, slopes, before);
      wait_for_products<Shape::adds_meanwhile ? 1 : 0>();
      differentiate(logits, step);
      wait_for_products<0>();
      release(before);
      round(logits, slopes);  // the product has read the slopes of the tile before
    }
    add_slopes(sums, slopes, stage_.at);
    wait_for_products<0>();
    store(sums);
  }

 private:
  GPU_FUNCTION void release(int stage) {
    if (thread_index() % kGroupThreads == 0) arrive(&shared_.empty[stage]);
  }

  // Begins the logits of this warpgroup's rows and the tile that passes by.
  GPU_FUNCTION void make_logits(float (&logits)[kTile / 2]) const {
    const unsigned char* const tile = passing_ + stage_.at * Shape::tile_bytes;
    if constexpr (!Shape::of_weight) {
      multiply_hidden<Shape>(logits, own_, tile);
    } else {
      begin_multiplying();
      GPU_UNROLL
      for (int depth = 0; depth < Shape::width; depth += 16)
        multiply<kTile, Shape::vocab_major ? 0 : 1, 0>(logits, own_weight_at(depth),
                                                       rows_at<kTile>(tile, depth), depth > 0);
      end_multiplying();
    }
  }
  GPU_FUNCTION std::uint64_t own_weight_at(int depth) const {
    return Shape::vocab_major ? rows_at<kTile>(own_, depth) : columns_at<Shape::width>(own_, depth);
  }

  // Logits become their gradients.
  GPU_FUNCTION void differentiate(float (&logits)[kTile / 2], int step) const {
    const int first = step * kTile;
    if (of_logit_.soft_cap > 0) {
      for_pairs([&](int j, int half, int column) {
        for (int e = 0; e < 2; ++e) {
          float& x = logits[j * 4 + half * 2 + e];
          x = of_logit_.capped(row_of(half, column + e), x, column_of(first, half, column + e));
        }
      });
    } else {
      for_pairs([&](int j, int half, int column) {
        for (int e = 0; e < 2; ++e) {
          float& x = logits[j * 4 + half * 2 + e];
          x = of_logit_.plain(row_of(half, column + e), x);
        }
      });
      if (has_targets(first)) {
        for_pairs([&](int j, int half, int column) {
          for (int e = 0; e < 2; ++e) {
            const RowOfLoss& row = row_of(half, column + e);
            if (row.target_column == column_of(first, half, column + e))
              logits[j * 4 + half * 2 + e] -= row.target;
          }
        });
      }
    }
    // The weight of columns that are not there is 0, but their powers may be infinite.
    if (!Shape::of_weight && first + kTile > task_.logits.columns) {
      for_pairs([&](int j, int half, int column) {
        for (int e = 0; e < 2; ++e) {
          if (first + column + e >= task_.logits.columns) logits[j * 4 + half * 2 + e] = 0;
        }
      });
    }
  }
  GPU_FUNCTION const RowOfLoss& row_of(int half, int column) const {
    if constexpr (Shape::of_weight) return shared_.rows[stage_.at][column];
    return rows_[half];
  }
  GPU_FUNCTION int column_of(int first, int half, int column) const {
    return Shape::of_weight ? row_ + half * 8 : first + column;
  }
  // Tells whether targets are among this thread's logits, or its warp's. Few tiles have any.
  GPU_FUNCTION bool has_targets(int first) const {
    bool has = false;
    if constexpr (Shape::of_weight) {
      const int lane = thread_index() % kWarp, own = row_ - lane / 4;
      for (int row = lane; row < kTile; row += kWarp) {
        const int target = shared_.rows[stage_.at][row].target_column;
        has = has || (target >= own && target < own + kRowsOfWarp);
      }
      has = ballot(has) != 0;
    } else {
      for (const RowOfLoss& row : rows_)
        has = has || (row.target_column >= first && row.target_column < first + kTile);
    }
    return has;
  }

  GPU_FUNCTION static void round(const float (&gradients)[kTile / 2], std::uint32_t (&slopes)[kTile / 4]) {
    GPU_UNROLL
    for (int i = 0; i < kTile / 4; ++i) slopes[i] = rounded_pair(gradients[2 * i], gradients[2 * i + 1]);
  }

  // Begins sums += slopes · the tile of a stage.
  GPU_FUNCTION void add_slopes(float (&sums)[Shape::width / 2], const std::uint32_t (&slopes)[kTile / 4],
                               int stage) const {
    const unsigned char* const tile = passing_ + stage * Shape::tile_bytes;
    if constexpr (Shape::of_weight || Shape::vocab_major) {
      add_columns<Shape::width, kTile>(sums, slopes, tile);
    } else {
      begin_multiplying();
      GPU_UNROLL
      for (int depth = 0; depth < kTile; depth += 16)
        multiply_registers<Shape::width, 0>(sums, slopes + depth / 4, rows_at<Shape::width>(tile, depth));
      end_multiplying();
    }
  }

  GPU_FUNCTION void store(const float (&sums)[Shape::width / 2]) const {
    const NarrowLogits& of = task_.logits;
    const std::int64_t rows = Shape::of_weight ? of.columns : of.rows;
    const bool is_transposed = Shape::of_weight && !Shape::vocab_major;
    float* const parts = task_.sums == nullptr ? nullptr : task_.sums + task_.order.piece() * rows * of.emb;
    GPU_UNROLL
    for (int i = 0; i < Shape::width / 2; ++i) {
      const std::int64_t row = row_ + i / 2 % 2 * 8, column = i / 4 * 8 + thread_index() % 4 * 2 + i % 2,
                         at = is_transposed ? column * rows + row : row * of.emb + column;
      if (row >= rows || column >= of.emb) continue;
      if (parts != nullptr)
        parts[at] = sums[i];
      else if constexpr (Shape::of_weight)
        task_.dweight[at] = from_float<bfloat16>(sums[i]);
      else
        task_.dhidden[at] = sums[i];
    }
  }

  const GradientTask& task_;
  GradientShared<Shape>& shared_;
  const unsigned char *const own_, *const passing_;
  const int row_;  // the first of this thread's two
  const GradientOfLogit of_logit_;
  RowOfLoss rows_[2];
  Stage<Shape::stages> stage_;
};

template <typename Shape>
GPU_BLOCK_KERNEL(Shape::threads)
narrow_gradients(GPU_CONSTANT(GradientTask) task, GPU_CONSTANT(NarrowMaps) maps) {
#if defined(GPU_HAS_WGMMA)
  GPU_SHARED(GradientShared<Shape>, shared, 1);
  unsigned char *const own = dynamic_shared<unsigned char>(), *const passing = own + Shape::tile_bytes;
  if (thread_index() == 0) {
    init_barrier(&shared->own_full, 1);
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
    give_up_registers<40>();
    if (thread_index() == 0) bring_gradient_tiles<Shape>(task, maps, *shared, own, passing);
  } else {
    take_registers<232>();
    GradientConsumer<Shape>(task, *shared, own, passing, role - 1).run();
  }
#endif
}

// A thread adds up the pieces of an element in their order.
template <typename T>
GPU_KERNEL add_pieces(const float* sums, int pieces, std::int64_t count, T* to) {
  const std::int64_t i = block_index() * thread_count() + thread_index();
  if (i >= count) return;
  float sum = sums[i];
  for (int piece = 1; piece < pieces; ++piece) sum += sums[piece * count + i];
  to[i] = from_float<T>(sum);
}

constexpr int kThreads = 256;

template <typename Shape>
void make_gradient(const LinearCrossEntropyBackwardArgs& args, const RowOfLoss* rows) {
  const NarrowLogits logits = narrow_logits(args.logits);
  const std::int64_t row_tiles = divide_up(logits.rows, kTile),
                     column_tiles = divide_up(logits.columns, kTile),
                     count = std::int64_t{Shape::of_weight ? logits.columns : logits.rows} * logits.emb;
  const Pieces order =
      Shape::of_weight ? pieces_of(column_tiles, row_tiles) : pieces_of(row_tiles, column_tiles);
  const Workspace sums(
      args.lse, order.pieces == 1 ? 0 : static_cast<std::size_t>(order.pieces * count) * sizeof(float));
  if (PlannedGpu::skips(order.pieces == 1 ? 1 : 2)) return;
  GradientTask task{logits, order, rows, sums.data<float>(), args.dhidden.device_data<float>(), nullptr};
  if constexpr (Shape::of_weight) task.dweight = args.dweight.device_data<bfloat16>();
  launch({.blocks = std::int64_t{order.tiles} * order.pieces,
          .threads = Shape::threads,
          .shared_bytes = Shape::shared_bytes},
         narrow_gradients<Shape>, task,
         narrow_maps<Shape>(args.logits, Shape::of_weight ? kTile : kGroupRows));
  if (order.pieces == 1) return;
  const Launch all{.blocks = divide_up(count, kThreads), .threads = kThreads};
  if constexpr (Shape::of_weight)
    launch(all, add_pieces<bfloat16>, sums.data<float>(), order.pieces, count, task.dweight);
  else
    launch(all, add_pieces<float>, sums.data<float>(), order.pieces, count, task.dhidden);
}

}  // namespace

void narrow_cross_entropy_backward(const LinearCrossEntropyBackwardArgs& args) {
  const NarrowLogits logits = narrow_logits(args.logits);
  const auto padded = static_cast<int>(divide_up(logits.rows, kTile) * kTile);
  const Workspace rows(args.lse, static_cast<std::size_t>(padded) * sizeof(RowOfLoss));
  launch({.blocks = divide_up(padded, kThreads), .threads = kThreads}, find_rows_of_loss, logits, padded,
         args.lse.device_data<float>(), args.softmax_coefficient.device_data<float>(),
         args.target_coefficient.device_data<float>(), rows.data<RowOfLoss>());
  with_narrow_shape<HiddenGradientShape>(
      args.logits, [&]<typename Shape>(Shape) { make_gradient<Shape>(args, rows.data<RowOfLoss>()); });
  if (!args.dweight.defined()) return;
  with_narrow_shape<WeightGradientShape>(
      args.logits, [&]<typename Shape>(Shape) { make_gradient<Shape>(args, rows.data<RowOfLoss>()); });
}

void narrow_cross_entropy_with_gradients(const LossGradientsArgs& args) {
  narrow_cross_entropy({args.logits, args.lse, args.target_logit});
  const std::int64_t rows = args.lse.size(), block = loss_rows_at_once(args.logits);
  for (std::int64_t row = 0; row < rows; row += block) args.summed(row, std::min(rows, row + block));
  narrow_cross_entropy_backward(
      {args.logits, args.lse, args.softmax_coefficient, args.target_coefficient, args.dhidden, args.dweight});
}

}  // namespace switchyard::gpu
