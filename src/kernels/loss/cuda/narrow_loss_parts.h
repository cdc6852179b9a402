// The parts of both passes of the loss of narrow models on Hopper: the logits of a tile, which stay in
// registers, and the order of work. This is attention whose keys are the vocabulary.
#pragma once

#include <algorithm>

#include "kernels/attention/cuda/hopper_parts.h"
#include "kernels/loss/cross_entropy_problem.h"

namespace switchyard::gpu::hopper {

// Rows or columns of a tile of what passes by, or stays, in shared memory.
constexpr int kTile = 128;

// The width of hidden in whole blocks of 64 columns, and how the weight lies.
template <int hidden_width, bool vocabulary_first>
struct NarrowShape {
  static constexpr int width = hidden_width, stages = 4;
  static constexpr bool vocab_major = vocabulary_first;
  static constexpr std::uint32_t tile_bytes = kTile * width * 2;  // of the weight, and of hidden
};

struct NarrowLogits {
  int rows, columns, emb;
  const std::int32_t* targets;
  std::int64_t first_id;  // the target that column 0 is
  float soft_cap;

  // The row's target as a column, or -1.
  GPU_FUNCTION int target(int row) const {
    if (row >= rows) return -1;
    const std::int64_t column = targets[row] - first_id;
    return column >= 0 && column < columns ? static_cast<int>(column) : -1;
  }
};

struct NarrowMaps {
  TensorMap hidden, weight;
};

inline NarrowLogits narrow_logits(const CrossEntropyLogits& a) {
  return {static_cast<int>(a.targets.size()),
          static_cast<int>(local_columns(a)),
          static_cast<int>(a.hidden.shape().back()),
          a.targets.device_data<std::int32_t>(),
          a.vocab_begin,
          a.logit_soft_cap};
}

// `hidden_rows`: rows of a box of hidden.
template <typename Shape>
NarrowMaps narrow_maps(const CrossEntropyLogits& a, int hidden_rows) {
  const std::int64_t rows = a.targets.size(), emb = a.hidden.shape().back(), columns = local_columns(a);
  const auto map = [](const TensorView& x, std::int64_t lines, std::int64_t width, int box_rows) {
    return tensor_map(x.device_address(), width, lines, width, 1, lines * width, kTileWidth, box_rows);
  };
  return {map(a.hidden, rows, emb, hidden_rows), Shape::vocab_major
                                                     ? map(a.weight, columns, emb, kTile)
                                                     : map(a.weight, emb, columns, Shape::width)};
}

// Calls body with Shape<width, vocab_major> for these logits.
template <template <int, bool> typename Shape, typename Body>
void with_narrow_shape(const CrossEntropyLogits& a, const Body& body) {
  const bool wide = a.hidden.shape().back() > kTileWidth;
  if (a.weight_vocab_major)
    return wide ? body(Shape<2 * kTileWidth, true>()) : body(Shape<kTileWidth, true>());
  wide ? body(Shape<2 * kTileWidth, false>()) : body(Shape<kTileWidth, false>());
}

// ---- Tiles

// Starts to copy `rows` rows of hidden from `first` on, in blocks of 64 columns. Rows and columns that are
// not there are 0.
template <int width, int rows>
GPU_FUNCTION void copy_hidden(unsigned char* to, const TensorMap& map, int first, std::uint64_t* barrier) {
  for (int block = 0; block < width / kTileWidth; ++block)
    copy_box(to + block * rows * kTileWidth * 2, map, block * kTileWidth, first, 0, barrier, 0);
}

// Starts to copy the weight of 128 columns of logits from `first` on, in blocks of 64 of what is contiguous.
template <typename Shape>
GPU_FUNCTION void copy_weight(unsigned char* to, const TensorMap& map, int first, std::uint64_t* barrier) {
  if constexpr (Shape::vocab_major) {
    copy_hidden<Shape::width, kTile>(to, map, first, barrier);
  } else {
    for (int block = 0; block < kTile / kTileWidth; ++block)
      copy_box(to + block * Shape::width * kTileWidth * 2, map, first + block * kTileWidth, 0, 0, barrier, 0);
  }
}

// Begins logits [64 x 128] = 64 rows of hidden · a tile of the weight.
template <typename Shape>
GPU_FUNCTION void multiply_hidden(float (&logits)[kTile / 2], const unsigned char* hidden,
                                  const unsigned char* weight) {
  if constexpr (Shape::vocab_major) {
    multiply_rows<Shape::width, kGroupRows, kTile>(logits, hidden, weight);
  } else {
    begin_multiplying();
    GPU_UNROLL
    for (int depth = 0; depth < Shape::width; depth += 16)
      multiply<kTile, 0, 1>(logits, rows_at<kGroupRows>(hidden, depth),
                            columns_at<Shape::width>(weight, depth), depth > 0);
    end_multiplying();
  }
}

// Calls body(j, half, column) for each pair of columns of both rows that a thread has.
template <typename Body>
GPU_FUNCTION void for_pairs(const Body& body) {
  GPU_UNROLL
  for (int j = 0; j < kTile / 8; ++j) {
    GPU_UNROLL
    for (int half = 0; half < 2; ++half) body(j, half, j * 8 + thread_index() % 4 * 2);
  }
}

// ---- Order of work

// Blocks of threads take a tile of what stays and a piece of what passes by.
struct Pieces {
  int tiles, steps, pieces;

  GPU_FUNCTION int tile() const { return static_cast<int>(block_index() % tiles); }
  GPU_FUNCTION int piece() const { return static_cast<int>(block_index() / tiles); }
  // The first step of a piece.
  GPU_FUNCTION int begin(int piece) const {
    return static_cast<int>(static_cast<std::int64_t>(piece) * steps / pieces);
  }
};

// Returns the pieces that let the blocks end soonest on a GPU of 132 multiprocessors, on every GPU: sums of
// pieces have the same order everywhere. A piece has some steps, for a start takes as long as a few.
inline Pieces pieces_of(std::int64_t tiles, std::int64_t steps) {
  constexpr std::int64_t kMultiprocessors = 132, kMostRounds = 4, kStart = 4;
  const std::int64_t most = std::min(kMostRounds * kMultiprocessors / tiles, steps / kStart);
  const auto time_of = [&](std::int64_t pieces) {
    return divide_up(tiles * pieces, kMultiprocessors) * (divide_up(steps, pieces) + kStart);
  };
  std::int64_t best = 1;
  for (std::int64_t pieces = 2; pieces <= most; ++pieces) {
    if (time_of(pieces) < time_of(best)) best = pieces;
  }
  return {static_cast<int>(tiles), static_cast<int>(steps), static_cast<int>(best)};
}

}  // namespace switchyard::gpu::hopper
