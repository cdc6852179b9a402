// Trainer: runs optimizer steps on one rank of a run; results are the same on every rank.
#pragma once

#include <functional>
#include <optional>
#include <span>

#include "engine/session.h"
#include "metrics/phase_timer.h"
#include "models/decoder.h"
#include "models/pipeline.h"
#include "routing/step_routing.h"
#include "train/qk_clip.h"
#include "train/statistics.h"
#include "train/train_config.h"

namespace switchyard {

struct StepResult {
  double loss = 0, lm_loss = 0, balance_loss = 0, z_loss = 0, prediction_loss = 0, indexer_loss = 0;
  double raw_grad_norm = 0, grad_norm = 0, param_norm = 0;
  double learning_rate = 0, total_weights = 0;
  std::string bad;  // why the update was skipped, and what was not finite first; "": it was not
  // Mean rewards over pairs, and the share of pairs whose chosen answer has the larger reward.
  struct Rewards {
    double chosen = 0, rejected = 0, preferred = 0;
  };
  std::optional<Rewards> rewards = {};
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
  // The halves of a step; one of each has the bits of step(). forward_backward() adds the gradients of a
  // batch to those of the calls since the last step, and returns its losses. optimizer_step() takes the step;
  // a `rate` replaces the schedule's. There is no graph of theirs for a GPU.
  StepResult forward_backward(std::int64_t step, const BatchRows& batch);
  StepResult optimizer_step(std::int64_t step, std::optional<double> rate);
  bool has_gradients() const { return added_ != nullptr; }
  // Forgets what forward_backward() added.
  void drop_gradients();
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
  Updater& updater() { return updater_; }
  const PassTotals& passes() const { return statistics_.passes(); }
  std::int64_t optimizer_bytes() const { return updater_.state_bytes(); }  // state held for this rank

 private:
  Pipeline pipeline(std::int64_t rows, std::int64_t length) const;
  // This rank's rows of a batch, and the number of targets in the whole batch.
  struct OwnBatch {
    std::vector<Batch> micro;                 // one for each microbatch
    std::int64_t rows = 0;                    // rows of a whole microbatch
    double targets = 0, further_targets = 0;  // further_targets: of prediction layers
    PairCounts pairs;                         // in the whole batch, where pairs are trained
    double filled_rows = 0;                   // rows with at least one token, in all microbatches
  };
  OwnBatch read_own(const BatchRows& batch, std::int64_t microbatches);
  void forward_only(const ModelConfig& model, const OwnBatch& batch, LossOptions options,
                    const std::function<void(const Losses&, const Stage::Block&)>& use,
                    std::size_t microbatch = 0);
  // Results of all passes of a step, on the device.
  struct PassResults {
    std::vector<Array> losses;
    std::vector<std::size_t> places;  // of each, among the sums (LossPlace)
    std::vector<LayerLoad> loads;
    std::vector<HeadScores> scores;
    std::vector<std::int64_t> layer_bytes;
  };
  // Adds to the gradients. `inputs`: the microbatches and their counts on the device; null: this call places
  // both there.
  PassResults run_passes(std::int64_t step, std::int64_t length, const OwnBatch& own,
                         const StepInputs* inputs);
  // Sets what a pass over pairs computes, for which the reference runs over the batch.
  void ask_for_pairs(const OwnBatch& own, const DeviceBatch& batch, LossOptions& options);
  double balance_share(const OwnBatch& own) const;
  double divisor(double targets) const;  // by which a loss over so many targets is divided

  // A step (train/step.cc) is issued, reports, and is read. What issues it waits for nothing, but where one
  // of the reasons of keeps_from_graph() makes it look at the step: `seen` then has what was found.
  struct Recorded;
  struct Issued;
  // Why a step cannot be recorded, in words; empty when it can.
  std::string keeps_from_graph(const OwnBatch& own) const;
  bool is_on_gpu() const;
  std::shared_ptr<const Issued> issue_as_graph(std::int64_t step, std::int64_t length, const OwnBatch& own,
                                               const UpdateNumbers& numbers, StepResult& seen);
  // The passes that forward_backward() ran since the last step.
  struct Added;
  Issued issue(std::int64_t step, std::int64_t length, const OwnBatch& own, const StepInputs* inputs,
               const TensorView& numbers, StepResult& seen);
  Issued issue_update(PassResults passes, const OwnBatch& own, const TensorView& numbers, StepResult& seen);
  StepReport report_of(PassResults& passes, const OwnBatch& own);
  // Sums the losses of a report. Returns the whole loss, f64 [1]: the same on all ranks, but where one of
  // them is broken, once the run has summed it.
  TensorView sum_losses(const StepReport& report, const OwnBatch& own);
  void sum_up(const StepReport& report, const OwnBatch& own, const TensorView& numbers);
  void update(const Issued& issued, const TensorView& numbers, StepResult& seen);
  void read_losses(const StepReport& host, StepResult& result) const;
  void read_report(std::int64_t step, const Issued& issued, const BatchRows& batch, StepResult& result);
  // True when the host must know before the update whether the step is good.
  bool judges_early() const { return config_.bad_steps.skip_spikes || config_.qk_clip > 0; }
  void judge(std::int64_t step, const StepReport& host, StepResult& result);
  // Adds to `bad` of the first of some steps whose loss or gradient is not finite what of the step was so
  // first (train/not_finite.cc). `squares`: this rank's, of the gradients, on the host. Collective; runs the
  // batch once more.
  void say_origin(const BatchRows& batch, const Tensor& squares, StepResult& result);
  double clip_factor(double norm) const;
  std::vector<double> bias_norms();
  std::vector<float> host_copy(const std::string& name);
  void clip_scores(const StackScores& scores);

  Context& context_;
  ModelConfig model_;
  const ModelConfig eval_model_;
  std::optional<ModelConfig> reference_model_;  // without its adapter; none: nothing is held to it
  TrainConfig config_;
  Parameters parameters_;
  std::optional<Parameters> moved_;  // weights for an evaluation's own rules
  Updater updater_;
  BadSteps bad_steps_;
  StepStatistics statistics_;
  PhaseTimer timer_;
  std::function<void(const Parameters&)> on_gradients_;
  std::shared_ptr<StepRouting> routing_;  // null: the router chooses, nothing is recorded
  std::shared_ptr<Recorded> recorded_;    // null: not needed so far
  std::shared_ptr<Added> added_;          // null: none since the last step
  bool said_why_no_graph_ = false;
};

}  // namespace switchyard
