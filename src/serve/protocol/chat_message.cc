#include "serve/protocol/chat_message.h"

#include "chat/call_form.h"

namespace switchyard::serve {

void ChatMessage::apply(chat::Delta& delta, chat::Format format, std::mt19937_64& random) {
  using Kind = chat::Delta::Kind;
  switch (delta.kind) {
    case Kind::content:
      content += delta.text;
      break;
    case Kind::reasoning:
      reasoning += delta.text;
      break;
    case Kind::call:
      if (delta.id.empty()) delta.id = chat::make_call_id(format, random);
      if (calls.size() <= delta.index) calls.resize(delta.index + 1);
      calls[delta.index] = {delta.id, delta.name, ""};
      break;
    case Kind::arguments:
      calls[delta.index].arguments += delta.text;
      break;
  }
}

}  // namespace switchyard::serve
