// The paths below /v1/responses: what is kept of a response, and what it is asked for again.
#pragma once

#include <string>

#include "serve/protocol/responses_answer.h"

namespace switchyard::serve {

// Returns what keeps a request's response in `stored`, or nothing where the request forbids that.
ResponsesAnswer::Keep keeper_of(const ResponsesRequest& request, StoredResponses& stored,
                                StoredResponses::Key key);

// GET of `name`: a response's id, or ID/input_items. BadRequest, with status 404 where it is not stored.
std::string show_stored(const std::string& name, const std::string& query, StoredResponses& stored,
                        StoredResponses::Key key);

// DELETE of a response. BadRequest, with status 404 where it is not stored.
std::string delete_stored(const std::string& id, StoredResponses& stored, StoredResponses::Key key);

}  // namespace switchyard::serve
