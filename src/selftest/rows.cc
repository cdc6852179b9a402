// rms_norm, rope, softmax and sigmoid. Values are around 1 and the scalar twins compute in double: in f32
// what is left is the rounding of sums, in bf16 that of the result on both sides, at most 2^-8 of it each.
#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "kernels/ref/softmax_reference.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/softmax.h"
#include "selftest/kernel.h"

namespace switchyard::selftest {
namespace {

constexpr double kRoundedTwice = 0x1p-7;

struct NormShape {
  std::int64_t rows, dim;
  DType dtype, scale_dtype;
  bool split;  // other ranks have three times as much of each row
  std::int64_t size() const { return rows * dim; }
  // What adds the other ranks' sums to this one's.
  std::optional<SplitRows> split_rows(const PoisonedArray& others) const {
    if (!split) return std::nullopt;
    return SplitRows{4 * dim, [this, &others](float* sums) {
                       for (std::int64_t r = 0; r < rows; ++r) sums[r] += others.at(r);
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
        for (const std::int64_t dim : {1, 7, 64, 83}) {
          for (const bool split : {false, true}) {
            Draw draw(++seed * 4);
            const std::string what =
                fmt::format("{} {} of {}, scale {}, seed {}", rows, split ? "parts of rows" : "rows", dim,
                            name_of(scale_dtype), draw.seed());
            cases.push_back(make(NormShape{rows, dim, dtype, scale_dtype, split}, draw));
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
                  rms_norm(pool, s.dtype, in[0].data(), in[1].data(), s.scale_dtype, s.rows, s.dim, kEpsilon,
                           out[0].data(), out[1].floats(), split ? &*split : nullptr);
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
                  rms_norm_backward(pool, s.dtype, in[0].data(), in[1].data(), s.scale_dtype, in[3].floats(),
                                    in[2].data(), s.rows, s.dim, out[0].data(), out[1].floats(),
                                    split ? &*split : nullptr);
                }};
  });
}

// A slice of heads three elements wider, behind two elements of something else; the rest of y must stay.
Case rope_case(std::int64_t tokens, std::int64_t heads, std::int64_t dim, DType dtype, bool interleaved,
               bool inverse, std::uint32_t seed) {
  constexpr std::int64_t kBefore = 2;
  const std::int64_t head_stride = dim + 3, token_stride = heads * head_stride + 1;
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  PoisonedArray cos(DType::f32, tokens * dim / 2), sin = cos;
  for (std::int64_t i = 0; i < cos.size(); ++i) {
    cos.set(i, std::cos(0.7f * static_cast<float>(i)));
    sin.set(i, std::sin(0.7f * static_cast<float>(i)));
  }
  const std::int64_t elements = tokens * token_stride + kBefore;
  return {dtype,
          fmt::format("{} tokens, {} heads of {}{}{}, seed {}", tokens, heads, dim,
                      interleaved ? ", interleaved" : "", inverse ? ", inverse" : "", seed),
          {PoisonedArray::normal(dtype, elements, seed), std::move(cos), std::move(sin)},
          {{"y",
            PoisonedArray::normal(dtype, elements, seed + 1),
            {dtype == DType::bf16 ? kRoundedTwice : 0.0, 1e-6}}},
          [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
            rope(pool, dtype, static_cast<const std::byte*>(in[0].data()) + kBefore * size,
                 static_cast<std::byte*>(out[0].data()) + kBefore * size, tokens, heads, dim, token_stride,
                 head_stride, in[1].floats(), in[2].floats(), interleaved, inverse);
          }};
}

std::vector<Case> rope_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const bool interleaved : {false, true}) {
      for (const bool inverse : {false, true}) {
        for (const std::int64_t dim : {0, 2, 10, 40, 64}) {
          for (const std::int64_t tokens : {0, 1, 5, 300})
            cases.push_back(rope_case(tokens, 3, dim, dtype, interleaved, inverse, seed += 2));
        }
      }
    }
  }
  return cases;
}

// A score function of the router, its gradient, and the scalar twins of both.
struct Score {
  void (*run)(ThreadPool&, const float*, std::int64_t, std::int64_t, float*);
  void (*backward)(ThreadPool&, const float*, const float*, std::int64_t, std::int64_t, float*);
  void (*twin)(const float*, std::int64_t, std::int64_t, float*);
  void (*backward_twin)(const float*, const float*, std::int64_t, std::int64_t, float*);
};
constexpr Score kSoftmax{softmax_rows, softmax_rows_backward, reference::softmax_rows<float>,
                         reference::softmax_rows_backward<float>};
constexpr Score kSigmoid{sigmoid, sigmoid_backward, reference::sigmoid<float>,
                         reference::sigmoid_backward<float>};

template <const Score& score>
std::vector<Case> score_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const std::int64_t rows : {0, 1, 13, 300}) {
    for (const std::int64_t cols : {0, 1, 7, 256}) {
      Draw draw(++seed * 4);
      const std::string what = fmt::format("{} rows of {}, seed {}", rows, cols, draw.seed());
      cases.push_back(
          {DType::f32,
           what,
           {draw.normal(DType::f32, rows * cols, 4)},
           // Rounding x - maximum alone costs |x - maximum| 2^-24.
           {{"y", PoisonedArray(DType::f32, rows * cols), {3e-6, 0}}},
           [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
             score.run(pool, in[0].floats(), rows, cols, out[0].floats());
           },
           [=](const Arrays& in, Arrays& out) { score.twin(in[0].floats(), rows, cols, out[0].floats()); }});
    }
  }
  return cases;
}

template <const Score& score>
std::vector<Case> score_backward_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const std::int64_t rows : {0, 1, 13, 300}) {
    for (const std::int64_t cols : {0, 1, 7, 256}) {
      Draw draw(++seed * 4);
      const std::string what = fmt::format("{} rows of {}, seed {}", rows, cols, draw.seed());
      PoisonedArray y(DType::f32, rows * cols);  // the twin's: a wrong forward hides no wrong backward pass
      score.twin(draw.normal(DType::f32, rows * cols, 4).floats(), rows, cols, y.floats());
      cases.push_back({DType::f32,
                       what,
                       {std::move(y), draw.normal(DType::f32, rows * cols)},
                       {{"dx", PoisonedArray(DType::f32, rows * cols), {0, 2e-6}}},
                       [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
                         score.backward(pool, in[0].floats(), in[1].floats(), rows, cols, out[0].floats());
                       },
                       [=](const Arrays& in, Arrays& out) {
                         score.backward_twin(in[0].floats(), in[1].floats(), rows, cols, out[0].floats());
                       }});
    }
  }
  return cases;
}

}  // namespace

std::vector<Kernel> row_kernels() {
  return {{"rms_norm", "rms_norm", rms_norm_cases},
          {"rms_norm_backward", "rms_norm_backward", rms_norm_backward_cases},
          {"rope", "rope", rope_cases},
          {"softmax_rows", nullptr, score_cases<kSoftmax>},
          {"softmax_rows_backward", nullptr, score_backward_cases<kSoftmax>},
          {"sigmoid", nullptr, score_cases<kSigmoid>},
          {"sigmoid_backward", nullptr, score_backward_cases<kSigmoid>}};
}

}  // namespace switchyard::selftest
