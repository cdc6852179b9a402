// Attention's sinks and the scores of its heads, against loops in double.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/attention_sinks.h"
#include "kernels/attention/head_scores.h"
#include "kernels/attention/merge_attention.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {
namespace {

struct SinkShape {
  std::int64_t batch, length, heads, width;

  Shape out() const { return {batch, length, heads, width}; }
  Shape lse() const { return {batch, heads, length}; }
  std::int64_t vectors() const { return batch * length * heads; }
  // The place of the lse of vector i of [B,S,N].
  std::int64_t lse_at(std::int64_t i) const {
    return (i / heads / length * heads + i % heads) * length + i / heads % length;
  }
};

constexpr SinkShape kSinkShapes[] = {
    {0, 5, 2, 8}, {1, 1, 1, 1}, {2, 7, 3, 17}, {1, 130, 5, 64}, {3, 65, 2, 33}};

double wide_at(const PoisonedArray& x, std::int64_t i) {
  return static_cast<double>(x.at(i));
}

std::vector<Case> apply_sinks_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const SinkShape& s : kSinkShapes) {
      Draw draw(++seed * 4);
      PoisonedArray out = draw.normal(dtype, s.vectors() * s.width),
                    lse = draw.normal(DType::f32, s.vectors(), 5);
      if (lse.size() > 3) lse.set(2, -std::numeric_limits<float>::infinity());  // a query without keys
      cases.push_back(
          {dtype,
           fmt::format("out {}, seed {}", to_string(s.out()), seed * 4),
           {draw.normal(DType::f32, s.heads, 3), out, lse},
           {{"out", out, {dtype == DType::bf16 ? 0x1p-7 : 3e-6, 1e-6}}, {"lse", lse, {1e-6, 1e-6}}},
           [s](ThreadPool& pool, const Arrays& in, Arrays& results) {
             apply_sinks(pool, {in[0].view(), results[0].view(s.out()), results[1].view(s.lse())});
           },
           [s](const Arrays& in, Arrays& results) {
             for (std::int64_t i = 0; i < s.vectors(); ++i) {
               const std::int64_t row = s.lse_at(i);
               const double sink = std::exp(wide_at(in[0], i % s.heads)),
                            before = std::exp(wide_at(in[2], row));
               results[1].set(row, static_cast<float>(std::log(sink + before)));
               for (std::int64_t d = i * s.width; d < (i + 1) * s.width && before > 0; ++d)
                 results[0].set(d, static_cast<float>(wide_at(in[1], d) * before / (sink + before)));
             }
           }});
    }
  }
  return cases;
}

std::vector<Case> merge_attention_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const SinkShape& s : kSinkShapes) {
      Draw draw(++seed * 4);
      PoisonedArray out = draw.normal(dtype, s.vectors() * s.width), other = draw.normal(dtype, out.size()),
                    lse = draw.normal(DType::f32, s.vectors(), 5),
                    other_lse = draw.normal(DType::f32, lse.size(), 5);
      // Queries without keys in one part, in the other, and in both.
      for (std::int64_t i = 0; i < lse.size(); ++i) {
        if (i % 7 == 1 || i % 7 == 3) lse.set(i, -std::numeric_limits<float>::infinity());
        if (i % 7 == 2 || i % 7 == 3) other_lse.set(i, -std::numeric_limits<float>::infinity());
      }
      cases.push_back(
          {dtype,
           fmt::format("out {}, seed {}", to_string(s.out()), seed * 4),
           {out, lse, other, other_lse},
           {{"out", out, {dtype == DType::bf16 ? 0x1p-7 : 3e-6, 1e-6}}, {"lse", lse, {1e-6, 1e-6}}},
           [s](ThreadPool& pool, const Arrays& in, Arrays& results) {
             merge_attention(pool, {results[0].view(s.out()), in[2].view(s.out()), results[1].view(s.lse()),
                                    in[3].view(s.lse())});
           },
           [s](const Arrays& in, Arrays& results) {
             for (std::int64_t i = 0; i < s.vectors(); ++i) {
               const std::int64_t row = s.lse_at(i);
               const double first = std::exp(wide_at(in[1], row)), second = std::exp(wide_at(in[3], row)),
                            sum = first + second;
               if (sum == 0) continue;
               results[1].set(row, static_cast<float>(std::log(sum)));
               for (std::int64_t d = i * s.width; d < (i + 1) * s.width; ++d)
                 results[0].set(
                     d, static_cast<float>((wide_at(in[0], d) * first + wide_at(in[2], d) * second) / sum));
             }
           }});
    }
  }
  return cases;
}

std::vector<Case> sink_gradients_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const SinkShape& s : kSinkShapes) {
      Draw draw(++seed * 4);
      const std::int64_t count = s.vectors() * s.width;
      PoisonedArray lse = draw.normal(DType::f32, s.vectors());
      for (std::int64_t i = 0; i < lse.size(); ++i) lse.set(i, 2 + std::abs(lse.at(i)));  // above the sinks
      cases.push_back(
          {dtype,
           fmt::format("out {}, seed {}", to_string(s.out()), seed * 4),
           {draw.normal(DType::f32, s.heads), draw.normal(dtype, count), draw.normal(dtype, count), lse},
           {{"dsinks", PoisonedArray(DType::f32, s.heads), {1e-5, 1e-4}}},
           [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
             sink_gradients(pool, {.sinks = in[0].view(),
                                   .out = in[1].view(s.out()),
                                   .dout = in[2].view(s.out()),
                                   .lse = in[3].view(s.lse()),
                                   .dsinks = out[0].view()});
           },
           [s](const Arrays& in, Arrays& out) {
             std::vector<double> sums(static_cast<std::size_t>(s.heads));
             for (std::int64_t i = 0; i < s.vectors(); ++i) {
               double dot = 0;
               for (std::int64_t d = i * s.width; d < (i + 1) * s.width; ++d)
                 dot += wide_at(in[1], d) * wide_at(in[2], d);
               sums[static_cast<std::size_t>(i % s.heads)] -=
                   std::exp(wide_at(in[0], i % s.heads) - wide_at(in[3], s.lse_at(i))) * dot;
             }
             for (std::int64_t n = 0; n < s.heads; ++n)
               out[0].set(n, static_cast<float>(sums[static_cast<std::size_t>(n)]));
           }});
    }
  }
  return cases;
}

std::vector<Case> largest_scores_cases(std::uint32_t seed) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  std::vector<Case> cases;
  for (const Shape& shape : {Shape{0, 4, 17}, Shape{1, 1, 1}, Shape{3, 4, 17}, Shape{2, 3, 700}}) {
    const std::int64_t heads = shape[1], length = shape[2], count = num_elements(shape);
    PoisonedArray top = PoisonedArray::normal(DType::f32, count, ++seed);
    for (std::int64_t i = 0; i < count; i += 5) top.set(i, kNone);  // queries without keys
    cases.push_back({DType::f32,
                     fmt::format("top {}, seed {}", to_string(shape), seed),
                     {top},
                     {{"largest", PoisonedArray(DType::f32, heads)}},
                     [shape](ThreadPool& pool, const Arrays& in, Arrays& out) {
                       largest_scores(pool, in[0].view(shape), out[0].view());
                     },
                     [=](const Arrays& in, Arrays& out) {
                       for (std::int64_t n = 0; n < heads; ++n) out[0].set(n, kNone);
                       for (std::int64_t i = 0; i < count; ++i) {
                         const std::int64_t head = i / length % heads;
                         out[0].set(head, std::max(out[0].at(head), in[0].at(i)));
                       }
                     }});
  }
  return cases;
}

// From any column on; 40000 elements are several pieces.
std::vector<Case> scale_columns_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t count : {0, 1, 40000}) {
      for (const std::int64_t first : {0, 4, 13}) {
        Draw draw(++seed * 4);
        const PoisonedArray x = draw.normal(dtype, count);
        cases.push_back({dtype,
                         fmt::format("{} elements from {} on, seed {}", count, first, seed * 4),
                         {draw.normal(DType::f32, 6), x},
                         {{"x", x}},
                         [first](ThreadPool& pool, const Arrays& in, Arrays& out) {
                           scale_columns(pool, {.x = out[0].view(), .first = first, .factors = in[0].view()});
                         },
                         [=](const Arrays& in, Arrays& out) {
                           for (std::int64_t i = 0; i < count; ++i)
                             out[0].set(i, in[1].at(i) * in[0].at((first + i) % 6));
                         }});
      }
    }
  }
  return cases;
}

}  // namespace

std::vector<KernelCases> attention_sink_kernels() {
  return {{"apply_sinks", "apply_sinks", apply_sinks_cases},
          {"merge_attention", "merge_attention", merge_attention_cases},
          {"sink_gradients", "sink_gradients", sink_gradients_cases},
          {"largest_scores", "largest_scores", largest_scores_cases},
          {"scale_columns", "scale_columns", scale_columns_cases}};
}

}  // namespace switchyard::selftest
