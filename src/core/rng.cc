#include "core/rng.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/rng_arithmetic.h"
#include "core/rng_normal.h"

namespace switchyard {
namespace {

constexpr int kBlock =
    256;  // elements made at once by the fills; the arrays of one block stay in the L1 cache

RngKey encrypt_counter(RngKey key, std::uint64_t counter) {
  auto a = static_cast<std::uint32_t>(counter >> 32);
  auto b = static_cast<std::uint32_t>(counter);
  rng::encrypt(key, a, b);
  return {a, b};
}

float clipped(const NormalRange& range, float x) {
  return x < range.least ? range.least : (x > range.most ? range.most : x);
}

float normal_in(const NormalRange& range, std::uint32_t bits) {
  return clipped(range, rng::normal_of<float>(bits, range.from, range.to));
}

// Fills `out` with the normal numbers of kBlock consecutive counters; the low counter word wraps. Loops have
// a constant length and no branches, and each is simple enough for the compiler's vectoriser.
void normal_block(RngKey key, std::uint64_t first, float lo, float hi, std::array<float, kBlock>& out) {
  std::array<std::uint32_t, kBlock> bits;
  std::array<float, kBlock> u, w;
  const auto high = static_cast<std::uint32_t>(first >> 32);
  const auto low = static_cast<std::uint32_t>(first);
  for (std::uint32_t i = 0; i < kBlock; ++i) {
    std::uint32_t a = high, b = low + i;
    rng::encrypt(key, a, b);
    bits[i] = a ^ b;
  }
  for (std::size_t i = 0; i < kBlock; ++i) u[i] = rng::scaled<float>(rng::unit<float>(bits[i]), lo, hi);
  for (std::size_t i = 0; i < kBlock; ++i) w[i] = rng::erfinv_w(u[i]);
  for (std::size_t i = 0; i < kBlock; ++i) out[i] = rng::kSqrt2 * rng::erfinv_centre(u[i], w[i]);
  for (std::size_t i = 0; i < kBlock; ++i) {
    if (!(w[i] < rng::kTail)) out[i] = rng::kSqrt2 * rng::erfinv_tail(u[i], w[i]);
  }
}

// Cuts the range into blocks that do not cross a change of the high counter word.
void fill_normal(RngKey key, std::uint64_t first, std::span<float> out, const NormalRange& range) {
  std::array<float, kBlock> block;
  std::size_t done = 0;
  while (done < out.size()) {
    const std::uint64_t index = first + done;
    const std::uint64_t to_carry = (std::uint64_t{1} << 32) - (index & 0xffffffffu);
    const auto n = static_cast<std::size_t>(
        std::min<std::uint64_t>({std::uint64_t{kBlock}, out.size() - done, to_carry}));
    normal_block(key, index, range.from, range.to, block);
    for (std::size_t i = 0; i < n; ++i) out[done + i] = clipped(range, block[i]);
    done += n;
  }
}

// Smallest float above -1: keeps erfinv finite.
constexpr float kOpenMinusOne = -0.99999994f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float erf_of(float x) {
  return static_cast<float>(std::erf(static_cast<double>(x) / std::sqrt(2.0)));
}

}  // namespace

RngKey rng_key(std::uint32_t seed) {
  return {0, seed};
}
RngKey rng_split(RngKey key, std::uint64_t i) {
  return encrypt_counter(key, i);
}
RngKey rng_fold_in(RngKey key, std::uint32_t data) {
  return encrypt_counter(key, data);
}
RngKey rng_fold_in(RngKey key, std::string_view name) {
  return rng_fold_in(key, static_cast<std::uint32_t>(XXH32(name.data(), name.size(), 0)));
}

std::uint32_t rng_bits(RngKey key, std::uint64_t index) {
  const RngKey words = encrypt_counter(key, index);
  return words.hi ^ words.lo;
}

float rng_uniform(RngKey key, std::uint64_t index) {
  return rng::unit<float>(rng_bits(key, index));
}
float rng_uniform(RngKey key, std::uint64_t index, float lo, float hi) {
  return rng::scaled<float>(rng::unit<float>(rng_bits(key, index)), lo, hi);
}

float rng_normal(RngKey key, std::uint64_t index) {
  return normal_in(normal_range(), rng_bits(key, index));
}

float rng_truncated_normal(RngKey key, std::uint64_t index, float lo, float hi) {
  return normal_in(truncated_normal_range(lo, hi), rng_bits(key, index));
}

std::int32_t rng_randint(RngKey key, std::uint64_t index, std::int32_t lo, std::int32_t hi) {
  CHECK(hi > lo, "randint in [{}, {})", lo, hi);
  const std::uint32_t span = static_cast<std::uint32_t>(hi) - static_cast<std::uint32_t>(lo);
  const std::uint32_t high = rng_bits(rng_split(key, 0), index);
  const std::uint32_t low = rng_bits(rng_split(key, 1), index);
  // 2^32 mod span from (2^16 mod span)^2, in 32-bit arithmetic that wraps: wrong for spans over 2^16, where
  // the high word then counts for nothing, but it is what the reference draws.
  std::uint32_t multiplier = 65536u % span;
  multiplier = multiplier * multiplier % span;
  const std::uint32_t offset = ((high % span) * multiplier + low % span) % span;
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(lo) + offset);
}

bool rng_bernoulli(RngKey key, std::uint64_t index, float p) {
  return rng_uniform(key, index) < p;
}

std::vector<std::int32_t> rng_permutation(RngKey key, std::int64_t n) {
  CHECK(n >= 0 && n <= std::numeric_limits<std::int32_t>::max(), "permutation of {}", n);
  const auto count = static_cast<std::size_t>(n);
  std::vector<std::int32_t> order(count), sorted(count);
  for (std::size_t i = 0; i < count; ++i) order[i] = static_cast<std::int32_t>(i);
  // Sorting by random keys shuffles perfectly unless keys tie; the rounds make ties harmless.
  const auto repeats = static_cast<int>(
      std::ceil(3.0 * std::log(static_cast<double>(std::max<std::int64_t>(1, n))) / std::log(4294967295.0)));
  std::vector<std::uint64_t> keys(count);
  for (int r = 0; r < repeats; ++r) {
    const RngKey sub = rng_split(key, 1);
    key = rng_split(key, 0);
    for (std::size_t i = 0; i < count; ++i) keys[i] = (std::uint64_t{rng_bits(sub, i)} << 32) | i;
    std::sort(keys.begin(), keys.end());  // the position in the low word makes it stable
    for (std::size_t i = 0; i < count; ++i) sorted[i] = order[keys[i] & 0xffffffffu];
    std::swap(order, sorted);
  }
  return order;
}

NormalRange normal_range() {
  return {kOpenMinusOne, 1.0f, -kInfinity, kInfinity};
}

NormalRange truncated_normal_range(float lo, float hi) {
  return {erf_of(lo), erf_of(hi), std::nextafter(lo, kInfinity), std::nextafter(hi, -kInfinity)};
}

void rng_fill_normal(RngKey key, std::uint64_t first, const NormalRange& range, std::span<float> out) {
  fill_normal(key, first, out, range);
}

void rng_fill_normal(RngKey key, std::uint64_t first, std::span<float> out) {
  fill_normal(key, first, out, normal_range());
}

void rng_fill_truncated_normal(RngKey key, std::uint64_t first, std::span<float> out, float lo, float hi) {
  fill_normal(key, first, out, truncated_normal_range(lo, hi));
}

}  // namespace switchyard
