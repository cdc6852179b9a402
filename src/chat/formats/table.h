// The table of formats. A new format is a row here and a file of its reader.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "chat/formats/reader.h"

namespace switchyard::chat::formats {

struct FormatRow {
  Format format;
  std::string_view name;
  // A template's text chooses the format where it has one of these (none: it is never chosen), …
  std::span<const std::string_view> chosen_by;
  std::span<const std::string_view> but_not_with;  // … and none of these.
  std::span<const TagPair> reasoning;
  std::string_view reasoning_end;
  std::unique_ptr<CallReader> (*make_calls)(Answer&, const ToolTypes&);  // null: without calls
  bool text_after_calls;
  std::span<const std::string_view> ends;  // texts that end an answer, as end tokens do
  TagPair content_tags = {};               // as in MarkedForm
  bool calls_end_reasoning = false;        // as in MarkedForm
};

// All formats. The first whose text a template has is the template's.
std::span<const FormatRow> format_rows();
const FormatRow& format_row(Format format);
// The tags around reasoning of all formats, each once.
std::span<const TagPair> reasoning_tags();

}  // namespace switchyard::chat::formats
