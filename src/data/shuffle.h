// Orders of rows that are computed, not stored.
#pragma once

#include <array>
#include <cstdint>

#include "core/rng.h"

namespace switchyard {

// A random order of 0 .. n-1 that is never held in memory: a Feistel network over the smallest even number of
// bits that holds n, walked again while it leads outside (Black and Rogaway, "Ciphers with arbitrary finite
// domains", 2002).
class Permutation {
 public:
  Permutation(RngKey key, std::int64_t n);  // n >= 1
  // The place of `index`, 0 <= index < n. About four walks of eight rounds at worst on average.
  std::int64_t operator()(std::int64_t index) const;

 private:
  static constexpr int kRounds = 8;
  std::uint64_t walk(std::uint64_t value) const;
  std::array<RngKey, kRounds> keys_;
  std::uint64_t n_;
  int half_bits_ = 1;
};

}  // namespace switchyard
