// Trainer: runs optimizer steps on one rank of a run; results are the same on every rank.
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
  std::int64_t accumulation = 1;        // microbatches in each step
  double qk_clip = 0;                   // qk_clip_threshold with use_qk_clip, 0 = off
  std::int64_t stage_microbatches = 1;  // microbatches of a pipeline in each of these
  PipelineSchedule schedule_of_stages = PipelineSchedule::one_forward_one_backward;
  bool log_required_factor = false;  // log_required_ragged_buffer_factor
  bool log_load_ratio = false;       // moe_log_max_load_ratio
};
// Error(usage) as from pipeline_repeats().
TrainConfig train_config(const Config& config, const ModelConfig& model, int stages);

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

// Places of a step's losses among its sums. In a pipeline the balance loss of each MoE layer has one behind
// them: their sum then does not depend on which layers a stage has.
enum LossPlace : std::size_t { kLoss, kLmLoss, kZLoss, kBalanceLoss, kPredictionLoss, kIndexerLoss, kLosses };

// Totals over the steps of a Trainer, when moe_dropless_fallback has a cap.
struct PassTotals {
  std::int64_t runs = 0;       // MoE layer runs: one for each layer and microbatch
  std::int64_t overflows = 0;  // runs with more rows than the cap
  std::int64_t most = 0;       // most passes in one run
};

struct StepResult {
  double loss = 0, lm_loss = 0, balance_loss = 0, z_loss = 0, prediction_loss = 0, indexer_loss = 0;
  double raw_grad_norm = 0, grad_norm = 0, param_norm = 0;
  double learning_rate = 0, total_weights = 0;
  std::string bad;           // why the update was skipped, and what was not finite first; "": it was not
  StackScores scores;        // with QK-clip: the largest in this step's forward passes
  std::int64_t skipped = 0;  // skipped updates of the run so far
  std::vector<LayerStatistics> layers;
  std::optional<RoutingAgreement> routing;  // when experts are replayed
  std::string routing_records;              // on rank 0, when recording (routing/routing_file.h)
  std::vector<std::int64_t> layer_bytes;    // kept for backward by each decoder layer of this rank
};

class StepInputs;

class Trainer {
 public:
  Trainer(Context& context, ModelConfig model, TrainConfig config, Parameters parameters);

  // Runs one optimizer step on the global batch. A bad step leaves weights and state unchanged. Here and
  // below, each rank reads only its own rows of the batch.
  StepResult step(std::int64_t step, const BatchRows& batch);
  // Sum of cross entropies and number of targets of a global batch; does not train.
  struct EvalResult {
    double loss_sum = 0, targets = 0;
  };
  EvalResult evaluate(const BatchRows& batch);
  // Logits f32 [B,S,V], whole on every rank.
  Tensor logits(const BatchRows& batch);

  // While it exists, evaluate() and logits() run under `rules`, on weights that were moved to the layout of
  // these rules; step() must not be called. Training's weights stay in place. Collective to create and to
  // destroy; `rules` must outlive it.
  class UnderRules {
   public:
    UnderRules(Trainer& trainer, const AxisRules& rules);
    ~UnderRules();
    UnderRules(const UnderRules&) = delete;
    UnderRules& operator=(const UnderRules&) = delete;

   private:
    Trainer& trainer_;
    const AxisRules* const rules_;  // training's rules
  };

  // From now on steps record or replay experts, with errors as from step(). Evaluations do neither.
  void trace_routing(std::shared_ptr<StepRouting> routing);

  // `hook` gets this rank's gradients in each step after the backward
  // passes, before they are summed over ranks with the same weights.
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
  // This rank's rows of a batch, and the number of targets in the whole batch.
  struct OwnBatch {
    std::vector<Batch> micro;                 // one for each microbatch
    std::int64_t rows = 0;                    // rows of a whole microbatch
    double targets = 0, further_targets = 0;  // further_targets: of prediction layers
    double filled_rows = 0;                   // rows with at least one token, in all microbatches
  };
  OwnBatch read_own(const BatchRows& batch, std::int64_t microbatches);
  void forward_only(const ModelConfig& model, const OwnBatch& batch, ForwardOptions options,
                    const std::function<void(const ForwardResult&, const Stage::Block&)>& use,
                    std::size_t microbatch = 0);
  // Results of all passes of a step, on the device.
  struct Passes {
    std::vector<Array> losses;
    std::vector<std::size_t> places;  // of each, among the sums (LossPlace)
    std::vector<LayerLoad> loads;
    std::vector<HeadScores> scores;
    std::vector<std::int64_t> layer_bytes;
  };
  void accumulate(std::int64_t step, const BatchRows& batch, StepResult& result);
  // `inputs`: the microbatches and their counts on the device; null: they are placed here.
  Passes run_passes(std::int64_t step, std::int64_t length, const OwnBatch& own, const StepInputs* inputs);
  double balance_share(const OwnBatch& own) const;
  double divisor(double targets) const;  // by which a loss over so many targets is divided
  void add_losses(std::span<const double> values, const Passes& passes, const OwnBatch& own,
                  StepResult& result);
  // A step on the device alone (train/step_on_device.cc), and why this trainer has none: in words, or empty.
  struct OnDevice;
  struct Issued;
  std::string needs_host() const;
  void say_why_host();
  bool is_on_gpu() const;
  StepResult step_by_host(std::int64_t step, const BatchRows& batch);
  StepResult step_on_device(std::int64_t step, const BatchRows& batch);
  Issued issue(std::int64_t step, std::int64_t length, const OwnBatch& own);
  void update_on_device(const Issued& issued);
  void read_report(std::int64_t step, const Issued& issued, const BatchRows& batch, const OwnBatch& own,
                   StepResult& result);
  void judge(std::int64_t step, StepResult& result);
  // Adds to `bad` of the first of some steps whose loss or gradient is not finite what of the step was so
  // first (train/not_finite.cc). `squares`: this rank's, of the gradients. Collective; runs the batch once
  // more.
  void say_origin(const BatchRows& batch, std::span<const double> squares, StepResult& result);
  void judge_by(std::int64_t step, double norm, double loss, StepResult& result);
  double clip_factor(double norm) const;
  void update(std::int64_t step, StepResult& result, double factor);
  void update_bias(StepResult& result);
  std::vector<float> host_copy(const std::string& name);
  void clip_scores(const StepResult& result);
  // The values of some scalars, in one read from the device; 0 for an undefined one.
  std::vector<double> read_losses(std::span<const Array> losses);
  void gather_statistics(std::span<LayerLoad> loads, StepResult& result);
  void gather_shard_loads(std::span<const LayerLoad> loads, StepResult& result);
  std::size_t place_of(std::int64_t layer) const;  // index among the MoE layers

  Context& context_;
  ModelConfig model_;
  const ModelConfig eval_model_;
  TrainConfig config_;
  Parameters parameters_;
  std::optional<Parameters> moved_;  // weights for an evaluation's own rules
  Updater updater_;
  BadSteps bad_steps_;
  PhaseTimer timer_;
  PassTotals passes_;
  std::function<void(const Parameters&)> on_gradients_;
  std::shared_ptr<StepRouting> routing_;  // null: the router chooses, nothing is recorded
  std::shared_ptr<OnDevice> on_device_;   // null: not needed so far
  bool said_why_host_ = false;
};

}  // namespace switchyard
