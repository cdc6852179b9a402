#include "serve/protocol/sampling_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace switchyard::serve {
namespace {

using nlohmann::json;

// Reads {"50256": -100}: ids, as texts as JSON has them, and the numbers that are added to their logits.
std::vector<LogitBias> biases_of(const json& object, const ServedModel& model) {
  constexpr const char* kField = "logit_bias";
  if (!object.is_object())
    throw BadRequest(kField, fmt::format("logit_bias: expected an object of tokens and numbers, got {}",
                                         Fields::shown(object)));
  const auto vocab =
      static_cast<std::int32_t>(std::min<std::int64_t>(model.tokenizer->vocab_size(), model.vocab));
  std::vector<LogitBias> biases;
  for (const auto& [name, bias] : object.items()) {
    std::int32_t token = -1;
    const auto read = std::from_chars(name.data(), name.data() + name.size(), token);
    const bool is_plain = read.ec == std::errc() && std::to_string(token) == name;  // and so there once
    if (!is_plain || token < 0 || token >= vocab)
      throw BadRequest(kField, fmt::format("logit_bias: expected tokens of 0 to {}, got {}", vocab - 1,
                                           Fields::shown(name)));
    if (!bias.is_number() || !(std::abs(bias.get<double>()) <= kMostLogitBias))
      throw BadRequest(kField, fmt::format("logit_bias: expected a number of -{} to {} for token {}, got {}",
                                           kMostLogitBias, kMostLogitBias, token, Fields::shown(bias)));
    biases.push_back({token, bias.get<double>()});
  }
  return biases;
}

// The strategy, the temperature and their numbers: of the request, else of the command line.
SamplingConfig strategy_of(Fields& fields, const ServedModel& model) {
  const SamplingConfig& own = model.sampling;
  bool given = false;
  for (const char* name : {"temperature", "top_p", "top_k", "min_p"})
    given = given || fields.find(name) != nullptr;
  using enum SamplingStrategy;
  const bool has_nucleus = own.strategy == nucleus || own.strategy == composite;
  const bool has_top_k = own.strategy == topk || own.strategy == composite;
  SamplingConfig sampling = own;
  sampling.strategy = composite;
  sampling.temperature = fields.number("temperature", own.strategy == greedy ? 1 : own.temperature, 0, 100);
  sampling.nucleus_p = fields.number("top_p", has_nucleus ? own.nucleus_p : 1, 0, 1);
  sampling.min_p = fields.number("min_p", own.min_p, 0, 1);
  sampling.top_k =
      fields.integer("top_k", has_top_k ? own.top_k : -1, -1, std::numeric_limits<std::int32_t>::max());
  if (!given) return own;
  if (sampling.nucleus_p == 0) sampling.temperature = 0;  // nothing but the most probable token
  if (sampling.top_k < 1 && sampling.nucleus_p == 1) sampling.strategy = weighted;
  if (sampling.top_k < 1) sampling.top_k = std::numeric_limits<std::int32_t>::max();
  return sampling;
}

}  // namespace

SamplingConfig sampling_of(Fields& fields, const ServedModel& model) {
  SamplingConfig sampling = strategy_of(fields, model);
  sampling.repetition_penalty = fields.number("repetition_penalty", sampling.repetition_penalty,
                                              kLeastRepetitionPenalty, kMostRepetitionPenalty);
  sampling.presence_penalty =
      fields.number("presence_penalty", sampling.presence_penalty, -kMostPenalty, kMostPenalty);
  sampling.frequency_penalty =
      fields.number("frequency_penalty", sampling.frequency_penalty, -kMostPenalty, kMostPenalty);
  if (const json* const biases = fields.find("logit_bias")) sampling.logit_bias = biases_of(*biases, model);
  return sampling;
}

void read_training_fields(Fields& fields, const ServedModel& model, TextRequest& text) {
  if (const json* const mode = fields.find("logprobs_mode")) {
    text.processed_log_probs = *mode == "processed_logprobs";
    if (!text.processed_log_probs && *mode != "raw_logprobs")
      throw BadRequest("logprobs_mode",
                       fmt::format("logprobs_mode: expected raw_logprobs or processed_logprobs, got {}",
                                   Fields::shown(*mode)));
  }
  text.returns_token_ids = fields.boolean("return_token_ids");
  text.returns_routing = fields.boolean("return_routed_experts");
  if (text.returns_routing && !model.records_routing)
    throw BadRequest("return_routed_experts",
                     "return_routed_experts: this server records no experts: start it with "
                     "return_routed_experts=true");
}

std::shared_ptr<const TextAdapter> adapter_named(const json* name, const ServedModel& model) {
  if (name == nullptr) return nullptr;
  if (name->is_string()) {
    const auto text = name->get<std::string>();
    if (model.is_named(text)) return nullptr;
    if (std::shared_ptr<const TextAdapter> adapter = model.weights->find(text)) return adapter;
  }
  std::string names = model.name;
  for (const auto& adapter : model.weights->adapters()) names += ", " + adapter->name;
  throw BadRequest("model", fmt::format("model: expected {}, got {}", names, Fields::shown(*name)),
                   "model_not_found", 404);
}

CacheDomain cache_domain_of(const json* salt, std::int64_t key, const ServedModel& model,
                            const TextAdapter* adapter) {
  CacheDomain domain{model.keys_share_prefixes ? kNobody : key};
  if (adapter != nullptr) domain.adapter = adapter->version;
  if (salt == nullptr) return domain;
  if (!salt->is_string() || salt->get_ref<const std::string&>().empty())
    throw BadRequest("cache_salt", fmt::format("cache_salt: expected a text that is not empty, got {}",
                                               Fields::shown(*salt)));
  domain.salt = salt->get<std::string>();
  return domain;
}

}  // namespace switchyard::serve
