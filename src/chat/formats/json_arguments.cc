#include "chat/formats/json_arguments.h"

#include <algorithm>
#include <utility>

#include "chat/formats/answer.h"
#include "chat/formats/tool_types.h"

namespace switchyard::chat::formats {
namespace {

bool may_be_in_word(char c) {
  return is_name_character(c) || c == '+';
}

// Returns the JSON of a word, or nothing where it is none.
std::string plain_json_word(const std::string& word) {
  if (word == "True") return "true";
  if (word == "False") return "false";
  if (word == "None") return "null";
  return Json::accept(word) ? word : std::string();
}

}  // namespace

void JsonArguments::restart(std::span<const std::string_view> tags) {
  *this = {};
  tags_ = tags;
}

std::string JsonArguments::taken_back() {
  return std::exchange(back_, {});
}

bool JsonArguments::is_in_text() const {
  return state_.at == At::in_text || state_.at == At::in_key ||
         (state_.at == At::as_it_is && state_.in_plain_text);
}

bool JsonArguments::continues_tag(char c) const {
  const std::string text = (waiting_ ? waiting_->bytes : std::string()) + c;
  return std::ranges::any_of(tags_, [&](std::string_view tag) { return tag.starts_with(text); });
}

JsonArguments::Result JsonArguments::take(char c, std::string& given) {
  if (waiting_ && !waiting_->found && !continues_tag(c)) {
    given += waiting_->given;
    waiting_.reset();
  }
  if (!waiting_ && is_in_text() && state_.escape == 0 && continues_tag(c))
    waiting_ = std::make_shared<Waiting>(Waiting{state_, {}, {}, false});
  if (!waiting_) return take_byte(c, given);
  const Result result = take_byte(c, waiting_->given);
  const bool was_json = waiting_->before.at != At::as_it_is;
  if (waiting_->found && was_json && (state_.at == At::as_it_is || result == Result::ended)) {
    go_back();
    return Result::taken_back;
  }
  waiting_->bytes += c;
  if (!waiting_->found) waiting_->found = std::ranges::find(tags_, waiting_->bytes) != tags_.end();
  if (result != Result::reading) {
    given += waiting_->given;
    waiting_.reset();
  }
  return result;
}

void JsonArguments::go_back() {
  back_ = std::move(waiting_->bytes);
  state_ = std::move(waiting_->before);
  waiting_.reset();
}

JsonArguments::Result JsonArguments::take_byte(char c, std::string& given) {
  if (state_.at == At::as_it_is) return take_as_it_is(c, given);
  const bool in_text = is_in_text();
  if (!in_text && c == '<') return Result::ended;
  const bool fits = in_text ? take_text_byte(c, given) : take_structure(c, given);
  if (fits) return state_.at == At::behind && state_.open.empty() ? Result::whole : Result::reading;
  if (!in_text && state_.at == At::behind && (c == '`' || c == '[')) return Result::ended;
  given += std::exchange(state_.held, {});
  state_.in_plain_text = in_text;
  state_.escape = 0;
  state_.at = At::as_it_is;
  if (in_text) {  // behind a backslash that escapes nothing
    given += c;
    return Result::reading;
  }
  return take_as_it_is(c, given);
}

JsonArguments::Result JsonArguments::take_as_it_is(char c, std::string& given) {
  if (!state_.in_plain_text && c == '<') return Result::ended;
  given += c;
  if (state_.in_plain_text) {
    if (state_.escape > 0)
      state_.escape = 0;
    else if (c == '\\')
      state_.escape = 1;
    else if (c == '"')
      state_.in_plain_text = false;
    return Result::reading;
  }
  if (c == '"') state_.in_plain_text = true;
  if (c == '{' || c == '[') state_.open += c;
  if ((c == '}' || c == ']') && !state_.open.empty()) state_.open.pop_back();
  return state_.open.empty() ? Result::whole : Result::reading;
}

// Returns whether the byte fits, as the next function does.
bool JsonArguments::take_text_byte(char c, std::string& given) {
  constexpr std::string_view kEscapes = "\"\\/bfnrt", kDigits = "0123456789abcdefABCDEF";
  if (state_.escape == 1) {
    if (c != 'u' && kEscapes.find(c) == std::string_view::npos) return false;
    state_.escape = c == 'u' ? 5 : 0;
  } else if (state_.escape > 1) {
    if (kDigits.find(c) == std::string_view::npos) return false;
    state_.escape = state_.escape == 2 ? 0 : state_.escape - 1;
  } else if (c == '\\') {
    state_.escape = 1;
  } else if (c == '"') {
    state_.at = state_.at == At::in_key ? At::colon : At::behind;
  } else if (static_cast<unsigned char>(c) < 0x20) {
    append_escaped(given, std::string_view(&c, 1));
    return true;
  }
  given += c;
  return true;
}

void JsonArguments::begin_item(std::string& given, std::string_view text, At next) {
  given += std::exchange(state_.held, {});
  given += text;
  state_.at = next;
}

// `cut`: a word that is none becomes null.
bool JsonArguments::end_word(std::string& given, bool cut) {
  const std::size_t begin = state_.held.find_last_of(" \t\r\n,") + 1;
  std::string json = plain_json_word(state_.held.substr(begin));
  if (json.empty() && cut) json = "null";
  if (json.empty()) return false;
  given += state_.held.substr(0, begin) + json;
  state_.held.clear();
  state_.at = At::behind;
  return true;
}

bool JsonArguments::take_structure(char c, std::string& given) {
  if (state_.at == At::in_word) {
    if (may_be_in_word(c)) {
      state_.held += c;
      return true;
    }
    if (!end_word(given, false)) return false;
  }
  if (is_space(c)) {
    state_.held += c;
    return true;
  }
  const std::string_view byte(&c, 1);
  const bool may_be_key = state_.at == At::first_key || state_.at == At::key;
  const bool may_be_value = state_.at == At::value || state_.at == At::first_item;
  if (c == '"' && (may_be_key || may_be_value)) {
    begin_item(given, byte, may_be_key ? At::in_key : At::in_text);
    return true;
  }
  if ((c == '{' || c == '[') && may_be_value) {
    begin_item(given, byte, c == '{' ? At::first_key : At::first_item);
    state_.open += c;
    return true;
  }
  if (may_be_value && may_be_in_word(c)) {
    state_.held += c;
    state_.at = At::in_word;
    return true;
  }
  if (c == ':' && state_.at == At::colon) {
    begin_item(given, byte, At::value);
    return true;
  }
  if (c == ',' && state_.at == At::behind && !state_.open.empty()) {
    state_.held += c;
    state_.at = state_.open.back() == '{' ? At::key : At::value;
    return true;
  }
  if (c != '}' && c != ']') return false;
  const bool in_object = !state_.open.empty() && state_.open.back() == '{';
  const bool behind_comma = state_.at == At::key || (!in_object && state_.at == At::value);
  const bool may_close =
      behind_comma || state_.at == At::behind || state_.at == (in_object ? At::first_key : At::first_item);
  if (state_.open.empty() || in_object != (c == '}') || !may_close) return false;
  if (behind_comma) state_.held.erase(0, state_.held.find(',') + 1);
  begin_item(given, byte, At::behind);
  state_.open.pop_back();
  return true;
}

void JsonArguments::close(std::string& given) {
  if (state_.at == At::as_it_is) return;
  const bool in_key = state_.at == At::in_key;
  if (is_in_text()) {
    if (state_.escape == 1) given += '\\';
    if (state_.escape > 1) given.append(static_cast<std::size_t>(state_.escape) - 1, '0');
    given += '"';
  }
  if (state_.at == At::in_word) end_word(given, true);
  if (in_key || state_.at == At::colon) given += ": null";
  if (state_.at == At::value && !state_.open.empty() && state_.open.back() == '{') given += " null";
  for (; !state_.open.empty(); state_.open.pop_back()) given += state_.open.back() == '{' ? '}' : ']';
  state_.held.clear();
  state_.at = At::behind;
}

void JsonArguments::flush(std::string& given) {
  if (waiting_) given += waiting_->given;
  waiting_.reset();
  given += std::exchange(state_.held, {});
}

}  // namespace switchyard::chat::formats
