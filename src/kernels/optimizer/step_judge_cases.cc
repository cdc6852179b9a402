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

// Sets what `step` is about: a loss of its own column, one of another, or a square.
struct Spoiled {
  const char* what;
  std::int64_t loss_of_column = -1;  // the pass whose loss is NaN
  std::int64_t loss_of_others = -1;
  std::int64_t square = -1;  // which is infinite
};

std::vector<Case> judge_step_cases(std::uint32_t seed) {
  constexpr std::int64_t kLosses = 3, kJudged = 1;
  std::vector<Case> cases;
  for (const std::int64_t ranges : {0, 1, 7, 300}) {
    for (const std::int64_t passes : {1, 5}) {
      for (const double clip : {0.0, 0.5, 1e6}) {
        for (const Spoiled& spoiled :
             {Spoiled{"good"}, Spoiled{.what = "a loss that is not finite", .loss_of_column = passes - 1},
              Spoiled{.what = "another loss that is not finite", .loss_of_others = 0},
              Spoiled{.what = "an infinite gradient", .square = ranges - 1}}) {
          Draw draw(++seed * 2);
          PoisonedArray squares = random_squares(ranges, draw.seed()),
                        losses = draw.normal(DType::f32, passes * kLosses, 3);
          if (spoiled.loss_of_column >= 0)
            losses.set(spoiled.loss_of_column * kLosses + kJudged, std::numeric_limits<float>::quiet_NaN());
          if (spoiled.loss_of_others >= 0)
            losses.set(spoiled.loss_of_others * kLosses, std::numeric_limits<float>::infinity());
          if (spoiled.square >= 0)
            static_cast<double*>(squares.data())[spoiled.square] = std::numeric_limits<double>::infinity();
          cases.push_back({DType::f64,
                           fmt::format("{} weights, {} passes, clipped to {}, {}, seed {}", ranges, passes,
                                       clip, spoiled.what, seed * 2),
                           {std::move(squares), std::move(losses)},
                           {{"numbers", update_numbers()}},
                           [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
                             judge_step(pool, {.squares = in[0].view(),
                                               .losses = in[1].view({passes, kLosses}),
                                               .column = kJudged,
                                               .clip = clip,
                                               .numbers = out[0].view()});
                           }});
        }
      }
    }
  }
  return cases;
}

}  // namespace

std::vector<KernelCases> step_judge_kernels() {
  return {{"judge_step", "judge_step", judge_step_cases}};
}

}  // namespace switchyard::selftest
