// Cases of rope and its tables. Values are around 1 and the references compute in double. In f32 the error
// is the rounding of sums; in bf16, that of the result on both sides, at most 2^-8 of the result each.
#include <fmt/format.h>

#include <cmath>

#include "kernels/attention/rope.h"
#include "kernels/attention/rope_tables.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {
namespace {

// A slice of heads that are wider, behind elements of something else; the rest of y must stay. `aligned`: all
// of those are eights.
Case rope_case(std::int64_t tokens, std::int64_t heads, std::int64_t dim, DType dtype, bool interleaved,
               bool inverse, bool aligned, std::uint32_t seed) {
  const std::int64_t before = aligned ? 8 : 2, head_stride = dim + (aligned ? 8 : 3),
                     token_stride = heads * head_stride + (aligned ? 8 : 1);
  PoisonedArray cos(DType::f32, tokens * dim / 2), sin = cos;
  for (std::int64_t i = 0; i < cos.size(); ++i) {
    cos.set(i, std::cos(0.7f * static_cast<float>(i)));
    sin.set(i, std::sin(0.7f * static_cast<float>(i)));
  }
  const std::int64_t elements = tokens * token_stride + before;
  return {
      dtype,
      fmt::format("{} tokens, {} heads of {}{}{}{}, seed {}", tokens, heads, dim,
                  interleaved ? ", interleaved" : "", inverse ? ", inverse" : "", aligned ? ", aligned" : "",
                  seed),
      {PoisonedArray::normal(dtype, elements, seed), std::move(cos), std::move(sin)},
      {{"y", PoisonedArray::normal(dtype, elements, seed + 1), {dtype == DType::bf16 ? 0x1p-7 : 0.0, 1e-6}}},
      [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
        const auto heads_of = [&](const PoisonedArray& a) {
          return a.view().block(before, {tokens, heads, dim}, {token_stride, head_stride, 1});
        };
        const Shape table{tokens, dim / 2};
        rope(pool,
             {heads_of(in[0]), heads_of(out[0]), in[1].view(table), in[2].view(table), interleaved, inverse});
      }};
}

std::vector<Case> rope_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const bool interleaved : {false, true}) {
      for (const bool inverse : {false, true}) {
        for (const std::int64_t dim : {0, 2, 10, 40, 64}) {
          for (const std::int64_t tokens : {0, 1, 5, 300})
            for (const bool aligned : {false, true})
              cases.push_back(rope_case(tokens, 3, dim, dtype, interleaved, inverse, aligned, seed += 2));
        }
      }
    }
  }
  return cases;
}

constexpr double kFrequencies[] = {1.0, 0.3, 0.01, 1e-4, 2.5};
constexpr double kAmplitude = 1.25;

// The reference writes cos and sin of each token and pair as std::cos and std::sin of doubles give them.
std::vector<Case> rope_tables_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const std::int64_t tokens : {0, 1, 31, 300}) {
    const PositionGrowth growth{tokens == 31 ? 0.1 : 0.0, 8192, tokens == 31 ? 0.0 : 1.0};
    PoisonedArray positions(DType::i32, tokens);
    auto* const at = static_cast<std::int32_t*>(positions.data());
    for (std::int64_t t = 0; t < tokens; ++t) at[t] = static_cast<std::int32_t>((t * 7919 + seed) % 200'000);
    const auto pairs = static_cast<std::int64_t>(std::size(kFrequencies));
    const PoisonedArray table(DType::f32, tokens * pairs);
    cases.push_back({DType::f32,
                     fmt::format("{} tokens, seed {}", tokens, seed),
                     {std::move(positions)},
                     {{"cos", table}, {"sin", table}},
                     [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
                       const Shape shape{tokens, pairs};
                       rope_tables(pool, {in[0].view(), kFrequencies, kAmplitude, out[0].view(shape),
                                          out[1].view(shape), growth});
                     },
                     [=](const Arrays& in, Arrays& out) {
                       for (std::int64_t i = 0; i < tokens * pairs; ++i) {
                         const std::int32_t position =
                             static_cast<const std::int32_t*>(in[0].data())[i / pairs];
                         const double angle = position * kFrequencies[static_cast<std::size_t>(i % pairs)];
                         const double amplitude = kAmplitude * growth.at(position);
                         out[0].set(i, static_cast<float>(std::cos(angle) * amplitude));
                         out[1].set(i, static_cast<float>(std::sin(angle) * amplitude));
                       }
                     }});
  }
  return cases;
}

}  // namespace

std::vector<KernelCases> rope_kernels() {
  return {{"rope", "rope", rope_cases}, {"rope_tables", "rope_tables", rope_tables_cases}};
}

}  // namespace switchyard::selftest
