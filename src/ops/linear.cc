#include "ops/linear.h"

#include <algorithm>
#include <string>

#include "ops/basic.h"
#include "ops/einsum.h"
#include "ops/grouped_product.h"
#include "ops/local_einsum.h"
#include "ops/row_adapters.h"

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

Array Linear::project(Context& context, std::string_view spec, const Array& x, const Sharding* want) const {
  return with_adapter(context, spec, x, einsum(context, spec, x, weight, want));
}

Array Linear::with_adapter(Context& context, std::string_view spec, const Array& x, const Array& y) const {
  if (!adapter) return y;
  const EinsumSpec labels = parse_einsum(spec);
  const WeightLabels of_weight(labels.b, *adapter);
  const std::string low_labels = labels_of_low(labels.a, of_weight);
  const Array low = einsum(context, labels.a + "," + of_weight.a() + "->" + low_labels, x,
                           cast(context, adapter->a, x.dtype()));
  const Array own = adapter->count == 0
                        ? low
                        : keep_adapter(context, low, adapter->numbers, low.shape().back() / adapter->count);
  const Array added =
      einsum(context, low_labels + "," + of_weight.b() + "->" + labels.out,
             scale(context, own, adapter->scale), cast(context, adapter->b, x.dtype()), &y.sharding());
  return add(context, y, added);
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
  const Array y = grouped_product(context, rows, weight, sizes);
  if (!adapter) return y;
  return with_low_rank(context, y,
                       grouped_product(context, rows, cast(context, adapter->a, rows.dtype()), of_adapters),
                       of_adapters);
}

Array Linear::with_low_rank(Context& context, const Array& y, const Array& low, const Array& sizes) const {
  if (!adapter) return y;
  return add(context, y,
             grouped_product(context, scale(context, low, adapter->scale),
                             cast(context, adapter->b, low.dtype()), sizes));
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
  std::vector<Array> results = einsums(context, spec, x, weights, want);
  for (std::size_t i = 0; i < layers.size(); ++i)
    results[i] = layers[i].with_adapter(context, spec, x, results[i]);
  return results;
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
