// Parameters: what a model's weights are called, their shapes, logical dims and initial values; and this
// rank's blocks.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "autograd/array.h"
#include "autograd/context.h"
#include "core/box.h"
#include "models/model_config.h"

namespace switchyard {

// log_uniform: logarithms of numbers between 0 and `deviation`.
enum class Initializer { ones, zeros, normal, truncated_normal, log_uniform };

// A weight seen as matrices of inputs × outputs: its dims are [stack | inputs | outputs], with one matrix for
// each entry of the stack (an expert each) and heads merged into the side they stand on.
struct MatrixForm {
  std::size_t stack = 0, inputs = 0;  // numbers of dims; inputs = 0: no matrix
};

struct ParameterSpec {
  std::string name;  // as listed in models/families/hub_tensors.h
  Shape shape;
  std::vector<std::string> dims;  // logical names
  Initializer initializer;
  double deviation = 0;  // standard deviation of the draw
  DType dtype;
  bool trained = true;        // false: it has no gradient, and the optimizer leaves it alone
  MatrixForm matrix = {};     // none for embedding, head, norms and biases, which Muon leaves to AdamW
  bool frozen = false;        // nothing changes it: not trained, and no router bias that its own update moves
  bool counted = true;        // in the parameters' norm; false: a router bias that only its own update moves
  bool on_both_ends = false;  // of a pipeline: the first stage and the last one hold it
};

// What a parameter holds beside its Hugging Face form: compat=maxtext keeps the scores' factor 1/√head_dim in
// the query's weights and bias. 1 for all others.
double held_factor(const ModelConfig& model, std::string_view parameter);

// In a fixed order: embedding, layers, prediction layers, final norm, head.
std::vector<ParameterSpec> parameter_specs(const ModelConfig& model);
// The 2 of "layers.2.moe.gate"; -1 for a parameter outside the layers.
std::int64_t layer_of(const std::string& parameter);

// Layers [begin, end).
struct LayerRange {
  std::int64_t begin, end;
  bool contains(std::int64_t layer) const { return begin <= layer && layer < end; }
};
// Those of a block of layers of a pipeline, and of each block of a stage.
LayerRange layers_of(const Stage::Block& block, std::int64_t layers);
std::vector<LayerRange> layers_of(const Stage& stage, std::int64_t layers);

// Those of them that a stage of a pipeline holds: the embedding on the first, prediction layers and the head
// on the last. There the embedding is, too, where it is the head or prediction layers read it.
std::vector<ParameterSpec> stage_specs(std::vector<ParameterSpec> specs, const Stage& stage,
                                       const ModelConfig& model);
std::int64_t parameter_count(const std::vector<ParameterSpec>& specs);

struct Parameter {
  ParameterSpec spec;
  Array array;  // this rank's block, in the sharding of the rules; local ranks with the same block share it
};
// The ranks that hold the same block of a parameter as this one.
const ProcessGroup& holders_of(const Context& context, const Parameter& parameter);

class Parameters {
 public:
  // `fill` returns the whole tensor of a parameter (loaded weights), or an undefined one for a random draw.
  using Fill = std::function<Tensor(const ParameterSpec&)>;
  // The same for a block of it, so that no more is read than a rank needs. A packed parameter's may be dense
  // values (f32 or bf16) of the block, which are then packed.
  using FillBlock = std::function<Tensor(const ParameterSpec&, const Box& block)>;
  // Collective: returns when all ranks have their weights. A session may hold several models' weights. Every
  // rank's account is charged with its blocks for good, as if it were alone, also where they are shared.
  // Warnings about dims that lost axes go to `warnings`.
  static Parameters create(Context& context, std::vector<ParameterSpec> specs, std::uint32_t seed,
                           const Fill& fill, std::vector<std::string>* warnings);
  static Parameters create_from_blocks(Context& context, std::vector<ParameterSpec> specs, std::uint32_t seed,
                                       const FillBlock& fill, std::vector<std::string>* warnings);

  // The same weights as `rules` lay them out; without gradients. What lies so already is shared. Collective.
  Parameters under(Context& context, const AxisRules& rules) const;

  const Array& operator[](const std::string& name) const;  // CHECKs that it exists
  bool contains(const std::string& name) const { return index_.count(name) != 0; }
  std::vector<Parameter>& all() { return all_; }
  const std::vector<Parameter>& all() const { return all_; }

 private:
  std::vector<Parameter> all_;
  std::map<std::string, std::size_t> index_;
};

// Elements of the block at `offset` of the random draw for a whole parameter.
Tensor draw_block(ThreadPool& pool, const ParameterSpec& spec, std::uint32_t seed, const Shape& offset,
                  const Shape& local);
// The block of a whole tensor, and its way back.
Tensor slice_block(const Tensor& whole, const Shape& offset, const Shape& local);
void place_block(const Tensor& block, const Shape& offset, const Tensor& whole);

}  // namespace switchyard
