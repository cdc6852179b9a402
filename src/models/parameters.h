// Parameters: the names, shapes, logical dims and initial
// values of a model's weights, and this rank's shards of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "autograd/array.h"
#include "autograd/context.h"
#include "core/box.h"
#include "models/model_config.h"

namespace switchyard {

// log_uniform: logarithms of numbers between 0 and `deviation`. uniform: numbers within ±deviation.
enum class Initializer { ones, zeros, normal, truncated_normal, log_uniform, uniform };

// A weight as matrices of inputs × outputs. Its dims are [stack | inputs | outputs], one matrix for each
// entry of the stack (for example each expert). Head dims count to the side they are on.
struct MatrixForm {
  std::size_t stack = 0, inputs = 0;  // numbers of dims; inputs = 0: no matrix
};

// A weight lies in the memory of the device, or in that of the host, from where it is fetched for each use
// (ops/fetch_weight.h). Both are the same where the device's memory is the host's.
enum class WeightPlace : std::uint8_t { device, host };

struct ParameterSpec {
  std::string name;  // name, as listed in models/families/hub_tensors.h
  Shape shape;
  std::vector<std::string> dims;  // logical names
  Initializer initializer;
  double deviation = 0;  // standard deviation of the draw
  DType dtype;
  bool trained = true;        // false: it has no gradient, and the optimizer leaves it alone
  MatrixForm matrix = {};     // none for embedding, head, norms and biases: Muon leaves them to AdamW
  bool frozen = false;        // nothing changes it: not trained, and no router bias with its own update
  bool counted = true;        // part of the parameters' norm; false: a bias that only its own update moves
  bool on_both_ends = false;  // the first and the last stage of a pipeline both hold it
  WeightPlace place = WeightPlace::device;
  bool of_adapter = false;  // an adapter's folder has it, not the model's (models/adapter.h)
};

// The factor between a parameter and its Hugging Face form. compat=maxtext folds the scores' factor
// 1/√head_dim into the query's weights and bias. 1 for all other parameters.
double held_factor(const ModelConfig& model, std::string_view parameter);

// Lists all parameters in a fixed order: embedding, layers, prediction layers, final norm, head.
std::vector<ParameterSpec> parameter_specs(const ModelConfig& model);
// The layer number, 2 for "layers.2.moe.gate"; -1 for a parameter outside the layers.
std::int64_t layer_of(const std::string& parameter);

// The layers from begin up to, not including, end.
struct LayerRange {
  std::int64_t begin, end;
  bool contains(std::int64_t layer) const { return begin <= layer && layer < end; }
};
// The layers of one block of a pipeline stage, and of each block of a stage.
LayerRange layers_of(const Stage::Block& block, std::int64_t layers);
std::vector<LayerRange> layers_of(const Stage& stage, std::int64_t layers);

// The specs that a pipeline stage holds: the first stage has the embedding, the last has prediction layers
// and the head. The last has the embedding too, where the head or prediction layers read it.
std::vector<ParameterSpec> stage_specs(std::vector<ParameterSpec> specs, const Stage& stage,
                                       const ModelConfig& model);
std::int64_t parameter_count(const std::vector<ParameterSpec>& specs);

struct Parameter {
  ParameterSpec spec;
  Array array;  // this rank's shard, in the sharding of the rules; local ranks with the same shard share it
};
// True where a weight lies on the host and the context's kernels run elsewhere.
bool is_away(const Context& context, const ParameterSpec& spec);
// The ranks that hold the same shard of a parameter as this rank.
const ProcessGroup& holders_of(const Context& context, const Parameter& parameter);

class Parameters {
 public:
  // `fill` returns the whole tensor of a parameter (loaded weights), or an undefined one for a random draw.
  using Fill = std::function<Tensor(const ParameterSpec&)>;
  // Returns one block of a parameter, so that a rank reads no more than it needs: f32 or bf16, and cast to
  // the parameter's dtype on the way to the device. For a packed parameter it may return dense values of the
  // block, which are then packed.
  using FillBlock = std::function<Tensor(const ParameterSpec&, const Box& block)>;
  // Collective: returns when all ranks have their weights. A session may hold several models' weights. Every
  // rank's account is charged for its shards for good, as if it were alone, even where ranks share them;
  // the account of the context's host memory for those that are away.
  // Warnings about dims that lost axes go to `warnings`.
  static Parameters create(Context& context, std::vector<ParameterSpec> specs, std::uint32_t seed,
                           const Fill& fill, std::vector<std::string>* warnings);
  static Parameters create_from_blocks(Context& context, std::vector<ParameterSpec> specs, std::uint32_t seed,
                                       const FillBlock& fill, std::vector<std::string>* warnings);

  // Parameters whose arrays are there already.
  static Parameters of(std::vector<Parameter> all);

  // Moves weights to the layout of `rules`, without gradients. Arrays already in it are shared. Collective.
  Parameters under(Context& context, const AxisRules& rules) const;

  // Both CHECK that it exists.
  const Parameter& parameter(const std::string& name) const;
  const Array& operator[](const std::string& name) const { return parameter(name).array; }
  // Layers ask for this: the parameter where the device's kernels read it. A weight that is away is fetched.
  Array on_device(Context& context, const std::string& name) const;
  bool any_away(const Context& context) const;
  bool contains(const std::string& name) const { return index_.count(name) != 0; }
  std::vector<Parameter>& all() { return all_; }
  const std::vector<Parameter>& all() const { return all_; }

  // Puts the parameters of `with` in the place of those that an adapter has, or of those that none has
  // (ParameterSpec::of_adapter). The version stays as it is.
  void replace(bool of_adapter, Parameters with);

  // Grows with every change of the weights, in all copies of this object. What is computed from weights and
  // kept (merged weights, cached keys) is valid for one version.
  std::int64_t version() const { return *version_; }
  // Code that writes weights calls raise_version() afterwards, on every rank.
  void raise_version() const { ++*version_; }

 private:
  std::vector<Parameter> all_;
  std::unordered_map<std::string, std::size_t> index_;
  std::shared_ptr<std::int64_t> version_ = std::make_shared<std::int64_t>(0);
};

// The block at `offset` of the random draw for a whole parameter (f32 or bf16), made in `memory`: by a GPU's
// kernel where that is a GPU's. The bits are the same on every device.
Tensor draw_block(ThreadPool& pool, const Memory& memory, const ParameterSpec& spec, std::uint32_t seed,
                  const Box& block);
// Cuts a block out of a whole tensor, and puts a block back into one.
Tensor slice_block(const Tensor& whole, const Shape& offset, const Shape& local);
void place_block(const Tensor& block, const Shape& offset, const Tensor& whole);

}  // namespace switchyard
