// rms_norm. Values are around 1 and the references compute in double: in f32 what is left is the rounding
// of sums, in bf16 that of the result on both sides, at most 2^-8 of it each.
#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "kernels/pointwise/rms_norm.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {
namespace {

constexpr double kRoundedTwice = 0x1p-7;

struct NormShape {
  std::int64_t rows, dim;
  DType dtype, scale_dtype;
  bool split;    // other ranks have three times as much of each row
  float offset;  // of the scale
  std::int64_t size() const { return rows * dim; }
  // What adds the other ranks' sums to this one's.
  std::optional<SplitRows> split_rows(const PoisonedArray& others) const {
    if (!split) return std::nullopt;
    return SplitRows{4 * dim, [this, &others](const TensorView& sums) {
                       std::vector<float> all(static_cast<std::size_t>(rows));
                       const TensorView of_host = TensorView::of_host(all.data(), {rows});
                       copy(sums, of_host);
                       for (std::int64_t r = 0; r < rows; ++r)
                         all[static_cast<std::size_t>(r)] += others.at(r);
                       copy(of_host, sums);
                     }};
  }
  double relative() const { return dtype == DType::bf16 ? kRoundedTwice : 2e-6; }
};

// make(shape, draw) gives a case without its name.
template <typename MakeCase>
std::vector<Case> norm_cases(std::uint32_t seed, const MakeCase& make) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const DType scale_dtype : kFloatTypes) {
      for (const std::int64_t rows : {0, 1, 5, 700}) {
        for (const std::int64_t dim : {1, 7, 64, 83, 2048, 2051}) {
          if (rows * dim > 100'000) continue;
          for (const bool split : {false, true}) {
            Draw draw(++seed * 4);
            const float offset = rows % 2 == 1 ? 1.0f : 0.0f;
            const std::string what =
                fmt::format("{} {} of {}, scale {} + {}, seed {}", rows, split ? "parts of rows" : "rows",
                            dim, name_of(scale_dtype), offset, draw.seed());
            cases.push_back(make(NormShape{rows, dim, dtype, scale_dtype, split, offset}, draw));
            cases.back().what = what;
          }
        }
      }
    }
  }
  return cases;
}

constexpr float kEpsilon = 1e-5f;

PoisonedArray squares_elsewhere(const NormShape& s) {
  PoisonedArray squares(DType::f32, s.rows);
  for (std::int64_t r = 0; r < s.rows; ++r)
    squares.set(r, static_cast<float>(s.dim) * (2.5f + 0.125f * static_cast<float>(r % 8)));
  return squares;
}

std::vector<Case> rms_norm_cases(std::uint32_t seed) {
  return norm_cases(seed, [](const NormShape& s, Draw& draw) {
    return Case{s.dtype,
                "",
                {draw.normal(s.dtype, s.size()), draw.normal(s.scale_dtype, s.dim), squares_elsewhere(s)},
                {{"y", PoisonedArray(s.dtype, s.size()), {s.relative(), 1e-6}},
                 {"rstd", PoisonedArray(DType::f32, s.rows), {1e-6, 0}}},
                [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  const auto split = s.split_rows(in[2]);
                  const Shape shape{s.rows, s.dim};
                  rms_norm(pool, {in[0].view(shape), in[1].view(), kEpsilon, out[0].view(shape),
                                  out[1].view(), split ? &*split : nullptr, s.offset});
                }};
  });
}

std::vector<Case> rms_norm_backward_cases(std::uint32_t seed) {
  return norm_cases(seed, [](const NormShape& s, Draw& draw) {
    Arrays inputs{draw.normal(s.dtype, s.size()), draw.normal(s.scale_dtype, s.dim),
                  draw.normal(s.dtype, s.size()), PoisonedArray(DType::f32, s.rows), squares_elsewhere(s)};
    for (std::int64_t r = 0; r < s.rows; ++r) {
      float squares = 0;
      for (std::int64_t i = 0; i < s.dim; ++i) {
        const float x = inputs[0].at(r * s.dim + i);
        squares += x * x;
      }
      inputs[3].set(r, 1 / std::sqrt(squares / static_cast<float>(s.dim) + kEpsilon));
    }
    return Case{s.dtype,
                "",
                std::move(inputs),
                {{"dx", PoisonedArray(s.dtype, s.size()), {s.relative(), 1e-4}},
                 {"dscale", PoisonedArray(DType::f32, s.dim), {1e-5, 1e-4}}},
                [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  const auto split = s.split_rows(in[4]);
                  const Shape shape{s.rows, s.dim};
                  rms_norm_backward(pool,
                                    {in[0].view(shape), in[1].view(), in[3].view(), in[2].view(shape),
                                     out[0].view(shape), out[1].view(), split ? &*split : nullptr, s.offset});
                }};
  });
}

}  // namespace

std::vector<KernelCases> row_kernels() {
  return {{"rms_norm", "rms_norm", rms_norm_cases},
          {"rms_norm_backward", "rms_norm_backward", rms_norm_backward_cases}};
}

}  // namespace switchyard::selftest
