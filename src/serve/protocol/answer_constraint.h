// answer_constraint: the grammar that a chat's answer keeps: of response_format and its other names, or of
// calls that must be made, or must keep their tools' schemas.
#pragma once

#include <memory>
#include <string>

#include "chat/answer_parser.h"
#include "grammar/grammar.h"
#include "serve/protocol/tool_choice.h"
#include "serve/served_model.h"

namespace switchyard::serve {

struct Constraint {
  std::shared_ptr<const grammar::Grammar> grammar;  // null: the answer is free
  std::string marker = {};  // the grammar counts from behind this text on; empty: from the answer's beginning
  bool holds_reasoning =
      false;  // the grammar begins with the first token, before the reasoning that it allows
};

// Reads response_format, structured_outputs and guided_* of a request's body, and joins them with the calls
// that `choice` asks for, one at most where `one_call`. BadRequest; its code for a schema is invalid_schema.
Constraint constraint_of(const chat::Json& body, const ToolChoice& choice, chat::Format format, bool one_call,
                         const ServedModel& model);

}  // namespace switchyard::serve
