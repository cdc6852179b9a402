#include "train/train_config.h"

#include <fmt/format.h>

#include "models/adapter.h"

namespace switchyard {
namespace {

UpdateConfig update_config(const Config& c, const ModelConfig& model) {
  UpdateConfig u;
  u.layers = model.depth();
  const bool muon = c.get_string("opt_type") == "muon";
  u.optimizer.type = muon ? "adamw" : c.get_string("opt_type");
  u.optimizer.b1 = c.get_float("adam_b1");
  u.optimizer.b2 = c.get_float("adam_b2");
  u.optimizer.eps = c.get_float("adam_eps");
  u.optimizer.eps_root = c.get_float("adam_eps_root");
  u.optimizer.weight_decay = c.get_float("adam_weight_decay");
  u.optimizer.mu_dtype =
      c.is_none("mu_dtype") ? model.weight_dtype : parse_float_dtype(c.get_string("mu_dtype"), "mu_dtype");
  if (muon) {
    u.optimizer.nesterov = true;
    u.muon = MuonConfig{.beta = c.get_float("muon_beta"),
                        .weight_decay = c.get_float("muon_weight_decay"),
                        .eps = u.optimizer.eps,
                        .consistent_rms = {},
                        .mu_dtype = u.optimizer.mu_dtype};
    if (!c.is_none("muon_consistent_rms")) u.muon->consistent_rms = c.get_float("muon_consistent_rms");
    check(*u.muon);
    u.muon_routers = c.get_bool("muon_include_routers");
  }
  u.grad_dtype = parse_float_dtype(c.get_string("grad_dtype"), "grad_dtype");
  u.state_on_host = c.get_bool("optimizer_memory_host_offload");
  u.decay_exclude = c.get_strings("weight_decay_exclude");
  u.decay_mask = NamePatterns("adamw_mask", c.get_strings("adamw_mask"));
  if (muon && !u.decay_mask.empty())
    fail_usage("[optim] adamw_mask: opt_type=muon takes none, as in the reference; use weight_decay_exclude");
  return u;
}

// Refuses what would make another loss of pairs than the stated one, or another reference. The model has an
// adapter and compat=none: check_adapter_keys() refuses the rest.
void check_preference(const Config& c, const ModelConfig& model, int stages) {
  const auto refuse = [](const std::string& given, const char* expected) {
    fail_usage("[train] {} with use_dpo=true: expected {}", given, expected);
  };
  if (stages > 1) refuse(fmt::format("ici_pipeline_parallelism={}", stages), "1");
  if (model.predictions > 0) refuse(fmt::format("mtp_num_layers={}", model.predictions), "0");
  if (model.z_loss > 0) refuse(fmt::format("z_loss_multiplier={}", model.z_loss), "0");
  if (model.trains_indexer_alone()) refuse("indexer_sparse_training=false", "true");
  for (const char* const key : {"routing_record", "routing_replay"}) {
    if (!c.get_string(key).empty())
      refuse(fmt::format("{}={}", key, c.get_string(key)), "none: a pair is run under two models");
  }
  if (!model.moe_layers().empty() && model.moe().random_routing) refuse("use_random_routing=true", "false");
  if (c.get_string("dpo_algo") != "dpo") return;
  if (!model.adapter->whole.empty())
    fail_usage(
        "[train] use_dpo=true: the adapter has {} in place of the model's, which dpo's reference would need, "
        "too: expected an adapter without modules_to_save, or dpo_algo=orpo",
        *model.adapter->whole.begin());
}

PreferenceOptions preference_options(const Config& c) {
  return {.kind = c.get_string("dpo_algo") == "orpo" ? PreferenceKind::orpo : PreferenceKind::dpo,
          .beta = c.get_float("dpo_beta"),
          .label_smoothing = c.get_float("dpo_label_smoothing"),
          .odds_factor = c.get_float("orpo_lambda")};
}

}  // namespace

TrainConfig train_config(const Config& c, const ModelConfig& model, int stages) {
  pipeline_repeats(c, stages);
  if (stages > 1 && model.trains_indexer_alone())
    fail_usage(
        "[pipeline] indexer_sparse_training=false: a stage has no gradient to give to the one before where "
        "indexers learn alone; set ici_pipeline_parallelism=1 or indexer_sparse_training=true");
  TrainConfig t;
  t.update = update_config(c, model);
  t.schedule.type = c.get_string("lr_schedule_type");
  t.schedule.learning_rate = c.get_float("learning_rate");
  t.schedule.final_fraction = c.get_float("learning_rate_final_fraction");
  t.schedule.warmup_steps_fraction = c.get_float("warmup_steps_fraction");
  t.schedule.wsd_decay_steps_fraction = c.get_float("wsd_decay_steps_fraction");
  t.schedule.wsd_decay_style = c.get_string("wsd_decay_style");
  const std::int64_t schedule_steps = c.get_int("learning_rate_schedule_steps");
  t.schedule.schedule_steps = schedule_steps > 0 ? schedule_steps : c.get_int("steps");
  check(t.schedule);
  t.bad_steps = bad_step_config(c);
  t.clip = c.get_float("gradient_clipping_threshold");
  if (c.get_bool("use_qk_clip")) {
    if (!model.attention().mla)
      fail_usage("[optim] use_qk_clip=true: expected attention_type=mla, whose weights it scales");
    t.qk_clip = c.get_float("qk_clip_threshold");
  }
  if (c.get_bool("use_dpo")) {
    check_preference(c, model, stages);
    t.preference = preference_options(c);
  }
  t.log_bias_norms = c.get_bool("log_moe_bias_norms");
  t.log_required_factor = c.get_bool("log_required_ragged_buffer_factor");
  t.log_load_ratio = c.get_bool("moe_log_max_load_ratio");
  t.accumulation = c.get_int("gradient_accumulation_steps");
  t.stage_microbatches = pipeline_microbatches(c, stages);
  t.schedule_of_stages = parse_pipeline_schedule(c.get_string("pipeline_schedule"));
  return t;
}

}  // namespace switchyard
