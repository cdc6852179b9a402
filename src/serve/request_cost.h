// What the handler of a POST will cost, told from its bytes before anything is read.
#pragma once

#include <cstddef>

#include "serve/http/message.h"

namespace switchyard::serve {

// Returns the cost in bytes of a plain body (http::Lanes).
std::size_t cost_of(const http::Request& request);

}  // namespace switchyard::serve
