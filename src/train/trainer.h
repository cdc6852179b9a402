// Trainer: one optimizer step after another on one rank of a run; what it returns is the same on every rank.
#pragma once

#include <memory>

#include "metrics/phase_timer.h"
#include "models/decoder.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "train/session.h"

namespace switchyard {

struct TrainConfig {
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  double clip = 0;                // gradient_clipping_threshold, 0 = off
  std::int64_t accumulation = 1;  // microbatches a step
  DType grad_dtype = DType::f32;
  std::vector<std::string> decay_exclude;  // patterns of parameter names (glob)
};
TrainConfig train_config(const Config& config, const ModelConfig& model);

// Global statistics of one MoE layer in one step.
struct LayerStatistics {
  std::int64_t layer = 0;
  std::vector<double> rows, dropped;  // per expert
  std::vector<double>
      rows_per_rank;  // rows of each rank of the expert axes, after dropping; empty when experts are whole
  double max_over_mean() const;
  double entropy() const;  // of the shares, natural log
  double rows_dropped() const;
};

struct StepResult {
  double loss = 0, lm_loss = 0, balance_loss = 0, z_loss = 0;
  double raw_grad_norm = 0, grad_norm = 0, param_norm = 0;
  double learning_rate = 0, total_weights = 0;
  std::vector<LayerStatistics> layers;
  std::vector<std::int64_t> layer_bytes;  // held for backward by each decoder layer of this rank
};

class Trainer {
 public:
  Trainer(Context& context, ModelConfig model, TrainConfig config, Parameters parameters);

  // One optimizer step on the global batch.
  StepResult step(std::int64_t step, const Batch& batch);
  // Sum of cross entropies and number of targets of a global batch, without training.
  struct EvalResult {
    double loss_sum = 0, targets = 0;
  };
  EvalResult evaluate(const Batch& batch);

  Context& context() { return context_; }
  const ModelConfig& model() const { return model_; }
  Parameters& parameters() { return parameters_; }
  PhaseTimer& timer() { return timer_; }
  std::int64_t optimizer_bytes() const;  // state held for this rank

 private:
  // A parameter's flat range that this rank updates: its share among the ranks that hold the same block.
  struct Range {
    Group group;
    std::string axis;
    std::int64_t begin = 0, count = 0, padded = 0;
    Tensor grad;  // reduced, [count]
    std::vector<Tensor> state;
    bool decay = true;
  };

  void accumulate(std::int64_t step, const Batch& batch, StepResult& result);
  void reduce_gradients();
  double norm_of(bool gradients);
  void update(std::int64_t step, const StepResult& result, double scale);
  void update_bias(const StepResult& result);
  void gather_statistics(const std::vector<std::vector<LayerLoad>>& loads, StepResult& result);

  Context& context_;
  ModelConfig model_;
  TrainConfig config_;
  Parameters parameters_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<Range> ranges_;  // one a parameter
  PhaseTimer timer_;
};

}  // namespace switchyard
