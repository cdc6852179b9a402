// The arithmetic of core/rng.h: the cipher, and normal numbers from its bits. These take products, sums,
// quotients and roots alone, each of them rounded, so the bits are the same on every machine. `Float` is
// float where the compiler does not join a product and a sum (-ffp-contract=off), or a class whose operators
// round each result, as kernels/cuda/rounded.h has it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/rng.h"

namespace switchyard::rng {

constexpr void cipher_round(std::uint32_t& a, std::uint32_t& b, int rotation) {
  a += b;
  b = std::rotl(b, rotation) ^ a;
}
constexpr void even_rounds(std::uint32_t& a, std::uint32_t& b) {
  cipher_round(a, b, 13);
  cipher_round(a, b, 15);
  cipher_round(a, b, 26);
  cipher_round(a, b, 6);
}
constexpr void odd_rounds(std::uint32_t& a, std::uint32_t& b) {
  cipher_round(a, b, 17);
  cipher_round(a, b, 29);
  cipher_round(a, b, 16);
  cipher_round(a, b, 24);
}

// Threefry-2x32, 20 rounds: encrypts the counter (a, b) in place.
constexpr void encrypt(RngKey key, std::uint32_t& a, std::uint32_t& b) {
  const std::uint32_t parity = key.hi ^ key.lo ^ 0x1BD11BDAu;  // the cipher's published constant
  a += key.hi, b += key.lo;
  even_rounds(a, b);
  a += key.lo, b += parity + 1;
  odd_rounds(a, b);
  a += parity, b += key.hi + 2;
  even_rounds(a, b);
  a += key.hi, b += key.lo + 3;
  odd_rounds(a, b);
  a += key.lo, b += parity + 4;
  even_rounds(a, b);
  a += parity, b += key.hi + 5;
}

// The top 23 bits as the mantissa of a number in [1, 2), minus 1.
template <typename Float>
constexpr Float unit(std::uint32_t bits) {
  return Float(std::bit_cast<float>((bits >> 9) | 0x3f800000u)) - 1.0f;
}

template <typename Float>
constexpr Float scaled(Float u, Float lo, Float hi) {
  const Float v = u * (hi - lo) + lo;
  return v > lo ? v : lo;
}

// Natural logarithm of a normal positive float, to a few 1e-8 absolute near 1: 2 atanh((m-1)/(m+1)) for the
// mantissa m in [sqrt(1/2), sqrt 2). Plain arithmetic, so that the compiler can run it on vectors.
template <typename Float>
constexpr Float log_positive(Float x) {
  const auto word = std::bit_cast<std::uint32_t>(static_cast<float>(x));
  const std::uint32_t shifted = word - 0x3f3504f3u;  // bits of sqrt(1/2)
  const auto exponent = static_cast<std::int32_t>(shifted) >> 23;
  const Float m(std::bit_cast<float>(word - (static_cast<std::uint32_t>(exponent) << 23)));
  const Float s = (m - 1.0f) / (m + 1.0f);
  const Float z = s * s;
  const Float series = 2.0f + z * (2.0f / 3 + z * (2.0f / 5 + z * (2.0f / 7 + z * (2.0f / 9))));
  return Float(static_cast<float>(exponent)) * 0.693147181f + s * series;
}

// M. Giles, "Approximating the erfinv function" (2010), single precision: erfinv(x) = x p(w), w = -log(1 -
// x^2), with one polynomial for the centre (w < 5, 99.7 % of a uniform draw) and one for the tails.
template <typename Float>
constexpr Float erfinv_w(Float x) {
  return -log_positive((1.0f - x) * (1.0f + x));
}

template <typename Float>
constexpr Float erfinv_centre(Float x, Float w) {
  const Float t = w - 2.5f;
  Float p = 2.81022636e-08f;
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

inline float square_root(float x) {
  return std::sqrt(x);
}

template <typename Float>
constexpr Float erfinv_tail(Float x, Float w) {
  const Float t = square_root(w) - 3.0f;
  Float p = -0.000200214257f;
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
constexpr float kSqrt2 = 1.41421356f;

// sqrt(2) erfinv(u), u uniform on [lo, hi) inside (-1, 1).
template <typename Float>
constexpr Float normal_of(std::uint32_t bits, Float lo, Float hi) {
  const Float u = scaled(unit<Float>(bits), lo, hi);
  const Float w = erfinv_w(u);
  return kSqrt2 * (w < kTail ? erfinv_centre(u, w) : erfinv_tail(u, w));
}

}  // namespace switchyard::rng
