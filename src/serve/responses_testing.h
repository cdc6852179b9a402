// A model of bytes whose template shows roles, reasoning, contents and calls.
#pragma once

#include <memory>

#include "serve/served_model.h"

namespace switchyard::serve {

inline ServedModel chatting_model() {
  static const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer("byte", "");
  const char* const text =
      "{%- if tools %}T{{ tools | length }}{% endif %}"
      "{%- for m in messages %}[{{ m.role }}|{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif "
      "%}"
      "{{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments | "
      "tojson "
      "}}>{% endfor %}]"
      "{% endfor %}{% if add_generation_prompt %}[assistant|{% endif %}";

  chat::TemplateSource source{.text = text, .tool_text = "", .origin = "test"};
  auto chat = std::make_shared<ChatModel>(ChatModel{chat::ChatTemplate(source, {}), chat::Format::hermes});
  return {
      .name = "small", .tokenizer = tokenizer.get(), .vocab = 257, .capacity = 4096, .chat = std::move(chat)};
}

}  // namespace switchyard::serve
