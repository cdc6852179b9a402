#include "plan/explain.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "autograd/op.h"
#include "engine/model.h"
#include "models/layout_warnings.h"
#include "plan/planner.h"
#include "train/abstract_rank.h"
#include "train/dry_step.h"

namespace switchyard {
namespace {

std::string backward_of(const std::string& kind) {
  if (kind == "all_gather") return "reduce_scatter";
  return kind == "reduce_scatter" ? "all_gather" : kind;
}

bool communicates(std::string_view op) {
  return op == "all_gather" || op == "reduce_scatter" || op == "all_reduce" || op == "all_to_all";
}

// The axes that have different places in the two shardings.
Axes moved_axes(const Sharding& from, const Sharding& to) {
  Axes moved;
  auto note = [&](const Axes& here, const Axes& there) {
    for (const Axis axis : here) {
      if (!there.contains(axis) && !moved.contains(axis)) moved.push_back(axis);
    }
  };
  for (std::size_t d = 0; d < from.dims.size(); ++d) note(from.dims[d], to.dims[d]);
  note(from.partial, to.partial);
  return moved;
}

void add_once(std::vector<std::string>& list, std::string text) {
  if (std::find(list.begin(), list.end(), text) == list.end()) list.push_back(std::move(text));
}

// Says of each dim of a tensor which rule split it, or what kept it whole.
class Reasons {
 public:
  Reasons(std::vector<AxisRule> rules, const Mesh& mesh) : rules_(std::move(rules)), mesh_(mesh) {}

  std::vector<std::string> of(DimNames dims, const Shape& shape,
                              const AxisRules::Resolution& resolution) const {
    std::vector<const AxisRule*> matched(dims.size(), nullptr);
    for (std::size_t d = 0; d < dims.size(); ++d) {
      for (const AxisRule& rule : rules_) {
        if (!resolution.matched_rules[d].empty() && text_of(rule) == resolution.matched_rules[d]) {
          matched[d] = &rule;
          break;
        }
      }
    }
    std::vector<std::string> reasons;
    for (std::size_t d = 0; d < dims.size(); ++d) {
      std::string text =
          matched[d] != nullptr ? matched_text(*matched[d], shape[d], resolution.sharding.dims[d]) : "";
      for (const AxisRule& rule : rules_) {
        if (&rule == matched[d]) break;
        const bool lost = rule.name == dims[d] && std::ranges::any_of(larger(rule), [&](const Axis axis) {
                            return !resolution.sharding.dims[d].contains(axis);
                          });
        const std::string skipped = lost ? skipped_text(rule, d, dims, matched) : "";
        if (!skipped.empty() && text.find(skipped) == std::string::npos)
          text += (text.empty() ? "" : "; ") + skipped;
      }
      const bool named = !dims[d].empty() && std::ranges::any_of(rules_, [&](const AxisRule& rule) {
        return rule.name == dims[d];
      });
      reasons.push_back(!text.empty() ? text : named ? "axes of its rules have size 1" : "no rule");
    }
    return reasons;
  }

 private:
  static std::string text_of(const AxisRule& rule) {
    return fmt::format("{} -> {}", rule.name,
                       rule.axes.empty() ? "-" : fmt::format("{}", fmt::join(rule.axes, "+")));
  }
  Axes larger(const AxisRule& rule) const {
    Axes axes;
    for (const std::string& axis : rule.axes) {
      if (mesh_.axis_size(axis) > 1) axes.push_back(axis);
    }
    return axes;
  }
  std::string sizes_text(const Axes& axes) const {
    std::vector<std::string> parts;
    for (const Axis axis : axes) parts.push_back(fmt::format("{}={}", axis.name(), mesh_.axis_size(axis)));
    return fmt::format("{}", fmt::join(parts, ", "));
  }
  std::string matched_text(const AxisRule& rule, std::int64_t size, const Axes& kept) const {
    const Axes wanted = larger(rule);
    if (rule.axes.empty()) return fmt::format("by {} -> no axis", rule.name);
    if (wanted.empty()) return fmt::format("by {}, whose axes have size 1", rule.name);
    const std::string text = fmt::format("by {} -> {}", rule.name, joined(wanted));
    return kept == wanted ? text
                          : fmt::format("{}: {} is not divisible by {}", text, size, sizes_text(wanted));
  }
  // A rule of this dim's name that came before and was not taken, where it would have split the dim.
  std::string skipped_text(const AxisRule& rule, std::size_t dim, DimNames dims,
                           const std::vector<const AxisRule*>& matched) const {
    const Axes wanted = larger(rule);
    for (std::size_t other = 0; other < dims.size() && !wanted.empty(); ++other) {
      if (other == dim || matched[other] == nullptr) continue;
      if (matched[other] == &rule) return "";  // it went to another dim of the name
      for (const std::string& axis : rule.axes) {
        if (std::ranges::find(matched[other]->axes, axis) != matched[other]->axes.end())
          return fmt::format("not by {} -> {}: {} has {}", rule.name, joined(wanted), dims[other], axis);
      }
    }
    return "";
  }

  const std::vector<AxisRule> rules_;
  const Mesh mesh_;
};

// Watches a step: what is resolved, and which values are parameters under way.
class Watcher : public OpObserver {
 public:
  Watcher(const Context& context, Reasons reasons, Explanation& result)
      : context_(context), reasons_(std::move(reasons)), result_(result) {}

  void parameter(const Parameter& p, const AxisRules::Resolution& resolution) {
    const std::size_t row = result_.parameters.size();
    const ArrayInfo& info = p.array.info();
    const std::vector<std::string> rules(resolution.matched_rules.begin(), resolution.matched_rules.end());
    const InlineVector<std::string_view, kMostDims> dims(p.spec.dims.begin(), p.spec.dims.end());
    result_.parameters.push_back({p.spec.name,
                                  -1,
                                  p.spec.dims,
                                  info.shape,
                                  info.local,
                                  rules,
                                  reasons_.of(DimNames(dims), info.shape, resolution),
                                  info.sharding,
                                  {}});
    parameters_[p.array.value().get()] = {row, p.array.value()};
    const Axes replicas = dual(*context_.mesh, info.sharding).partial;
    if (p.spec.trained && !replicas.empty())
      gradient_sums_[row] = "gradients: reduce_scatter over " + joined(replicas);
  }
  void resolved(DimNames dims, const Shape& shape, const AxisRules::Resolution& resolution) {
    LayoutRow row;
    if (!started_ && shape.size() == 2) row.name = "batch";
    row.layer = layer();
    row.dims.assign(dims.begin(), dims.end());
    row.shape = shape;
    row.local = local_shape(*context_.mesh, shape, resolution.sharding);
    row.rules.assign(resolution.matched_rules.begin(), resolution.matched_rules.end());
    row.reasons = reasons_.of(dims, shape, resolution);
    row.sharding = resolution.sharding;
    result_.activations.push_back(std::move(row));
    values_.emplace_back();
  }
  void applied(const Op& op, std::span<const Array> inputs, std::span<const Array> outputs) override {
    started_ = true;
    const bool moves = communicates(op.name());
    const auto known = parameters_.find(inputs[0].value().get());
    if (known != parameters_.end() &&
        (moves || op.name() == "fetch_weight" || op.name() == "cast" || op.name() == "slice")) {
      const auto entry = std::pair(known->second.first, outputs[0].value());
      parameters_[outputs[0].value().get()] = entry;
      if (moves) note(result_.parameters[entry.first].collectives, op, inputs[0], outputs[0]);
      return;
    }
    if (moves) note(row_for(outputs[0]).collectives, op, inputs[0], outputs[0]);
    for (const Array& output : outputs) find_constraint(op, output);
  }
  // Names the activations; resolutions that laid out no value were questions.
  void finish() {
    for (const auto& [row, text] : gradient_sums_) result_.parameters[row].collectives.push_back(text);
    std::vector<LayoutRow> kept;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      LayoutRow& row = result_.activations[i];
      if (values_[i] && !values_[i]->checkpoint_name.empty()) row.name = values_[i]->checkpoint_name;
      if (!row.name.empty() && (values_[i] || row.name == "batch")) kept.push_back(std::move(row));
    }
    result_.activations = std::move(kept);
  }

 private:
  std::int64_t layer() const { return context_.comm->position().layer.load(); }
  static void note(std::vector<std::string>& list, const Op& op, const Array& from, const Array& to) {
    const std::string kind(op.name()), axes = joined(moved_axes(from.sharding(), to.sharding()));
    add_once(list, fmt::format("forward: {} over {}", kind, axes));
    if (to.value()->requires_grad)
      add_once(list, fmt::format("backward: {} over {}", backward_of(kind), axes));
  }
  // The latest constraint of this layer; a value that none asked for makes a row of its own.
  LayoutRow& row_for(const Array& value) {
    if (!result_.activations.empty() && result_.activations.back().layer == layer())
      return result_.activations.back();
    const ArrayInfo& info = value.info();
    const std::vector<std::string> none(info.shape.size());
    const std::vector<std::string> reasons(info.shape.size(), "no rule");
    result_.activations.push_back(
        {"", layer(), none, info.shape, info.local, none, reasons, info.sharding, {}});
    values_.emplace_back();
    return result_.activations.back();
  }
  // Is `value` what a constraint of this layer asked for? Its name is that of the op that computed it.
  void find_constraint(const Op& op, const Array& value) {
    for (std::size_t i = result_.activations.size(); i-- > 0;) {
      LayoutRow& row = result_.activations[i];
      if (row.layer != layer()) return;
      if (values_[i] || row.shape != value.shape()) continue;
      if (row.name.empty() || !communicates(op.name())) row.name = op.name();
      if (row.sharding == value.sharding()) values_[i] = value.value();
      return;
    }
  }

  const Context& context_;
  const Reasons reasons_;
  Explanation& result_;
  // Values are held so that their addresses stay theirs.
  std::map<const Value*, std::pair<std::size_t, ValuePtr>> parameters_;
  std::map<std::size_t, std::string> gradient_sums_;
  std::vector<ValuePtr> values_;  // what each activation row turned out to be
  bool started_ = false;
};

}  // namespace

Explanation explain_step(const Config& config, const Mesh& mesh) {
  const ModelConfig model = model_config(config);
  const BatchSizes sizes = batch_sizes(config, mesh);
  check_layout(config, mesh, model, sizes);
  NoCosts counter;
  AbstractRank rank(config, mesh, 0, counter, WorkspaceOf::none, mesh.size(), counter, 1);
  Context& context = rank.context();
  Trainer trainer(context, model, train_config(config, model, mesh.axis_size("stage")),
                  ModelOnMesh(config, mesh, ModelUse::train).create(context));
  Explanation result;
  result.warnings = layout_warnings(rank.rules(), parameter_specs(model));
  Watcher watcher(context, Reasons(config.axis_rules(), stage_mesh(mesh)), result);
  for (const auto& p : trainer.parameters().all())
    watcher.parameter(p, rank.rules().resolve(p.spec.dims, p.spec.shape));
  rank.rules().observe([&](DimNames dims, const Shape& shape, const AxisRules::Resolution& resolution) {
    watcher.resolved(dims, shape, resolution);
  });
  context.observer = &watcher;
  trainer.step(0, abstract_batch(sizes));
  watcher.finish();
  return result;
}

}  // namespace switchyard
