// Estimates the cost of a POST's handler from the bytes of the request, before anything is parsed.
#pragma once

#include <cstddef>

#include "serve/http/message.h"

namespace switchyard::serve {

// Returns the cost in bytes of a plain body (http::Lanes).
std::size_t cost_of(const http::Request& request);

}  // namespace switchyard::serve
