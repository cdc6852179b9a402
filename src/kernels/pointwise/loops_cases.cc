// Kernels that are one loop each, against the same loop written over single elements.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/box.h"
#include "kernels/optimizer/newton_schulz.h"
#include "kernels/pointwise/clamp.h"
#include "kernels/pointwise/random_values.h"
#include "kernels/pointwise/round_to_e5m2.h"
#include "kernels/pointwise/soft_cap.h"
#include "kernels/pointwise/sum_over_dim.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {
namespace {

std::vector<Case> sum_over_dim_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t terms : {0, 1, 9, 10}) {
      const std::int64_t rows = 50, width = 24, from = 8, kept = terms == 9 ? 16 : 13;
      Draw draw(++seed * 4);
      cases.push_back({dtype,
                       fmt::format("{} rows of {} terms, seed {}", rows, terms, draw.seed()),
                       {draw.normal(dtype, rows * terms * width)},
                       {{"out", PoisonedArray(dtype, rows * kept)}},
                       [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
                         sum_over_dim(pool, in[0].view({rows, terms, width}).slice(2, from, kept), 1,
                                      out[0].view({rows, kept}));
                       },
                       [=](const Arrays& in, Arrays& out) {
                         for (std::int64_t i = 0; i < rows * kept; ++i) {
                           float sum = 0;
                           for (std::int64_t t = 0; t < terms; ++t)
                             sum += in[0].at((i / kept * terms + t) * width + from + i % kept);
                           out[0].set(i, sum);
                         }
                       }});
    }
  }
  return cases;
}

std::vector<Case> soft_cap_cases(std::uint32_t seed) {
  constexpr float kCap = 2.5f;
  std::vector<Case> cases;
  for (const std::int64_t n : {0, 1, 9001}) {
    Draw draw(++seed * 4);
    cases.push_back({DType::f32,
                     fmt::format("{} elements, seed {}", n, draw.seed()),
                     {draw.normal(DType::f32, n, 3), draw.normal(DType::f32, n)},
                     {{"out", PoisonedArray(DType::f32, n), {1e-6, 1e-6}},
                      {"dx", PoisonedArray(DType::f32, n), {1e-5, 1e-6}}},
                     [](ThreadPool& pool, const Arrays& in, Arrays& out) {
                       soft_cap(pool, kCap, in[0].view(), out[0].view());
                       soft_cap_backward(pool, kCap, out[0].view(), in[1].view(), out[1].view());
                     },
                     [n](const Arrays& in, Arrays& out) {
                       for (std::int64_t i = 0; i < n; ++i) {
                         const double tanh = std::tanh(static_cast<double>(in[0].at(i)) / kCap);
                         out[0].set(i, static_cast<float>(kCap * tanh));
                         out[1].set(i,
                                    static_cast<float>(static_cast<double>(in[1].at(i)) * (1 - tanh * tanh)));
                       }
                     }});
  }
  return cases;
}

// The reference looks for the nearest of all numbers of e5m2.
float nearest_of_all_e5m2(double x) {
  if (std::isnan(x)) return NAN;
  double best = 0, distance = std::abs(x);
  bool best_is_even = true;
  for (int bits = 1; bits < 0x7c; ++bits) {  // of 5 and 2 bits, ascending
    const int exponent = bits >> 2, mantissa = bits & 3;
    const double number = exponent == 0 ? std::ldexp(mantissa, -16) : std::ldexp(4 + mantissa, exponent - 17);
    const double off = std::abs(std::abs(x) - number);
    const bool even = mantissa % 2 == 0;
    if (off > distance || (off == distance && best_is_even && !even)) continue;
    best = number, distance = off, best_is_even = even;
  }
  return static_cast<float>(std::copysign(best, x));
}

std::vector<Case> round_to_e5m2_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const float bound : {0.0f, 1.5f}) {
      for (const auto& [rows, width] : {std::pair<std::int64_t, std::int64_t>{0, 5}, {1, 1}, {17, 70}}) {
        PoisonedArray x = PoisonedArray::normal(dtype, rows * width, ++seed);
        for (std::int64_t i = 0; i < rows * width; ++i)  // many sizes, and a row of zeros
          x.set(i, i / width == 1 ? 0 : std::ldexp(x.at(i), static_cast<int>(-(i * 7 % 40))));
        cases.push_back(
            {dtype,
             fmt::format("{} rows of {}, bound {}, seed {}", rows, width, bound, seed),
             {x},
             {{"out", PoisonedArray(dtype, rows * width)}},
             [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
               round_to_e5m2(pool, {in[0].view({rows, width}), out[0].view({rows, width}), bound});
             },
             [=](const Arrays& in, Arrays& out) {
               for (std::int64_t r = 0; r < rows; ++r) {
                 float largest = bound;
                 for (std::int64_t i = 0; i < width && bound == 0; ++i)
                   largest = std::max(largest, std::abs(in[0].at(r * width + i)));
                 const float scale = largest / kLargestE5m2;
                 for (std::int64_t i = r * width; i < (r + 1) * width; ++i) {
                   const float value = in[0].at(i);
                   out[0].set(i, scale == 0
                                     ? value
                                     : scale * nearest_of_all_e5m2(static_cast<double>(value / scale)));
                 }
               }
             }});
      }
    }
  }
  return cases;
}

// A bound that bfloat16 holds, at which some elements are.
std::vector<Case> clamp_cases(std::uint32_t seed) {
  constexpr float kBound = 0.75f;
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t n : {0, 1, 33, 9001, 20480}) {
      Draw draw(++seed * 4);
      Arrays in{draw.normal(dtype, n), draw.normal(dtype, n)};
      for (std::int64_t i = 0; i < n; i += 5) in[0].set(i, i % 2 == 0 ? kBound : -kBound);
      cases.push_back({dtype,
                       fmt::format("{} elements, seed {}", n, draw.seed()),
                       std::move(in),
                       {{"out", PoisonedArray(dtype, n)}, {"dx", PoisonedArray(dtype, n)}},
                       [](ThreadPool& pool, const Arrays& given, Arrays& out) {
                         clamp(pool, kBound, given[0].view(), out[0].view());
                         clamp_backward(pool, kBound, given[0].view(), given[1].view(), out[1].view());
                       },
                       [n](const Arrays& given, Arrays& out) {
                         for (std::int64_t i = 0; i < n; ++i) {
                           const float x = given[0].at(i);
                           out[0].set(i, x > kBound ? kBound : x < -kBound ? -kBound : x);
                           out[1].set(i, std::abs(x) <= kBound ? given[1].at(i) : 0);
                         }
                       }});
    }
  }
  return cases;
}

std::vector<Case> polynomial_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const std::int64_t side : {1, 7, 130}) {
    const std::int64_t n = 2 * side * side;
    Draw draw(++seed * 4);
    cases.push_back(
        {DType::f32,
         fmt::format("two matrices of side {}, seed {}", side, draw.seed()),
         {draw.normal(DType::f32, n), draw.normal(DType::f32, n)},
         {{"gram", PoisonedArray(DType::f32, n), {1e-5, 1e-5}}},
         [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
           copy(in[1].view(), out[0].view());
           newton_schulz_polynomial(pool, in[0].view({2, side, side}), out[0].view({2, side, side}));
         },
         [=](const Arrays& in, Arrays& out) {
           for (std::int64_t i = 0; i < n; ++i) {
             const bool diagonal = i / side % side == i % side;
             const double value = (diagonal ? 3.4445 : 0) - 4.775 * static_cast<double>(in[1].at(i)) +
                                  2.0315 * static_cast<double>(in[0].at(i));
             out[0].set(i, static_cast<float>(value));
           }
         }});
  }
  return cases;
}

// Matrices of which one is zero.
std::vector<Case> normalize_cases(std::uint32_t seed) {
  constexpr double kEps = 1e-3;
  std::vector<Case> cases;
  for (const std::int64_t columns : {0, 1, 7, 700}) {
    constexpr std::int64_t kMatrices = 3, kRows = 9;
    const std::int64_t elements = kRows * columns;
    PoisonedArray x = PoisonedArray::normal(DType::f32, kMatrices * elements, ++seed);
    for (std::int64_t i = elements; i < 2 * elements; ++i) x.set(i, 0);
    cases.push_back({DType::f32,
                     fmt::format("{} matrices of {} x {}, seed {}", kMatrices, kRows, columns, seed),
                     {x},
                     {{"x", x, {1e-6, 0}}},
                     [=](ThreadPool& pool, const Arrays&, Arrays& out) {
                       normalize_matrices(pool, kEps, out[0].view({kMatrices, kRows, columns}));
                     },
                     [=](const Arrays& in, Arrays& out) {
                       for (std::int64_t first = 0; first < kMatrices * elements; first += elements) {
                         double sum = 0;
                         for (std::int64_t i = first; i < first + elements; ++i)
                           sum += in[0].value(i) * in[0].value(i);
                         for (std::int64_t i = first; i < first + elements; ++i)
                           out[0].set(i, static_cast<float>(in[0].value(i) / (std::sqrt(sum) + kEps)));
                         if (elements == 0) break;
                       }
                     }});
  }
  return cases;
}

// Blocks of arrays, the last of indices above 2^32. The reference asks for number after number.
std::vector<Case> random_values_cases(std::uint32_t seed) {
  struct Block {
    Shape whole, start, shape;
  };
  const Block blocks[] = {{{0, 3}, {0, 0}, {0, 3}},
                          {{1}, {0}, {1}},
                          {{7, 130}, {0, 0}, {7, 130}},
                          {{6, 50, 9}, {2, 5, 3}, {3, 44, 5}},
                          {{4, 3, 1 << 30}, {3, 1, (1 << 29) - 5}, {1, 2, 700}}};
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const Block& block : blocks) {
      for (const int kind : {0, 1, 2}) {  // a constant, normal, truncated
        const RngKey key = rng_key(++seed);
        RandomValuesArgs args{
            .to = {}, .whole = block.whole, .start = block.start, .key = key, .factor = 0.37f};
        if (kind == 1) args.range = normal_range();
        if (kind == 2) args.range = truncated_normal_range(-2, 2);
        cases.push_back({dtype,
                         fmt::format("{} at {} of {}, kind {}, seed {}", to_string(block.shape),
                                     to_string(block.start), to_string(block.whole), kind, seed),
                         {},
                         {{"to", PoisonedArray(dtype, num_elements(block.shape))}},
                         [=](ThreadPool& pool, const Arrays&, Arrays& out) {
                           RandomValuesArgs given = args;
                           given.to = out[0].view(block.shape);
                           random_values(pool, given);
                         },
                         [=](const Arrays&, Arrays& out) {
                           for_runs(block.whole, {block.start, block.shape},
                                    [&](std::int64_t from, std::int64_t to, std::int64_t count) {
                                      for (std::int64_t i = 0; i < count; ++i) {
                                        const auto index = static_cast<std::uint64_t>(from + i);
                                        const float x = kind == 0   ? 1.0f
                                                        : kind == 1 ? rng_normal(key, index)
                                                                    : rng_truncated_normal(key, index, -2, 2);
                                        out[0].set(to + i, x * args.factor);
                                      }
                                    });
                         }});
      }
    }
  }
  return cases;
}

}  // namespace

std::vector<KernelCases> loop_kernels() {
  return {{"sum_over_dim", "sum_over_dim", sum_over_dim_cases},
          {"soft_cap", "soft_cap", soft_cap_cases},
          {"round_to_e5m2", "round_to_e5m2", round_to_e5m2_cases},
          {"clamp", "clamp", clamp_cases},
          {"random_values", "random_values", random_values_cases},
          {"normalize_matrices", "normalize_matrices", normalize_cases},
          {"newton_schulz_polynomial", "newton_schulz_polynomial", polynomial_cases}};
}

}  // namespace switchyard::selftest
