// The fields of a request that say how tokens are drawn: shared by all protocols.
#pragma once

#include "generate/sampling.h"
#include "serve/protocol/fields.h"
#include "serve/served_model.h"
#include "serve/texts.h"

namespace switchyard::serve {

// Reads temperature, top_p, top_k, min_p, the penalties and logit_bias; what the request does not say is the
// command line's. BadRequest.
SamplingConfig sampling_of(Fields& fields, const ServedModel& model);

// Reads logprobs_mode, return_token_ids and return_routed_experts: what programs want that train on answers.
// BadRequest, also where the server records no experts.
void read_training_fields(Fields& fields, const ServedModel& model, TextRequest& text);

// Whose cached tokens a request may use: those of its key and its cache_salt. `salt` may be null. BadRequest.
CacheDomain cache_domain_of(const nlohmann::json* salt, std::int64_t key, const ServedModel& model,
                            const TextAdapter* adapter);
// Returns the adapter that a request's `model` names; null: the model alone. BadRequest with status 404 for
// a name of neither.
std::shared_ptr<const TextAdapter> adapter_named(const nlohmann::json* name, const ServedModel& model);

}  // namespace switchyard::serve
