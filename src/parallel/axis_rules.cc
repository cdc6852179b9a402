#include "parallel/axis_rules.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"

namespace switchyard {
namespace {

std::string sizes_of(const Mesh& mesh, const Axes& axes) {
  std::vector<std::string> parts;
  for (const Axis axis : axes) parts.push_back(fmt::format("{}={}", axis.name(), mesh.axis_size(axis)));
  return fmt::format("{}", fmt::join(parts, ", "));
}

[[noreturn]] void fail_experts(const Mesh& mesh, const Axes& axes, std::int64_t experts) {
  const std::int64_t parts = mesh.product(axes);
  // Round to the nearer multiple, but to at least one expert a rank.
  const std::int64_t nearest = std::max(parts, (experts + parts / 2) / parts * parts);
  fail_usage(
      "[sharding] expected num_experts to be divisible by {}, the product of the expert axes {}, got "
      "num_experts={}; "
      "the nearest legal value is {}, or change the parallelism of those axes",
      parts, sizes_of(mesh, axes), experts, nearest);
}

// The longest prefix of `axes` whose product divides `size`.
Axes dividing_prefix(const Mesh& mesh, const Axes& axes, std::int64_t size) {
  Axes kept;
  std::int64_t product = 1;
  for (const Axis axis : axes) {
    product *= mesh.axis_size(axis);
    if (size % product != 0) break;
    kept.push_back(axis);
  }
  return kept;
}

Axes larger_than_one(const Mesh& mesh, const std::vector<std::string>& axes) {
  Axes larger;
  for (const std::string& name : axes) {
    if (mesh.axis_size(name) > 1) larger.push_back(name);
  }
  return larger;
}

std::size_t hash_of(std::string_view name) {
  return std::hash<std::string_view>()(name);
}

bool is_expert_dim(std::string_view name) {
  return name == "exp" || name == "activation_exp";
}

}  // namespace

AxisRules::AxisRules(const std::vector<AxisRule>& rules, const Mesh& mesh) : mesh_(mesh) {
  for (const AxisRule& rule : rules) {
    const std::string axes = rule.axes.empty() ? "-" : fmt::format("{}", fmt::join(rule.axes, "+"));
    rules_.push_back({rule.name,
                      hash_of(rule.name),
                      {rule.axes.begin(), rule.axes.end()},
                      larger_than_one(mesh, rule.axes),
                      fmt::format("{} -> {}", rule.name, axes)});
  }
}

AxisRules::Resolution AxisRules::resolve(DimNames dims, const Shape& shape) const {
  CHECK(dims.size() == shape.size(), "{} names for shape {}", dims.size(), to_string(shape));
  InlineVector<const Rule*, kMostDims> assigned(dims.size(), nullptr);
  // Every op asks, and there are many rules: a name is compared where its hash is a rule's.
  InlineVector<std::size_t, kMostDims> hashes;
  for (const std::string_view dim : dims) hashes.push_back(hash_of(dim));
  const auto is_of = [&](std::size_t i, const Rule& rule) {
    return !assigned[i] && hashes[i] == rule.hash && !dims[i].empty() && dims[i] == rule.name;
  };
  const auto taken = [&](const Axis axis) {
    return std::any_of(assigned.begin(), assigned.end(), [&](const Rule* rule) {
      return rule && std::find(rule->axes.begin(), rule->axes.end(), axis) != rule->axes.end();
    });
  };
  for (const Rule& rule : rules_) {
    std::size_t i = 0;
    while (i < dims.size() && !is_of(i, rule)) ++i;
    if (i < dims.size() && std::none_of(rule.axes.begin(), rule.axes.end(), taken)) assigned[i] = &rule;
  }

  Resolution result{replicated(dims.size()), {}, {}};
  result.matched_rules.resize(dims.size());
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (!assigned[i]) continue;
    const Axes& wanted = assigned[i]->larger;
    const Axes kept = dividing_prefix(mesh_, wanted, shape[i]);
    if (kept != wanted) {
      if (is_expert_dim(dims[i])) fail_experts(mesh_, wanted, shape[i]);
      result.warnings.push_back(fmt::format(
          "dim '{}' of size {} is not divisible by {}; {}", dims[i], shape[i], sizes_of(mesh_, wanted),
          kept.empty() ? "replicated" : "split over " + sizes_of(mesh_, kept)));
    }
    result.matched_rules[i] = assigned[i]->text;
    result.sharding.dims[i] = kept;
  }
  if (observer_) observer_(dims, shape, result);
  return result;
}

AxisRules::Resolution AxisRules::resolve(std::span<const std::string> dims, const Shape& shape) const {
  const InlineVector<std::string_view, kMostDims> names(dims.begin(), dims.end());
  return resolve(DimNames(names), shape);
}

}  // namespace switchyard
