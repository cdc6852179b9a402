// Random orders of rows that are computed, not stored.
#pragma once

#include <array>
#include <cstdint>

#include "core/rng.h"

namespace switchyard {

// A random order of 0 .. n-1 that takes no memory: a Feistel network over the smallest even number of bits
// that holds n, applied again while its result is n or more (Black and Rogaway, "Ciphers with arbitrary
// finite domains", 2002).
class Permutation {
 public:
  Permutation(RngKey key, std::int64_t n);  // n >= 1
  // Maps `index`, 0 <= index < n, to its place. On average at worst about four passes of eight rounds.
  std::int64_t operator()(std::int64_t index) const;

 private:
  static constexpr int kRounds = 8;
  std::uint64_t walk(std::uint64_t value) const;
  std::array<RngKey, kRounds> keys_;
  std::uint64_t n_;
  int half_bits_ = 1;
};

}  // namespace switchyard
