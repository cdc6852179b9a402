#include "convert/hub_form.h"

#include <cmath>

#include "core/error.h"
#include "models/families/deepseek.h"
#include "models/model_config.h"

namespace switchyard {
namespace {

bool is_power_of_two(float factor) {
  int exponent = 0;
  return std::frexp(factor, &exponent) == 0.5f;
}

class Rewriter {
 public:
  explicit Rewriter(const Config& config) : form_{config, {}, {}, true, {}}, model_(model_config(config)) {}

  HubForm rewrite() {
    if (model_.compat) leave_compat();
    unscale_latent_attention();
    restate_latent_epsilon();
    if (model_.normalize_tied_logits) {
      set("normalize_embedding_logits", false);
      multiply("final_norm", 1 / std::sqrt(static_cast<double>(model_.emb)),
               "normalize_embedding_logits=true: the final norm holds 1/sqrt(base_emb_dim)");
    }
    restate();
    return std::move(form_);
  }

 private:
  void set(const char* key, nlohmann::json value) { form_.config.set(key, std::move(value), "convert"); }

  void multiply(const std::string& parameter, double factor, const std::string& notice) {
    const auto rounded = static_cast<float>(factor);
    const bool exact = is_power_of_two(rounded);
    form_.factors[parameter] = rounded;
    form_.same_bits = form_.same_bits && exact;
    form_.notices.push_back(fmt::format("{} ({:.6g}, {})", notice, factor,
                                        exact ? "exact" : "no power of two: every element is rounded once"));
  }

  // All other changes of compat=maxtext concern training, or the order of operations at the experts.
  void leave_compat() {
    if (model_.moe().weights_include_bias)
      fail_usage(
          "[convert] compat={}, model_name={}: no Hugging Face form; the experts' weights hold the "
          "router's bias",
          form_.config.get_string("compat"), model_.name);
    set("compat", "none");
    form_.same_bits = model_.moe().experts == 0;
    if (!model_.attention().mla && model_.attention().scale == 1.0) {
      const double factor = std::sqrt(static_cast<double>(model_.attention().head_dim));
      multiply("attention.query", factor,
               "compat=maxtext: the query's weights no longer hold 1/sqrt(head_dim)");
      if (model_.attention().bias)
        multiply("attention.query_bias", factor, "compat=maxtext: nor does the query's bias");
    }
    if (model_.moe().experts == 0) return;
    // It normalises no softmax over all; what one over the selected becomes is for the family to say.
    if (model_.moe().score == RouterScore::softmax) set("norm_topk_prob", false);
  }

  // Beyond the original context MLA's scores are scaled here whatever the rotation is, there with YaRN only.
  void unscale_latent_attention() {
    const Config& config = form_.config;
    const std::int64_t most = config.get_int("max_position_embeddings");
    if (!model_.attention().mla || model_.attention().rope.type != "default" ||
        most <= model_.attention().rope.original_positions)
      return;
    set("original_max_position_embeddings", most);
    const double plain =
        1 / std::sqrt(static_cast<double>(model_.attention().nope + model_.attention().rope_dim));
    if (model_.attention().scale == plain) return;
    multiply(model_.attention().q_lora > 0 ? "attention.wq_b" : "attention.query",
             model_.attention().scale / plain,
             "rope_type=default beyond original_max_position_embeddings: the query holds the scores' factor");
  }

  // Published classes norm latents with one epsilon, which cannot be stated. The norm of x with epsilon e is
  // the norm of f·x with epsilon f²·e.
  void restate_latent_epsilon() {
    if (!model_.attention().mla || has_hub_latent_epsilon(model_) ||
        model_.attention().latent_norm_epsilon <= 0)
      return;
    const double factor =
        std::sqrt(kHubLatentEpsilon / static_cast<double>(model_.attention().latent_norm_epsilon));
    const auto hold = [&](const char* parameter, const char* words, std::int64_t columns) {
      multiply(parameter, factor,
               fmt::format("norms of latents with the epsilon {:g}: {} the root of {:g}/{:g}",
                           model_.attention().latent_norm_epsilon, words, kHubLatentEpsilon,
                           model_.attention().latent_norm_epsilon));
      if (columns > 0) form_.columns[parameter] = columns;
    };
    if (model_.attention().q_lora > 0) hold("attention.wq_a", "the queries' latents hold", 0);
    hold("attention.wkv_a", "those of keys and values hold",
         model_.attention().kv_lora);  // what is rotated is not normed
    if (model_.attention().bias && model_.attention().q_lora > 0)
      hold("attention.wq_a_bias", "the queries' bias holds", 0);
    if (model_.attention().bias)
      hold("attention.wkv_a_bias", "the bias of keys and values holds", model_.attention().kv_lora);
    set("latent_norm_epsilon", kHubLatentEpsilon);
    for (AttentionKind& kind : model_.attentions)
      kind.latent_norm_epsilon = static_cast<float>(kHubLatentEpsilon);
  }

  // Restates the settings that the Hugging Face family to be written states differently.
  void restate() {
    const ModelFamily* family = find_family_to_write(form_.config, model_);
    if (family != nullptr && family->predictions != PredictionForm::none && model_.predictions > 0 &&
        !model_.prediction_norms) {
      set("mtp_own_norm", true);
      form_.notices.push_back(
          "mtp_own_norm=false: each prediction layer is written with a copy of the final norm");
    }
    if (family == nullptr || family->restate == nullptr) return;
    Restated restated;
    family->restate(model_, restated);
    for (auto& [key, value] : restated.keys) set(key.c_str(), std::move(value));
    form_.same_bits = form_.same_bits && restated.same_bits;
    for (std::string& notice : restated.notices) form_.notices.push_back(std::move(notice));
  }

  HubForm form_;
  ModelConfig model_;
};

}  // namespace

float HubForm::factor_of(const std::string& parameter) const {
  for (const auto& [end, factor] : factors) {
    if (parameter.ends_with(end)) return factor;
  }
  return 1;
}

HubForm hub_form(const Config& config) {
  return Rewriter(config).rewrite();
}

std::int64_t HubForm::columns_of(const std::string& parameter) const {
  for (const auto& [end, count] : columns) {
    if (parameter.ends_with(end)) return count;
  }
  return 0;
}

Tensor scaled(const Tensor& tensor, float factor, DType dtype, std::int64_t columns) {
  if (factor == 1) return tensor.cast(dtype);
  Tensor product = tensor.cast(DType::f32);
  if (product.buffer() == tensor.buffer()) product = product.clone();
  const std::int64_t width = product.shape().empty() ? 1 : product.shape().back();
  float* const values = product.data<float>();
  for (std::int64_t i = 0; i < product.size(); ++i) {
    if (columns == 0 || i % width < columns) values[i] *= factor;
  }
  return product.cast(dtype);
}

}  // namespace switchyard
