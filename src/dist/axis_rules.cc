#include "dist/axis_rules.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"

namespace switchyard {
namespace {

std::string sizes_of(const Mesh& mesh, const Axes& axes) {
  std::vector<std::string> parts;
  for (const std::string& axis : axes) parts.push_back(fmt::format("{}={}", axis, mesh.axis_size(axis)));
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
  for (const std::string& axis : axes) {
    product *= mesh.axis_size(axis);
    if (size % product != 0) break;
    kept.push_back(axis);
  }
  return kept;
}

Axes larger_than_one(const Mesh& mesh, const Axes& axes) {
  Axes kept;
  std::copy_if(axes.begin(), axes.end(), std::back_inserter(kept),
               [&](const std::string& axis) { return mesh.axis_size(axis) > 1; });
  return kept;
}

bool is_expert_dim(std::string_view name) {
  return name == "exp" || name == "activation_exp";
}

}  // namespace

AxisRules::AxisRules(std::vector<AxisRule> rules, const Mesh& mesh) : rules_(std::move(rules)), mesh_(mesh) {}

AxisRules::Resolution AxisRules::resolve(std::span<const std::string> dims, const Shape& shape) const {
  CHECK(dims.size() == shape.size(), "{} names for shape {}", dims.size(), to_string(shape));
  std::vector<const AxisRule*> assigned(dims.size(), nullptr);
  const auto taken = [&](const std::string& axis) {
    return std::any_of(assigned.begin(), assigned.end(), [&](const AxisRule* rule) {
      return rule && std::find(rule->axes.begin(), rule->axes.end(), axis) != rule->axes.end();
    });
  };
  for (const AxisRule& rule : rules_) {
    std::size_t i = 0;
    while (i < dims.size() && (assigned[i] || dims[i].empty() || dims[i] != rule.name)) ++i;
    if (i < dims.size() && std::none_of(rule.axes.begin(), rule.axes.end(), taken)) assigned[i] = &rule;
  }

  Resolution result{replicated(dims.size()), std::vector<std::string>(dims.size()), {}};
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (!assigned[i]) continue;
    const AxisRule& rule = *assigned[i];
    result.matched_rules[i] = fmt::format(
        "{} -> {}", rule.name, rule.axes.empty() ? "-" : fmt::format("{}", fmt::join(rule.axes, "+")));
    const Axes wanted = larger_than_one(mesh_, rule.axes);
    Axes kept = dividing_prefix(mesh_, wanted, shape[i]);
    if (kept != wanted) {
      if (is_expert_dim(dims[i])) fail_experts(mesh_, wanted, shape[i]);
      result.warnings.push_back(fmt::format("dim '{}' of size {} is not divisible by {}; split over {}",
                                            dims[i], shape[i], sizes_of(mesh_, wanted),
                                            kept.empty() ? "nothing" : sizes_of(mesh_, kept)));
    }
    result.sharding.dims[i] = std::move(kept);
  }
  if (observer_) observer_(dims, shape, result);
  return result;
}

}  // namespace switchyard
