#include "engine/text_adapters.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "core/error.h"
#include "engine/own_adapter.h"

namespace switchyard {
namespace {

constexpr std::string_view kA = ".lora_a", kB = ".lora_b";

// The weight that a parameter of an adapter belongs to. Gate and up projection of experts may share theirs.
std::string weight_of(const std::string& parameter) {
  const std::string weight = parameter.substr(0, parameter.size() - kA.size());
  return weight.ends_with(".wi") ? weight + "_0" : weight;
}

// The values of a place's A or B of a weight; null: it has none.
const float* values_at(const std::shared_ptr<const PeftAdapter>& place, const std::string& weight, bool is_a,
                       AdaptedWeight& how) {
  if (place == nullptr) return nullptr;
  const auto found = place->adapter.weights.find(weight);
  if (found == place->adapter.weights.end()) return nullptr;
  how = found->second;
  return place->tensors.at(is_a ? lora_a_of(weight, how) : lora_b_of(weight)).data<float>();
}

// Fills the entries [begin, end) of the first dim of an adapters' parameter of experts [E·numbers, rows,
// columns], of which each expert has one for each number; the one for 0 is 0.
template <typename T>
void fill_experts(const Tensor& out, const AdapterPlaces& places, const std::string& weight, bool is_a,
                  std::int64_t begin, std::int64_t end) {
  const std::int64_t numbers = std::ssize(places) + 1, all_rows = out.shape()[1], width = out.shape()[2];
  for (std::int64_t entry = begin; entry < end; ++entry) {
    const auto number = static_cast<std::size_t>(entry % numbers);
    AdaptedWeight how;
    const float* from = number == 0 ? nullptr : values_at(places[number - 1], weight, is_a, how);
    if (from == nullptr) continue;
    const std::int64_t rows = is_a ? all_rows : how.rank, columns = is_a ? how.rank : width;
    const float factor = is_a ? 1 : how.scale;
    from += entry / numbers * rows * columns;
    T* const to = out.data<T>() + (entry - begin) * all_rows * width;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < columns; ++i) to[row * width + i] = T(from[row * columns + i] * factor);
    }
  }
}

// Fills a whole adapters' parameter of a weight without a stack: A [inputs, n·rank] or B [n·rank, outputs].
template <typename T>
void fill_matrix(const Tensor& out, const AdapterPlaces& places, const std::string& weight, bool is_a) {
  const auto count = std::ssize(places);
  const std::int64_t outer = is_a ? out.shape().back() : out.shape().front(), rank = outer / count,
                     other = out.size() / outer;
  T* const to = out.data<T>();
  for (std::int64_t n = 0; n < count; ++n) {
    AdaptedWeight how;
    const float* const from = values_at(places[static_cast<std::size_t>(n)], weight, is_a, how);
    if (from == nullptr) continue;
    for (std::int64_t k = 0; k < how.rank; ++k) {
      for (std::int64_t i = 0; i < other; ++i) {
        if (is_a)
          to[i * outer + n * rank + k] = T(from[i * how.rank + k]);
        else
          to[(n * rank + k) * other + i] = T(from[k * other + i] * how.scale);
      }
    }
  }
}

template <typename T>
Tensor block_in(const AdapterPlaces& places, const ParameterSpec& spec, const Box& block) {
  const bool is_a = spec.name.ends_with(kA);
  const std::string weight = weight_of(spec.name);
  // A block of experts is made without the others.
  Shape shape = spec.shape, start = block.start;
  const bool experts = spec.matrix.stack > 0;
  if (experts) {
    shape[0] = block.shape[0];
    start[0] = 0;
  }
  const Tensor values = Memory().zeros(spec.dtype, shape);
  if (experts)
    fill_experts<T>(values, places, weight, is_a, block.start[0], block.start[0] + block.shape[0]);
  else
    fill_matrix<T>(values, places, weight, is_a);
  return shape == block.shape ? values : slice_block(values, start, block.shape);
}

Tensor block_of(const AdapterPlaces& places, const ParameterSpec& spec, const Box& block) {
  return spec.dtype == DType::bf16 ? block_in<bfloat16>(places, spec, block)
                                   : block_in<float>(places, spec, block);
}

}  // namespace

std::vector<NamedAdapter> named_adapters(const Config& config) {
  const std::string text = config.get_string("adapter");
  std::error_code ignored;
  if (text.find('=') == std::string::npos || std::filesystem::exists(text, ignored)) return {};
  std::vector<NamedAdapter> named;
  std::set<std::string> names;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const std::size_t equals = item.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == item.size())
      fail_usage("[adapter] adapter={}: expected NAME=FOLDER, got {}", text, in_quotes(item));
    named.push_back({item.substr(0, equals), item.substr(equals + 1), nullptr});
    if (!names.insert(named.back().name).second)
      fail_usage("[adapter] adapter={}: {} is there twice", text, in_quotes(named.back().name));
    begin = end + 1;
  }
  return named;
}

PeftAdapter read_adapter_to_run(const std::string& path, const Config& config, const ModelConfig& model) {
  ModelConfig base = model;
  base.adapter = nullptr;
  PeftAdapter read = read_adapter(path, config, base);
  for (auto& [name, how] : read.adapter.weights) {
    Tensor& b = read.tensors.at(lora_b_of(name));
    b = b.clone();
    for (float& value : b.span<float>()) value *= how.scale;
    how.scale = 1;
  }
  read.adapter.dtype = model.dtype;
  return read;
}

void check_several_adapters(const Mesh& mesh, const ModelConfig& model) {
  if (model.compat) fail_usage("[adapter] several adapters need compat=none");
  if (model.moe_layers().empty()) return;
  if (!model.moe_execution.sparse) fail_usage("[adapter] several adapters need sparse_matmul=true");
  const int ranks = mesh.axis_size("expert");
  if (model.moe().experts % ranks != 0)
    fail_usage(
        "[adapter] several adapters need a number of experts that the mesh divides, got {} experts on {} "
        "ranks",
        model.moe().experts, ranks);
}

std::shared_ptr<const PeftAdapter> read_text_adapter(const std::string& path, const Config& config,
                                                     const ModelConfig& model) {
  ModelConfig base = model;
  base.adapter = nullptr;
  PeftAdapter read = read_adapter(path, config, base);
  if (!read.adapter.whole.empty())
    fail_usage(
        "[adapter] {}: has {} in place of the model's, which texts with several adapters share: serve "
        "it alone (adapter=FOLDER), or merge it",
        path, *read.adapter.whole.begin());
  return std::make_shared<const PeftAdapter>(std::move(read));
}

std::shared_ptr<const Adapter> adapters_together(const AdapterPlaces& places, DType dtype) {
  Adapter all;
  all.count = std::ssize(places);
  all.dtype = dtype;
  std::set<std::string> two_as;  // weights that some adapter gives an A of its own
  for (const auto& place : places) {
    if (place == nullptr) continue;
    for (const auto& [name, how] : place->adapter.weights) {
      AdaptedWeight& together = all.weights[name];
      together.rank = std::max(together.rank, how.rank);
      together.scale = 1;
      if (!how.one_a) two_as.insert(name);
    }
  }
  if (all.weights.empty()) return nullptr;
  // Both of gate and up, or neither.
  const auto pair_of = [](std::string name) {
    name.back() = name.back() == '0' ? '1' : '0';
    return name;
  };
  for (auto& [name, how] : all.weights) {
    const bool is_of_pair = name.ends_with(".wi_0") || name.ends_with(".wi_1");
    how.one_a = is_of_pair && !two_as.contains(name) && !two_as.contains(pair_of(name));
    if (how.one_a) how.rank = std::max(how.rank, all.weights.at(pair_of(name)).rank);
  }
  return std::make_shared<const Adapter>(std::move(all));
}

Parameters::FillBlock with_text_adapters(Parameters::FillBlock base, AdapterPlaces places) {
  return [base = std::move(base), places = std::move(places)](const ParameterSpec& spec, const Box& block) {
    if (spec.of_adapter) return block_of(places, spec, block);
    return base ? base(spec, block) : Tensor();
  };
}

}  // namespace switchyard
