#include "train/update.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/elementwise.h"
#include "train/pipeline.h"

namespace switchyard {

Updater::Updater(Context& context, const UpdateConfig& config, const Parameters& parameters)
    : context_(context), config_(config), optimizer_(Optimizer::make(config.optimizer)) {
  CHECK(context_.comm->shares_memory(), "each rank updates its share of a weight that all of them see");
  if (config_.muon) check(*config_.muon);
  OwnerLoads loads;
  for (const auto& p : parameters.all()) ranges_.push_back(make_range(p, loads));
}

Updater::Range Updater::make_range(const Parameter& p, OwnerLoads& loads) const {
  const Axes replicas = dual(*context_.mesh, p.array.sharding()).partial;
  Range range;
  range.parameter = &p;
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
  if (!p.spec.trained) return range;
  if (config_.muon && p.spec.matrix.inputs > 0) {
    range.exchange = std::make_unique<MatrixExchange>(context_, p, loads);
    range.state = {Tensor::zeros(config_.muon->mu_dtype, {range.count})};
  } else {
    range.state = optimizer_->init(p.spec.dtype, range.count);
  }
  return range;
}

std::int64_t Updater::state_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& r : ranges_) {
    for (const auto& t : r.state) bytes += static_cast<std::int64_t>(t.bytes());
  }
  return bytes;
}

void Updater::reduce_gradients() {
  for (Range& range : ranges_) {
    if (range.parameter->array.value()->requires_grad) reduce(range);
  }
}

void Updater::reduce(Range& range) const {
  Value& value = *range.parameter->array.value();
  Tensor grad = value.grad.defined() ? value.grad.cast(config_.grad_dtype)
                                     : Tensor::zeros(config_.grad_dtype, value.info.local);
  value.grad = Tensor();
  const auto ranks = static_cast<std::int64_t>(range.group.ranks.size());
  if (ranks == 1) {
    range.grad = grad.reshaped({range.count});
    return;
  }
  if (grad.size() != range.padded * ranks) {  // equal shares for the collective
    Tensor padded = Tensor::zeros(grad.dtype(), {range.padded * ranks});
    std::memcpy(padded.raw(), grad.raw(), grad.bytes());
    grad = padded;
  }
  Tensor mine(grad.dtype(), {range.padded});
  context_.comm->reduce_scatter(range.group, range.axis, grad.dtype(), grad.raw(), mine.raw(), range.padded);
  range.grad = mine.slice_rows(0, range.count);
}

double Updater::gradient_norm() const {
  return norm_of([](const Range& range) { return range.grad; });
}

double Updater::weight_norm() const {
  return norm_of([](const Range& range) {
    const Tensor& weight = range.parameter->array.tensor();
    return weight.reshaped({weight.size()}).slice_rows(range.begin, range.begin + range.count);
  });
}

double Updater::norm_of(const std::function<Tensor(const Range&)>& part) const {
  double sum = 0;
  for (const Range& range : ranges_) {
    const Tensor t = part(range);
    if (t.defined()) sum += sum_of_squares(*context_.pool, t.dtype(), t.raw(), t.size());
  }
  sum_over_run(context_, std::span(&sum, 1));
  return std::sqrt(sum);
}

// Muon's weights go in three passes, so that all ranks work on their own matrices at the same time.
void Updater::update(std::int64_t step, double learning_rate, double factor) {
  for (Range& range : ranges_) {
    if (!range.grad.defined()) continue;
    if (range.exchange)
      gather_matrices(range, step, factor);
    else
      update_elements(range, step, learning_rate, factor);
    range.grad = Tensor();
  }
  for (Range& range : ranges_) {
    if (range.exchange) orthogonalize(*context_.pool, config_.muon->eps, range.matrices);
  }
  for (Range& range : ranges_) {
    if (range.exchange) apply_matrices(range, learning_rate);
  }
  // Every share is written. Threads see each other's; ranks that do not share memory gather them here.
}

std::byte* Updater::weight_of(const Range& range) const {
  const Tensor& weight = range.parameter->array.tensor();
  return weight.raw() + static_cast<std::size_t>(range.begin) * size_of(weight.dtype());
}

void Updater::update_elements(Range& range, std::int64_t step, double learning_rate, double factor) const {
  optimizer_->update(*context_.pool, step, learning_rate, factor, range.decay, weight_of(range),
                     range.parameter->spec.dtype, range.grad.raw(), range.grad.dtype(), range.state,
                     range.count);
}

void Updater::gather_matrices(Range& range, std::int64_t step, double factor) const {
  const Tensor direction =
      muon_direction(*context_.pool, *config_.muon, step, factor, range.grad, range.state[0]);
  range.matrices = range.exchange->gather(context_, direction);
}

void Updater::apply_matrices(Range& range, double learning_rate) const {
  const MuonConfig& muon = *config_.muon;
  const Tensor update = range.exchange->scatter(context_, range.matrices);
  range.matrices = Tensor();
  muon_apply(*context_.pool, learning_rate,
             muon_scale(muon, range.exchange->inputs(), range.exchange->outputs()),
             range.decay ? muon.weight_decay : 0.0, update, weight_of(range), range.parameter->spec.dtype);
}

void Updater::add(const std::string& name, const std::vector<float>& increments) {
  for (const Range& range : ranges_) {
    if (range.parameter->spec.name != name) continue;
    float* weight = range.parameter->array.tensor().data<float>();
    for (std::int64_t i = range.begin; i < range.begin + range.count; ++i)
      weight[i] += increments[static_cast<std::size_t>(i)];
  }
}

}  // namespace switchyard
