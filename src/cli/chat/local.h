// The terminal's chat with a model in this process.
#pragma once

#include <memory>

#include "cli/chat/backend.h"
#include "serve/served_model.h"
#include "texts/inbox.h"

namespace switchyard {

// Puts requests into the queue, whose texts another thread makes. Both must outlive the backend.
std::unique_ptr<ChatBackend> local_chat(const serve::ServedModel& model, texts::Inbox& inbox);

}  // namespace switchyard
