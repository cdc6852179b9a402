// The judgement of a step: the reference's bits, for steps of every kind.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "kernels/optimizer/step_judge.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {
namespace {

PoisonedArray random_squares(std::int64_t count, std::uint32_t seed) {
  PoisonedArray squares(DType::f64, count);
  std::mt19937 random(seed);
  for (std::int64_t i = 0; i < count; ++i)
    static_cast<double*>(squares.data())[i] = std::uniform_real_distribution<double>(0, 2)(random);
  return squares;
}

PoisonedArray update_numbers() {
  PoisonedArray numbers(DType::f32, kUpdateNumbers);
  for (std::int64_t i = 0; i < kUpdateNumbers; ++i) numbers.set(i, 0.25f * static_cast<float>(i));
  return numbers;
}

// Matrices of squares and losses, as a step has them: the sums of their rows, beside plain loops.
std::vector<Case> row_sum_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const std::int64_t rows : {1, 7, 300}) {
    for (const std::int64_t length : {0, 1, 40}) {
      for (const bool two : {false, true}) {
        Draw draw(++seed * 2);
        constexpr std::int64_t kKinds = 6;
        cases.push_back(
            {DType::f64,
             fmt::format("{} rows of {}{}, seed {}", rows, length, two ? " and losses" : "", seed * 2),
             {random_squares(rows * length, draw.seed()), draw.normal(DType::f32, kKinds * 3, 3)},
             {{"sums", PoisonedArray(DType::f64, rows)},
              {"sums of losses", PoisonedArray(DType::f64, two ? kKinds : 0)}},
             [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
               const RowSums both[] = {{in[0].view({rows, length}), out[0].view()},
                                       {in[1].view({kKinds, 3}), out[1].view()}};
               sum_rows(pool, std::span(both, two ? 2 : 1));
             },
             [=](const Arrays& in, Arrays& out) {
               const auto add = [](const PoisonedArray& x, PoisonedArray& sums, std::int64_t n) {
                 for (std::int64_t r = 0; r < sums.size(); ++r) {
                   double sum = 0;
                   for (std::int64_t i = 0; i < n; ++i) sum += x.value(r * n + i);
                   static_cast<double*>(sums.data())[r] = sum;
                 }
               };
               add(in[0], out[0], length);
               add(in[1], out[1], 3);
             }});
      }
    }
  }
  return cases;
}

PoisonedArray doubles(const std::vector<double>& values) {
  PoisonedArray array(DType::f64, std::ssize(values));
  for (std::size_t i = 0; i < values.size(); ++i) static_cast<double*>(array.data())[i] = values[i];
  return array;
}

// Ranks that speak and others, whole losses and those of a pipeline, finite or not.
std::vector<Case> spoken_loss_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const std::size_t layers : {0, 1, 5}) {
    for (const bool from_parts : {false, true}) {
      for (const bool speaks : {false, true}) {
        for (const bool broken : {false, true}) {
          std::mt19937 random(++seed);
          std::vector<double> sums(kLosses + layers);
          for (double& sum : sums) sum = std::uniform_real_distribution<double>(0, 3)(random);
          if (broken) sums[kLoss] = sums[kLmLoss] = std::numeric_limits<double>::infinity();
          cases.push_back(
              {DType::f64,
               fmt::format("{} layers, {}, {}, {}, seed {}", layers, from_parts ? "from parts" : "whole",
                           speaks ? "speaks" : "is silent", broken ? "infinite" : "finite", seed),
               {},
               {{"sums", doubles(sums)}, {"spoken", PoisonedArray(DType::f64, 1)}},
               [=](ThreadPool& pool, const Arrays&, Arrays& out) {
                 spoken_loss(pool, {.sums = out[0].view(),
                                    .from_parts = from_parts,
                                    .balance_factor = 0.75,
                                    .layers_averaged = 3,
                                    .speaks = speaks,
                                    .spoken = out[1].view()});
               },
               [=](const Arrays&, Arrays& out) {
                 double* const x = static_cast<double*>(out[0].data());
                 if (from_parts) {
                   double balance = 0;
                   for (std::size_t l = 0; l < layers; ++l) balance += x[kLosses + l];
                   if (layers > 0) x[kBalanceLoss] = balance * 0.75 / 3;
                   x[kLoss] = x[kLmLoss] + x[kPredictionLoss] + x[kBalanceLoss] + x[kIndexerLoss];
                 }
                 *static_cast<double*>(out[1].data()) = speaks || broken ? x[kLoss] : 0;
               }});
        }
      }
    }
  }
  return cases;
}

std::vector<Case> judge_step_cases(std::uint32_t seed) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<Case> cases;
  for (const std::int64_t sums : {0, 1, 7, 300}) {
    for (const double clip : {0.0, 0.5, 1e6}) {
      for (const auto& [loss, square] : {std::pair(2.5, -1.0),
                                         {std::numeric_limits<double>::quiet_NaN(), -1.0},
                                         {kInfinity, -1.0},
                                         {2.5, kInfinity}}) {
        PoisonedArray squares = random_squares(sums, ++seed);
        const bool spoiled = square >= 0 && sums > 0;
        if (spoiled) static_cast<double*>(squares.data())[sums - 1] = square;
        cases.push_back({DType::f64,
                         fmt::format("{} sums, clipped to {}, loss {}, {}, seed {}", sums, clip, loss,
                                     spoiled ? "an infinite gradient" : "a finite gradient", seed),
                         {std::move(squares), doubles({loss})},
                         {{"numbers", update_numbers()}, {"is_good", PoisonedArray(DType::f32, 1)}},
                         [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
                           judge_step(pool, {.squares = in[0].view(),
                                             .loss = in[1].view(),
                                             .clip = clip,
                                             .numbers = out[0].view(),
                                             .is_good = out[1].view()});
                         },
                         [=](const Arrays& in, Arrays& out) {
                           double sum = 0;
                           for (std::int64_t i = 0; i < sums; ++i) sum += in[0].value(i);
                           const double norm = std::sqrt(sum);
                           const float scale = clip > 0 && norm >= clip ? static_cast<float>(clip / norm) : 1;
                           const float good = std::isfinite(loss) && std::isfinite(norm) ? 1 : 0;
                           out[0].set(0, scale);
                           out[0].set(12, good);
                           out[1].set(0, good);
                         }});
      }
    }
  }
  return cases;
}

}  // namespace

std::vector<KernelCases> step_judge_kernels() {
  return {{"sum_rows", "sum_rows", row_sum_cases},
          {"spoken_loss", "spoken_loss", spoken_loss_cases},
          {"judge_step", "judge_step", judge_step_cases}};
}

}  // namespace switchyard::selftest
