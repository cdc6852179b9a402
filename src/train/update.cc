#include "train/update.h"

#include <fnmatch.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <utility>

#include "kernels/attention/head_scores.h"
#include "kernels/moe/router_bias.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/strided_copy.h"
#include "models/pipeline.h"

namespace switchyard {

namespace {

// True when Muon updates the parameter, matrix by matrix.
bool goes_to_muon(const UpdateConfig& config, const ParameterSpec& spec) {
  return config.muon && spec.matrix.inputs > 0 && (config.muon_routers || !spec.name.ends_with(".moe.gate"));
}

// A parameter's elements on this rank, in a row.
TensorView elements_of(const Parameter& parameter) {
  const Tensor& weight = parameter.array.tensor();
  return weight.view().reshaped({weight.size()});
}

}  // namespace

Updater::Updater(Context& context, const UpdateConfig& config, const Parameters& parameters)
    : context_(context), config_(config), optimizer_(Optimizer::make(config.optimizer)) {
  if (config_.muon) check(*config_.muon);
  OwnerLoads loads;
  if (offloads()) context_.offload->finish();  // state is zeroed in memory that they had
  for (const auto& p : parameters.all()) ranges_.push_back(make_range(p, loads));
  // A row of the matrix of squares, and a slot in it, for each range.
  const bool piped = context_.stage.count > 1;
  std::vector<std::int64_t> used(piped ? static_cast<std::size_t>(config_.layers + 1) : 1, 0);
  const auto place_of = [&](const Range& range) {
    return piped ? static_cast<std::size_t>(layer_of(range.parameter->spec.name) + 1) : 0;
  };
  for (Range& range : ranges_) range.slot = used[place_of(range)]++;
  places_ = std::ssize(used);
  slots_ = *std::ranges::max_element(used);
  squares_ = context_.zeros(DType::f64, {places_, slots_});
  for (Range& range : ranges_) {
    range.slot += static_cast<std::int64_t>(place_of(range)) * slots_;
    range.squares = square_of(squares_, range);
  }
}

TensorView Updater::square_of(const Tensor& squares, const Range& range) {
  return squares.view().reshaped({squares.size()}).rows(range.slot, range.slot + 1);
}

Updater::Range Updater::make_range(const Parameter& p, OwnerLoads& loads) const {
  Range range;
  range.parameter = &p;
  range.group = &holders_of(context_, p);
  const auto ranks = range.group->size();
  const std::int64_t size = p.array.tensor().size(), share = (size + ranks - 1) / ranks;
  range.begin = std::min(size, share * range.group->index);
  range.count = std::min(size, range.begin + share) - range.begin;
  range.padded = share;
  range.decay = std::none_of(
      config_.decay_exclude.begin(), config_.decay_exclude.end(),
      [&](const std::string& pattern) { return fnmatch(pattern.c_str(), p.spec.name.c_str(), 0) == 0; });
  range.decay = range.decay && !config_.decay_mask.find_in(p.spec.name);
  if (is_away(range) && !p.spec.frozen && !context_.comm->in_one_process())
    fail_usage(
        "[train] weight_places: {} changes, and several processes change no weights that lie on the host; "
        "leave it on the device, or freeze it by trainable_parameters_mask",
        p.spec.name);
  if (!p.spec.trained) return range;
  if (goes_to_muon(config_, p.spec)) {
    range.exchange = std::make_unique<MatrixExchange>(context_, p, loads);
    range.state = {context_.zeros(config_.muon->mu_dtype, {range.count})};
  } else {
    range.state = optimizer_->init(context_.memory, p.spec.dtype, range.count);
  }
  if (offloads()) {
    for (Tensor& state : range.state) {
      state = context_.offload->empty(state.dtype(), state.shape());
      state.fill_zero();
    }
  }
  return range;
}

std::vector<StateTensor> state_tensors(const UpdateConfig& config, const ParameterSpec& spec) {
  if (!spec.trained) return {};
  if (goes_to_muon(config, spec)) return {{".mu", config.muon->mu_dtype}};
  std::vector<StateTensor> tensors;
  for (const Tensor& state : Optimizer::make(config.optimizer)->init(Memory(), spec.dtype, 0))
    tensors.push_back({tensors.empty() ? ".mu" : ".nu", state.dtype()});
  return tensors;
}

std::vector<Updater::Share> Updater::shares() const {
  std::vector<Share> shares;
  for (const Range& range : ranges_)
    shares.push_back({range.parameter, range.begin, range.count, range.state});
  return shares;
}

std::int64_t Updater::state_bytes() const {
  std::int64_t bytes = 0;
  if (offloads()) return bytes;
  for (const auto& r : ranges_) {
    for (const auto& t : r.state) bytes += static_cast<std::int64_t>(t.bytes());
  }
  return bytes;
}

void Updater::reduce_gradients() {
  for (Range& range : ranges_) {
    if (!range.parameter->array.value()->requires_grad) continue;
    context_.comm->position().layer = layer_of(range.parameter->spec.name);
    reduce(range);
  }
  context_.comm->position().layer = -1;
}

// A gradient changes its type only on its way to other ranks.
void Updater::reduce(Range& range) const {
  Value& value = *range.parameter->array.value();
  Tensor grad =
      value.grad.defined() ? value.grad : context_.zeros(range.parameter->spec.dtype, value.info.local);
  value.grad = Tensor();
  const auto ranks = range.group->size();
  if (ranks == 1) {
    range.grad = grad.reshaped({range.count});
    return;
  }
  if (config_.grad_dtype == DType::bf16) grad = converted(*context_.pool, grad, DType::bf16);
  grad = grad.reshaped({grad.size()});
  if (grad.size() != range.padded * ranks) {  // equal shares for the collective
    const Tensor padded = context_.zeros(grad.dtype(), {range.padded * ranks});
    strided_copy(*context_.pool, grad.view(), padded.view().rows(0, grad.size()));
    grad = padded;
  }
  const Tensor mine = context_.empty(config_.grad_dtype, {range.padded});
  context_.comm->reduce_scatter(*range.group, grad.view(), mine.view());
  range.grad = mine.slice_rows(0, range.count);
}

void Updater::put_gradient_squares(const Tensor& to) const {
  const InsideOp inside(context_, "gradient_norm", "update");
  std::vector<SquareSumArgs> sums;
  for (const Range& range : ranges_) {
    if (range.grad.defined()) sums.push_back({range.grad.view(), square_of(to, range)});
  }
  sums_of_squares(*context_.pool, sums);
}

std::vector<const Parameter*> Updater::not_finite(const Tensor& squares) const {
  std::vector<const Parameter*> found;
  for (const Range& range : ranges_) {
    if (!std::isfinite(squares.data<double>()[range.slot])) found.push_back(range.parameter);
  }
  return found;
}

void Updater::sum_new_weights() {
  const InsideOp inside(context_, "weight_norm", "update");
  std::vector<SquareSumArgs> unknown;
  for (Range& range : ranges_) {
    if (!range.parameter->spec.counted) continue;
    if (!std::exchange(range.squares_known, true)) {
      if (!is_away(range)) {
        unknown.push_back({weight_of(range), range.squares});
        continue;
      }
      on_weight(range, false, [&](const TensorView& weight) {
        const SquareSumArgs alone{weight, range.squares};
        sums_of_squares(*context_.pool, std::span(&alone, 1));
      });
    }
  }
  sums_of_squares(*context_.pool, unknown);
}

void Updater::forget_weight_sums() {
  for (Range& range : ranges_) range.squares_known = false;
}

// Muon's weights go in three passes, so that all ranks work on their own matrices at the same time.
void Updater::update(const TensorView& numbers) {
  const InsideOp inside(context_, "update_weights", "update");
  std::atomic<std::int64_t>& layer = context_.comm->position().layer;
  if (!offloads()) update_elements(numbers);
  std::vector<ArrivingTensor> coming = start_state(ranges_.begin());
  for (auto at = ranges_.begin(); at != ranges_.end(); ++at) {
    Range& range = *at;
    if (!range.grad.defined()) continue;
    layer = layer_of(range.parameter->spec.name);
    std::vector<Tensor> state = range.state;
    if (offloads()) {
      state.clear();
      for (const ArrivingTensor& tensor : coming) state.push_back(tensor.arrived());
      coming = start_state(std::next(at));
    }
    if (range.exchange) {
      gather_matrices(range, state[0], numbers);
    } else {  // it or its state was on the host
      on_weight(range, true, [&](const TensorView& weight) {
        const OptimizerRange alone = optimizer_range(range, weight, state);
        optimizer_->update(*context_.pool, numbers, std::span(&alone, 1));
      });
      range.squares_known = true;
    }
    if (offloads()) {
      context_.offload->let_go();
      for (std::size_t i = 0; i < state.size(); ++i) context_.offload->send(state[i], range.state[i]);
    }
    range.grad = Tensor();
  }
  for (Range& range : ranges_) {
    if (range.exchange) orthogonalize(*context_.pool, config_.muon->eps, range.matrices);
  }
  for (Range& range : ranges_) {
    layer = layer_of(range.parameter->spec.name);
    if (range.exchange) apply_matrices(range, numbers);
  }
  layer = -1;
  if (offloads()) context_.offload->finish();
}

UpdateNumbers Updater::numbers_of(std::int64_t step, double learning_rate) const {
  return {.adam = optimizer_->terms_of(step, learning_rate),
          .momentum = config_.muon ? muon_terms(*config_.muon, step) : MomentumTerms{},
          .learning_rate = learning_rate};
}

std::vector<ArrivingTensor> Updater::start_state(std::vector<Range>::const_iterator at) const {
  std::vector<ArrivingTensor> coming;
  if (!offloads()) return coming;
  at = std::find_if(at, ranges_.end(), [](const Range& range) { return range.grad.defined(); });
  if (at == ranges_.end()) return coming;
  for (const Tensor& state : at->state) coming.emplace_back(*context_.offload, state);
  return coming;
}

// Ranks of one process see each other's shares; those of other processes have to be told. The first rank of
// the process among a weight's ranks writes what came from outside.
void Updater::publish() const {
  if (context_.comm->in_one_process()) return;
  Communicator& comm = *context_.comm;
  const int here = comm.process_of(comm.rank());
  const auto is_here = [&](int rank) { return comm.process_of(rank) == here; };
  // Most weights share a few groups, and a group may have thousands of ranks: each is counted once.
  std::map<const ProcessGroup*, std::int64_t> local_ranks;
  for (const Range& range : ranges_) {
    if (range.parameter->spec.frozen) continue;
    const std::vector<int>& ranks = range.group->ranks;
    const auto [counted, is_new] = local_ranks.try_emplace(range.group);
    if (is_new) counted->second = std::count_if(ranks.begin(), ranks.end(), is_here);
    const std::int64_t local = counted->second;
    if (local == std::ssize(ranks)) continue;
    const TensorView weight = elements_of(*range.parameter);
    const std::int64_t share = range.padded, members = std::ssize(ranks), size = weight.size();
    if (local == 1 && share * members == size) {
      comm.all_gather(*range.group, weight_of(range), weight);
      continue;
    }
    const Memory scratch = context_.memory.uncharged();
    const Tensor mine = scratch.empty(weight.dtype(), {share}),
                 all = scratch.empty(weight.dtype(), {share * members});
    strided_copy(*context_.pool, weight_of(range), mine.view().rows(0, range.count));
    comm.all_gather(*range.group, mine.view(), all.view());
    if (*std::find_if(ranks.begin(), ranks.end(), is_here) != comm.rank()) continue;
    // Neighbouring shares from other processes are one copy.
    for (std::int64_t r = 0, end = 0; r < members; r = end + 1) {
      for (end = r; end < members && !is_here(ranks[static_cast<std::size_t>(end)]);) ++end;
      const std::int64_t from = std::min(size, r * share), to = std::min(size, end * share);
      if (from < to) strided_copy(*context_.pool, all.view().rows(from, to), weight.rows(from, to));
    }
  }
}

TensorView Updater::weight_of(const Range& range) {
  return elements_of(*range.parameter).rows(range.begin, range.begin + range.count);
}

void Updater::on_weight(const Range& range, bool changes,
                        const std::function<void(const TensorView&)>& work) const {
  if (!is_away(range)) return work(weight_of(range));
  const Tensor& whole = range.parameter->array.tensor();
  const Tensor host = whole.reshaped({whole.size()}).slice_rows(range.begin, range.begin + range.count);
  const Tensor here = ArrivingTensor(*context_.offload, host).arrived();
  work(here.view());
  if (!changes) return;
  context_.offload->send(here, host);
  context_.offload->finish();  // one weight at a time is on the device, and the host may read it
}

OptimizerRange Updater::optimizer_range(const Range& range, const TensorView& weight,
                                        std::span<const Tensor> state) {
  return {weight, range.grad.view(), state, range.squares, range.decay};
}

void Updater::update_elements(const TensorView& numbers) {
  std::vector<OptimizerRange> ready;
  for (Range& range : ranges_) {
    if (!range.grad.defined() || range.exchange || is_away(range)) continue;
    ready.push_back(optimizer_range(range, weight_of(range), range.state));
    range.squares_known = true;
  }
  optimizer_->update(*context_.pool, numbers, ready);
  for (Range& range : ranges_) {
    if (!range.exchange && !is_away(range)) range.grad = Tensor();
  }
}

void Updater::gather_matrices(Range& range, const Tensor& momentum, const TensorView& numbers) const {
  range.matrices =
      range.exchange->gather(context_, muon_direction(*context_.pool, numbers, range.grad, momentum));
}

void Updater::apply_matrices(Range& range, const TensorView& numbers) const {
  const MuonConfig& muon = *config_.muon;
  const Tensor update = range.exchange->scatter(context_, range.matrices);
  range.matrices = Tensor();
  on_weight(range, true, [&](const TensorView& weight) {
    direction_update(*context_.pool, numbers,
                     {.scale = muon_scale(muon, range.exchange->inputs(), range.exchange->outputs()),
                      .decay = range.decay ? muon.weight_decay : 0.0},
                     {update.view(), weight, range.squares});
  });
  range.squares_known = true;
}

void Updater::balance(const std::string& name, const TensorView& counts, double rate,
                      const TensorView& numbers) {
  for (const Range& range : ranges_) {
    const ParameterSpec& spec = range.parameter->spec;
    if (spec.name != name || spec.frozen || range.count == 0) continue;
    on_weight(range, true, [&](const TensorView& bias) {
      update_router_bias(*context_.pool, {.counts = counts,
                                          .is_good = is_good_of(numbers),
                                          .bias = bias,
                                          .first = range.begin,
                                          .rate = rate});
      const SquareSumArgs sum{bias, range.squares};
      if (spec.counted) sums_of_squares(*context_.pool, std::span(&sum, 1));
    });
  }
}

void Updater::scale_columns(const std::string& name, std::span<const float> factors) {
  for (Range& range : ranges_) {
    const Parameter& p = *range.parameter;
    if (p.spec.name != name || !p.spec.trained || range.count == 0) continue;
    CHECK(p.spec.shape.size() == 3 && std::ssize(factors) == p.spec.shape[1] * p.spec.shape[2],
          "{} factors for {} {}", factors.size(), name, to_string(p.spec.shape));
    const Shape local = p.array.info().local,
                offset = local_offset(*context_.mesh, context_.rank, p.spec.shape, p.array.sharding());
    Tensor host(Memory(), DType::f32, {local[1] * local[2]});
    for (std::int64_t i = 0; i < host.size(); ++i) {
      const std::int64_t row = offset[1] + i / local[2], column = offset[2] + i % local[2];
      host.data<float>()[i] = factors[static_cast<std::size_t>(row * p.spec.shape[2] + column)];
    }
    range.squares_known = false;
    const Tensor here = to_device(context_.memory, host);
    on_weight(range, true, [&](const TensorView& weight) {
      switchyard::scale_columns(*context_.pool, {.x = weight, .first = range.begin, .factors = here.view()});
    });
  }
}

}  // namespace switchyard
