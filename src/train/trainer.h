// Trainer: one optimizer step after another on one rank of a run; what it returns is the same on every rank.
#pragma once

#include <functional>
#include <optional>
#include <span>

#include "engine/session.h"
#include "metrics/phase_timer.h"
#include "models/decoder.h"
#include "models/pipeline.h"
#include "optim/schedule.h"
#include "routing/step_routing.h"
#include "train/bad_steps.h"
#include "train/qk_clip.h"
#include "train/update.h"

namespace switchyard {

struct TrainConfig {
  UpdateConfig update;
  ScheduleConfig schedule;
  BadStepConfig bad_steps;
  double clip = 0;                      // gradient_clipping_threshold, 0 = off
  bool log_bias_norms = false;          // log_moe_bias_norms
  std::int64_t accumulation = 1;        // microbatches a step
  double qk_clip = 0;                   // qk_clip_threshold with use_qk_clip, 0 = off
  std::int64_t stage_microbatches = 1;  // of each, through the stages of a pipeline
  PipelineSchedule schedule_of_stages = PipelineSchedule::one_forward_one_backward;
  bool log_required_factor = false;  // log_required_ragged_buffer_factor
  bool log_load_ratio = false;       // moe_log_max_load_ratio
};
// Error(usage) as pipeline_repeats.
TrainConfig train_config(const Config& config, const ModelConfig& model, int stages);

// Global statistics of one MoE layer in one step.
struct LayerStatistics {
  std::int64_t layer = 0;
  std::vector<double> rows, dropped;  // per expert
  std::vector<double>
      rows_per_rank;  // rows of each rank of the expert axes, after dropping; empty when experts are whole
  // Of the router's bias before the update, and of the update (log_moe_bias_norms).
  std::optional<double> bias_norm = {}, bias_update_norm = {};
  std::int64_t passes = 0;     // through the experts where most were taken; 0 without moe_dropless_fallback
  std::int64_t overflows = 0;  // microbatches that took more than one
  double shard_load = 0;       // most rows for an expert-parallel rank, over the balanced share; 0: not asked
  double max_over_mean() const;
  double entropy() const;  // of the shares, natural log
  double rows_dropped() const;
};

// Of the steps of a Trainer, where moe_dropless_fallback has a cap.
struct PassTotals {
  std::int64_t runs = 0;       // of MoE layers: one a layer and microbatch
  std::int64_t overflows = 0;  // of them: those with rows over the cap
  std::int64_t most = 0;       // passes of one of them
};

struct StepResult {
  double loss = 0, lm_loss = 0, balance_loss = 0, z_loss = 0, prediction_loss = 0, indexer_loss = 0;
  double raw_grad_norm = 0, grad_norm = 0, param_norm = 0;
  double learning_rate = 0, total_weights = 0;
  std::string bad;           // why the update was left out; "": it was not
  StackScores scores;        // with QK-clip: the largest of this step's forward passes
  std::int64_t skipped = 0;  // steps of the run so far whose update was
  std::vector<LayerStatistics> layers;
  std::optional<RoutingAgreement> routing;  // where experts are replayed
  std::string routing_records;              // of rank 0, where they are recorded (routing/routing_file.h)
  std::vector<std::int64_t> layer_bytes;    // held for backward by each decoder layer of this rank
};

class Trainer {
 public:
  Trainer(Context& context, ModelConfig model, TrainConfig config, Parameters parameters);

  // One optimizer step on the global batch. A bad one leaves weights and state as they were. Of this batch
  // and those below each rank reads its own rows.
  StepResult step(std::int64_t step, const BatchRows& batch);
  // Sum of cross entropies and number of targets of a global batch, without training.
  struct EvalResult {
    double loss_sum = 0, targets = 0;
  };
  EvalResult evaluate(const BatchRows& batch);
  // Whole on every rank: f32 [B,S,V].
  Tensor logits(const BatchRows& batch);

  // While alive, evaluate() and logits() run under `rules`, on weights that were moved to where these want
  // them; step() must not be called. Weights of training stay where they are. Made and ended by all ranks at
  // once; `rules` must outlive it.
  class UnderRules {
   public:
    UnderRules(Trainer& trainer, const AxisRules& rules);
    ~UnderRules();
    UnderRules(const UnderRules&) = delete;
    UnderRules& operator=(const UnderRules&) = delete;

   private:
    Trainer& trainer_;
    const AxisRules* const rules_;  // of the training
  };

  // From now on steps record experts, or replay recorded ones; their error is step()'s. Evaluations do not.
  void trace_routing(std::shared_ptr<StepRouting> routing);

  // `hook` sees this rank's gradients of every step after the backward passes, before they are summed over
  // the ranks that hold the same weights.
  void on_gradients(std::function<void(const Parameters&)> hook) { on_gradients_ = std::move(hook); }

  Context& context() { return context_; }
  const TrainConfig& config() const { return config_; }
  const ModelConfig& model() const { return model_; }
  Parameters& parameters() { return parameters_; }
  PhaseTimer& timer() { return timer_; }
  BadSteps& bad_steps() { return bad_steps_; }
  const Updater& updater() const { return updater_; }
  const PassTotals& passes() const { return passes_; }
  std::int64_t optimizer_bytes() const { return updater_.state_bytes(); }  // state held for this rank

 private:
  Pipeline pipeline(std::int64_t rows, std::int64_t length) const;
  // This rank's rows of a batch, and the targets in all of it.
  struct OwnBatch {
    std::vector<Batch> micro;                 // of each microbatch
    std::int64_t rows = 0;                    // of a whole microbatch
    double targets = 0, further_targets = 0;  // the latter of prediction layers
    double filled_rows = 0;                   // rows of all microbatches that have a token
  };
  OwnBatch read_own(const BatchRows& batch, std::int64_t microbatches);
  void forward_only(const ModelConfig& model, const OwnBatch& batch, ForwardOptions options,
                    const std::function<void(const ForwardResult&)>& use);
  void accumulate(std::int64_t step, const BatchRows& batch, StepResult& result);
  void judge(std::int64_t step, StepResult& result);
  void update(std::int64_t step, StepResult& result, double factor);
  void update_bias(StepResult& result);
  std::vector<float> host_copy(const std::string& name);
  void clip_scores(const StepResult& result);
  // The values of some scalars, with one look at the device; 0 for an undefined one.
  std::vector<double> read_losses(std::span<const Array> losses);
  void gather_statistics(std::span<LayerLoad> loads, StepResult& result);
  void gather_shard_loads(std::span<const LayerLoad> loads, StepResult& result);
  std::size_t place_of(std::int64_t layer) const;  // among the MoE layers

  Context& context_;
  ModelConfig model_;
  const ModelConfig eval_model_;
  TrainConfig config_;
  Parameters parameters_;
  std::optional<Parameters> moved_;  // under rules of an evaluation's own
  Updater updater_;
  BadSteps bad_steps_;
  PhaseTimer timer_;
  PassTotals passes_;
  std::function<void(const Parameters&)> on_gradients_;
  std::shared_ptr<StepRouting> routing_;  // null: the router chooses, nothing is recorded
};

}  // namespace switchyard
