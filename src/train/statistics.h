// Statistics of a step's experts, over the whole run.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "models/model_config.h"
#include "train/step_report.h"

namespace switchyard {

// Global statistics of one MoE layer in one step.
struct LayerStatistics {
  std::int64_t layer = 0;
  std::vector<double> rows, dropped;  // for each expert
  std::vector<double>
      rows_per_rank;  // rows on each rank of the expert axes, after dropping; empty when experts are whole
  // Norms of the router's bias before the update, and of the update (log_moe_bias_norms).
  std::optional<double> bias_norm = {}, bias_update_norm = {};
  std::int64_t passes = 0;     // most passes through the experts; 0 without moe_dropless_fallback
  std::int64_t overflows = 0;  // microbatches with more than one pass
  double shard_load = 0;       // most rows of an expert-parallel rank, over the balanced share; 0: not asked
  double max_over_mean() const;
  double entropy() const;  // of the experts' shares, natural log
  double rows_dropped() const;
};

// Totals over the steps of a Trainer, when moe_dropless_fallback has a cap.
struct PassTotals {
  std::int64_t runs = 0;       // MoE layer runs: one for each layer and microbatch
  std::int64_t overflows = 0;  // runs with more rows than the cap
  std::int64_t most = 0;       // most passes in one run
};

class StepStatistics {
 public:
  // `runs`: of a layer in a step. `of_shards`: the shards' loads are asked for, too.
  StepStatistics(Context& context, const ModelConfig& model, std::int64_t runs, bool of_shards)
      : context_(context), model_(model), runs_(runs), of_shards_(of_shards) {}

  // Returns the statistics of all MoE layers: rows from the report, which is the host's, all else summed over
  // ranks from the loads that this rank's passes left. Collective.
  std::vector<LayerStatistics> gather(const StepReport& report, std::span<const LayerLoad> loads);
  const PassTotals& passes() const { return passes_; }  // of all steps so far

 private:
  void add_dropped(std::span<const LayerLoad> loads, std::vector<LayerStatistics>& layers);
  void add_shard_loads(std::span<const LayerLoad> loads, std::vector<LayerStatistics>& layers) const;

  Context& context_;
  const ModelConfig& model_;
  const std::int64_t runs_;
  const bool of_shards_;
  PassTotals passes_;
};

// The index of a layer among the MoE layers.
std::size_t place_among_experts(const ModelConfig& model, std::int64_t layer);

}  // namespace switchyard
