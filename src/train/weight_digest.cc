#include "train/weight_digest.h"

#include <fmt/ranges.h>
#include <xxhash.h>

#include <algorithm>
#include <map>

#include "core/error.h"

namespace switchyard {
namespace {

// Weights that the same ranks hold.
struct Replicas {
  const ProcessGroup* group = nullptr;
  std::vector<const Parameter*> parameters;
};

bool spans_processes(const Communicator& comm, const ProcessGroup& group) {
  return std::any_of(group.ranks.begin(), group.ranks.end(),
                     [&](int rank) { return comm.process_of(rank) != comm.process_of(group.ranks.front()); });
}

std::vector<Replicas> replicas_of(const Context& context, const Parameters& parameters) {
  std::map<std::string, Replicas> all;
  for (const Parameter& p : parameters.all()) {
    const ProcessGroup& group = holders_of(context, p);
    Replicas& replicas = all[group.axis];
    replicas.group = &group;
    replicas.parameters.push_back(&p);
  }
  std::vector<Replicas> result;
  for (auto& [axis, replicas] : all) {
    if (spans_processes(*context.comm, *replicas.group)) result.push_back(std::move(replicas));
  }
  return result;
}

// Ranks of one process share its copy and take turns: the index of the one among the group that hashes weight
// i in the process of `member`.
std::size_t hasher_of(const Communicator& comm, const ProcessGroup& group, std::size_t member,
                      std::size_t i) {
  std::vector<std::size_t> local;
  for (std::size_t r = 0; r < group.ranks.size(); ++r) {
    if (comm.process_of(group.ranks[r]) == comm.process_of(group.ranks[member])) local.push_back(r);
  }
  return local[i % local.size()];
}

// Throws where digests of a weight, by rank of its hasher, are not all the same.
void require_equal(const std::map<int, std::uint64_t>& digests, const std::string& weight,
                   std::int64_t step) {
  std::map<std::uint64_t, std::vector<int>> ranks;
  for (const auto& [rank, digest] : digests) ranks[digest].push_back(rank);
  if (ranks.size() < 2) return;
  const auto most = std::max_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) {
    return a.second.size() < b.second.size() ||
           (a.second.size() == b.second.size() && a.second.front() > b.second.front());
  });
  std::vector<int> others;
  for (const auto& [digest, who] : ranks) {
    if (digest != most->first) others.insert(others.end(), who.begin(), who.end());
  }
  std::sort(others.begin(), others.end());
  const bool majority = 2 * most->second.size() > digests.size();
  fail_runtime(
      "[train] weight {} of rank {} differs from that of rank {} after step {}{} (weight_digest_interval): "
      "memory or a transfer is corrupt",
      weight, fmt::join(others, ", "), fmt::join(most->second, ", "), step,
      majority ? "" : ", and no copy has a majority");
}

}  // namespace

bool has_replicas(const Context& context, const Parameters& parameters) {
  return !replicas_of(context, parameters).empty();
}

void compare_replicas(Context& context, const Parameters& parameters, std::int64_t step) {
  const PhaseMark mark(context.comm->position(), "digest");
  for (const Replicas& replicas : replicas_of(context, parameters)) {
    const ProcessGroup& group = *replicas.group;
    const std::size_t count = replicas.parameters.size(), members = group.ranks.size();
    const auto me = static_cast<std::size_t>(group.index);
    std::vector<std::uint64_t> mine(count), all(count * members);
    for (std::size_t i = 0; i < count; ++i) {
      const Tensor& weight = replicas.parameters[i]->array.tensor();
      if (hasher_of(*context.comm, group, me, i) != me) continue;
      const Tensor host = to_host(weight);
      mine[i] = XXH3_64bits(host.raw(), host.bytes());
    }
    context.comm->all_gather(group, host_view(mine), host_view(all));
    for (std::size_t i = 0; i < count; ++i) {
      std::map<int, std::uint64_t> digests;
      for (std::size_t r = 0; r < members; ++r) {
        if (hasher_of(*context.comm, group, r, i) == r) digests[group.ranks[r]] = all[r * count + i];
      }
      require_equal(digests, replicas.parameters[i]->spec.name, step);
    }
  }
}

}  // namespace switchyard
