#include "data/shuffle.h"

#include "core/error.h"

namespace switchyard {

Permutation::Permutation(RngKey key, std::int64_t n) : n_(static_cast<std::uint64_t>(n)) {
  CHECK(n >= 1 && n <= std::int64_t{1} << 60, "n {}", n);
  while ((std::uint64_t{1} << (2 * half_bits_)) < n_) ++half_bits_;
  for (std::uint32_t round = 0; round < kRounds; ++round) keys_[round] = rng_fold_in(key, round);
}

std::uint64_t Permutation::walk(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_, right = value & mask;
  for (const RngKey& key : keys_) {
    const std::uint64_t mixed = left ^ (rng_bits(key, right) & mask);
    left = right;
    right = mixed;
  }
  return (left << half_bits_) | right;
}

std::int64_t Permutation::operator()(std::int64_t index) const {
  CHECK(index >= 0 && static_cast<std::uint64_t>(index) < n_, "index {} of {}", index, n_);
  std::uint64_t place = walk(static_cast<std::uint64_t>(index));
  while (place >= n_) place = walk(place);
  return static_cast<std::int64_t>(place);
}

}  // namespace switchyard
