#include "plan/explain.h"

#include <algorithm>
#include <map>
#include <set>

#include "autograd/op.h"
#include "plan/abstract_rank.h"
#include "plan/planner.h"

namespace switchyard {
namespace {

class NoCounter : public WorkCounter {
 public:
  void count(const Work&) override {}
};

std::string backward_of(const std::string& kind) {
  if (kind == "all_gather") return "reduce_scatter";
  return kind == "reduce_scatter" ? "all_gather" : kind;
}

bool communicates(std::string_view op) {
  return op == "all_gather" || op == "reduce_scatter" || op == "all_reduce" || op == "all_to_all";
}

bool has(const Axes& axes, const std::string& axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

// The axes whose place differs between the two.
Axes moved_axes(const Sharding& from, const Sharding& to) {
  Axes moved;
  auto note = [&](const Axes& here, const Axes& there) {
    for (const auto& axis : here) {
      if (!has(there, axis) && !has(moved, axis)) moved.push_back(axis);
    }
  };
  for (std::size_t d = 0; d < from.dims.size(); ++d) note(from.dims[d], to.dims[d]);
  note(from.partial, to.partial);
  return moved;
}

void add_once(std::vector<std::string>& list, std::string text) {
  if (std::find(list.begin(), list.end(), text) == list.end()) list.push_back(std::move(text));
}

// Watches a step: what is resolved, and which values are parameters under way.
class Watcher : public OpObserver {
 public:
  Watcher(const Context& context, Explanation& result) : context_(context), result_(result) {}

  void parameter(const Parameter& p, const AxisRules::Resolution& resolution) {
    const std::size_t row = result_.parameters.size();
    const ArrayInfo& info = p.array.info();
    result_.parameters.push_back(
        {p.spec.name, -1, p.spec.dims, info.shape, info.local, resolution.matched_rules, info.sharding, {}});
    parameters_[p.array.value().get()] = {row, p.array.value()};
    const Axes replicas = dual(*context_.mesh, info.sharding).partial;
    if (p.spec.trained && !replicas.empty())
      gradient_sums_[row] = "gradients: reduce_scatter over " + joined(replicas);
  }
  void resolved(std::span<const std::string> dims, const Shape& shape,
                const AxisRules::Resolution& resolution) {
    LayoutRow row;
    row.layer = context_.place.layer;
    row.dims.assign(dims.begin(), dims.end());
    row.shape = shape;
    row.local = local_shape(*context_.mesh, shape, resolution.sharding);
    row.rules = resolution.matched_rules;
    row.sharding = resolution.sharding;
    result_.activations.push_back(std::move(row));
  }
  void applied(const Op& op, std::span<const Array> inputs, std::span<const Array> outputs) override {
    const bool moves = communicates(op.name());
    if (!moves && op.name() != "cast" && op.name() != "slice") return;
    const auto known = parameters_.find(inputs[0].value().get());
    if (known != parameters_.end()) {
      const auto entry = std::pair(known->second.first, outputs[0].value());
      parameters_[outputs[0].value().get()] = entry;
    }
    if (!moves) return;
    const std::string kind(op.name()), axes = joined(moved_axes(inputs[0].sharding(), outputs[0].sharding()));
    std::vector<std::string>* list = known != parameters_.end()
                                         ? &result_.parameters[known->second.first].collectives
                                     : result_.activations.empty() ? nullptr
                                                                   : &result_.activations.back().collectives;
    if (list == nullptr) return;
    add_once(*list, fmt::format("forward: {} over {}", kind, axes));
    if (outputs[0].value()->requires_grad)
      add_once(*list, fmt::format("backward: {} over {}", backward_of(kind), axes));
  }
  void finish() {
    for (const auto& [row, text] : gradient_sums_) result_.parameters[row].collectives.push_back(text);
  }

 private:
  const Context& context_;
  Explanation& result_;
  // Values are held so that their addresses stay theirs.
  std::map<const Value*, std::pair<std::size_t, ValuePtr>> parameters_;
  std::map<std::size_t, std::string> gradient_sums_;
};

}  // namespace

Explanation explain_step(const Config& config, const Mesh& mesh) {
  const ModelConfig model = model_config(config);
  const BatchSizes sizes = batch_sizes(config, mesh);
  check_layout(config, mesh, model, sizes);
  NoCounter counter;
  AbstractRank rank(
      config, mesh, counter, false, [](const Transfer&) { return 0.0; }, 1);
  Context& context = rank.context();
  Trainer trainer(context, model, train_config(config, model),
                  Parameters::create(context, parameter_specs(model), model.init_seed, nullptr, nullptr));
  Explanation result;
  Watcher watcher(context, result);
  for (const auto& p : trainer.parameters().all())
    watcher.parameter(p, rank.rules().resolve(p.spec.dims, p.spec.shape));
  rank.rules().observe(
      [&](std::span<const std::string> dims, const Shape& shape, const AxisRules::Resolution& resolution) {
        watcher.resolved(dims, shape, resolution);
      });
  context.observer = &watcher;
  trainer.step(0, abstract_batch(sizes));
  watcher.finish();
  return result;
}

}  // namespace switchyard
