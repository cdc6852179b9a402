// Sums and coefficients of a loss from the log-sum-exp of its tokens, against loops in double.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

#include "kernels/loss/token_loss.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {
namespace {

constexpr std::int64_t kTokenCounts[] = {0, 1, 7, 513, 3000};

double wide(const PoisonedArray& x, std::int64_t i) {
  return static_cast<double>(x.at(i));
}

std::vector<std::int32_t> padded_segments(std::int64_t rows) {
  std::vector<std::int32_t> segments;
  for (std::int64_t r = 0; r < rows; ++r) segments.push_back(static_cast<std::int32_t>(r * 5 % 3));
  return segments;
}

std::vector<Case> combine_log_sums_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const std::int64_t rows : kTokenCounts) {
    for (const std::int64_t parts : {1, 3, 8}) {
      Draw draw(++seed * 2);
      const std::string what = fmt::format("{} parts of {} rows, seed {}", parts, rows, draw.seed());
      PoisonedArray in_parts = draw.normal(DType::f32, parts * rows, 10);
      if (rows > 1 && parts > 1) in_parts.set(1, -std::numeric_limits<float>::infinity());  // no columns
      cases.push_back({DType::f32,
                       what,
                       {std::move(in_parts)},
                       {{"lse", PoisonedArray(DType::f32, rows), {2e-7, 1e-7}}},
                       [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
                         combine_log_sums(pool, in[0].view({parts, rows}), out[0].view());
                       },
                       [=](const Arrays& in, Arrays& out) {
                         for (std::int64_t r = 0; r < rows; ++r) {
                           double sum = 0;
                           for (std::int64_t p = 0; p < parts; ++p)
                             sum += std::exp(wide(in[0], p * rows + r));
                           out[0].set(r, static_cast<float>(std::log(sum)));
                         }
                       }});
    }
  }
  return cases;
}

constexpr double kLossCount = 11, kZLossMultiplier = 0.01;

// The count: every other case has it in memory, and a wrong number as the argument.
PoisonedArray count_in_memory() {
  PoisonedArray count(DType::f64, 1);
  *static_cast<double*>(count.data()) = kLossCount;
  return count;
}
bool is_in_memory(std::int64_t rows) {
  return rows % 2 == 1;
}

// Every third case has weights.
bool is_weighted(std::int64_t rows) {
  return rows % 3 == 0;
}
double weight(const PoisonedArray& weights, std::int64_t rows, std::int64_t row) {
  return is_weighted(rows) ? wide(weights, row) : 1;
}

std::vector<Case> loss_coefficients_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const std::int64_t rows : kTokenCounts) {
    Draw draw(++seed * 2);
    const PoisonedArray row(DType::f32, rows);
    const bool given = rows != 7;  // the gradient of the loss, which is 1 otherwise
    cases.push_back({DType::f32,
                     fmt::format("{} rows, seed {}", rows, draw.seed()),
                     {draw.normal(DType::f32, rows, 5), draw.normal(DType::f32, 1),
                      i32_array(padded_segments(rows)), count_in_memory(), draw.normal(DType::f32, rows)},
                     {{"softmax_coefficient", row}, {"target_coefficient", row}},
                     [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
                       loss_coefficients(pool,
                                         {.lse = in[0].view(),
                                          .segments = in[2].view(),
                                          .weights = is_weighted(rows) ? in[4].view() : TensorView(),
                                          .gradient = given ? in[1].view({}) : TensorView(),
                                          .softmax_coefficient = out[0].view(),
                                          .target_coefficient = out[1].view(),
                                          .count = is_in_memory(rows) ? 1 : kLossCount,
                                          .count_there = is_in_memory(rows) ? in[3].view({}) : TensorView(),
                                          .z_loss_multiplier = kZLossMultiplier});
                     },
                     [=](const Arrays& in, Arrays& out) {
                       for (std::int64_t r = 0; r < rows; ++r) {
                         const double g = (given ? wide(in[1], 0) : 1.0) / kLossCount;
                         const double w = r * 5 % 3 == 0 ? 0 : weight(in[4], rows, r) * g;
                         out[0].set(r, static_cast<float>(w * (1 + 2 * kZLossMultiplier * wide(in[0], r))));
                         out[1].set(r, static_cast<float>(w));
                       }
                     }});
  }
  return cases;
}

std::vector<Case> sum_token_loss_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const std::int64_t rows : kTokenCounts) {
    Draw draw(++seed * 2);
    const PoisonedArray scalar(DType::f32, 1);
    cases.push_back({DType::f32,
                     fmt::format("{} rows, seed {}", rows, draw.seed()),
                     {draw.normal(DType::f32, rows), draw.normal(DType::f32, rows),
                      i32_array(padded_segments(rows)), count_in_memory(), draw.normal(DType::f32, rows)},
                     {{"loss", scalar}, {"z_loss", scalar}},
                     [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
                       sum_token_loss(pool,
                                      {.lse = in[0].view(),
                                       .target_logit = in[1].view(),
                                       .segments = in[2].view(),
                                       .weights = is_weighted(rows) ? in[4].view() : TensorView(),
                                       .loss = out[0].view({}),
                                       .z_loss = out[1].view({}),
                                       .count = is_in_memory(rows) ? 1 : kLossCount,
                                       .count_there = is_in_memory(rows) ? in[3].view({}) : TensorView(),
                                       .z_loss_multiplier = kZLossMultiplier});
                     },
                     [=](const Arrays& in, Arrays& out) {
                       double entropy = 0, z = 0;
                       for (std::int64_t r = 0; r < rows; ++r) {
                         if (r * 5 % 3 == 0) continue;
                         const double w = weight(in[4], rows, r);
                         entropy += w * (wide(in[0], r) - wide(in[1], r));
                         z += w * kZLossMultiplier * wide(in[0], r) * wide(in[0], r);
                       }
                       out[0].set(0, static_cast<float>((entropy + z) / kLossCount));
                       out[1].set(0, static_cast<float>(z / kLossCount));
                     }});
  }
  return cases;
}

std::vector<Case> scale_in_place_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const auto& [factor, count] :
         {std::pair<float, std::int64_t>{1.0f, 70'001}, {0.0f, 9}, {0.3f, 70'001}, {0.3f, 70'000}}) {
      Draw draw(++seed * 2);
      const PoisonedArray x = draw.normal(dtype, count);
      PoisonedArray by(DType::f32, 1);
      by.set(0, factor);
      cases.push_back({dtype,
                       fmt::format("{} elements by {}, seed {}", count, factor, seed * 2),
                       {x, std::move(by)},
                       {{"x", x}},
                       [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
                         scale_in_place(pool, out[0].view(), in[1].view({}));
                       },
                       [factor = factor, count = count](const Arrays& in, Arrays& out) {
                         for (std::int64_t i = 0; i < count; ++i) out[0].set(i, in[0].at(i) * factor);
                       }});
    }
  }
  return cases;
}

}  // namespace

std::vector<KernelCases> token_loss_kernels() {
  return {{"combine_log_sums", "combine_log_sums", combine_log_sums_cases},
          {"loss_coefficients", "loss_coefficients", loss_coefficients_cases},
          {"sum_token_loss", "sum_token_loss", sum_token_loss_cases},
          {"scale_in_place", "scale_in_place", scale_in_place_cases}};
}

}  // namespace switchyard::selftest
