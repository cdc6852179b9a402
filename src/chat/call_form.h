// CallForm: the texts of a format's calls, for a grammar that holds an answer to them.
#pragma once

#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chat/answer_parser.h"

namespace switchyard::chat {

// One argument, where a call has its arguments one by one and not as one JSON object.
struct CallParameter {
  std::string begin;      // with the argument's name
  Json schema;            // of its value
  bool may_be_text;       // a value that is a text stands without quotes; any other is JSON
  bool is_text;           // whatever stands there is a text
  std::string end_tag;    // of the value: no text has it
  std::string end;        // behind the value, with the tag
  bool required = false;  // else it may be left out
};

// A call of one tool: begin, its arguments, end.
struct ToolCallForm {
  std::string name;          // the tool's
  std::string begin;         // all before the arguments or, where calls are numbered, before the number
  std::string after_number;  // between the number and the arguments
  Json arguments;            // the schema of the object; only where the form has no parameters
  std::vector<CallParameter> parameters;  // in the schema's order
  std::string end;
};

// An answer's calls: begin, calls with `separator` between them, end.
struct CallForm {
  std::string marker = {};  // from this text on an answer is calls; empty: from its beginning
  std::string begin = {}, separator = {}, end = {};
  bool several = false;      // more than one call may be written
  bool numbered = false;     // a number, from 0 on, stands in each call
  bool one_by_one = false;   // arguments are the parameters, not one JSON object
  std::string end_tag = {};  // of a value, where tags stand around values
  std::string parameter_separator = {};
  std::vector<ToolCallForm> calls = {};  // one for each tool
};

// `tools`: a request's list of tools. `template_text` chooses between forms of one format, where it shows
// one. A format without calls has none.
CallForm call_form(Format format, const Json& tools, std::string_view template_text = {});
// The text behind which reasoning begins; empty where the format has no such text.
std::string_view reasoning_begin(Format format);
// The text behind which reasoning is over; empty where the format has none. For harmony it is the beginning
// of the final message; a call's header, which begins with `CallForm::begin`, ends it, too.
std::string_view reasoning_end(Format format);
// The texts that end an answer of the format, as end tokens do.
std::span<const std::string_view> end_texts(Format format);
// Makes an id for a call that the model gave none.
std::string make_call_id(Format format, std::mt19937_64& random);

}  // namespace switchyard::chat
