// Walking over flat arrays of float32 or bfloat16 in tiles of float32 values.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/dtype.h"
#include "core/thread_pool.h"
#include "optim/adam_tile.h"

namespace switchyard {

// A view of one tile of an array as kSize float32 values: the array itself where possible, else a converted
// copy padded with zeros.
class FloatTile {
 public:
  static constexpr std::int64_t kSize = kAdamTile;

  float* load(const void* data, DType dtype, std::int64_t begin, std::int64_t count) {
    if (dtype == DType::f32 && count == kSize) {
      // Written through only for arrays that the caller passed as mutable, see store.
      return const_cast<float*>(static_cast<const float*>(data)) + begin;
    }
    if (dtype == DType::f32) {
      std::copy_n(static_cast<const float*>(data) + begin, count, copy_.begin());
    } else {
      const bfloat16* from = static_cast<const bfloat16*>(data) + begin;
      for (std::int64_t i = 0; i < count; ++i)
        copy_[static_cast<std::size_t>(i)] = static_cast<float>(from[i]);
    }
    std::fill(copy_.begin() + count, copy_.end(), 0.0f);
    return copy_.data();
  }

  // Writes the copy back, rounded; nothing to do where the tile was the array itself.
  void store(void* data, DType dtype, std::int64_t begin, std::int64_t count) const {
    if (dtype == DType::f32) {
      if (count < kSize) std::copy_n(copy_.begin(), count, static_cast<float*>(data) + begin);
      return;
    }
    bfloat16* to = static_cast<bfloat16*>(data) + begin;
    if (count == kSize)
      narrow_tile(copy_.data(), to);
    else
      std::transform(copy_.begin(), copy_.begin() + count, to, [](float x) { return bfloat16(x); });
  }

 private:
  alignas(64) std::array<float, kSize> copy_;
};

// Calls body(begin, count) for every tile of [0, count).
template <typename Body>
void for_tiles(ThreadPool& pool, std::int64_t count, const Body& body) {
  constexpr std::int64_t kGrain = 16 * FloatTile::kSize;  // large against the cost of handing out a piece
  pool.for_range(count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (; begin < end; begin += FloatTile::kSize) body(begin, std::min(FloatTile::kSize, end - begin));
  });
}

}  // namespace switchyard
