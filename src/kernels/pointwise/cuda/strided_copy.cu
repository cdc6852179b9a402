// Copies between views of any strides, in units as wide as sizes, strides and addresses allow; a transposed
// matrix by tiles that pass through shared memory, so that both sides move neighbours.
#include "kernels/cuda/portable.h"
#include "kernels/cuda/wide.h"
#include "kernels/pointwise/kernels.h"

namespace switchyard::gpu {
namespace {

// Dims from the outermost to the innermost. Sizes and strides are bytes while they are merged, then units.
struct CopiedDims {
  static constexpr int kMost = static_cast<int>(kMostDims) + 1;  // and the bytes of an element
  int count = 0;
  std::int64_t sizes[kMost] = {}, from[kMost] = {}, to[kMost] = {};

  void push(std::int64_t size, std::int64_t step_from, std::int64_t step_to) {
    if (size == 1) return;
    const int last = count - 1;
    const bool joins = count > 0 && from[last] == size * step_from && to[last] == size * step_to;
    const int at = joins ? last : count++;
    sizes[at] = joins ? sizes[last] * size : size;
    from[at] = step_from, to[at] = step_to;
  }
};

template <typename Unit, typename Index>
GPU_KERNEL copy_units(const Unit* from, Unit* to, Index count, CopiedDims dims) {
  const std::int64_t i = thread_of_grid();
  if (i >= static_cast<std::int64_t>(count)) return;
  Index rest = static_cast<Index>(i);
  std::int64_t at_from = 0, at_to = 0;
  for (int d = dims.count - 1; d >= 0; --d) {
    const Index size = static_cast<Index>(dims.sizes[d]);
    const std::int64_t index = d == 0 ? rest : rest % size;
    rest /= size;
    at_from += index * dims.from[d];
    at_to += index * dims.to[d];
  }
  to[at_to] = from[at_from];
}

// Of each of the matrices in z and the outer dims: to[i, j] = from[j, i]. Blocks are tiles of 32 by 32.
constexpr int kTile = 32, kTileRows = 8;

template <typename Unit>
GPU_KERNEL transpose_tiles(const Unit* from, Unit* to, CopiedDims dims, int row_dim) {
  GPU_SHARED(Unit, tile, kTile * (kTile + 1));
  const int column_dim = dims.count - 1;  // of neighbours in `to`; those of row_dim are neighbours in `from`
  std::int64_t at_from = 0, at_to = 0, rest = block_index();
  const std::int64_t columns = dims.sizes[column_dim], rows = dims.sizes[row_dim];
  const std::int64_t column_tiles = (columns + kTile - 1) / kTile, row_tiles = (rows + kTile - 1) / kTile;
  const std::int64_t column = rest % column_tiles * kTile, row = rest / column_tiles % row_tiles * kTile;
  rest /= column_tiles * row_tiles;
  for (int d = column_dim - 1; d >= 0; --d) {
    if (d == row_dim) continue;
    at_from += rest % dims.sizes[d] * dims.from[d];
    at_to += rest % dims.sizes[d] * dims.to[d];
    rest /= dims.sizes[d];
  }
  const int lane = thread_index() % kTile, first = thread_index() / kTile;
  for (int i = first; i < kTile; i += kTileRows) {
    if (column + i < columns && row + lane < rows)
      tile[i * (kTile + 1) + lane] =
          from[at_from + (column + i) * dims.from[column_dim] + (row + lane) * dims.from[row_dim]];
  }
  barrier();
  for (int i = first; i < kTile; i += kTileRows) {
    if (column + lane < columns && row + i < rows)
      to[at_to + (column + lane) * dims.to[column_dim] + (row + i) * dims.to[row_dim]] =
          tile[lane * (kTile + 1) + i];
  }
}

// The widest unit that divides everything.
std::int64_t unit_of(const CopiedDims& dims, const void* from, const void* to) {
  std::uint64_t all = 16 | reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to);
  const int last = dims.count - 1;
  for (int d = 0; d < last; ++d) all |= static_cast<std::uint64_t>(dims.from[d] | dims.to[d]);
  all |= static_cast<std::uint64_t>(dims.sizes[last]);
  return static_cast<std::int64_t>(all & (~all + 1));
}

// The dim whose elements are neighbours in `from`, where that is a transposed one; else -1.
int transposed_dim(const CopiedDims& dims) {
  const int last = dims.count - 1;
  if (last < 1 || dims.to[last] != 1 || dims.from[last] == 1 || dims.sizes[last] < kTile) return -1;
  for (int d = 0; d < last; ++d) {
    if (dims.from[d] == 1 && dims.sizes[d] >= kTile) return d;
  }
  return -1;
}

}  // namespace

void strided_copy(const StridedCopyArgs& args) {
  const TensorView &from = args.from, &to = args.to;
  if (from.size() == 0) return;
  const auto element = static_cast<std::int64_t>(size_of(from.dtype()));
  CopiedDims dims;
  for (std::size_t i = 0; i < from.rank(); ++i)
    dims.push(from.dim(i), from.stride(i) * element, to.stride(i) * element);
  dims.push(element, 1, 1);
  if (dims.count == 0 || dims.from[dims.count - 1] != 1 || dims.to[dims.count - 1] != 1) {
    const int at = dims.count++;  // elements are bytes, and none are neighbours
    dims.sizes[at] = dims.from[at] = dims.to[at] = 1;
  }
  const std::byte* const source = from.device_address();
  std::byte* const target = to.device_address();
  const std::int64_t unit = unit_of(dims, source, target);
  const int last = dims.count - 1;
  dims.sizes[last] /= unit;
  for (int d = 0; d < last; ++d) dims.from[d] /= unit, dims.to[d] /= unit;
  if (dims.sizes[last] == 1 && last > 0) --dims.count;  // an element is a unit
  std::int64_t count = 1;
  for (int d = 0; d < dims.count; ++d) count *= dims.sizes[d];
  const auto run = [&]<typename Unit>(Unit) {
    const auto* const x = reinterpret_cast<const Unit*>(source);
    auto* const y = reinterpret_cast<Unit*>(target);
    const int row_dim = transposed_dim(dims), column_dim = dims.count - 1;
    if (row_dim >= 0) {
      const std::int64_t rows = dims.sizes[row_dim], columns = dims.sizes[column_dim];
      launch({.blocks = count / (rows * columns) * divide_up(rows, kTile) * divide_up(columns, kTile),
              .threads = kTile * kTileRows},
             transpose_tiles<Unit>, x, y, dims, row_dim);
    } else if (count <= std::int64_t{0xffffffff}) {
      launch(threads_for(count), copy_units<Unit, std::uint32_t>, x, y, static_cast<std::uint32_t>(count),
             dims);
    } else {
      launch(threads_for(count), copy_units<Unit, std::uint64_t>, x, y, static_cast<std::uint64_t>(count),
             dims);
    }
  };
  if (unit == 16)
    run(Vector<std::uint32_t, 4>());
  else if (unit == 8)
    run(std::uint64_t());
  else if (unit == 4)
    run(std::uint32_t());
  else if (unit == 2)
    run(std::uint16_t());
  else
    run(std::uint8_t());
}

}  // namespace switchyard::gpu
