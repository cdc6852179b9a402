#include "models/parameters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/rng.h"
#include "kernels/packed_weights.h"
#include "models/name_patterns.h"
#include "models/packed_parameters.h"

namespace switchyard {
namespace {

// Standard deviation of a unit normal cut at ±2, by which the draw is divided to have unit variance again.
constexpr double kTruncatedDeviation = 0.87962566103423978;

class SpecList {
 public:
  explicit SpecList(const ModelConfig& model) : m_(model) {}

  void kernel(std::string name, Shape shape, std::vector<std::string> dims, std::int64_t fan_in,
              MatrixForm form = {0, 1}) {
    add(std::move(name), std::move(shape), std::move(dims), Initializer::truncated_normal,
        1 / std::sqrt(static_cast<double>(fan_in)));
    specs_.back().matrix = form;
  }
  void projection(std::string name, Shape shape, std::vector<std::string> dims, std::int64_t fan_in,
                  double factor = 1) {
    add(std::move(name), std::move(shape), std::move(dims), Initializer::normal,
        factor / std::sqrt(static_cast<double>(fan_in)));
    specs_.back().matrix = {0, 1};
  }
  void norm(std::string name, std::int64_t dim, std::string logical = "norm") {
    add(std::move(name), {dim}, {std::move(logical)}, Initializer::ones, 0);
  }
  void norm_of_heads(std::string name, Shape heads) {
    add(std::move(name), std::move(heads), {"", ""}, Initializer::ones, 0);
  }
  void bias(std::string name, Shape shape, std::vector<std::string> dims) {
    add(std::move(name), std::move(shape), std::move(dims), Initializer::zeros, 0);
  }
  void add(std::string name, Shape shape, std::vector<std::string> dims, Initializer initializer,
           double deviation) {
    specs_.push_back({std::move(name),
                      std::move(shape),
                      std::move(dims),
                      initializer,
                      deviation,
                      m_.weight_dtype,
                      true,
                      {}});
  }
  std::vector<ParameterSpec>& specs() { return specs_; }

 private:
  const ModelConfig& m_;
  std::vector<ParameterSpec> specs_;
};

void attention_specs(const ModelConfig& m, const std::string& p, SpecList& list) {
  if (!m.mla) {
    list.projection(p + "query", {m.emb, m.heads, m.head_dim}, {"embed", "q_heads", "kv"}, m.emb,
                    held_factor(m, p + "query"));
    list.projection(p + "key", {m.emb, m.kv_heads, m.head_dim}, {"embed", "kv_heads", "kv_head_dim"}, m.emb);
    list.projection(p + "value", {m.emb, m.kv_heads, m.head_dim}, {"embed", "kv_heads", "kv_head_dim"},
                    m.emb);
    if (m.attention_bias) {
      list.bias(p + "query_bias", {m.heads, m.head_dim}, {"q_heads", "kv"});
      list.bias(p + "key_bias", {m.kv_heads, m.head_dim}, {"kv_heads", "kv_head_dim"});
      list.bias(p + "value_bias", {m.kv_heads, m.head_dim}, {"kv_heads", "kv_head_dim"});
    }
    if (m.sinks) list.bias(p + "sinks", {m.heads}, {"q_heads"});
    if (m.qk_norm_of_heads) {
      list.norm_of_heads(p + "q_norm", {m.heads, m.head_dim});
      list.norm_of_heads(p + "k_norm", {m.kv_heads, m.head_dim});
    } else if (m.qk_norm) {
      list.norm(p + "q_norm", m.head_dim, "");
      list.norm(p + "k_norm", m.head_dim, "");
    }
  } else {
    const std::int64_t qk = m.nope + m.rope_dim;
    if (m.q_lora > 0) {
      list.projection(p + "wq_a", {m.emb, m.q_lora}, {"embed", "q_lora_up_proj"}, m.emb);
      if (m.attention_bias) list.bias(p + "wq_a_bias", {m.q_lora}, {""});
      list.norm(p + "q_a_norm", m.q_lora, "");
      list.projection(p + "wq_b", {m.q_lora, m.heads, qk}, {"q_lora", "q_heads", "kv"}, m.q_lora);
    } else {
      list.projection(p + "query", {m.emb, m.heads, qk}, {"embed", "q_heads", "kv"}, m.emb);
    }
    list.projection(p + "wkv_a", {m.emb, m.kv_lora + m.rope_dim}, {"embed", "kv_lora_up_proj"}, m.emb);
    if (m.attention_bias) list.bias(p + "wkv_a_bias", {m.kv_lora + m.rope_dim}, {""});
    list.norm(p + "kv_a_norm", m.kv_lora, "");
    list.projection(p + "wkv_b", {m.kv_lora, m.heads, m.nope + m.v_dim},
                    {"kv_lora", "kv_heads", "kv_head_dim"}, m.kv_lora);
  }
  list.projection(p + "out", {m.heads, m.v_dim, m.moe_emb}, {"heads", "kv", "embed"}, m.heads * m.v_dim);
  list.specs().back().matrix.inputs = 2;
  if (m.attention_out_bias) list.bias(p + "out_bias", {m.moe_emb}, {"norm"});
}

void mlp_specs(const ModelConfig& m, const std::string& p, std::int64_t width, SpecList& list) {
  list.kernel(p + "wi_0", {m.emb, width}, {"embed", "mlp"}, m.emb);
  list.kernel(p + "wi_1", {m.emb, width}, {"embed", "mlp"}, m.emb);
  list.kernel(p + "wo", {width, m.emb}, {"mlp", "embed"}, width);
}

void moe_specs(const ModelConfig& m, const std::string& p, SpecList& list) {
  const std::int64_t experts = m.moe.experts;
  list.kernel(p + "gate", {m.moe_emb, experts}, {m.mla ? "embed_moe" : "embed", ""},
              m.moe_emb);  // as the reference splits it
  if (m.moe.bias) {
    list.add(p + "gate_bias", {experts}, {""}, Initializer::zeros, 0);
    list.specs().back().dtype = DType::f32;  // increments of 1e-3 must not round away
    list.specs().back().trained = m.compat;
  }
  if (m.moe.logit_bias) list.bias(p + "logit_bias", {experts}, {""});
  const MatrixForm each{1, 1};
  list.kernel(p + "wi_0", {experts, m.moe_emb, m.moe_mlp}, {"exp", "embed_moe", "mlp_moe"}, m.moe_emb, each);
  list.kernel(p + "wi_1", {experts, m.moe_emb, m.moe_mlp}, {"exp", "embed_moe", "mlp_moe"}, m.moe_emb, each);
  list.kernel(p + "wo", {experts, m.moe_mlp, m.moe_emb}, {"exp", "mlp_moe", "embed_moe"}, m.moe_mlp, each);
  if (m.moe.expert_bias) {
    list.bias(p + "wi_0_bias", {experts, m.moe_mlp}, {"exp", "mlp_moe"});
    list.bias(p + "wi_1_bias", {experts, m.moe_mlp}, {"exp", "mlp_moe"});
    list.bias(p + "wo_bias", {experts, m.moe_emb}, {"exp", "embed_moe"});
  }
  if (m.shared_experts > 0) mlp_specs(m, p + "shared.", m.shared_experts * m.moe_mlp, list);
}

// What a prediction layer has beside a layer's own parameters.
void prediction_specs(const ModelConfig& m, const std::string& p, SpecList& list) {
  list.norm(p + "token_norm", m.emb);
  list.norm(p + "hidden_norm", m.emb);
  list.kernel(p + "projection", {2 * m.emb, m.emb}, {"embed", "mlp"}, 2 * m.emb);
  if (m.prediction_norms) list.norm(p + "final_norm", m.emb);
}

// trainable_parameters_mask: what no pattern names is not trained.
void freeze(const ModelConfig& m, std::vector<ParameterSpec>& specs) {
  const NamePatterns trainable("trainable_parameters_mask", m.trainable);
  if (trainable.empty()) return;
  bool any = false;
  for (ParameterSpec& spec : specs) {
    const bool chosen = trainable.find_in(spec.name);
    any = any || (chosen && spec.trained);
    if (chosen || !spec.trained) continue;
    spec.trained = false;
    spec.frozen = !spec.name.ends_with(".gate_bias");  // which has an update of its own
  }
  if (!any)
    fail_usage("[model] trainable_parameters_mask={}: names no parameter that trains, such as {}",
               fmt::join(m.trainable, ","), specs.back().name);
}

}  // namespace

double held_factor(const ModelConfig& m, std::string_view parameter) {
  const bool query = parameter.ends_with("attention.query") || parameter.ends_with("attention.query_bias");
  const bool held = query && m.compat && !m.mla && m.attention_scale == 1.0;
  return held ? 1 / std::sqrt(static_cast<double>(m.head_dim)) : 1.0;
}

std::vector<ParameterSpec> parameter_specs(const ModelConfig& m) {
  SpecList list(m);
  list.add("embedding", {m.vocab, m.emb}, {"vocab", "embed_vocab"}, Initializer::normal, 1);
  for (std::int64_t i = 0; i < m.depth(); ++i) {
    const std::string p = fmt::format("layers.{}.", i);
    if (i >= m.layers) prediction_specs(m, p + "prediction.", list);
    list.norm(p + "pre_attention_norm", m.emb);
    attention_specs(m, p + "attention.", list);
    list.norm(p + "post_attention_norm", m.moe_emb);
    if (m.layer(i).experts)
      moe_specs(m, p + "moe.", list);
    else
      mlp_specs(m, p + "mlp.", m.mlp, list);
    if (m.latent_experts) list.kernel(p + "up_projection", {m.moe_emb, m.emb}, {"mlp", "embed"}, m.moe_emb);
  }
  list.norm("final_norm", m.emb);
  if (!m.tied) list.kernel("head", {m.emb, m.vocab}, {"embed_vocab", "vocab"}, m.emb, {});
  freeze(m, list.specs());
  return std::move(list.specs());
}

std::int64_t layer_of(const std::string& parameter) {
  return parameter.starts_with("layers.") ? std::stoll(parameter.substr(7)) : -1;
}

std::vector<ParameterSpec> stage_specs(std::vector<ParameterSpec> specs, const Stage& stage,
                                       const ModelConfig& model) {
  std::erase_if(specs, [&](const ParameterSpec& spec) {
    const std::int64_t layer = layer_of(spec.name);
    if (layer < 0) return spec.name == "embedding" ? !stage.is_first() : !stage.is_last();
    if (layer >= model.layers) return !stage.is_last();
    const LayerRange here = layers_of(stage, model.layers);
    return layer < here.begin || layer >= here.end;
  });
  return specs;
}

LayerRange layers_of(const Stage& stage, std::int64_t layers) {
  return {layers * stage.index / stage.count, layers * (stage.index + 1) / stage.count};
}

std::int64_t parameter_count(const std::vector<ParameterSpec>& specs) {
  std::int64_t n = 0;
  for (const auto& spec : specs) n += num_elements(spec.shape);
  return n;
}

Tensor draw_block(const ParameterSpec& spec, std::uint32_t seed, const Shape& offset, const Shape& local) {
  Tensor block(Memory(), spec.dtype, local);
  const RngKey key = rng_fold_in(rng_key(seed), spec.name);
  constexpr std::int64_t kPiece = 1 << 16;
  std::vector<float> piece(kPiece);
  for_runs(spec.shape, {offset, local}, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; i += kPiece) {
      const std::int64_t n = std::min(kPiece, count - i);
      const std::span<float> values(piece.data(), static_cast<std::size_t>(n));
      const auto first = static_cast<std::uint64_t>(from + i);
      double factor = spec.deviation;
      switch (spec.initializer) {
        case Initializer::ones:
          std::fill(values.begin(), values.end(), 1.0f);
          factor = 1;
          break;
        case Initializer::zeros:
          std::fill(values.begin(), values.end(), 0.0f);
          break;
        case Initializer::normal:
          rng_fill_normal(key, first, values);
          break;
        case Initializer::truncated_normal:
          rng_fill_truncated_normal(key, first, values, -2, 2);
          factor /= kTruncatedDeviation;
          break;
      }
      for (float& v : values) v *= static_cast<float>(factor);
      if (spec.dtype == DType::f32)
        std::copy(values.begin(), values.end(), block.data<float>() + to + i);
      else
        std::transform(values.begin(), values.end(), block.data<bfloat16>() + to + i,
                       [](float v) { return bfloat16(v); });
    }
  });
  return block;
}

Tensor slice_block(const Tensor& whole, const Shape& offset, const Shape& local) {
  Tensor block(Memory(), whole.dtype(), local);
  const std::size_t e = size_of(whole.dtype());
  for_runs(whole.shape(), {offset, local}, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    std::memcpy(block.raw() + static_cast<std::size_t>(to) * e,
                whole.raw() + static_cast<std::size_t>(from) * e, static_cast<std::size_t>(count) * e);
  });
  return block;
}

void place_block(const Tensor& block, const Shape& offset, const Tensor& whole) {
  if (whole.abstract()) return;
  const std::size_t e = size_of(whole.dtype());
  for_runs(whole.shape(), {offset, block.shape()},
           [&](std::int64_t from, std::int64_t to, std::int64_t count) {
             std::memcpy(whole.raw() + static_cast<std::size_t>(from) * e,
                         block.raw() + static_cast<std::size_t>(to) * e, static_cast<std::size_t>(count) * e);
           });
}

Parameters Parameters::create(Context& context, std::vector<ParameterSpec> specs, std::uint32_t seed,
                              const Fill& fill, std::vector<std::string>* warnings) {
  FillBlock fill_block;
  if (fill) {
    fill_block = [&fill](const ParameterSpec& spec, const Box& block) {
      const Tensor whole = fill(spec);
      return whole.defined() ? slice_block(whole, block.start, block.shape).cast(spec.dtype) : Tensor();
    };
  }
  return create_from_blocks(context, std::move(specs), seed, fill_block, warnings);
}

namespace {

// Dense values of a packed parameter are made a piece at a time, of about so many bytes.
constexpr std::int64_t kPieceBytes = std::int64_t{32} << 20;

// A box of blocks in pieces: matrix by matrix, and of a large one some columns at a time (of heads: some
// heads).
std::vector<Box> pieces_of(const ParameterSpec& spec, const Box& box) {
  std::vector<Box> pieces{box};
  const auto cut = [&](std::size_t dim, std::int64_t most) {
    std::vector<Box> parts;
    for (const Box& whole : pieces) {
      const std::int64_t end = whole.start[dim] + whole.shape[dim];
      for (std::int64_t at = whole.start[dim]; at < end; at += most) {
        Box piece = whole;
        piece.start[dim] = at;
        piece.shape[dim] = std::min(most, end - at);
        parts.push_back(std::move(piece));
      }
    }
    pieces = std::move(parts);
  };
  if (spec.matrix.stack > 0) cut(0, 1);
  if (pieces.empty()) return pieces;
  const std::size_t outputs = spec.matrix.stack + spec.matrix.inputs;  // the first of their dims
  const std::int64_t dense = num_elements(dense_box(spec, pieces[0]).shape) * std::int64_t{sizeof(float)};
  const std::int64_t width = pieces[0].shape[outputs];
  if (dense > kPieceBytes) cut(outputs, std::max<std::int64_t>(1, width * kPieceBytes / dense));
  return pieces;
}

void pack(Context& context, const ParameterSpec& spec, const Tensor& dense, const Tensor& packed) {
  // All of a weight's outputs are one row of blocks.
  std::int64_t inputs = block_inputs(spec.dtype);
  const std::size_t dims = spec.matrix.stack + spec.matrix.inputs;
  for (std::size_t i = 0; i < dims; ++i) inputs *= packed.dim(i);
  const std::int64_t outputs = inputs == 0 ? 0 : dense.size() / inputs;
  const PackArgs args{
      .dense = dense.view().reshaped({inputs, outputs}),
      .packed = packed.view().reshaped({inputs / block_inputs(spec.dtype), outputs / kBlockOutputs})};
  if (!pack_weights(*context.pool, args))
    fail_usage("[weights] {} has a value that is no finite number, which {} cannot hold", spec.name,
               name_of(spec.dtype));
}

// A rank's block of a packed parameter. The first piece says whether `fill` has blocks: then it is asked for
// all at once, which may lie in a file and be used there.
Tensor packed_block_of(Context& context, const ParameterSpec& spec, std::uint32_t seed, const Box& box,
                       const Parameters::FillBlock& fill) {
  Tensor packed;
  for (const Box& piece : pieces_of(spec, box)) {
    Tensor given = fill ? fill(spec, piece) : Tensor();
    if (given.defined() && given.dtype() == spec.dtype) return piece == box ? given : fill(spec, box);
    if (!given.defined()) {
      const Box values = dense_box(spec, piece);
      given = draw_block(dense_spec(spec, DType::f32), seed, values.start, values.shape);
    }
    const Tensor blocks(Memory(), spec.dtype, piece.shape);
    pack(context, spec, given, blocks);
    if (piece == box) return blocks;
    if (!packed.defined()) packed = Tensor(Memory(), spec.dtype, box.shape);
    Shape in_box = piece.start;
    for (std::size_t d = 0; d < in_box.size(); ++d) in_box[d] -= box.start[d];
    place_block(blocks, in_box, packed);
  }
  return packed.defined() ? packed : Tensor(Memory(), spec.dtype, box.shape);  // of no elements
}

// A rank's block of a parameter, from `fill` or drawn.
Tensor block_of(Context& context, const ParameterSpec& spec, std::uint32_t seed, const Box& box,
                const Parameters::FillBlock& fill) {
  if (is_packed(spec.dtype)) return packed_block_of(context, spec, seed, box, fill);
  Tensor given = fill ? fill(spec, box) : Tensor();
  return given.defined() ? given : draw_block(spec, seed, box.start, box.shape);
}

void check_split(const AxisRules& rules, const ParameterSpec& spec) {
  if (!is_packed(spec.dtype) || splits_whole_blocks(rules, spec)) return;
  fail_usage("[weights] {} {} in {}: the mesh would cut blocks of {} inputs by {} outputs", spec.name,
             to_string(dense_spec(spec, DType::bf16).shape), name_of(spec.dtype), block_inputs(spec.dtype),
             kBlockOutputs);
}

}  // namespace

Parameters Parameters::create_from_blocks(Context& context, std::vector<ParameterSpec> specs,
                                          std::uint32_t seed, const FillBlock& fill,
                                          std::vector<std::string>* warnings) {
  Parameters result;
  const std::uint64_t set = context.next_parameters++;
  for (auto& spec : specs) {
    const auto resolution = context.rules->resolve(spec.dims, spec.shape);
    if (warnings != nullptr) {
      for (const auto& w : resolution.warnings) warnings->push_back(fmt::format("{}: {}", spec.name, w));
    }
    check_split(*context.rules, spec);
    const Shape local = local_shape(*context.mesh, spec.shape, resolution.sharding);
    const Shape offset = local_offset(*context.mesh, context.rank, spec.shape, resolution.sharding);
    // Ranks with the same block find it under the same key: one copy a process, of each model.
    const std::string key = fmt::format("weight {} of {} at {}", spec.name, set, to_string(offset));
    auto shared = context.comm->shared(key, [&]() -> std::shared_ptr<void> {
      const Memory memory = context.memory.uncharged();  // each rank is charged below
      if (memory.device().is_abstract()) return std::make_shared<Tensor>(memory.empty(spec.dtype, local));
      return std::make_shared<Tensor>(
          to_device(memory, block_of(context, spec, seed, {offset, local}, fill)));
    });
    const Tensor block = *std::static_pointer_cast<Tensor>(shared);
    context.memory.charge(static_cast<std::int64_t>(block.bytes()));
    Array array = never_save(make_leaf(block, spec.shape, resolution.sharding, true));
    array.value()->requires_grad = spec.trained;
    array.value()->weight = true;
    if (context.comm->shared_memory() != nullptr)
      array.value()->info.shared = dual(*context.mesh, resolution.sharding).partial;
    result.index_[spec.name] = result.all_.size();
    result.all_.push_back({std::move(spec), std::move(array)});
  }
  return result;
}

const Array& Parameters::operator[](const std::string& name) const {
  const auto at = index_.find(name);
  CHECK(at != index_.end(), "no parameter {}", name);
  return all_[at->second].array;
}

}  // namespace switchyard
