#include "parallel/mesh.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "core/error.h"

namespace switchyard {
namespace {

// The reference calls the sizes of the axis "stage" pipeline parallelism.
std::string key_of(std::string_view group, std::string_view axis) {
  return fmt::format("{}_{}_parallelism", group, axis == "stage" ? "pipeline" : axis);
}

struct Entry {
  std::string_view axis;
  std::int64_t size;
  bool given;
};

// "ici_fsdp_parallelism=-1, ici_expert_parallelism=4": what decides the product, sizes of
// 1 left out unless given.
std::string describe(std::string_view group, const std::vector<Entry>& entries) {
  std::vector<std::string> parts;
  for (const Entry& entry : entries) {
    if (entry.size != 1 || entry.given)
      parts.push_back(fmt::format("{}={}", key_of(group, entry.axis), entry.size));
  }
  return parts.empty() ? fmt::format("all {}_*_parallelism=1", group)
                       : fmt::format("{}", fmt::join(parts, ", "));
}

// A size of -1 the user gave replaces the default -1 of the group. Returns the one that is left, or null.
Entry* find_rest(std::string_view group, std::vector<Entry>& entries) {
  const bool any_given =
      std::any_of(entries.begin(), entries.end(), [](const Entry& e) { return e.size == -1 && e.given; });
  Entry* rest = nullptr;
  for (Entry& entry : entries) {
    if (entry.size == 0 || entry.size < -1) {
      fail_usage("[mesh] expected {} to be positive or -1 (the rest), got {}", key_of(group, entry.axis),
                 entry.size);
    }
    if (entry.size != -1) continue;
    if (any_given && !entry.given) {
      entry.size = 1;
    } else if (rest) {
      fail_usage(
          "[mesh] expected at most one -1 among the {}_*_parallelism keys, got {}=-1 and {}=-1; give one a "
          "number",
          group, key_of(group, rest->axis), key_of(group, entry.axis));
    } else {
      rest = &entry;
    }
  }
  return rest;
}

// Product of the sizes that are numbers; stops growing beyond any rank count there can be.
std::int64_t product_of(const std::vector<Entry>& entries) {
  std::int64_t product = 1;
  for (const Entry& entry : entries) {
    if (entry.size > 0)
      product = std::min<std::int64_t>(product, std::int64_t{1} << 31) *
                std::min(entry.size, std::int64_t{1} << 31);
  }
  return product;
}

// Replaces the -1 of the group so that its sizes multiply to `total`, which `total_name` describes; `advice`
// says what else would make them fit.
void resolve(std::string_view group, std::vector<Entry>& entries, Entry* rest, std::int64_t total,
             const std::string& total_name, const std::function<std::string(std::int64_t product)>& advice) {
  const std::string sizes = describe(group, entries);
  const std::int64_t product = product_of(entries);
  if (rest) {
    if (total % product != 0) {
      fail_usage("[mesh] expected the product of {} to divide {}, got {}; change a size, or {}", sizes,
                 total_name, product, advice(product));
    }
    rest->size = total / product;
  } else if (product != total) {
    fail_usage("[mesh] expected {} to multiply to {}, got {}; change a size, make one -1, or {}", sizes,
               total_name, product, advice(product));
  }
}

std::vector<Entry> entries_of(std::span<const ParallelismSizes> sizes, bool dcn) {
  std::vector<Entry> entries;
  for (const ParallelismSizes& size : sizes) {
    entries.push_back(dcn ? Entry{size.axis, size.dcn, size.dcn_given}
                          : Entry{size.axis, size.ici, size.ici_given});
  }
  return entries;
}

// A default -1 of an axis the mesh lacks cannot take the rest.
void drop_absent_defaults(std::span<const std::string> mesh_axes, std::vector<Entry>& entries) {
  for (Entry& entry : entries) {
    const bool absent = std::find(mesh_axes.begin(), mesh_axes.end(), entry.axis) == mesh_axes.end();
    if (absent && entry.size == -1 && !entry.given) entry.size = 1;
  }
}

void check_present(std::span<const std::string> mesh_axes, std::string_view group,
                   const std::vector<Entry>& entries) {
  for (const Entry& entry : entries) {
    if (entry.size == 1 || entry.size == -1 ||
        std::find(mesh_axes.begin(), mesh_axes.end(), entry.axis) != mesh_axes.end())
      continue;
    fail_usage("[mesh] expected {}=1 because mesh_axes has no axis '{}', got {}; the axes are {}",
               key_of(group, entry.axis), entry.axis, entry.size, fmt::join(mesh_axes, ", "));
  }
}

std::int64_t resolve_slices(std::vector<Entry>& dcn, std::int64_t ranks, std::int64_t num_slices) {
  if (num_slices == 0 || num_slices < -1) {
    fail_usage("[mesh] expected num_slices to be positive or -1 (unset), got {}", num_slices);
  }
  Entry* rest = find_rest("dcn", dcn);
  const std::int64_t slices = num_slices == -1 ? product_of(dcn) : num_slices;
  if (ranks % slices != 0) {
    fail_usage(
        "[mesh] expected {} slices ({}; num_slices={}) to divide {}; change a dcn size or the rank "
        "count",
        slices, describe("dcn", dcn), num_slices, ranks_text(ranks));
  }
  resolve("dcn", dcn, rest, slices, fmt::format("the {} slices of {}", slices, ranks_text(ranks)),
          [](std::int64_t) { return "the number of slices"; });
  return slices;
}

}  // namespace

Mesh::Mesh(std::vector<MeshAxis> axes) : axes_(std::move(axes)), strides_(axes_.size()) {
  for (std::size_t i = axes_.size(); i-- > 0;) {
    CHECK(axes_[i].size >= 1, "axis {} has size {}", axes_[i].axis.name(), axes_[i].size);
    for (std::size_t j = 0; j < i; ++j)
      CHECK(axes_[i].axis != axes_[j].axis, "two axes {}", axes_[i].axis.name());
    strides_[i] = size_;
    size_ *= axes_[i].size;
  }
}

Mesh::Extent Mesh::extent(Axis axis) const {
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].axis == axis) return {axes_[i].size, strides_[i]};
  }
  return {1, 1};
}

int Mesh::axis_size(Axis axis) const {
  return extent(axis).size;
}

int Mesh::product(std::span<const Axis> axes) const {
  int product = 1;
  for (const Axis axis : axes) product *= axis_size(axis);
  return product;
}

int Mesh::coordinate(int rank, Axis axis) const {
  const Extent e = extent(axis);
  return rank / e.stride % e.size;
}

int Mesh::index_along(int rank, std::span<const Axis> axes) const {
  int index = 0;
  for (const Axis axis : axes) index = index * axis_size(axis) + coordinate(rank, axis);
  return index;
}

std::vector<int> Mesh::group(int rank, std::span<const Axis> axes) const {
  int base = rank;  // the rank at coordinate 0 of all the axes
  for (const Axis axis : axes) base -= coordinate(rank, axis) * extent(axis).stride;
  std::vector<int> ranks{base};
  for (const Axis axis : axes) {
    const Extent e = extent(axis);
    std::vector<int> longer;
    longer.reserve(ranks.size() * static_cast<std::size_t>(e.size));
    for (const int start : ranks) {
      for (int i = 0; i < e.size; ++i) longer.push_back(start + i * e.stride);
    }
    ranks = std::move(longer);
  }
  return ranks;
}

Mesh Mesh::without(Axis axis) const {
  std::vector<MeshAxis> rest = axes_;
  std::erase_if(rest, [&](const MeshAxis& a) { return a.axis == axis; });
  return Mesh(std::move(rest));
}

std::string Mesh::to_string() const {
  std::vector<std::string> parts;
  for (const MeshAxis& axis : axes_) {
    if (axis.size > 1) parts.push_back(fmt::format("{}={}", axis.axis.name(), axis.size));
  }
  return parts.empty() ? "one rank" : fmt::format("{}", fmt::join(parts, " "));
}

std::string ranks_text(std::int64_t ranks) {
  return ranks == 1 ? "1 rank" : fmt::format("{} ranks", ranks);
}

Mesh build_mesh(std::span<const std::string> mesh_axes, std::span<const ParallelismSizes> sizes,
                std::int64_t ranks, std::int64_t num_slices) {
  if (ranks < 1) fail_usage("[mesh] expected ranks to be positive, got {}", ranks);
  std::vector<Entry> dcn = entries_of(sizes, true);
  std::vector<Entry> ici = entries_of(sizes, false);
  drop_absent_defaults(mesh_axes, dcn);
  drop_absent_defaults(mesh_axes, ici);
  check_present(mesh_axes, "dcn", dcn);
  check_present(mesh_axes, "ici", ici);

  const std::int64_t slices = resolve_slices(dcn, ranks, num_slices);
  resolve("ici", ici, find_rest("ici", ici), ranks / slices,
          slices == 1 ? fmt::format("the {}", ranks_text(ranks))
                      : fmt::format("the {} of each of {} slices", ranks_text(ranks / slices), slices),
          [&](std::int64_t product) { return fmt::format("set ranks={}", product * slices); });
  check_present(mesh_axes, "dcn", dcn);  // where -1 became a number
  check_present(mesh_axes, "ici", ici);

  std::vector<MeshAxis> axes;
  for (const std::string& name : mesh_axes) {
    std::int64_t size = 1;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i].axis == name) size *= dcn[i].size * ici[i].size;
    }
    axes.push_back({name, static_cast<int>(size)});
  }
  const auto larger = std::count_if(axes.begin(), axes.end(), [](const MeshAxis& a) { return a.size > 1; });
  if (larger > static_cast<std::ptrdiff_t>(Axes::kCapacity))
    fail_usage("[mesh] expected at most {} axes larger than 1, got {}", Axes::kCapacity, larger);
  return Mesh(std::move(axes));
}

}  // namespace switchyard
