// The fields of a request that say how tokens are drawn: shared by all protocols.
#pragma once

#include "generate/sampling.h"
#include "serve/protocol/fields.h"
#include "serve/served_model.h"

namespace switchyard::serve {

// Reads temperature, top_p, top_k, min_p, the penalties and logit_bias; what the request does not say is the
// command line's. BadRequest.
SamplingConfig sampling_of(Fields& fields, const ServedModel& model);

// Whose cached tokens a request may use: those of its key and its cache_salt. `salt` may be null. BadRequest.
CacheDomain cache_domain_of(const nlohmann::json* salt, std::int64_t key, const ServedModel& model);

}  // namespace switchyard::serve
