// Tiles and products of split_decode.cu: the layout of keys, values and weights in shared memory, and
// products of bfloat16 over them. Keys and values are stored as bfloat16 or int8.
//
// A chunk is 16 bytes of a vector. A product of 16 numbers of int8 reads one chunk, whose four bytes that a
// lane gets are its numbers 4i to 4i + 3; place_of_pair() puts the queries in that order.
#pragma once

#include <type_traits>

#include "kernels/cuda/portable.h"
#include "kernels/cuda/tiles.h"

namespace switchyard::gpu::decode {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kKeys = 64, kKeysOfWarp = kKeys / kWarps;  // of a tile
constexpr int kRows = 16;                                // queries of a block
constexpr int kChunkBytes = 16, kLineBytes = 128;        // a line: eight chunks, all banks
constexpr int kNumbers = 16;                             // of a vector that a product takes at once

template <typename Stored>
constexpr int kChunkNumbers = kChunkBytes / static_cast<int>(sizeof(Stored));

// Bytes of `rows` vectors of so many numbers, in whole lines.
template <typename Stored>
constexpr int tile_bytes(int rows, int width) {
  return rows * ((width * static_cast<int>(sizeof(Stored)) + kLineBytes - 1) / kLineBytes) * kLineBytes;
}

// Returns the place of chunk `chunk` of vector `row` in bytes. A tile is columns of lines, each of `height`
// rows. Chunks of a line change places by the row's number, so eight rows of a chunk are in different banks.
template <int height>
GPU_FUNCTION int place_of_chunk(int row, int chunk) {
  return (chunk / 8 * height + row) * kLineBytes + ((chunk % 8) ^ (row % 8)) * kChunkBytes;
}

// Returns the place of a query's numbers 2 * pair and the next, for products with keys of type Stored.
template <typename Stored>
GPU_FUNCTION int place_of_pair(int row, int pair) {
  int column = pair;
  if constexpr (std::is_same_v<Stored, std::int8_t>) column = pair / 8 * 8 + pair % 8 / 2 + pair % 2 * 4;
  return place_of_chunk<kRows>(row, column / 4) + column % 4 * 4;
}

// The 16 x 16 numbers of queries or weights from column 16 * `at` on.
GPU_FUNCTION void load_left(const unsigned char* tile, int at, std::uint32_t (&a)[4]) {
  const int lane = thread_index() % kWarp;
  load_tiles(tile + place_of_chunk<kRows>(lane % 16, at * 2 + lane / 16), a);
}

// Byte `which` of four, as an integer: exact, without a conversion.
GPU_FUNCTION float number_of_byte(std::uint32_t bytes, int which) {
  constexpr std::uint32_t kSigns = 0x80808080u, kTwoTo23 = 0x4b000000u;
  return float_of_bits(kTwoTo23 | (((bytes ^ kSigns) >> (8 * which)) & 0xffu)) - 8388736.0f;  // 2^23 + 128
}

// Two numbers of four bytes, rounded_pair() of them.
GPU_FUNCTION std::uint32_t pair_of_bytes(std::uint32_t bytes, int low, int high) {
  return rounded_pair(number_of_byte(bytes, low), number_of_byte(bytes, high));
}

// scores [16 x 16] += 16 queries * the 16 keys from row `first` on, of numbers [16 * begin, 16 * end).
template <typename Stored>
GPU_FUNCTION void multiply_keys(float (&scores)[2][4], const unsigned char* queries,
                                const unsigned char* keys, int first, int begin, int end) {
  const int lane = thread_index() % kWarp, row = first + lane % 16;
  for (int at = begin; at < end; ++at) {
    std::uint32_t a[4], b[4];
    load_left(queries, at, a);
    if constexpr (std::is_same_v<Stored, std::int8_t>) {
      load_tiles(keys + place_of_chunk<kKeys>(row, at), b);  // the second 16 lanes repeat the first
      multiply_tiles(scores[0], a, pair_of_bytes(b[0], 0, 1), pair_of_bytes(b[0], 2, 3));
      multiply_tiles(scores[1], a, pair_of_bytes(b[1], 0, 1), pair_of_bytes(b[1], 2, 3));
    } else {
      load_tiles(keys + place_of_chunk<kKeys>(row, at * 2 + lane / 16), b);
      multiply_tiles(scores[0], a, b[0], b[2]);
      multiply_tiles(scores[1], a, b[1], b[3]);
    }
  }
}

// sums [16 x 16] += weights of 16 queries for the tile's 64 keys * numbers [16 * at, 16 * at + 16) of the
// values. Columns of the sums are those of column_of().
template <typename Stored>
GPU_FUNCTION void multiply_values(float (&sums)[2][4], const std::uint32_t (&weights)[4][4],
                                  const unsigned char* values, int at) {
  const int lane = thread_index() % kWarp;
  if constexpr (std::is_same_v<Stored, std::int8_t>) {
    // A transposed tile pairs neighbouring columns: even ones go to the first product, odd ones to the other.
    GPU_UNROLL
    for (int i = 0; i < 4; i += 2) {
      std::uint32_t b[4];
      load_tiles_transposed(values + place_of_chunk<kKeys>(i * 16 + lane, at), b);
      GPU_UNROLL
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t first = b[half * 2], second = b[half * 2 + 1];
        multiply_tiles(sums[0], weights[i + half], pair_of_bytes(first, 0, 2), pair_of_bytes(second, 0, 2));
        multiply_tiles(sums[1], weights[i + half], pair_of_bytes(first, 1, 3), pair_of_bytes(second, 1, 3));
      }
    }
  } else {
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      std::uint32_t b[4];
      load_tiles_transposed(
          values + place_of_chunk<kKeys>(i * 16 + lane / 16 * 8 + lane % 8, at * 2 + lane / 8 % 2), b);
      multiply_tiles(sums[0], weights[i], b[0], b[2]);
      multiply_tiles(sums[1], weights[i], b[1], b[3]);
    }
  }
}

// The number of a value that this lane's element `second` of product `which` of multiply_values() sums.
template <typename Stored>
GPU_FUNCTION int column_of(int at, int which, int second) {
  const int pair = thread_index() % 4;
  if constexpr (std::is_same_v<Stored, std::int8_t>)
    return at * kNumbers + pair * 4 + second * 2 + which;
  else
    return at * kNumbers + which * 8 + pair * 2 + second;
}

}  // namespace switchyard::gpu::decode
