// AnswerParser: what a model wrote, piece by piece, as reasoning, content and tool calls.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::chat {

using Json = nlohmann::ordered_json;

// The form in which a family of models writes calls and reasoning; docs/serving.md shows each.
enum class Format {
  none,   // all text is content
  think,  // reasoning, no calls
  hermes,
  qwen3_coder,
  mimo,
  glm4,
  hy_v3,
  hy_v3_preview,
  minimax_m2,
  deepseek_v3,
  deepseek_v3_1,
  kimi_k2,
  ernie4_5,
  harmony,
  mistral,
  llama3_json,
  llama4_pythonic
};
// Returns the format's name, as in the list above.
std::string_view name_of(Format format);
// Error(usage) with all names for a word that is none.
Format format_named(std::string_view name);
// Chooses the format that a template's text speaks of.
Format format_of_template(std::string_view template_text);

// A change of the answer. Joined, the changes of any pieces of a text are the same.
struct Delta {
  enum class Kind {
    content,    // `text` is added to the content
    reasoning,  // `text` is added to the reasoning
    call,       // call `index` begins: `name`, `id`
    arguments   // `text` is added to the arguments of call `index`
  };
  Kind kind = Kind::content;
  std::string text = {};
  std::size_t index = 0;
  std::string name = {};
  std::string id = {};  // what the model wrote; empty where the format has none
};

enum class TextEnd { stop, length };

class AnswerParser {
 public:
  // `tools`: those that may be called, as a request lists them, or null for none. Only they are called: what
  // looks like another's call is content. Argument values of text formats take their types from them.
  // `opens_reasoning`: the prompt ended within reasoning. `reads_reasoning`: false leaves reasoning and its
  // markers in the content; of harmony, whose messages are all of that form, everything is content then.
  AnswerParser(Format format, const Json& tools, bool opens_reasoning, bool reads_reasoning = true);
  ~AnswerParser();
  AnswerParser(AnswerParser&&) noexcept;
  AnswerParser& operator=(AnswerParser&&) noexcept;

  // Takes the model's next text with its markers, and returns the changes that stay whatever text follows.
  // Neither function throws.
  std::vector<Delta> add(std::string_view text);
  std::vector<Delta> finish(TextEnd end);
  // Returns how many calls have begun.
  std::size_t calls() const;
  // Returns whether a call has ended: with parallel_tool_calls=false the answer ends there.
  bool first_call_is_whole() const;
  // Returns whether the text is within reasoning now.
  bool in_reasoning() const;

 private:
  class Machine;
  std::unique_ptr<Machine> machine_;
};

}  // namespace switchyard::chat
