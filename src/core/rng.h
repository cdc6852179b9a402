// Random numbers addressed by (key, index) instead of drawn in sequence.
//
// The bit stream is the public Threefry-2x32 cipher (Salmon et al., "Parallel random numbers: as easy as 1,
// 2, 3", 2011) with 20 rounds, used as JAX does with partitionable counters: element `index` of a draw of any
// shape encrypts the 64-bit counter `index`. An element therefore depends only on its key and its global
// index, so any rank can compute any part of a tensor and the result is the same on every mesh. Keys,
// bits, integers, uniforms, bernoulli and permutations equal JAX's bit for bit; normals are within 1e-6 of
// JAX's. All functions are pure and safe to call from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace switchyard {

struct RngKey {
  std::uint32_t hi = 0;
  std::uint32_t lo = 0;
  friend bool operator==(const RngKey&, const RngKey&) = default;
};

RngKey rng_key(std::uint32_t seed);                     // [0, seed]
RngKey rng_split(RngKey key, std::uint64_t i);          // key i of split(key, n), for any n > i
RngKey rng_fold_in(RngKey key, std::uint32_t data);     // derives a key from a number (a step, a layer)
RngKey rng_fold_in(RngKey key, std::string_view name);  // derives a key from the xxHash-32 (seed 0) of a name

std::uint32_t rng_bits(RngKey key, std::uint64_t index);

// Uniform in [0, 1), a multiple of 2^-23; or in [lo, hi).
float rng_uniform(RngKey key, std::uint64_t index);
float rng_uniform(RngKey key, std::uint64_t index, float lo, float hi);

// Standard normal; or standard normal conditioned on the open interval (lo, hi).
float rng_normal(RngKey key, std::uint64_t index);
float rng_truncated_normal(RngKey key, std::uint64_t index, float lo, float hi);

// Uniform in [lo, hi); hi > lo is CHECKed.
std::int32_t rng_randint(RngKey key, std::uint64_t index, std::int32_t lo, std::int32_t hi);

// True with probability p.
bool rng_bernoulli(RngKey key, std::uint64_t index, float p);

// A random order of 0 .. n-1; n in [0, 2^31).
std::vector<std::int32_t> rng_permutation(RngKey key, std::int64_t n);

// Sets out[i] to the value of the function above at index first + i: bit-identical to single calls, and about
// ten times faster.
void rng_fill_normal(RngKey key, std::uint64_t first, std::span<float> out);
void rng_fill_truncated_normal(RngKey key, std::uint64_t first, std::span<float> out, float lo, float hi);

}  // namespace switchyard
