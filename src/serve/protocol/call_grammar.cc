#include "serve/protocol/call_grammar.h"

#include <utility>

namespace switchyard::serve {
namespace {

using grammar::Choice;
using grammar::ExactText;
using grammar::Part;
using grammar::Repeat;
using grammar::SchemaText;
using grammar::TaggedText;
using Parts = std::vector<Part>;

void add_text(Parts& parts, const std::string& text) {
  if (!text.empty()) parts.push_back({ExactText{text}});
}

void append(Parts& parts, Parts more) {
  for (Part& part : more) parts.push_back(std::move(part));
}

Parts parameter_parts(const chat::CallParameter& parameter) {
  Parts parts;
  add_text(parts, parameter.begin);
  if (parameter.may_be_text) {
    parts.push_back({TaggedText{parameter.schema, parameter.is_text, parameter.end_tag, parameter.end}});
  } else {
    parts.push_back({SchemaText{parameter.schema}});
    add_text(parts, parameter.end);
  }
  return parts;
}

Part optionally(Parts parts) {
  Choice choice;
  choice.of.push_back(std::move(parts));
  choice.of.emplace_back();
  return {std::move(choice)};
}

// Arguments one by one: where a separator stands between them, required ones come first, so that each
// optional one knows whether something stands before it.
Parts arguments_one_by_one(const chat::ToolCallForm& call, const std::string& separator) {
  Parts parts;
  if (separator.empty()) {
    for (const chat::CallParameter& parameter : call.parameters) {
      if (parameter.required)
        append(parts, parameter_parts(parameter));
      else
        parts.push_back(optionally(parameter_parts(parameter)));
    }
    return parts;
  }
  std::vector<const chat::CallParameter*> optional;
  for (const chat::CallParameter& parameter : call.parameters) {
    if (!parameter.required) {
      optional.push_back(&parameter);
      continue;
    }
    if (!parts.empty()) add_text(parts, separator);
    append(parts, parameter_parts(parameter));
  }
  // Returns the optional arguments from `begin` on, each behind a separator.
  const auto rest = [&](std::size_t begin) {
    Parts more;
    for (std::size_t i = begin; i < optional.size(); ++i) {
      Parts one;
      add_text(one, separator);
      append(one, parameter_parts(*optional[i]));
      more.push_back(optionally(std::move(one)));
    }
    return more;
  };
  if (!parts.empty() || optional.empty()) {
    append(parts, rest(0));
    return parts;
  }
  Choice first;
  first.of.emplace_back();  // none at all, or one of them is the first
  for (std::size_t i = 0; i < optional.size(); ++i) {
    Parts from = parameter_parts(*optional[i]);
    append(from, rest(i + 1));
    first.of.push_back(std::move(from));
  }
  parts.push_back({std::move(first)});
  return parts;
}

// The rest of a text whose first bytes are written. Behind a marker the white space is the model's own.
void add_rest(Parts& parts, const std::string& text, std::size_t written) {
  const std::string rest = text.substr(std::min(written, text.size()));
  const std::size_t begin = std::min(rest.find_first_not_of(" \n"), rest.size());
  if (written == 0 || begin == 0) return add_text(parts, rest);
  Choice space;
  for (const char* own : {"", "\n", " ", "\n\n"}) {
    space.of.emplace_back();
    add_text(space.of.back(), own);
  }
  parts.push_back({std::move(space)});
  add_text(parts, rest.substr(begin));
}

// One call of any tool. `written`: bytes of its beginning that stand already.
Part any_call(const chat::CallForm& form, std::size_t written) {
  Choice choice;
  for (const chat::ToolCallForm& call : form.calls) {
    Parts parts;
    add_rest(parts, call.begin, written);
    if (form.numbered) {
      parts.push_back({SchemaText{{{"type", "integer"}, {"minimum", 0}, {"maximum", 127}}}});
      add_text(parts, call.after_number);
    }
    if (form.one_by_one)
      append(parts, arguments_one_by_one(call, form.parameter_separator));
    else
      parts.emplace_back().is = SchemaText{call.arguments};
    add_text(parts, call.end);
    choice.of.push_back(std::move(parts));
  }
  return {std::move(choice)};
}

}  // namespace

Parts call_parts(const chat::CallForm& form, bool one_call, bool behind_marker) {
  Parts parts;
  std::size_t written = behind_marker ? form.marker.size() : 0;
  add_rest(parts, form.begin, written);
  written -= std::min(written, form.begin.size());
  parts.push_back(any_call(form, written));
  if (form.several && !one_call) {
    Parts more;
    add_text(more, form.separator);
    Repeat calls;
    calls.of.push_back(any_call(form, 0));
    calls.separator = form.separator;
    more.push_back({std::move(calls)});
    parts.push_back(optionally(std::move(more)));
  }
  add_text(parts, form.end);
  return parts;
}

}  // namespace switchyard::serve
