// The fields of a request that say how tokens are drawn: shared by all protocols.
#pragma once

#include "generate/sampling.h"
#include "serve/protocol/fields.h"
#include "serve/served_model.h"

namespace switchyard::serve {

// Reads temperature, top_p, top_k, min_p, the penalties and logit_bias; what the request does not say is the
// command line's. BadRequest.
SamplingConfig sampling_of(Fields& fields, const ServedModel& model);

}  // namespace switchyard::serve
