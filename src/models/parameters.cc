#include "models/parameters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "core/error.h"
#include "core/offload.h"
#include "core/rng.h"
#include "core/stopping_point.h"
#include "core/upload.h"
#include "kernels/packed/packed_weights.h"
#include "kernels/pointwise/random_values.h"
#include "kernels/pointwise/strided_copy.h"
#include "models/layout_warnings.h"
#include "models/packed_parameters.h"
#include "ops/fetch_weight.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

// Standard deviation of a unit normal truncated at ±2. The draw is divided by it to have variance 1 again.
constexpr double kTruncatedDeviation = 0.87962566103423978;
constexpr float kLeastUniform = 1e-9f;  // whose logarithm is taken

}  // namespace

std::int64_t layer_of(const std::string& parameter) {
  return parameter.starts_with("layers.") ? std::stoll(parameter.substr(7)) : -1;
}

std::vector<ParameterSpec> stage_specs(std::vector<ParameterSpec> specs, const Stage& stage,
                                       const ModelConfig& model) {
  const bool both_ends = stage.count > 1 && (model.tied || model.predictions > 0);
  const std::vector<LayerRange> here = layers_of(stage, model.layers);
  std::erase_if(specs, [&](const ParameterSpec& spec) {
    const std::int64_t layer = layer_of(spec.name);
    if (spec.name == "embedding") return !stage.is_first() && !(both_ends && stage.is_last());
    if (layer < 0 || layer >= model.layers) return !stage.is_last();
    return std::ranges::none_of(here, [&](const LayerRange& block) { return block.contains(layer); });
  });
  for (ParameterSpec& spec : specs) spec.on_both_ends = both_ends && spec.name == "embedding";
  return specs;
}

LayerRange layers_of(const Stage::Block& block, std::int64_t layers) {
  return {layers * block.index / block.count, layers * (block.index + 1) / block.count};
}

std::vector<LayerRange> layers_of(const Stage& stage, std::int64_t layers) {
  std::vector<LayerRange> ranges;
  for (int block = 0; block < stage.repeats; ++block) ranges.push_back(layers_of(stage.block(block), layers));
  return ranges;
}

bool is_away(const Context& context, const ParameterSpec& spec) {
  return spec.place == WeightPlace::host && context.offload != nullptr;
}

const ProcessGroup& holders_of(const Context& context, const Parameter& parameter) {
  const Axes replicas = dual(*context.mesh, parameter.array.sharding()).partial;
  return parameter.spec.on_both_ends ? context.group_on_ends(replicas) : context.group(replicas);
}

std::int64_t parameter_count(const std::vector<ParameterSpec>& specs) {
  std::int64_t n = 0;
  for (const auto& spec : specs) n += num_elements(spec.shape);
  return n;
}

namespace {

// Uniform numbers or their logarithms, on the host by its libm: few parameters have them, all of them small.
Tensor draw_uniform(const ParameterSpec& spec, RngKey key, const Box& block) {
  const Tensor values(DType::f32, block.shape);
  const auto most = static_cast<float>(spec.deviation);
  const bool logarithms = spec.initializer == Initializer::log_uniform;
  for_runs(spec.shape, block, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const float drawn =
          rng_uniform(key, static_cast<std::uint64_t>(from + i), logarithms ? kLeastUniform : -most, most);
      values.data<float>()[to + i] = logarithms ? std::log(drawn) : drawn;
    }
  });
  return values.cast(spec.dtype);
}

}  // namespace

Tensor draw_block(ThreadPool& pool, const Memory& memory, const ParameterSpec& spec, std::uint32_t seed,
                  const Box& block) {
  const RngKey key = rng_fold_in(rng_key(seed), spec.name);
  if (spec.initializer == Initializer::log_uniform || spec.initializer == Initializer::uniform)
    return to_device(memory, draw_uniform(spec, key, block));
  const Tensor drawn = memory.empty(spec.dtype, block.shape);
  RandomValuesArgs args{.to = drawn.view(), .whole = spec.shape, .start = block.start, .key = key};
  if (spec.initializer == Initializer::normal) {
    args.range = normal_range();
    args.factor = static_cast<float>(spec.deviation);
  } else if (spec.initializer == Initializer::truncated_normal) {
    args.range = truncated_normal_range(-2, 2);
    args.factor = static_cast<float>(spec.deviation / kTruncatedDeviation);
  } else {
    args.factor = spec.initializer == Initializer::ones ? 1.0f : 0.0f;
  }
  random_values(pool, args);
  return drawn;
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

// A box of blocks in pieces: matrix by matrix, and of a large one some columns at a
// time (of heads: some heads).
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
    fail_usage(
        "[weights] {} has a value that is no finite number, or too large for a scale in float16, which {} "
        "cannot hold",
        spec.name, name_of(spec.dtype));
}

// The memory of a rank's blocks. What the host has goes there through `upload`, if given.
struct Destination {
  const Memory& memory;
  Upload* upload;

  Tensor put(const Tensor& host, DType dtype) const {
    return upload != nullptr ? upload->send(host, dtype) : to_device(memory, host.cast(dtype));
  }
};

// A rank's block of a packed parameter. The first piece says whether `fill` has blocks: then it is asked for
// all at once, which may lie in a file and be used there.
Tensor packed_block_of(Context& context, const ParameterSpec& spec, std::uint32_t seed, const Box& box,
                       const Parameters::FillBlock& fill, const Destination& place) {
  Tensor packed;
  for (const Box& piece : pieces_of(spec, box)) {
    const Tensor given = fill ? fill(spec, piece) : Tensor();
    if (given.defined() && given.dtype() == spec.dtype)
      return place.put(piece == box ? given : fill(spec, box), spec.dtype);
    const Tensor dense = given.defined()
                             ? place.put(given, given.dtype())
                             : draw_block(*context.pool, place.memory, dense_spec(spec, DType::f32), seed,
                                          dense_box(spec, piece));
    const Tensor blocks = place.memory.empty(spec.dtype, piece.shape);
    pack(context, spec, dense, blocks);
    if (piece == box) return blocks;
    if (!packed.defined()) packed = place.memory.empty(spec.dtype, box.shape);
    TensorView part = packed.view();
    for (std::size_t d = 0; d < piece.start.size(); ++d)
      part = part.slice(d, piece.start[d] - box.start[d], piece.shape[d]);
    strided_copy(*context.pool, blocks.view(), part);
  }
  return packed.defined() ? packed : place.memory.empty(spec.dtype, box.shape);  // of no elements
}

// A rank's block of a parameter, from `fill` or drawn.
Tensor block_of(Context& context, const ParameterSpec& spec, std::uint32_t seed, const Box& box,
                const Parameters::FillBlock& fill, const Destination& place) {
  if (is_packed(spec.dtype)) return packed_block_of(context, spec, seed, box, fill, place);
  if (const Tensor given = fill ? fill(spec, box) : Tensor(); given.defined())
    return place.put(given, spec.dtype);
  return draw_block(*context.pool, place.memory, spec, seed, box);
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
  if (warnings != nullptr) *warnings = layout_warnings(*context.rules, specs);
  std::optional<Upload> upload;
  if (const Device& device = context.memory.device(); device.is_gpu() && !device.is_abstract())
    upload.emplace(context.memory.uncharged(), *context.pool);
  for (auto& spec : specs) {
    const auto resolution = context.rules->resolve(spec.dims, spec.shape);
    check_split(*context.rules, spec);
    const Shape local = local_shape(*context.mesh, spec.shape, resolution.sharding);
    const Shape offset = local_offset(*context.mesh, context.rank, spec.shape, resolution.sharding);
    const bool away = is_away(context, spec);
    // Ranks with the same block find it under the same key: one copy a process, of each model.
    const std::string key = fmt::format("weight {} of {} at {}", spec.name, set, to_string(offset));
    auto shared = context.comm->shared(key, [&]() -> std::shared_ptr<void> {
      const Memory memory = away ? Memory() : context.memory.uncharged();  // each rank is charged below
      const HostMemory host(context.memory.uncharged());
      if (context.memory.device().is_abstract())
        return std::make_shared<Tensor>(away ? host.empty(spec.dtype, local)
                                             : memory.empty(spec.dtype, local));
      auto made = std::make_shared<Tensor>(block_of(context, spec, seed, {offset, local}, fill,
                                                    {memory, upload && !away ? &*upload : nullptr}));
      if (away) {  // the GPU copies from there by itself
        const Tensor pinned = host.empty(spec.dtype, local);
        copy(made->view(), pinned.view());
        *made = pinned;
      }
      stopping_point("weight made");
      return made;
    });
    const Tensor block = *std::static_pointer_cast<Tensor>(shared);
    if (away)
      context.offload->account().charge(static_cast<std::int64_t>(block.bytes()));
    else
      context.memory.charge(static_cast<std::int64_t>(block.bytes()));
    Array array = never_save(make_leaf(block, spec.shape, resolution.sharding, true));
    array.value()->requires_grad = spec.trained;
    array.value()->weight = true;
    if (context.comm->shared_memory() != nullptr)
      array.value()->info.shared = dual(*context.mesh, resolution.sharding).partial;
    result.index_[spec.name] = result.all_.size();
    result.all_.push_back({std::move(spec), std::move(array)});
  }
  if (upload) upload->finish();
  return result;
}

Parameters Parameters::of(std::vector<Parameter> all) {
  Parameters result;
  result.all_ = std::move(all);
  for (std::size_t i = 0; i < result.all_.size(); ++i) result.index_[result.all_[i].spec.name] = i;
  return result;
}

Parameters Parameters::under(Context& context, const AxisRules& rules) const {
  NoGrad no_grad(context);
  Parameters result;
  result.index_ = index_;
  for (const Parameter& p : all_) {
    const Sharding to = rules.resolve(p.spec.dims, p.spec.shape).sharding;
    Parameter moved = p;
    if (is_away(context, p.spec) && to != p.array.sharding()) {
      moved.spec.place = WeightPlace::device;
      moved.array = fetch_weight(context, p.array);
    }
    moved.array = reshard(context, moved.array, to);
    result.all_.push_back(std::move(moved));
  }
  return result;
}

void Parameters::replace(bool of_adapter, Parameters with) {
  std::erase_if(all_, [&](const Parameter& own) { return own.spec.of_adapter == of_adapter; });
  for (Parameter& other : with.all_) {
    CHECK(other.spec.of_adapter == of_adapter, "{} is of the other kind", other.spec.name);
    all_.push_back(std::move(other));
  }
  index_.clear();
  for (std::size_t i = 0; i < all_.size(); ++i) index_[all_[i].spec.name] = i;
}

const Parameter& Parameters::parameter(const std::string& name) const {
  const auto at = index_.find(name);
  CHECK(at != index_.end(), "no parameter {}", name);
  return all_[at->second];
}

bool Parameters::any_away(const Context& context) const {
  return std::ranges::any_of(all_, [&](const Parameter& p) { return is_away(context, p.spec); });
}

Array Parameters::on_device(Context& context, const std::string& name) const {
  const Parameter& stored = parameter(name);
  return is_away(context, stored.spec) ? fetch_weight(context, stored.array) : stored.array;
}

}  // namespace switchyard
