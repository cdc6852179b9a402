#include "ops/linear.h"

#include <algorithm>
#include <string>

#include "ops/basic.h"
#include "ops/einsum.h"
#include "ops/grouped_product.h"
#include "ops/local_einsum.h"

namespace switchyard {
namespace {

constexpr char kRank = 'r';

// The labels of a weight's dims, grouped into stack, inputs and outputs.
struct WeightLabels {
  std::string stack, inputs, outputs;

  WeightLabels(const std::string& weight, const LowRank& adapter) {
    const std::size_t dims = weight.size(), of_a = adapter.a.shape().size(), of_b = adapter.b.shape().size();
    CHECK(of_a + of_b >= dims + 2 && of_a <= dims && of_b <= dims,
          "an adapter of {} and {} dims for a weight of {}", of_a, of_b, dims);
    const std::size_t stacked = of_a + of_b - dims - 2;
    stack = weight.substr(0, stacked);
    inputs = weight.substr(stacked, of_a - 1 - stacked);
    outputs = weight.substr(of_a - 1);
  }
  std::string a() const { return stack + inputs + kRank; }
  std::string b() const { return stack + kRank + outputs; }
};

// The labels of x·a: those of the stack that x lacks, x's without the inputs, and the rank's.
std::string labels_of_low(const std::string& x, const WeightLabels& weight) {
  std::string low;
  for (const char l : weight.stack) {
    if (x.find(l) == std::string::npos) low += l;
  }
  for (const char l : x) {
    if (weight.inputs.find(l) == std::string::npos) low += l;
  }
  return low + kRank;
}

// The layout of x·W by the names of its dims.
Sharding layout_of(const Context& context, std::string_view spec, const Array& x, const Array& weight,
                   std::initializer_list<std::string_view> logical_dims) {
  const EinsumSpec labels = parse_einsum(spec);
  const Shape sizes = label_sizes_of_b(labels, weight.dtype(), weight.shape());
  Shape shape;
  for (const char l : labels.out) {
    const auto at = labels.a.find(l);
    shape.push_back(at != std::string::npos ? x.shape()[at] : sizes[labels.b.find(l)]);
  }
  return context.rules->sharding(logical_dims, shape);
}

}  // namespace

Array LowRank::a_in(Context& context, DType dtype) const {
  return cast(context, a, dtype);
}

Array LowRank::b_in(Context& context, DType dtype) const {
  return cast(context, b, dtype, scale);
}

Array Linear::project(Context& context, std::string_view spec, const Array& x, const Sharding* want) const {
  return project_each(context, spec, x, {this, 1}, {&want, 1}).front();
}

Array Linear::with_bias(Context& context, const Array& y) const {
  return bias.defined() ? add_bias(context, y, bias) : y;
}

Array Linear::apply(Context& context, std::string_view spec, const Array& x, const Sharding* want) const {
  return with_bias(context, project(context, spec, x, want));
}

Array Linear::apply(Context& context, std::string_view spec, const Array& x,
                    std::initializer_list<std::string_view> logical_dims) const {
  const Sharding want = layout_of(context, spec, x, weight, logical_dims);
  return apply(context, spec, x, &want);
}

Array Linear::grouped_apply(Context& context, const Array& rows, const Array& sizes,
                            const Array& of_adapters) const {
  if (!adapter) return grouped_product(context, rows, weight, sizes);
  return grouped_product(context, rows, weight, sizes, of_adapters.defined() ? of_adapters : sizes,
                         adapter->a_in(context, rows.dtype()), adapter->b_in(context, rows.dtype()));
}

Array Linear::merged(Context& context) const {
  if (!adapter) return weight;
  CHECK(adapter->count == 0, "{} adapters cannot be merged", adapter->count);
  std::string labels;
  for (std::size_t i = 0; i < weight.shape().size(); ++i) labels += static_cast<char>('A' + i);
  const WeightLabels of_weight(labels, *adapter);
  const Array product = einsum(context, of_weight.a() + "," + of_weight.b() + "->" + labels, adapter->a,
                               adapter->b, &weight.sharding());
  return add(context, weight, cast(context, scale(context, product, adapter->scale), weight.dtype()));
}

bool share_a(const Linear& x, const Linear& y) {
  return x.adapter && y.adapter && x.adapter->a.value() == y.adapter->a.value();
}

std::vector<Array> project_each(Context& context, std::string_view spec, const Array& x,
                                std::span<const Linear> layers, std::span<const Sharding* const> want) {
  std::vector<Array> weights;
  for (const Linear& layer : layers) weights.push_back(layer.weight);
  const auto adapted =
      std::ranges::find_if(layers, [](const Linear& layer) { return layer.adapter.has_value(); });
  if (adapted == layers.end()) return einsums(context, spec, x, weights, want);
  const EinsumSpec labels = parse_einsum(spec);
  const WeightLabels of_weight(labels.b, *adapted->adapter);
  const std::string low = labels_of_low(labels.a, of_weight);
  LowRankEinsum low_rank{.to_low = labels.a + "," + of_weight.a() + "->" + low,
                         .from_low = low + "," + of_weight.b() + "->" + labels.out,
                         .a = std::vector<Array>(layers.size()),
                         .b = std::vector<Array>(layers.size()),
                         .numbers = adapted->adapter->numbers,
                         .count = adapted->adapter->count};
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (!layers[i].adapter) continue;
    low_rank.a[i] = layers[i].adapter->a_in(context, x.dtype());
    low_rank.b[i] = layers[i].adapter->b_in(context, x.dtype());
  }
  return einsums(context, spec, x, weights, want, &low_rank);
}

std::vector<Array> apply_each(Context& context, std::string_view spec, const Array& x,
                              std::span<const Linear> layers, const Sharding& want) {
  const std::vector<const Sharding*> wants(layers.size(), &want);
  std::vector<Array> results = project_each(context, spec, x, layers, wants);
  for (std::size_t i = 0; i < layers.size(); ++i) results[i] = layers[i].with_bias(context, results[i]);
  return results;
}

std::vector<Array> apply_each(Context& context, std::string_view spec, const Array& x,
                              std::span<const Linear> layers,
                              std::initializer_list<std::string_view> logical_dims) {
  return apply_each(context, spec, x, layers,
                    layout_of(context, spec, x, layers.front().weight, logical_dims));
}

}  // namespace switchyard
