// Uses a tile as intermediate storage: rows that lie a power of two apart, as in most matrices, would evict
// each other from the cache. On the way into the tile, vertically adjacent elements are packed into 64-bit
// words by a vector loop; then words are gathered, 2 to 4 times fewer than elements.
#include "checkpoint/transpose.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace switchyard {
namespace {

constexpr std::int64_t kTile = 64;
constexpr std::int64_t kBlock = 512;  // rows of so many pages are found without walking the page tables

template <typename T>
constexpr std::int64_t kPacked = static_cast<std::int64_t>(sizeof(std::uint64_t) / sizeof(T));

template <typename T>
struct Tile {
  std::uint64_t words[kTile / kPacked<T>][kTile];  // [r / kPacked][c]
};

inline void pack(const std::uint16_t* from, std::int64_t columns, std::int64_t width, std::uint64_t* words) {
  const std::uint16_t *a = from, *b = a + columns, *c = b + columns, *d = c + columns;
  for (std::int64_t i = 0; i < width; ++i) {
    words[i] = std::uint64_t{a[i]} | std::uint64_t{b[i]} << 16 | std::uint64_t{c[i]} << 32 |
               std::uint64_t{d[i]} << 48;
  }
}
inline void pack(const std::uint32_t* from, std::int64_t columns, std::int64_t width, std::uint64_t* words) {
  const std::uint32_t *a = from, *b = a + columns;
  for (std::int64_t i = 0; i < width; ++i) words[i] = std::uint64_t{a[i]} | std::uint64_t{b[i]} << 32;
}

// A whole tile.
template <typename T>
void transpose_tile(const T* from, std::int64_t columns, T* to, std::int64_t stride) {
  constexpr std::int64_t kGroups = kTile / kPacked<T>;
  Tile<T> tile;
  for (std::int64_t g = 0; g < kGroups; ++g)
    pack(from + g * kPacked<T> * columns, columns, kTile, tile.words[g]);
  for (std::int64_t c = 0; c < kTile; ++c) {
    std::uint64_t line[kGroups];
    for (std::int64_t g = 0; g < kGroups; ++g) line[g] = tile.words[g][c];
    std::memcpy(to + c * stride, line, sizeof line);
  }
}

template <typename T>
void transpose_block(const T* from, std::int64_t rows, std::int64_t columns, std::int64_t c_begin,
                     std::int64_t c_end, std::int64_t r_begin, T* to, std::int64_t stride) {
  const std::int64_t r_end = std::min(rows, r_begin + kBlock);
  for (std::int64_t c0 = c_begin; c0 < c_end; c0 += kTile) {
    const std::int64_t c1 = std::min(c_end, c0 + kTile);
    for (std::int64_t r0 = r_begin; r0 < r_end; r0 += kTile) {
      const std::int64_t r1 = std::min(r_end, r0 + kTile);
      if (r1 - r0 == kTile && c1 - c0 == kTile) {
        transpose_tile(from + r0 * columns + c0, columns, to + c0 * stride + r0, stride);
        continue;
      }
      for (std::int64_t c = c0; c < c1; ++c) {
        for (std::int64_t r = r0; r < r1; ++r) to[c * stride + r] = from[r * columns + c];
      }
    }
  }
}

template <typename T>
void transpose_as(const T* from, std::int64_t rows, std::int64_t columns, T* to, std::int64_t stride) {
  for (std::int64_t r = 0; r < rows; r += kBlock) {
    for (std::int64_t c = 0; c < columns; c += kBlock)
      transpose_block(from, rows, columns, c, std::min(columns, c + kBlock), r, to, stride);
  }
}

}  // namespace

void transpose(std::size_t element, const std::byte* from, std::int64_t rows, std::int64_t columns,
               std::byte* to, std::int64_t stride) {
  CHECK(element == 2 || element == 4, "elements of {} bytes", element);
  if (element == 2) {
    transpose_as(reinterpret_cast<const std::uint16_t*>(from), rows, columns,
                 reinterpret_cast<std::uint16_t*>(to), stride);
  } else {
    transpose_as(reinterpret_cast<const std::uint32_t*>(from), rows, columns,
                 reinterpret_cast<std::uint32_t*>(to), stride);
  }
}

}  // namespace switchyard
