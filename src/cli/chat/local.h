// The terminal's chat with a model in this process.
#pragma once

#include <memory>

#include "cli/chat/backend.h"
#include "serve/request_queue.h"
#include "serve/served_model.h"

namespace switchyard {

// Puts requests into the queue, whose texts another thread makes. Both must outlive the backend.
std::unique_ptr<ChatBackend> local_chat(const serve::ServedModel& model, serve::RequestQueue& queue);

}  // namespace switchyard
