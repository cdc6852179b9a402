#include "train/trainer.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "autograd/op.h"
#include "kernels/elementwise.h"
#include "moe/balance.h"
#include "moe/dispatch/dispatch.h"

namespace switchyard {
namespace {

Axes mesh_axes(const Mesh& mesh) {
  Axes all;
  for (const auto& axis : mesh.axes()) {
    if (axis.size > 1) all.push_back(axis.name);
  }
  return all;
}

// Rows [begin, end) of every tensor of a batch.
Batch rows_of(const Batch& b, std::int64_t begin, std::int64_t end) {
  return {b.inputs.slice_rows(begin, end), b.targets.slice_rows(begin, end),
          b.inputs_position.slice_rows(begin, end), b.inputs_segmentation.slice_rows(begin, end),
          b.targets_segmentation.slice_rows(begin, end)};
}

double value_of(const Array& scalar) {
  const bool readable = scalar.defined() && !scalar.tensor().abstract();
  return readable ? static_cast<double>(scalar.tensor().data<float>()[0]) : 0.0;
}

}  // namespace

TrainConfig train_config(const Config& c, const ModelConfig& model) {
  TrainConfig t;
  t.optimizer.type = c.get_string("opt_type");
  t.optimizer.b1 = c.get_float("adam_b1");
  t.optimizer.b2 = c.get_float("adam_b2");
  t.optimizer.eps = c.get_float("adam_eps");
  t.optimizer.eps_root = c.get_float("adam_eps_root");
  t.optimizer.weight_decay = c.get_float("adam_weight_decay");
  t.optimizer.mu_dtype =
      c.is_none("mu_dtype") ? model.weight_dtype : parse_float_dtype(c.get_string("mu_dtype"), "mu_dtype");
  t.schedule.type = c.get_string("lr_schedule_type");
  t.schedule.learning_rate = c.get_float("learning_rate");
  t.schedule.final_fraction = c.get_float("learning_rate_final_fraction");
  t.schedule.warmup_steps_fraction = c.get_float("warmup_steps_fraction");
  t.schedule.wsd_decay_steps_fraction = c.get_float("wsd_decay_steps_fraction");
  t.schedule.wsd_decay_style = c.get_string("wsd_decay_style");
  const std::int64_t schedule_steps = c.get_int("learning_rate_schedule_steps");
  t.schedule.schedule_steps = schedule_steps > 0 ? schedule_steps : c.get_int("steps");
  check(t.schedule);
  t.clip = c.get_float("gradient_clipping_threshold");
  t.accumulation = c.get_int("gradient_accumulation_steps");
  t.grad_dtype = parse_float_dtype(c.get_string("grad_dtype"), "grad_dtype");
  t.decay_exclude = c.get_strings("weight_decay_exclude");
  return t;
}

double LayerStatistics::max_over_mean() const {
  const double sum = std::accumulate(rows.begin(), rows.end(), 0.0);
  return sum > 0 ? *std::max_element(rows.begin(), rows.end()) * static_cast<double>(rows.size()) / sum : 0.0;
}

double LayerStatistics::entropy() const {
  const double sum = std::accumulate(rows.begin(), rows.end(), 0.0);
  double h = 0;
  for (double r : rows) h -= r > 0 ? r / sum * std::log(r / sum) : 0.0;
  return h;
}

double LayerStatistics::rows_dropped() const {
  return std::accumulate(dropped.begin(), dropped.end(), 0.0);
}

Trainer::Trainer(Context& context, ModelConfig model, TrainConfig config, Parameters parameters)
    : context_(context),
      model_(std::move(model)),
      config_(std::move(config)),
      parameters_(std::move(parameters)),
      optimizer_(Optimizer::make(config_.optimizer)) {
  CHECK(context_.comm->shares_memory(), "each rank updates its share of a weight that all of them see");
  for (const auto& p : parameters_.all()) {
    const Axes replicas = dual(*context_.mesh, p.array.sharding()).partial;
    Range range;
    range.group = context_.group(replicas);
    range.axis = joined(replicas);
    const auto ranks = static_cast<std::int64_t>(range.group.ranks.size());
    const std::int64_t size = p.array.tensor().size(), share = (size + ranks - 1) / ranks;
    range.begin = std::min(size, share * range.group.index);
    range.count = std::min(size, range.begin + share) - range.begin;
    range.padded = share;
    range.decay = std::none_of(
        config_.decay_exclude.begin(), config_.decay_exclude.end(),
        [&](const std::string& pattern) { return fnmatch(pattern.c_str(), p.spec.name.c_str(), 0) == 0; });
    if (p.spec.trained) range.state = optimizer_->init(p.spec.dtype, range.count);
    ranges_.push_back(std::move(range));
  }
}

std::int64_t Trainer::optimizer_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& r : ranges_) {
    for (const auto& t : r.state) bytes += static_cast<std::int64_t>(t.bytes());
  }
  return bytes;
}

StepResult Trainer::step(std::int64_t step, const Batch& batch) {
  StepResult result;
  result.learning_rate = learning_rate(config_.schedule, step);
  accumulate(step, batch, result);
  {
    auto phase = timer_.scope("gradients");
    context_.enter("gradients");
    reduce_gradients();
    result.raw_grad_norm = norm_of(true);
  }
  const bool clipped = config_.clip > 0 && result.raw_grad_norm >= config_.clip;
  const double factor = clipped ? config_.clip / result.raw_grad_norm : 1.0;
  result.grad_norm = result.raw_grad_norm * factor;
  auto phase = timer_.scope("optimizer");
  context_.enter("optimizer");
  update(step, result, factor);
  if (model_.moe.bias_update_rate > 0) update_bias(result);
  result.param_norm = norm_of(false);  // sums over all ranks: nobody reads a weight before all are written
  return result;
}

void Trainer::accumulate(std::int64_t step, const Batch& batch, StepResult& result) {
  for (auto& p : parameters_.all()) p.array.value()->grad = Tensor();
  result.total_weights = count_targets(batch);
  const std::int64_t rows = batch.inputs.dim(0) / config_.accumulation;
  const double pieces = static_cast<double>(config_.accumulation);
  std::vector<std::vector<LayerLoad>> loads;
  for (std::int64_t i = 0; i < config_.accumulation; ++i) {
    ForwardResult out;
    {
      auto phase = timer_.scope("forward");
      context_.enter("forward");
      const DeviceBatch placed = place_batch(context_, rows_of(batch, i * rows, (i + 1) * rows));
      ForwardOptions options;
      options.step = step * config_.accumulation + i;
      options.target_count = result.total_weights + (model_.compat || result.total_weights == 0 ? 1e-8 : 0.0);
      options.balance_share = 1 / pieces;
      out = forward(context_, model_, parameters_, placed, options);
    }
    result.loss += value_of(out.loss);
    result.lm_loss += value_of(out.lm_loss);
    result.z_loss += value_of(out.z_loss);
    result.balance_loss += value_of(out.balance_loss);
    loads.push_back(std::move(out.loads));
    result.layer_bytes = std::move(out.layer_bytes);
    auto phase = timer_.scope("backward");
    context_.enter("backward");
    const Array loss = out.loss;
    out = ForwardResult();
    backward(context_, loss);
  }
  gather_statistics(loads, result);
}

void Trainer::gather_statistics(const std::vector<std::vector<LayerLoad>>& loads, StepResult& result) {
  if (loads[0].empty()) return;
  const auto experts = static_cast<std::size_t>(model_.moe.experts), layers = loads[0].size();
  std::vector<double> sums(layers * experts * 2, 0.0);
  for (const auto& piece : loads) {
    for (std::size_t l = 0; l < layers; ++l) {
      for (std::size_t e = 0; e < experts; ++e) {
        sums[(2 * l) * experts + e] += piece[l].rows[e];
        sums[(2 * l + 1) * experts + e] += piece[l].dropped[e];
      }
    }
  }
  const Axes all = mesh_axes(*context_.mesh);
  context_.comm->all_reduce_f64(context_.group(all), joined(all), sums.data(),
                                static_cast<std::int64_t>(sums.size()));
  for (std::size_t l = 0; l < layers; ++l) {
    const auto at = sums.begin() + static_cast<std::ptrdiff_t>(2 * l * experts),
               middle = at + static_cast<std::ptrdiff_t>(experts);
    LayerStatistics layer{
        loads[0][l].layer, {at, middle}, {middle, middle + static_cast<std::ptrdiff_t>(experts)}, {}};
    const auto ranks =
        static_cast<std::size_t>(context_.mesh->product(expert_axes(context_, model_.moe.experts)));
    for (std::size_t r = 0; r < ranks && ranks > 1; ++r) {
      double rows = 0;
      for (std::size_t e = r * experts / ranks; e < (r + 1) * experts / ranks; ++e)
        rows += layer.rows[e] - layer.dropped[e];
      layer.rows_per_rank.push_back(rows);
    }
    result.layers.push_back(std::move(layer));
  }
}

void Trainer::reduce_gradients() {
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    Range& range = ranges_[i];
    Value& value = *parameters_.all()[i].array.value();
    if (!value.requires_grad) continue;
    Tensor grad = value.grad.defined() ? value.grad.cast(config_.grad_dtype)
                                       : Tensor::zeros(config_.grad_dtype, value.info.local);
    value.grad = Tensor();
    const auto ranks = static_cast<std::int64_t>(range.group.ranks.size());
    if (ranks == 1) {
      range.grad = grad.reshaped({range.count});
      continue;
    }
    if (grad.size() != range.padded * ranks) {  // equal shares for the collective
      Tensor padded = Tensor::zeros(grad.dtype(), {range.padded * ranks});
      if (!context_.abstract()) std::memcpy(padded.raw(), grad.raw(), grad.bytes());
      grad = padded;
    }
    Tensor mine(grad.dtype(), {range.padded});
    context_.comm->reduce_scatter(range.group, range.axis, grad.dtype(), grad.raw(), mine.raw(),
                                  range.padded);
    range.grad = mine.slice_rows(0, range.count);
  }
}

double Trainer::norm_of(bool gradients) {
  double sum = 0;
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const Range& range = ranges_[i];
    const Tensor& weight = parameters_.all()[i].array.tensor();
    const Tensor t =
        gradients ? range.grad
                  : weight.reshaped({weight.size()}).slice_rows(range.begin, range.begin + range.count);
    if (t.defined()) sum += sum_of_squares(*context_.pool, t.dtype(), t.raw(), t.size());
  }
  const Axes all = mesh_axes(*context_.mesh);
  context_.comm->all_reduce_f64(context_.group(all), joined(all), &sum, 1);
  return std::sqrt(sum);
}

void Trainer::update(std::int64_t step, const StepResult& result, double factor) {
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    Range& range = ranges_[i];
    if (!range.grad.defined()) continue;
    const Tensor& weight = parameters_.all()[i].array.tensor();
    std::byte* at = weight.raw() + static_cast<std::size_t>(range.begin) * size_of(weight.dtype());
    optimizer_->update(*context_.pool, step, result.learning_rate, factor, range.decay, at, weight.dtype(),
                       range.grad.raw(), range.grad.dtype(), range.state, range.count);
    range.grad = Tensor();
  }
}

void Trainer::update_bias(const StepResult& result) {
  for (const auto& layer : result.layers) {
    const std::string name = fmt::format("layers.{}.moe.gate_bias", layer.layer);
    const auto increment = bias_increment(layer.rows, model_.moe.bias_update_rate);
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      if (parameters_.all()[i].spec.name != name || context_.abstract()) continue;
      float* bias = parameters_.all()[i].array.tensor().data<float>();
      for (std::int64_t e = ranges_[i].begin; e < ranges_[i].begin + ranges_[i].count; ++e)
        bias[e] += increment[static_cast<std::size_t>(e)];
    }
  }
}

Trainer::EvalResult Trainer::evaluate(const Batch& batch) {
  NoGrad no_grad(context_);
  ForwardOptions options;
  const double targets = count_targets(batch);
  options.target_count = std::max(1.0, targets);
  const ForwardResult out = forward(context_, model_, parameters_, place_batch(context_, batch), options);
  return {(value_of(out.lm_loss) - value_of(out.z_loss)) * targets, targets};
}

}  // namespace switchyard
