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

// Fills the entries [begin, end) of the first dim of an adapters' parameter of experts, of which each expert
// has one for each number; the one for 0 is 0.
void fill_experts(const Tensor& out, const AdapterPlaces& places, const std::string& weight, bool is_a,
                  std::int64_t begin, std::int64_t end) {
  const std::int64_t numbers = std::ssize(places) + 1, size = out.size() / (end - begin);
  for (std::int64_t entry = begin; entry < end; ++entry) {
    const auto number = static_cast<std::size_t>(entry % numbers);
    if (number == 0 || places[number - 1] == nullptr) continue;
    const PeftAdapter& from = *places[number - 1];
    const auto how = from.adapter.weights.find(weight);
    if (how == from.adapter.weights.end()) continue;
    const Tensor& values = from.tensors.at(is_a ? lora_a_of(weight, how->second) : lora_b_of(weight));
    const std::int64_t rank = how->second.rank, width = is_a ? out.shape()[2] : values.shape()[2],
                       rows = is_a ? values.shape()[1] : rank, columns = is_a ? rank : width;
    const float* const source = values.data<float>() + entry / numbers * rows * columns;
    float* const to = out.data<float>() + (entry - begin) * size;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < columns; ++i) to[row * width + i] = source[row * columns + i];
    }
  }
}

// Fills a whole adapters' parameter of a weight without a stack: A [inputs, n·rank] or B [n·rank, outputs].
void fill_matrix(const Tensor& out, const AdapterPlaces& places, const std::string& weight, bool is_a) {
  const auto count = std::ssize(places);
  const std::int64_t outer = is_a ? out.shape().back() : out.shape().front(), rank = outer / count,
                     other = out.size() / outer;
  for (std::int64_t n = 0; n < count; ++n) {
    if (places[static_cast<std::size_t>(n)] == nullptr) continue;
    const PeftAdapter& from = *places[static_cast<std::size_t>(n)];
    const auto how = from.adapter.weights.find(weight);
    if (how == from.adapter.weights.end()) continue;
    const Tensor& values = from.tensors.at(is_a ? lora_a_of(weight, how->second) : lora_b_of(weight));
    for (std::int64_t k = 0; k < how->second.rank; ++k) {
      for (std::int64_t i = 0; i < other; ++i) {
        if (is_a)
          out.data<float>()[i * outer + n * rank + k] = values.data<float>()[i * how->second.rank + k];
        else
          out.data<float>()[(n * rank + k) * other + i] = values.data<float>()[k * other + i];
      }
    }
  }
}

Tensor block_of(const AdapterPlaces& places, const ParameterSpec& spec, const Box& block) {
  const bool is_a = spec.name.ends_with(kA);
  const std::string weight = weight_of(spec.name);
  if (spec.matrix.stack == 0) {
    const Tensor whole = Memory().zeros(DType::f32, spec.shape);
    fill_matrix(whole, places, weight, is_a);
    return slice_block(whole, block.start, block.shape);
  }
  Shape entries = spec.shape, start = block.start;
  entries[0] = block.shape[0];
  start[0] = 0;
  const Tensor whole = Memory().zeros(DType::f32, entries);
  fill_experts(whole, places, weight, is_a, block.start[0], block.start[0] + block.shape[0]);
  return slice_block(whole, start, block.shape);
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
  const auto factor = static_cast<float>(config.get_float("adapter_scale"));
  for (auto& [name, how] : read.adapter.weights) {
    Tensor& b = read.tensors.at(lora_b_of(name));
    b = b.clone();
    for (float& value : b.span<float>()) value *= how.scale * factor;
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
  PeftAdapter read = read_adapter_to_run(path, config, model);
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
