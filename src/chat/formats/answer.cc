#include "chat/formats/answer.h"

#include <utility>

namespace switchyard::chat::formats {

bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.';
}

Match match(std::string_view text, std::string_view marker) {
  if (text.starts_with(marker)) return Match::yes;
  return marker.starts_with(text) ? Match::partly : Match::no;
}

Found find_first(std::string_view text, std::span<const std::string_view> markers, bool ended) {
  // One pass for all markers: a pass for each would read far ahead of a near one again and again.
  std::string first_characters;
  for (std::string_view marker : markers) first_characters += marker.front();
  for (std::size_t at = text.find_first_of(first_characters); at != std::string_view::npos;
       at = text.find_first_of(first_characters, at + 1)) {
    for (std::size_t which = 0; which < markers.size(); ++which) {
      const Match matched = match(text.substr(at), markers[which]);
      if (matched == Match::yes) return {at, which};
      if (matched == Match::partly && !ended) return {at, markers.size()};
    }
  }
  return {text.size(), markers.size()};
}

void Answer::emit(Delta::Kind kind, std::string_view text) {
  if (text.empty()) return;
  const std::size_t index = kind == Delta::Kind::arguments ? calls_ - 1 : 0;
  if (deltas_.empty() || deltas_.back().kind != kind || deltas_.back().index != index)
    deltas_.push_back({.kind = kind, .index = index});
  deltas_.back().text += text;
}

void Answer::give(Delta::Kind kind, Trimmed& trimmed, std::string_view text) {
  if (trimmed.drops_leading) {
    while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
    if (text.empty()) return;
    trimmed.drops_leading = false;
  }
  std::size_t size = text.size();
  while (size > 0 && is_space(text[size - 1])) --size;
  if (size > 0) {
    emit(kind, trimmed.space);
    trimmed.space.clear();
    emit(kind, text.substr(0, size));
    trimmed.given = true;
  }
  trimmed.space += text.substr(size);
}

void Answer::begin_message(Trimmed& trimmed) {
  trimmed.space = trimmed.given ? "\n" : "";
  trimmed.drops_leading = true;
}

void Answer::content(std::string_view text) {
  if (!takes_content()) return;
  give(Delta::Kind::content, content_, text);
  if (!may_call_) finish();
}

void Answer::broken_call(std::string_view text) {
  keeps_content_ = true;
  content(text);
}

void Answer::begin_tagged_content() {
  content_.space.clear();
  content_.drops_leading = true;
}

void Answer::end_tagged_content() {
  if (content_.space.ends_with('\n')) content_.space.pop_back();
  emit(Delta::Kind::content, content_.space);
  begin_tagged_content();
}

void Answer::begin_content_message() {
  // White space at the beginning of the first message is its own.
  if (content_.given) begin_message(content_);
}

void Answer::expect_no_calls() {
  may_call_ = false;
  finish();
}

void Answer::reasoning(std::string_view text) {
  give(Delta::Kind::reasoning, reasoning_, text);
}

void Answer::begin_reasoning_message() {
  begin_message(reasoning_);
}

void Answer::end_reasoning() {
  if (!content_.given) content_.drops_leading = true;
}

void Answer::begin_call(std::string name, std::string id) {
  content_.space.clear();
  content_.drops_leading = true;
  keeps_content_ = false;
  deltas_.push_back(
      {.kind = Delta::Kind::call, .index = calls_, .name = std::move(name), .id = std::move(id)});
  ++calls_;
}

void Answer::arguments(std::string_view text) {
  emit(Delta::Kind::arguments, text);
}

void Answer::finish() {
  if (!content_.drops_leading) emit(Delta::Kind::content, content_.space);
  content_.space.clear();
}

std::vector<Delta> Answer::take() {
  return std::exchange(deltas_, {});
}

}  // namespace switchyard::chat::formats
