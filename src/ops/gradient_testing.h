// Checks gradients of ops by finite differences along a random direction, and equal results on every mesh.
#pragma once

#include <utility>

#include "autograd/testing.h"

namespace switchyard::autograd_test {

inline const Mesh kTensor4({{"tensor", 4}});
inline const Mesh kData2Tensor2({{"data", 2}, {"tensor", 2}});

struct TestInput {
  Tensor value;                          // f32 or i32, global
  std::vector<Sharding> shardings = {};  // one per mesh; missing ones are whole
  bool requires_grad = true;             // for f32 inputs
};
using TestFunction = std::function<Array(Context&, std::span<const Array>)>;

struct GradientCase {
  TestFunction function;
  std::vector<TestInput> inputs;
  std::vector<Mesh> meshes = {};  // besides a single rank
  double step = 1e-2;             // for the finite difference
  double tolerance = 3e-3;        // for the directional derivative
  double mesh_tolerance = 2e-5;   // between meshes
};

// The result and the inputs' gradients ("y", "d0", ...) on one mesh; the cotangent of y is fixed.
inline std::map<std::string, Tensor> evaluate(const GradientCase& test, const Mesh& mesh, std::size_t layout,
                                              const std::vector<Tensor>& values, bool with_gradients) {
  Gathered gathered(mesh);
  on_mesh(
      mesh,
      [&](Context& c) {
        std::vector<Array> inputs;
        for (std::size_t i = 0; i < values.size(); ++i) {
          const auto& input = test.inputs[i];
          const Sharding s =
              layout < input.shardings.size() ? input.shardings[layout] : replicated(values[i].rank());
          inputs.push_back(leaf(c, values[i], s, input.requires_grad));
        }
        const Array y = test.function(c, inputs);
        gathered.put(c, "y", y);
        if (!with_gradients) return;
        const Tensor seed = block_of(mesh, c.rank, random_tensor(y.shape(), 601), dual(mesh, y.sharding()));
        backward(c, std::span(&y, 1), std::span(&seed, 1));
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          if (inputs[i].value()->requires_grad) gathered.put_grad(c, "d" + std::to_string(i), inputs[i]);
        }
      },
      2);
  std::map<std::string, Tensor> result{{"y", gathered.get("y")}};
  for (std::size_t i = 0; with_gradients && i < values.size(); ++i) {
    if (test.inputs[i].requires_grad && is_float(values[i].dtype()))
      result["d" + std::to_string(i)] = gathered.get("d" + std::to_string(i));
  }
  return result;
}

// Returns value + step * direction.
inline Tensor moved(const Tensor& value, const Tensor& direction, double step) {
  Tensor result = value.clone();
  for (std::int64_t i = 0; i < value.size(); ++i)
    result.data<float>()[i] += static_cast<float>(step) * direction.data<float>()[i];
  return result;
}

inline void check_gradients(const GradientCase& test) {
  std::vector<Tensor> values;
  for (const auto& input : test.inputs) values.push_back(input.value);
  const auto one = evaluate(test, Mesh(), ~std::size_t{0}, values, true);
  const Tensor cotangent = random_tensor(one.at("y").shape(), 601);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto found = one.find("d" + std::to_string(i));
    if (found == one.end()) continue;
    const Tensor direction = random_tensor(values[i].shape(), 700 + static_cast<std::uint32_t>(i));
    const double expected = dot(found->second, direction);
    double sides[2];
    for (int side = 0; side < 2; ++side) {
      auto there = values;
      there[i] = moved(values[i], direction, side == 0 ? test.step : -test.step);
      sides[side] = dot(evaluate(test, Mesh(), ~std::size_t{0}, there, false).at("y"), cotangent);
    }
    const double measured = (sides[0] - sides[1]) / (2 * test.step);
    const double size = std::sqrt(dot(found->second, found->second));
    EXPECT_GT(size, 0) << "input " << i << " has no gradient";
    EXPECT_NEAR(measured, expected, test.tolerance * std::max(size, std::abs(measured))) << "input " << i;
  }
  for (std::size_t m = 0; m < test.meshes.size(); ++m) {
    const auto got = evaluate(test, test.meshes[m], m, values, true);
    for (const auto& [name, tensor] : one) {
      EXPECT_TRUE(close(got.at(name), tensor, test.mesh_tolerance))
          << name << " on " << test.meshes[m].to_string();
    }
  }
}

}  // namespace switchyard::autograd_test
