#include "plan/search.h"

#include <algorithm>

namespace switchyard {
namespace {

constexpr const char* kAxes[] = {"data", "fsdp", "expert", "tensor", "context"};

std::string key_of(const char* group, const std::string& axis) {
  return fmt::format("{}_{}_parallelism", group, axis);
}

// Every way to write `product` as ordered factors, one for each axis.
void factorise(std::int64_t product, std::size_t axes, std::vector<std::int64_t>& so_far,
               std::vector<std::vector<std::int64_t>>& all) {
  if (axes == 1) {
    so_far.push_back(product);
    all.push_back(so_far);
    so_far.pop_back();
    return;
  }
  for (std::int64_t factor = 1; factor <= product; ++factor) {
    if (product % factor != 0) continue;
    so_far.push_back(factor);
    factorise(product / factor, axes - 1, so_far, all);
    so_far.pop_back();
  }
}

struct Candidate {
  Config config;
  Mesh mesh;
  std::vector<std::string> keys;
  double seconds = 0;
};

// Layers of a kind cost alike: a step with one of each is planned, and what one more of a kind adds. Stages
// of a pipeline need all of theirs.
double estimated_seconds(const Config& config, const Mesh& mesh, const Topology& topology) {
  const ModelOnMesh whole(config, mesh, ModelUse::train);
  const ModelConfig& model = whole.model;
  const auto first_prediction = model.layer_specs.begin() + model.layers;
  const std::vector<LayerSpec> main(model.layer_specs.begin(), first_prediction),
      predictions(first_prediction, model.layer_specs.end());
  const auto seconds_with = [&](const std::vector<LayerSpec>& layers) {
    ModelOnMesh part = whole;
    part.model.layer_specs = layers;
    part.model.layers = std::ssize(layers);
    part.model.layer_specs.insert(part.model.layer_specs.end(), predictions.begin(), predictions.end());
    part.specs = parameter_specs(part.model);
    return plan_model(part, topology, 1).seconds();
  };
  std::vector<LayerSpec> kinds;
  for (const LayerSpec& layer : main) {
    if (std::find(kinds.begin(), kinds.end(), layer) == kinds.end()) kinds.push_back(layer);
  }
  if (mesh.axis_size("stage") > 1 || model.layers <= 2 * std::ssize(kinds)) return seconds_with(main);
  const double one_each = seconds_with(kinds);
  double seconds = one_each;
  for (const LayerSpec& kind : kinds) {
    std::vector<LayerSpec> more = kinds;
    more.push_back(kind);
    const auto count = std::count(main.begin(), main.end(), kind);
    if (count > 1) seconds += static_cast<double>(count - 1) * (seconds_with(more) - one_each);
  }
  return seconds;
}

// Parallelism that the config gives to axes outside of the search.
std::int64_t fixed_ranks(const Config& config, const std::vector<std::string>& searched) {
  std::int64_t fixed = 1;
  for (const std::string& axis : config.mesh_axes()) {
    const std::string name = axis == "stage" ? "pipeline" : axis;
    const bool moves = std::find(searched.begin(), searched.end(), axis) != searched.end();
    fixed *= std::max<std::int64_t>(1, config.get_int(key_of("dcn", name)));
    if (!moves) fixed *= std::max<std::int64_t>(1, config.get_int(key_of("ici", name)));
  }
  return fixed;
}

std::vector<Candidate> legal_candidates(const Config& config, const Topology& topology) {
  std::vector<std::string> axes;
  const std::vector<std::string> mesh_axes = config.mesh_axes();
  for (const char* axis : kAxes) {
    if (std::find(mesh_axes.begin(), mesh_axes.end(), axis) != mesh_axes.end()) axes.emplace_back(axis);
  }
  const std::int64_t ranks = config.get_int("ranks"), fixed = fixed_ranks(config, axes);
  if (axes.empty() || ranks % fixed != 0)
    fail_usage("[plan] --search: the parallelism of the other axes is {}: expected a divisor of ranks={}",
               fixed, ranks);
  std::vector<std::vector<std::int64_t>> all;
  std::vector<std::int64_t> so_far;
  factorise(ranks / fixed, axes.size(), so_far, all);
  std::vector<Candidate> result;
  for (const auto& sizes : all) {
    Candidate candidate{config, {}, {}, 0};
    try {
      for (std::size_t i = 0; i < axes.size(); ++i) {
        candidate.config.set(key_of("ici", axes[i]), sizes[i], "search");
        candidate.keys.push_back(fmt::format("{}={}", key_of("ici", axes[i]), sizes[i]));
      }
      candidate.mesh = mesh_from_config(candidate.config);
      candidate.seconds = estimated_seconds(candidate.config, candidate.mesh, topology);
    } catch (const Error& error) {
      if (error.kind() != Error::Kind::usage) throw;
      continue;  // a run would refuse it too
    }
    result.push_back(std::move(candidate));
  }
  return result;
}

}  // namespace

SearchResult search_meshes(const Config& config, const Topology& topology, std::size_t limit) {
  plan_model(ModelOnMesh(config, ModelUse::train), topology, 1);  // says what is wrong, if so
  std::vector<Candidate> candidates = legal_candidates(config, topology);
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; });
  SearchResult result;
  result.legal = static_cast<std::int64_t>(candidates.size());
  for (const Candidate& candidate : candidates) {
    if (result.fitting.size() == limit) break;
    StepPlan plan = plan_step(candidate.config, candidate.mesh, topology);
    if (plan.cost.peak_bytes > topology.memory_bytes) {
      ++result.too_large;
      continue;
    }
    result.fitting.push_back({candidate.keys, candidate.mesh.to_string(), std::move(plan)});
  }
  std::stable_sort(result.fitting.begin(), result.fitting.end(), [](const FoundMesh& a, const FoundMesh& b) {
    return a.plan.seconds() < b.plan.seconds();
  });
  return result;
}

}  // namespace switchyard
