// Declares keys of training: steps, optimizer, schedule, loss, evaluation.
#include "config/declaration.h"

namespace switchyard {
namespace {

std::vector<KeyDeclaration> optimizer_keys() {
  return {
      must_stay(choice_key("opt_type", "adamw", one_of({"adamw", "adam_pax", "sgd", "muon"}),
                           "optimizer; muon: of matrices, adamw of embedding, head, norms and biases")),
      float_key("adam_b1", 0.9, between(0, 1), "decay of the first moment"),
      float_key("adam_b2", 0.95, between(0, 1), "decay of the second moment"),
      float_key("adam_eps", 1e-8, at_least(0), "added to the root of the second moment"),
      float_key("adam_eps_root", 0.0, at_least(0), "added under that root"),
      float_key("adam_weight_decay", 0.1, at_least(0), "weight decay, times the learning rate"),
      text_list_key("weight_decay_exclude", {},
                    "patterns of parameter names that do not decay, such as *norm*"),
      text_list_key("adamw_mask", {},
                    "regular expressions; parameters in whose names one is found do not decay"),
      must_stay(choice_key("mu_dtype", "", one_of({"", "float32", "bfloat16"}),
                           "type of the first moments; empty: weight_dtype. The second have weight_dtype")),
      choice_key("grad_dtype", "float32", one_of({"float32", "bfloat16"}),
                 "type of gradients that are summed over ranks"),
      float_key("gradient_clipping_threshold", 1.0, at_least(0),
                "largest global norm of the gradient; 0: no limit"),
      may_change(integer_key("gradient_accumulation_steps", 1, at_least(1),
                             "batches whose gradients make one step")),
      boolean_key("muon_include_routers", true,
                  "muon: of the routers' weights too; false: adamw updates them"),
      inert(choice_key("muon_type", "optax_muon", one_of({"optax_muon", "optax", "maxtext_muon", "maxtext"}),
                       "two implementations of the same update; there is one here")),
      inert(boolean_key("muon_use_all_to_all", false, "our matrices always travel by all-to-all")),
      float_key("muon_beta", 0.95, between(0, 1), "muon: decay of the momentum"),
      float_key("muon_weight_decay", 0.0, at_least(0),
                "muon: weight decay of matrices, times the learning rate"),
      optional(float_key("muon_consistent_rms", 0.2, more_than(0),
                         "muon: root mean square of an update; None: sqrt(max(1, out/in)) scales it")),
      must_stay(text_list_key(
          "trainable_parameters_mask", {},
          "regular expressions; only parameters in whose names one is found are trained, all without")),
      boolean_key("skip_step_on_spikes", false,
                  "leave out the update of a step whose loss or gradient norm is a spike"),
      integer_key("skip_step_interval", 128, at_least(2),
                  "skip_step_on_spikes: the last so many steps have the mean that a spike stands out from"),
      float_key("skip_step_scaling_factor", 6.0, at_least(0),
                "skip_step_on_spikes: standard deviations above it that make a spike"),
      may_change(integer_key("max_consecutive_bad_steps", 10, at_least(0),
                             "stop after so many steps in a row whose loss or gradient is not finite, or a "
                             "spike, and which were skipped; 0: never")),
      may_change(integer_key(
          "weight_digest_interval", 0, at_least(0),
          "steps between comparisons of the copies of weights in different processes by a digest; 0: none")),
  };
}

std::vector<KeyDeclaration> schedule_keys() {
  return {
      float_key("learning_rate", 3e-5, at_least(0), "highest learning rate"),
      choice_key("lr_schedule_type", "cosine", one_of({"cosine", "wsd"}),
                 "warm-up, then cosine, or plateau and decay"),
      float_key("learning_rate_final_fraction", 0.1, at_least(0), "last learning rate over the highest"),
      float_key("warmup_steps_fraction", 0.1, between(0, 1), "share of the schedule that warms up"),
      may_change(integer_key("learning_rate_schedule_steps", -1, at_least_or(0, -1),
                             "length of the schedule; -1: steps")),
      float_key("wsd_decay_steps_fraction", 0.1, between(0, 1), "wsd: share of the schedule that decays"),
      choice_key("wsd_decay_style", "linear", one_of({"linear", "cosine"}), "wsd: form of the decay"),
  };
}

}  // namespace

std::vector<KeyDeclaration> train_keys() {
  std::vector<KeyDeclaration> keys = {
      may_change(integer_key("steps", 150001, at_least_or(0, -1),
                             "training steps; -1: learning_rate_schedule_steps")),
      may_change(float_key("per_device_batch_size", 12.0, more_than(0),
                           "sequences per rank and step; a fraction where times ranks is whole")),
      with_role(KeyRole::data, integer_key("max_target_length", 2048, at_least(1), "tokens of a sequence")),
      float_key("z_loss_multiplier", 0.0, at_least(0), "weight of the square of log Z"),
      inert(integer_key("num_vocab_tiling", 1, at_least(1),
                        "the loss always runs over tiles of the vocabulary")),
      inert(boolean_key("vocab_tiling_ag_once", false, "a schedule of the reference's loss")),
      inert(boolean_key("cast_logits_to_fp32", true, "our loss is always in float32")),
      inert(boolean_key("logits_dot_in_fp32", false, "our logits are always summed in float32")),
      inert(boolean_key("use_iota_embed", false, "another form of the same embedding")),
      with_role(KeyRole::output,
                integer_key("eval_interval", -1, at_least_or(1, -1), "steps between evaluations; -1: none")),
      with_role(KeyRole::output,
                integer_key("eval_steps", -1, at_least_or(1, -1), "batches of an evaluation; -1: all")),
      with_role(KeyRole::output,
                planned(integer_key("eval_start_step", 0, at_least(0), "first step that is evaluated"))),
      with_role(KeyRole::output, planned(float_key("eval_per_device_batch_size", 0.0, at_least(0),
                                                   "sequences per rank in evaluation; 0: as in training"))),
      with_role(KeyRole::output, planned(float_key("target_eval_loss", 0.0, at_least(0),
                                                   "stop when evaluation is below; 0: never"))),
      may_change(
          boolean_key("abort_on_nan_loss", true, "stop when the loss is not a number; else skip the step")),
      may_change(
          boolean_key("abort_on_inf_loss", true, "stop when the loss is infinite; else skip the step")),
      with_role(KeyRole::output,
                integer_key("step_line_period", 1, at_least(1),
                            "a line is printed after every so many steps, and after the last")),
      with_role(KeyRole::output,
                inert(integer_key("log_period", 100, at_least(1), "metrics are written every step here"))),
      with_role(KeyRole::output, inert(integer_key("record_internal_nn_metrics", 0, at_least(0),
                                                   "router statistics are always measured here"))),
      planned(integer_key("reuse_example_batch", 0, at_least(0), "train on one batch again and again")),
      planned(boolean_key("enable_rampup_batch_size", false, "a batch that grows during training")),
      inert(
          float_key("per_device_batch_size_start", 4.0, more_than(0), "only with enable_rampup_batch_size")),
      inert(float_key("per_device_batch_size_increment", 2.0, more_than(0),
                      "only with enable_rampup_batch_size")),
      inert(integer_key("global_rampup_samples", 500, at_least(1), "only with enable_rampup_batch_size")),
      must_stay(
          boolean_key("use_dpo", false,
                      "trains an adapter on pairs of answers, of which one was preferred: data_path holds "
                      "JSON lines of prompt, chosen and rejected")),
      boolean_key("use_sft", false,
                  "fine-tune on conversations: data_path holds JSON lines, which the model's chat template "
                  "renders"),
      boolean_key(
          "sft_train_on_completion_only", false,
          "with use_sft, where it is true unless set: what an assistant says is trained alone; false: "
          "every token"),
      boolean_key("sft_last_answer_only", false,
                  "with use_sft: a conversation's last answer is trained alone"),
      boolean_key(
          "sft_trust_messages", true,
          "with use_sft: texts of special tokens within messages become these tokens; false: they stay "
          "text, as `serve` reads them"),
  };
  for (auto&& more : {optimizer_keys(), schedule_keys()}) keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

}  // namespace switchyard
