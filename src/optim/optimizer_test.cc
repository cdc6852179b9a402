#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/error.h"

namespace switchyard {
namespace {

Tensor random_tensor(DType dtype, std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Tensor tensor(DType::f32, {count});
  for (float& value : tensor.span<float>()) value = normal(random);
  return tensor.cast(dtype).clone();
}

std::vector<double> values_of(const Tensor& tensor) {
  const Tensor floats = tensor.cast(DType::f32);
  return {floats.span<float>().begin(), floats.span<float>().end()};
}

double rounded(double value, DType dtype) {
  const auto single = static_cast<float>(value);
  return dtype == DType::f32 ? single : static_cast<float>(bfloat16(single));
}

// The reference implementation in double precision; stored values are rounded as documented.
struct Twin {
  OptimizerConfig config;
  DType weight_dtype;
  std::vector<double> w, m, v;

  void update(int step, double rate, double scale, bool decay, const std::vector<double>& grads) {
    const double t = step + 1;
    const double c1 = 1 - std::pow(config.b1, t), c2 = 1 - std::pow(config.b2, t);
    const double wd = decay ? config.weight_decay : 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double g = grads[i] * scale;
      if (config.type == "sgd") {
        w[i] = rounded(w[i] - rate * g, weight_dtype);
        continue;
      }
      double mu, nu, direction;
      if (config.type == "adamw") {
        mu = config.b1 * m[i] + (1 - config.b1) * g;
        nu = config.b2 * v[i] + (1 - config.b2) * g * g;
        const double mean = config.nesterov
                                ? config.b1 * mu / (1 - std::pow(config.b1, t + 1)) + (1 - config.b1) * g / c1
                                : mu / c1;
        direction = mean / (std::sqrt(nu / c2 + config.eps_root) + config.eps);
      } else {
        const double b1 = config.b1 * (1 - std::pow(config.b1, t - 1)) / c1;
        const double b2 = config.b2 * (1 - std::pow(config.b2, t - 1)) / c2;
        mu = b1 * m[i] + (1 - b1) * g;
        nu = b2 * v[i] + (1 - b2) * g * g;
        direction = mu / (std::sqrt(nu + config.eps_root) + config.eps);
      }
      w[i] = rounded(w[i] - rate * (direction + wd * w[i]), weight_dtype);
      m[i] = rounded(mu, config.mu_dtype);
      v[i] = rounded(nu, weight_dtype);
    }
  }
};

struct Step {
  std::int64_t step = 0;
  double learning_rate = 0, grad_scale = 1;
};

void update(ThreadPool& pool, const Optimizer& optimizer, const Step& step, const TensorView& weight,
            const TensorView& grad, std::span<const Tensor> state, bool decay = true) {
  const Tensor squares(DType::f64, {1});
  UpdateNumbers values{.adam = optimizer.terms_of(step.step, step.learning_rate)};
  values.adam.grad_scale = static_cast<float>(step.grad_scale);
  const Tensor numbers = numbers_in(Memory(), values);
  const OptimizerRange range{weight, grad, state, squares.view(), decay};
  optimizer.update(pool, numbers.view(), std::span(&range, 1));
}

// Largest difference relative to the larger of 1 and the value.
double difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double d = std::abs(a[i] - b[i]) / std::max(1.0, std::abs(b[i]));
    if (std::isnan(d)) return d;
    largest = std::max(largest, d);
  }
  return largest;
}

TEST(Difference, SeesWrongMissingAndNanValues) {
  EXPECT_EQ(difference({1, 2}, {1, 2}), 0);
  EXPECT_GT(difference({1, 2.001}, {1, 2}), 1e-4);
  EXPECT_FALSE(difference({1, NAN}, {1, 2}) < 1e9);
  EXPECT_FALSE(difference({NAN, 2}, {1, 2}) < 1e9);
  EXPECT_FALSE(difference({1}, {1, 2}) < 1e9);
}

struct Case {
  const char* type;
  DType weight, grad, mu;
  bool nesterov = false;
};

class Optimizers : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Optimizers,
                         testing::Values(Case{"adamw", DType::f32, DType::f32, DType::f32},
                                         Case{"adamw", DType::f32, DType::bf16, DType::bf16},
                                         Case{"adamw", DType::bf16, DType::f32, DType::bf16},
                                         Case{"adamw", DType::bf16, DType::bf16, DType::f32},
                                         Case{"adamw", DType::f32, DType::f32, DType::f32, true},
                                         Case{"adamw", DType::bf16, DType::f32, DType::bf16, true},
                                         Case{"adam_pax", DType::f32, DType::f32, DType::f32},
                                         Case{"adam_pax", DType::bf16, DType::f32, DType::bf16},
                                         Case{"sgd", DType::f32, DType::f32, DType::f32},
                                         Case{"sgd", DType::bf16, DType::bf16, DType::f32}));

TEST_P(Optimizers, FollowTheDefinition) {
  const Case& c = GetParam();
  for (const std::int64_t count : {0, 1, 1023, 1024, 40001}) {
    OptimizerConfig config{.type = c.type, .eps_root = 1e-12, .nesterov = c.nesterov, .mu_dtype = c.mu};
    const auto optimizer = Optimizer::make(config);
    ThreadPool pool(2);
    const Tensor weight = random_tensor(c.weight, count, 1);
    std::vector<Tensor> state = optimizer->init(Memory(), c.weight, count);
    const auto zeros = std::vector<double>(static_cast<std::size_t>(count), 0.0);
    Twin twin{config, c.weight, values_of(weight), zeros, zeros};
    for (int step = 0; step < 5; ++step) {
      const Tensor grad = random_tensor(c.grad, count, 10u + static_cast<unsigned>(step));
      const bool decay = step != 3;
      update(pool, *optimizer, {step, 0.01 * step, 0.25}, weight.view(), grad.view(), state, decay);
      twin.update(step, 0.01 * step, 0.25, decay, values_of(grad));
    }
    // A float32 result just beside a rounding boundary may land on the neighbouring bfloat16, 2^-8 away;
    // later steps carry that on.
    const bool exact = c.weight == DType::f32 && c.mu == DType::f32;
    EXPECT_LT(difference(values_of(weight), twin.w), exact ? 1e-6 : 1.6e-2) << count;
    if (state.empty()) continue;
    EXPECT_EQ(state[0].dtype(), c.mu);
    EXPECT_EQ(state[1].dtype(), c.weight);
    EXPECT_LT(difference(values_of(state[0]), twin.m), c.mu == DType::f32 ? 1e-6 : 4e-3);
    EXPECT_LT(difference(values_of(state[1]), twin.v), c.weight == DType::f32 ? 1e-6 : 4e-3);
  }
}

TEST_P(Optimizers, DoNotDependOnThreadsOrOnTheCutOfTheRange) {
  const Case& c = GetParam();
  constexpr std::int64_t kCount = 50000;
  const auto optimizer = Optimizer::make({.type = c.type, .mu_dtype = c.mu});
  const Tensor grad = random_tensor(c.grad, kCount, 2);
  std::vector<std::vector<double>> results;
  for (const std::int64_t piece : {kCount, std::int64_t{17777}}) {
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      const Tensor weight = random_tensor(c.weight, kCount, 1);
      for (std::int64_t begin = 0; begin < kCount; begin += piece) {
        const std::int64_t count = std::min(piece, kCount - begin);
        std::vector<Tensor> state = optimizer->init(Memory(), c.weight, count);
        const Tensor w = weight.slice_rows(begin, begin + count), g = grad.slice_rows(begin, begin + count);
        for (int step = 0; step < 2; ++step) {
          update(pool, *optimizer, {step, 0.01, 1}, w.view(), g.view(), state);
        }
      }
      results.push_back(values_of(weight));
    }
  }
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
}

TEST(Optimizer, TheGradientIsNotWritten) {
  ThreadPool pool(1);
  for (const char* type : {"adamw", "sgd"}) {
    const auto optimizer = Optimizer::make({.type = type});
    const Tensor weight = random_tensor(DType::f32, 3000, 1);
    const Tensor grad = random_tensor(DType::f32, 3000, 2);
    std::vector<Tensor> state = optimizer->init(Memory(), DType::f32, 3000);
    update(pool, *optimizer, {0, 0.1, 0.5}, weight.view(), grad.view(), state);
    EXPECT_EQ(values_of(grad), values_of(random_tensor(DType::f32, 3000, 2)));
  }
}

TEST(Optimizer, NothingBehindTheRangeIsTouched) {
  ThreadPool pool(1);
  const auto optimizer = Optimizer::make({.type = "adamw"});
  const Tensor weight = random_tensor(DType::f32, 1500, 1);
  const Tensor grad = random_tensor(DType::f32, 1500, 2);
  const std::vector<double> before = values_of(weight);
  std::vector<Tensor> state = optimizer->init(Memory(), DType::f32, 1100);
  update(pool, *optimizer, {0, 0.1, 1}, weight.view().rows(0, 1100), grad.view().rows(0, 1100), state);
  const std::vector<double> after = values_of(weight);
  EXPECT_NE(after[1099], before[1099]);
  EXPECT_TRUE(std::equal(after.begin() + 1100, after.end(), before.begin() + 1100));
}

// The first step of adamw moves by lr*sign(g) whatever the gradient's size, plus decay.
TEST(Optimizer, FirstStepOfAdamw) {
  ThreadPool pool(1);
  const auto optimizer = Optimizer::make({.type = "adamw", .weight_decay = 0.1});
  const std::vector<float> w{1, 1, -2}, g{1e-3f, -50, 0};
  const Tensor weight = Tensor::of<float>({3}, w), grad = Tensor::of<float>({3}, g);
  std::vector<Tensor> state = optimizer->init(Memory(), DType::f32, 3);
  update(pool, *optimizer, {0, 0.01, 1}, weight.view(), grad.view(), state);
  EXPECT_LT(
      difference(values_of(weight), {1 - 0.01 * (1 - 1e-5 + 0.1), 1 - 0.01 * (-1 + 0.1), -2 + 0.01 * 0.2}),
      1e-6);
}

// Corrected decays and corrected moments are the same thing written twice.
TEST(Optimizer, AdamPaxIsAdamwToRounding) {
  ThreadPool pool(1);
  std::vector<std::vector<double>> results;
  for (const char* type : {"adamw", "adam_pax"}) {
    const auto optimizer = Optimizer::make({.type = type});
    const Tensor weight = random_tensor(DType::f32, 2000, 1);
    std::vector<Tensor> state = optimizer->init(Memory(), DType::f32, 2000);
    for (int step = 0; step < 20; ++step) {
      const Tensor grad = random_tensor(DType::f32, 2000, 100u + static_cast<unsigned>(step));
      update(pool, *optimizer, {step, 0.01, 1}, weight.view(), grad.view(), state);
    }
    results.push_back(values_of(weight));
  }
  EXPECT_LT(difference(results[0], results[1]), 2e-6);
}

TEST(Optimizer, AZeroRateChangesTheStateOnly) {
  ThreadPool pool(1);
  const auto optimizer = Optimizer::make({.type = "adamw"});
  const Tensor weight = random_tensor(DType::bf16, 100, 1), grad = random_tensor(DType::f32, 100, 2);
  const std::vector<double> before = values_of(weight);
  std::vector<Tensor> state = optimizer->init(Memory(), DType::bf16, 100);
  update(pool, *optimizer, {0, 0, 1}, weight.view(), grad.view(), state);
  EXPECT_EQ(values_of(weight), before);
  EXPECT_NE(values_of(state[0])[5], 0);
}

TEST(Optimizer, ErrorsNameTheKey) {
  const auto error_of = [](const OptimizerConfig& config) -> std::string {
    try {
      Optimizer::make(config);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::usage);
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of({.type = "adam"}), "[optim] expected opt_type to be adamw, adam_pax or sgd, got 'adam'");
  EXPECT_EQ(error_of({.b1 = 1.0}), "[optim] expected adam_b1 at least 0 and below 1, got 1");
  EXPECT_EQ(error_of({.b2 = -0.5}), "[optim] expected adam_b2 at least 0 and below 1, got -0.5");
  EXPECT_EQ(error_of({.eps = -1}), "[optim] expected adam_eps to be at least 0, got -1");
}

}  // namespace
}  // namespace switchyard
