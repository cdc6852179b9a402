#include "core/rng.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "core/error.h"

namespace switchyard {
namespace {

constexpr int kBlock =
    256;  // elements made at once by the fills; the arrays of one block stay in the L1 cache
constexpr float kSqrt2 = 1.41421356f;

inline void rounds(std::uint32_t& a, std::uint32_t& b, int r0, int r1, int r2, int r3) {
  for (int r : {r0, r1, r2, r3}) {
    a += b;
    b = std::rotl(b, r) ^ a;
  }
}

// Threefry-2x32, 20 rounds: encrypts the counter (a, b) in place.
inline void encrypt(RngKey key, std::uint32_t& a, std::uint32_t& b) {
  const std::uint32_t parity = key.hi ^ key.lo ^ 0x1BD11BDAu;  // the cipher's published constant
  a += key.hi, b += key.lo;
  rounds(a, b, 13, 15, 26, 6);
  a += key.lo, b += parity + 1;
  rounds(a, b, 17, 29, 16, 24);
  a += parity, b += key.hi + 2;
  rounds(a, b, 13, 15, 26, 6);
  a += key.hi, b += key.lo + 3;
  rounds(a, b, 17, 29, 16, 24);
  a += key.lo, b += parity + 4;
  rounds(a, b, 13, 15, 26, 6);
  a += parity, b += key.hi + 5;
}

RngKey encrypt_counter(RngKey key, std::uint64_t counter) {
  auto a = static_cast<std::uint32_t>(counter >> 32);
  auto b = static_cast<std::uint32_t>(counter);
  encrypt(key, a, b);
  return {a, b};
}

// The top 23 bits as the mantissa of a number in [1, 2), minus 1.
inline float unit(std::uint32_t bits) {
  return std::bit_cast<float>((bits >> 9) | 0x3f800000u) - 1.0f;
}

inline float scale(float u, float lo, float hi) {
  const float v = u * (hi - lo) + lo;
  return v > lo ? v : lo;
}

// Natural logarithm of a normal positive float, to a few 1e-8 absolute near 1: 2 atanh((m-1)/(m+1)) for the
// mantissa m in [sqrt(1/2), sqrt 2). Plain arithmetic, so that the compiler can run it on vectors.
inline float log_positive(float x) {
  const auto word = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t shifted = word - 0x3f3504f3u;  // bits of sqrt(1/2)
  const auto exponent = static_cast<std::int32_t>(shifted) >> 23;
  const float m = std::bit_cast<float>(word - (static_cast<std::uint32_t>(exponent) << 23));
  const float s = (m - 1.0f) / (m + 1.0f);
  const float z = s * s;
  const float series = 2.0f + z * (2.0f / 3 + z * (2.0f / 5 + z * (2.0f / 7 + z * (2.0f / 9))));
  return static_cast<float>(exponent) * 0.693147181f + s * series;
}

// M. Giles, "Approximating the erfinv function" (2010), single precision: erfinv(x) = x p(w), w = -log(1 -
// x^2), with one polynomial for the centre (w < 5, 99.7 % of a uniform draw) and one for the tails.
inline float erfinv_w(float x) {
  return -log_positive((1.0f - x) * (1.0f + x));
}

inline float erfinv_centre(float x, float w) {
  const float t = w - 2.5f;
  float p = 2.81022636e-08f;
  p = p * t + 3.43273939e-07f;
  p = p * t - 3.5233877e-06f;
  p = p * t - 4.39150654e-06f;
  p = p * t + 0.00021858087f;
  p = p * t - 0.00125372503f;
  p = p * t - 0.00417768164f;
  p = p * t + 0.246640727f;
  p = p * t + 1.50140941f;
  return p * x;
}

float erfinv_tail(float x, float w) {
  const float t = std::sqrt(w) - 3.0f;
  float p = -0.000200214257f;
  p = p * t + 0.000100950558f;
  p = p * t + 0.00134934322f;
  p = p * t - 0.00367342844f;
  p = p * t + 0.00573950773f;
  p = p * t - 0.0076224613f;
  p = p * t + 0.00943887047f;
  p = p * t + 1.00167406f;
  p = p * t + 2.83297682f;
  return p * x;
}

constexpr float kTail = 5.0f;

// sqrt(2) erfinv(u), u uniform on [lo, hi) inside (-1, 1).
float normal_between(std::uint32_t bits, float lo, float hi) {
  const float u = scale(unit(bits), lo, hi);
  const float w = erfinv_w(u);
  return kSqrt2 * (w < kTail ? erfinv_centre(u, w) : erfinv_tail(u, w));
}

// The same for kBlock consecutive counters; the low counter word wraps. Loops of constant length without
// branches, each simple enough for the compiler's vectoriser.
void normal_block(RngKey key, std::uint64_t first, float lo, float hi, std::array<float, kBlock>& out) {
  std::array<std::uint32_t, kBlock> bits;
  std::array<float, kBlock> u, w;
  const auto high = static_cast<std::uint32_t>(first >> 32);
  const auto low = static_cast<std::uint32_t>(first);
  for (std::uint32_t i = 0; i < kBlock; ++i) {
    std::uint32_t a = high, b = low + i;
    encrypt(key, a, b);
    bits[i] = a ^ b;
  }
  for (std::size_t i = 0; i < kBlock; ++i) u[i] = scale(unit(bits[i]), lo, hi);
  for (std::size_t i = 0; i < kBlock; ++i) w[i] = erfinv_w(u[i]);
  for (std::size_t i = 0; i < kBlock; ++i) out[i] = kSqrt2 * erfinv_centre(u[i], w[i]);
  for (std::size_t i = 0; i < kBlock; ++i) {
    if (!(w[i] < kTail)) out[i] = kSqrt2 * erfinv_tail(u[i], w[i]);
  }
}

// Cuts the range into blocks that do not cross a change of the high counter word.
template <typename Finish>
void fill_normal(RngKey key, std::uint64_t first, std::span<float> out, float lo, float hi, Finish finish) {
  std::array<float, kBlock> block;
  std::size_t done = 0;
  while (done < out.size()) {
    const std::uint64_t index = first + done;
    const std::uint64_t to_carry = (std::uint64_t{1} << 32) - (index & 0xffffffffu);
    const auto n = static_cast<std::size_t>(
        std::min<std::uint64_t>({std::uint64_t{kBlock}, out.size() - done, to_carry}));
    normal_block(key, index, lo, hi, block);
    for (std::size_t i = 0; i < n; ++i) out[done + i] = finish(block[i]);
    done += n;
  }
}

// Smallest float above -1: keeps erfinv finite.
constexpr float kOpenMinusOne = -0.99999994f;

float erf_of(float x) {
  return static_cast<float>(std::erf(static_cast<double>(x) / std::sqrt(2.0)));
}

struct OpenInterval {
  float lo, hi;
  OpenInterval(float below, float above)
      : lo(std::nextafter(below, std::numeric_limits<float>::infinity())),
        hi(std::nextafter(above, -std::numeric_limits<float>::infinity())) {}
  float clip(float x) const { return x < lo ? lo : (x > hi ? hi : x); }
};

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
  return unit(rng_bits(key, index));
}
float rng_uniform(RngKey key, std::uint64_t index, float lo, float hi) {
  return scale(unit(rng_bits(key, index)), lo, hi);
}

float rng_normal(RngKey key, std::uint64_t index) {
  return normal_between(rng_bits(key, index), kOpenMinusOne, 1.0f);
}

float rng_truncated_normal(RngKey key, std::uint64_t index, float lo, float hi) {
  return OpenInterval(lo, hi).clip(normal_between(rng_bits(key, index), erf_of(lo), erf_of(hi)));
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

void rng_fill_normal(RngKey key, std::uint64_t first, std::span<float> out) {
  fill_normal(key, first, out, kOpenMinusOne, 1.0f, [](float x) { return x; });
}

void rng_fill_truncated_normal(RngKey key, std::uint64_t first, std::span<float> out, float lo, float hi) {
  const OpenInterval interval(lo, hi);
  fill_normal(key, first, out, erf_of(lo), erf_of(hi), [&](float x) { return interval.clip(x); });
}

}  // namespace switchyard
