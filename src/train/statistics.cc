#include "train/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "models/pipeline.h"
#include "moe/dispatch/common.h"

namespace switchyard {

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

std::size_t place_among_experts(const ModelConfig& model, std::int64_t layer) {
  const std::vector<std::int64_t> numbers = model.moe_layers();
  return static_cast<std::size_t>(std::ranges::lower_bound(numbers, layer) - numbers.begin());
}

std::vector<LayerStatistics> StepStatistics::gather(const StepReport& report,
                                                    std::span<const LayerLoad> loads) {
  std::vector<LayerStatistics> layers;
  if (report.sizes().layers == 0) return layers;
  const auto experts = static_cast<std::size_t>(model_.moe().experts);
  const Tensor counts = report.loads();
  const std::int32_t* count = counts.data<std::int32_t>();
  for (const std::int64_t number : model_.moe_layers()) {
    LayerStatistics layer{number, std::vector<double>(experts, 0.0), {}, {}};
    for (std::int64_t pass = 0; pass < report.sizes().passes; ++pass) {
      for (double& rows : layer.rows) rows += *count++;
    }
    layers.push_back(std::move(layer));
  }
  add_dropped(loads, layers);
  const auto ranks =
      static_cast<std::size_t>(context_.mesh->product(expert_axes(context_, model_.moe().experts)));
  for (LayerStatistics& layer : layers) {
    for (std::size_t r = 0; r < ranks && ranks > 1; ++r) {
      double rows = 0;
      for (std::size_t e = r * experts / ranks; e < (r + 1) * experts / ranks; ++e)
        rows += layer.rows[e] - layer.dropped[e];
      layer.rows_per_rank.push_back(rows);
    }
  }
  if (of_shards_) add_shard_loads(loads, layers);
  return layers;
}

void StepStatistics::add_dropped(std::span<const LayerLoad> loads, std::vector<LayerStatistics>& layers) {
  const auto experts = static_cast<std::size_t>(model_.moe().experts);
  const bool counts_passes =
      model_.moe_execution.further_passes && model_.moe_execution.ragged_buffer_factor > 0;
  const std::size_t of_layer = experts + (counts_passes ? 2 : 0);
  std::vector<double> sums(layers.size() * of_layer, 0.0);
  for (const LayerLoad& load : loads) {
    const std::size_t at = place_among_experts(model_, load.layer) * of_layer;
    if (counts_passes && context_.rank == 0) {  // all ranks of a stage took as many
      double &most = sums[at + experts], &overflows = sums[at + experts + 1];
      most = std::max(most, static_cast<double>(load.passes));
      overflows += load.passes > 1 ? 1 : 0;
    }
    for (std::size_t e = 0; e < experts; ++e) sums[at + e] += load.dropped[e];
  }
  sum_over_run(context_, sums);
  for (std::size_t l = 0; l < layers.size(); ++l) {
    LayerStatistics& layer = layers[l];
    const auto at = sums.begin() + static_cast<std::ptrdiff_t>(l * of_layer),
               end = at + static_cast<std::ptrdiff_t>(experts);
    layer.dropped.assign(at, end);
    if (!counts_passes) continue;
    layer.passes = static_cast<std::int64_t>(end[0]), layer.overflows = static_cast<std::int64_t>(end[1]);
    passes_.runs += runs_;
    passes_.overflows += layer.overflows;
    passes_.most = std::max(passes_.most, layer.passes);
  }
}

void StepStatistics::add_shard_loads(std::span<const LayerLoad> loads,
                                     std::vector<LayerStatistics>& layers) const {
  std::vector<float> most(layers.size(), 0);
  for (const LayerLoad& load : loads) {
    float& here = most[place_among_experts(model_, load.layer)];
    here = std::max(here, static_cast<float>(load.shard_load));
  }
  max_over_run(context_, most);
  for (std::size_t l = 0; l < most.size(); ++l) layers[l].shard_load = most[l];
}

}  // namespace switchyard
