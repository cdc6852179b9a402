#include "models/adapter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "models/parameters.h"

namespace switchyard {
namespace {

constexpr const char* kRankDim = "lora_rank";  // no rule splits it

template <typename List>
List joined(const List& x, std::size_t begin, std::size_t end) {
  return List(x.begin() + static_cast<std::ptrdiff_t>(begin), x.begin() + static_cast<std::ptrdiff_t>(end));
}

ParameterSpec of_adapter(const ParameterSpec& weight, std::string name, const Adapter& adapter) {
  ParameterSpec spec = weight;
  spec.name = std::move(name);
  // A router's logits may be made in float32 (float32_gate_logits).
  spec.dtype = weight.name.ends_with("moe.gate") ? DType::f32 : adapter.dtype;
  spec.trained = spec.counted = spec.of_adapter = true;
  spec.frozen = false;
  return spec;
}

// How many ranks of one adapter the rank dim of a weight's parameters has.
std::int64_t ranks_of(const ParameterSpec& weight, const Adapter& adapter) {
  return weight.matrix.stack > 0 ? 1 : std::max<std::int64_t>(1, adapter.count);
}

// [stack | inputs | r]
ParameterSpec a_of(const ParameterSpec& weight, const AdaptedWeight& how, const Adapter& adapter) {
  const std::size_t inputs_end = weight.matrix.stack + weight.matrix.inputs;
  ParameterSpec a = of_adapter(weight, lora_a_of(weight.name, how), adapter);
  a.shape = joined(weight.shape, 0, inputs_end);
  a.dims = joined(weight.dims, 0, inputs_end);
  const std::int64_t inputs = num_elements(joined(a.shape, weight.matrix.stack, inputs_end));
  a.shape.push_back(how.rank * ranks_of(weight, adapter));
  if (weight.matrix.stack > 0) a.shape[0] *= adapter.count + 1;
  a.dims.emplace_back(kRankDim);
  a.initializer = Initializer::uniform;
  a.deviation = 1 / std::sqrt(static_cast<double>(inputs));
  if (adapter.start == AdapterStart::gaussian) {
    a.initializer = Initializer::normal;
    a.deviation = 1 / static_cast<double>(how.rank);
  }
  return a;
}

// [stack | r | outputs]
ParameterSpec b_of(const ParameterSpec& weight, const AdaptedWeight& how, const Adapter& adapter) {
  const std::size_t stack = weight.matrix.stack, inputs_end = stack + weight.matrix.inputs;
  ParameterSpec b = of_adapter(weight, lora_b_of(weight.name), adapter);
  b.shape = joined(weight.shape, 0, stack);
  b.dims = joined(weight.dims, 0, stack);
  b.shape.push_back(how.rank * ranks_of(weight, adapter));
  if (stack > 0) b.shape[0] *= adapter.count + 1;
  b.dims.emplace_back(kRankDim);
  b.shape.insert(b.shape.end(), weight.shape.begin() + static_cast<std::ptrdiff_t>(inputs_end),
                 weight.shape.end());
  b.dims.insert(b.dims.end(), weight.dims.begin() + static_cast<std::ptrdiff_t>(inputs_end),
                weight.dims.end());
  b.matrix = {stack, 1};
  constexpr double kOfTests = 0.02;
  const bool of_tests = adapter.start == AdapterStart::test;
  b.initializer = of_tests ? Initializer::normal : Initializer::zeros;
  b.deviation = of_tests ? kOfTests : 0;
  return b;
}

}  // namespace

std::string lora_a_of(const std::string& weight, const AdaptedWeight& how) {
  constexpr std::size_t kNumber = 2;  // of "_0" and "_1"
  return (how.one_a ? weight.substr(0, weight.size() - kNumber) : weight) + ".lora_a";
}

std::string lora_b_of(const std::string& weight) {
  return weight + ".lora_b";
}

Tensor merged_weight(const Tensor& weight, const ParameterSpec& spec, const AdaptedWeight& how,
                     const Tensor& a, const Tensor& b) {
  const Tensor sum = weight.cast(DType::f32).clone();
  const auto stack_end = spec.shape.begin() + static_cast<std::ptrdiff_t>(spec.matrix.stack),
             inputs_end = stack_end + static_cast<std::ptrdiff_t>(spec.matrix.inputs);
  const std::int64_t inputs = num_elements(Shape(stack_end, inputs_end)),
                     outputs = num_elements(Shape(inputs_end, spec.shape.end())), r = how.rank;
  for (std::int64_t row = 0; row < sum.size() / outputs; ++row) {
    const float* const from = b.data<float>() + row / inputs * r * outputs;
    for (std::int64_t o = 0; o < outputs; ++o) {
      double product = 0;
      for (std::int64_t k = 0; k < r; ++k)
        product += double{a.data<float>()[row * r + k]} * double{from[k * outputs + o]};
      float& value = sum.data<float>()[row * outputs + o];
      value = static_cast<float>(double{value} + double{how.scale} * product);
    }
  }
  return sum;
}

std::vector<ParameterSpec> with_adapter(std::vector<ParameterSpec> specs, const Adapter& adapter) {
  std::vector<ParameterSpec> all;
  std::set<std::string> names;
  for (ParameterSpec& spec : specs) {
    const auto found = adapter.weights.find(spec.name);
    const bool whole = adapter.whole.contains(spec.name);
    names.insert(spec.name);
    spec.trained = whole;
    spec.frozen = !whole;
    spec.of_adapter = whole;
    all.push_back(std::move(spec));
    if (found == adapter.weights.end()) continue;
    const ParameterSpec weight = all.back();
    CHECK(weight.matrix.inputs > 0, "an adapter of {}, which is no matrix", weight.name);
    ParameterSpec a = a_of(weight, found->second, adapter);
    if (names.insert(a.name).second) all.push_back(std::move(a));
    all.push_back(b_of(weight, found->second, adapter));
  }
  for (const auto& [name, how] : adapter.weights) CHECK(names.contains(name), "an adapter of {}", name);
  for (const std::string& name : adapter.whole) CHECK(names.contains(name), "an adapter of {}", name);
  return all;
}

}  // namespace switchyard
