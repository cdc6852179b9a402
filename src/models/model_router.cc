#include "models/model_router.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace switchyard {
namespace {

// Reads a router that weighs the experts' inputs; it has no settings of choice of its own.
void read_router_with_weights_on_inputs(const Config& c, ModelConfig& m) {
  const std::string score = c.get_string("routed_score_func");
  const auto refuse = [&](const char* key, const auto& value, const char* has) {
    fail_usage("[model] {}={}: decoder_block={} {}", key, value, m.block->name, has);
  };
  if (score == "softmax") refuse("routed_score_func", score, "weighs by a logistic function");
  if (c.get_bool("routed_bias")) refuse("routed_bias", "true", "has no such bias");
  if (c.get_bool("norm_topk_prob")) refuse("norm_topk_prob", "true", "does not divide weights by their sum");
  if (c.get_float("routed_scaling_factor") != 1)
    refuse("routed_scaling_factor", c.get_float("routed_scaling_factor"), "does not scale weights");
  if (c.get_int("n_routing_groups") > 0)
    refuse("n_routing_groups", c.get_int("n_routing_groups"), "has no groups");
  if (c.get_bool("mlp_bias")) refuse("mlp_bias", "true", "has no such biases");
  MoeConfig& moe = m.moes.front();
  moe.score = RouterScore::sigmoid;
  moe.softmax_over_selected = false;
  moe.choose_by_logit = moe.weights_on_inputs = true;
}

// MaxText knows by the model's name whose router weighs by scores without the bias and may choose from
// groups. It routes other models by the best of biased scores, whatever their keys say.
bool routes_as_deepseek3(const ModelConfig& m) {
  return m.name.starts_with("deepseek3") || m.name.starts_with("deepseek4") ||
         (m.name.starts_with("kimi-k2") && !m.compat_2026_08);
}

}  // namespace

void read_router(const Config& c, ModelConfig& m) {
  MoeConfig& moe = m.moes.front();
  if (m.block->weights_on_inputs) {
    read_router_with_weights_on_inputs(c, m);
    return;
  }
  const std::string score = c.get_string("routed_score_func");
  moe.score = score == "sigmoid"        ? RouterScore::sigmoid
              : score == "sqrtsoftplus" ? RouterScore::sqrt_softplus
              : score == "softmax"      ? RouterScore::softmax
                                        : RouterScore::none;
  moe.softmax_over_selected = moe.score == RouterScore::none;
  moe.bias = c.get_bool("routed_bias") && !m.block->logit_bias;
  moe.logit_bias = c.get_bool("routed_bias") && m.block->logit_bias;
  if (moe.bias && moe.score == RouterScore::none)
    fail_usage(
        "[model] routed_bias=true: expected routed_score_func=sigmoid, sqrtsoftplus or softmax, got none");
  moe.scaling = static_cast<float>(c.get_float("routed_scaling_factor"));
  const bool norm = c.get_bool("norm_topk_prob");
  if (moe.score == RouterScore::none && m.block->softmax_over_all && !m.compat) {
    moe.score = RouterScore::softmax;
    moe.softmax_over_selected = false;
    moe.normalise = norm;
  } else if (scores_each_alone(moe.score)) {
    moe.normalise = norm;
    moe.normalise_epsilon = 1e-20f;
  } else if (moe.score == RouterScore::softmax) {
    moe.normalise = norm && !m.compat;
  }
  moe.given_as_maxtext = m.compat && !m.compat_2026_08;
  moe.groups = std::max<std::int64_t>(0, c.get_int("n_routing_groups"));
  moe.groups_by_two_best = m.block->groups_by_two_best;
  moe.kept_groups = std::max<std::int64_t>(0, c.get_int("topk_routing_group"));
  if (m.compat && !routes_as_deepseek3(m)) {
    moe.groups = moe.kept_groups = 0;
    moe.weights_include_bias = moe.bias;
  }
}

bool decays_router_bias(const ModelConfig& m) {
  return m.compat && (m.compat_2026_08 || !routes_as_deepseek3(m));
}

void read_balance(const Config& c, ModelConfig& m) {
  MoeExecution& run = m.moe_execution;
  run.balance_weight = c.get_float("load_balance_loss_weight");
  m.bias_update_rate = m.moe().bias ? c.get_float("routed_bias_update_rate") : 0;
  BalanceRule& rule = run.balance;
  rule.of_best_scores = c.get_bool("moe_use_megatron_seq_aux_loss") &&
                        m.moe().score == RouterScore::sigmoid && !m.compat_2026_08;
  if (!m.compat) return;
  rule.count_padding = true;
  rule.softmax_of_scores = !rule.of_best_scores;
  rule.divide_by_slots = !m.compat_2026_08;
  rule.by_parts = !m.compat_2026_08 && !rule.of_best_scores;
  rule.biased =
      m.moe().bias && !rule.of_best_scores && (decays_router_bias(m) || !c.get_bool("sparse_matmul"));
}

void read_experts(const Config& c, ModelConfig& m) {
  MoeConfig& moe = m.moes.front();
  moe.expert_bias = c.get_bool("mlp_bias");
  if (!m.block->clamped_gates) return;
  const double limit = c.get_float("mlp_activations_limit");
  if (limit <= 0)
    fail_usage("[model] mlp_activations_limit={}: decoder_block={} needs one above 0", limit, m.block->name);
  moe.gate_limit = static_cast<float>(limit);
  moe.gate_alpha = static_cast<float>(c.get_float("mlp_activations_alpha"));
}

}  // namespace switchyard
