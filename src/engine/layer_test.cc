// Tests the public MoeLayer: one result on every mesh, gradients against differences, forwards in any order.
#include "switchyard/layer.h"

#include <cmath>
#include <optional>

#include "engine/engine_testing.h"

namespace switchyard {
namespace {

constexpr std::int64_t kRows = 4, kLength = 8, kWidth = 32;

Arguments layer_keys(const Arguments& more) {
  Arguments keys = tiny({"load_balance_loss_weight=0.1"});
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

MoeLayer open_layer(const Arguments& more = {}) {
  return MoeLayer::open(Settings::parse(layer_keys(more)));
}

// Values of a waving form, which no two tokens share.
std::vector<float> waves(std::int64_t count, double pace, double size) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>(size * std::sin(pace * static_cast<double>(i) + 0.3)));
  return values;
}

FloatArray array_over(const std::vector<float>& values, std::vector<std::int64_t> shape) {
  return {.type = FloatType::float32, .shape = std::move(shape), .data = values.data()};
}

std::vector<float> values_of(const FloatArray& array) {
  std::int64_t count = 1;
  for (const std::int64_t n : array.shape) count *= n;
  const auto* const data = static_cast<const float*>(array.data);
  return {data, data + count};
}

// The layer's inputs.
struct Problem {
  std::vector<float> x = waves(kRows * kLength * kWidth, 1.7, 1),
                     dy = waves(kRows * kLength * kWidth, 0.9, 1);
  std::vector<std::vector<float>> weights;
  std::vector<FloatArray> arrays;

  explicit Problem(const MoeLayer& layer) {
    double pace = 2.3;
    for (const LayerWeight& weight : layer.weights()) {
      std::int64_t count = 1;
      for (const std::int64_t n : weight.shape) count *= n;
      weights.push_back(waves(count, pace += 0.37, 0.4));
    }
    for (std::size_t i = 0; i < weights.size(); ++i)
      arrays.push_back(array_over(weights[i], layer.weights()[i].shape));
  }
  FloatArray x_array() const { return array_over(x, {kRows, kLength, kWidth}); }
  FloatArray dy_array() const { return array_over(dy, {kRows, kLength, kWidth}); }
  std::vector<bool> all() const { return std::vector<bool>(weights.size() + 1, true); }
  MoeLayer::Result forward(const MoeLayer& layer) const { return layer.forward(x_array(), arrays, all()); }
  // The scalar whose gradients backward() gives.
  double scalar(const MoeLayer& layer) const {
    const MoeLayer::Result made = layer.forward(x_array(), arrays);
    EXPECT_TRUE(made.kept.empty());
    const std::vector<float> y = values_of(made.y);
    double sum = 0.5 * made.balance_loss;
    for (std::size_t i = 0; i < y.size(); ++i) sum += static_cast<double>(y[i]) * dy[i];
    return sum;
  }
};

void expect_near(const std::vector<float>& got, const std::vector<float>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 1e-6;
  for (const float value : want) largest = std::max(largest, std::abs(static_cast<double>(value)));
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance * largest) << i;
}

TEST(MoeLayer, GradientsAreThoseOfDifferences) {
  const MoeLayer layer = open_layer();
  Problem problem(layer);
  MoeLayer::Result made = problem.forward(layer);
  EXPECT_GT(made.balance_loss, 0);
  const auto gradients = layer.backward(std::move(made.kept), problem.dy_array(), 0.5, problem.all());
  constexpr double kStep = 1e-3;
  for (std::size_t w = 0; w < gradients.size(); ++w) {
    std::vector<float>& values = w == 0 ? problem.x : problem.weights[w - 1];
    const std::vector<float> gradient = values_of(gradients[w]),
                             direction = waves(std::ssize(values), 3.1, 1), before = values;
    double along = 0;
    for (std::size_t i = 0; i < values.size(); ++i) along += static_cast<double>(gradient[i]) * direction[i];
    const auto moved = [&](double step) {
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(before[i] + step * direction[i]);
      return problem.scalar(layer);
    };
    const double difference = (moved(kStep) - moved(-kStep)) / (2 * kStep);
    values = before;
    EXPECT_NEAR(along, difference, 2e-2 * std::abs(difference) + 1e-2) << w;
  }
}

TEST(MoeLayer, EveryMeshGivesTheSame) {
  const MoeLayer alone = open_layer();
  const Problem problem(alone);
  MoeLayer::Result want = problem.forward(alone);
  const auto gradients = alone.backward(std::move(want.kept), problem.dy_array(), 0.5, problem.all());
  for (const Arguments& mesh :
       {Arguments{"ranks=2", "ici_expert_parallelism=2"}, Arguments{"ranks=2", "ici_tensor_parallelism=2"},
        Arguments{"ranks=4", "ici_expert_parallelism=2", "ici_fsdp_parallelism=2"},
        Arguments{"ranks=4", "ici_expert_parallelism=4", "use_ring_of_experts=true"},
        Arguments{"ranks=4", "sparse_matmul=false", "ici_data_parallelism=4"}}) {
    const MoeLayer layer = open_layer(mesh);
    MoeLayer::Result made = problem.forward(layer);
    expect_near(values_of(made.y), values_of(want.y), 1e-5);
    EXPECT_NEAR(made.balance_loss, want.balance_loss, 1e-5);
    const auto same = layer.backward(std::move(made.kept), problem.dy_array(), 0.5, problem.all());
    for (std::size_t i = 0; i < same.size(); ++i)
      expect_near(values_of(same[i]), values_of(gradients[i]), 2e-5);
  }
}

TEST(MoeLayer, ForwardsComeBackInAnyOrder) {
  const MoeLayer layer = open_layer({"ranks=2", "ici_expert_parallelism=2"});
  Problem first(layer), second(layer);
  second.x = waves(std::ssize(second.x), 1.1, 1);
  const auto gradients_of = [&](const Problem& problem, MoeLayer::Result made) {
    std::vector<std::vector<float>> all;
    for (const FloatArray& gradient :
         layer.backward(std::move(made.kept), problem.dy_array(), 1, problem.all()))
      all.push_back(values_of(gradient));
    return all;
  };
  const auto of_first = gradients_of(first, first.forward(layer)),
             of_second = gradients_of(second, second.forward(layer));
  EXPECT_NE(of_first, of_second);
  MoeLayer::Result one = first.forward(layer), two = second.forward(layer);
  first.forward(layer);  // no backward comes
  EXPECT_EQ(gradients_of(first, std::move(one)), of_first);
  EXPECT_EQ(gradients_of(second, std::move(two)), of_second);
}

TEST(MoeLayer, OnlyWhatIsWantedIsReturned) {
  const MoeLayer layer = open_layer();
  const Problem problem(layer);
  std::vector<bool> some(problem.all().size(), false);
  some[0] = some[2] = true;
  MoeLayer::Result made = layer.forward(problem.x_array(), problem.arrays, some);
  std::vector<bool> narrower = some;
  narrower[2] = false;
  const auto gradients = layer.backward(std::move(made.kept), {}, 1, narrower);
  for (std::size_t i = 0; i < gradients.size(); ++i) EXPECT_EQ(gradients[i].data != nullptr, i == 0) << i;
  made = layer.forward(problem.x_array(), problem.arrays, some);
  expect_error([&] { layer.backward(std::move(made.kept), {}, 1, problem.all()); }, "was not differentiated");
}

TEST(MoeLayer, RefusesInOneLine) {
  const MoeLayer layer = open_layer();
  const Problem problem(layer);
  FloatArray narrow = problem.x_array();
  narrow.shape = {kRows, kLength * 2, kWidth / 2};
  expect_error([&] { layer.forward(narrow, problem.arrays); }, "M = 32");
  FloatArray halves = problem.x_array();
  halves.type = FloatType::bfloat16;
  expect_error([&] { layer.forward(halves, problem.arrays); }, "expected x in float32, as dtype says");
  expect_error([&] { layer.forward(problem.x_array(), {}); }, "weights");
  const std::vector<std::int32_t> segments(3, 1);
  expect_error([&] { layer.forward(problem.x_array(), problem.arrays, {}, segments); }, "segments");
  expect_error([&] { layer.backward({}, {}, 1, problem.all()); }, "is gone");
  MoeLayer::Result made = problem.forward(layer);
  const MoeLayer other = open_layer();
  expect_error([&] { other.backward(std::move(made.kept), {}, 1, problem.all()); }, "another layer");
  expect_error([&] { open_layer({"load_parameters_path=somewhere"}); }, "load_parameters_path");
  expect_error([&] { open_layer({"use_random_routing=true"}); }, "use_random_routing");
  expect_error([&] { open_layer({"ranks=2", "ici_pipeline_parallelism=2"}); }, "pipeline");
  expect_error([&] { MoeLayer::open(Settings::parse({"model_name=qwen3-0.6b"})); }, "no MoE layer");
}

TEST(MoeLayer, PaddingGetsZeros) {
  const MoeLayer layer = open_layer();
  const Problem problem(layer);
  std::vector<std::int32_t> segments(kRows * kLength, 1);
  segments[3] = 0;
  const MoeLayer::Result made = layer.forward(problem.x_array(), problem.arrays, {}, segments);
  const std::vector<float> y = values_of(made.y);
  for (std::int64_t i = 0; i < kWidth; ++i) EXPECT_EQ(y[static_cast<std::size_t>(3 * kWidth + i)], 0);
}

}  // namespace
}  // namespace switchyard
