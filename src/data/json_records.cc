#include "data/json_records.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/json_file.h"
#include "tokenizer/unicode.h"

namespace switchyard {
namespace {

constexpr std::string_view kWhite = " \t\r\n";

nlohmann::json parsed_or_discarded(std::string_view slice) {
  nlohmann::json value = nlohmann::json::parse(slice, nullptr, false);
  return value.is_discarded() ? nlohmann::json::parse(standard_json(slice), nullptr, false) : value;
}

// True when the first lines are one record each. One line alone is a line, too.
bool has_lines(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kWhite), end = text.find('\n', begin);
  return end != std::string_view::npos && parsed_or_discarded(text.substr(begin, end - begin)).is_object();
}

}  // namespace

RecordText text_of_record(const nlohmann::json& record, const std::string& column) {
  const nlohmann::json* value = &record;
  if (record.is_object()) {
    const auto field = record.find(column);
    if (field == record.end()) return {nullptr, "none"};
    value = &*field;
  }
  if (value->is_string()) {
    const std::string& text = value->get_ref<const std::string&>();
    return {&text, text.empty() ? "an empty text" : ""};
  }
  if (value->is_null()) return {nullptr, "null"};
  const std::string type = value->type_name();
  return {nullptr, (type == "array" || type == "object" ? "an " : "a ") + type};
}

std::optional<RecordForm> record_form(std::string_view text, const std::string& column, bool named_lines) {
  const std::size_t begin = text.find_first_not_of(kWhite);
  if (begin == std::string_view::npos || (text[begin] != '{' && text[begin] != '['))
    return named_lines ? std::optional(RecordForm::lines) : std::nullopt;
  if (text[begin] == '{' && (named_lines || has_lines(text))) return RecordForm::lines;
  const RecordForm form = text[begin] == '[' ? RecordForm::array : RecordForm::values;
  if (named_lines) return form;
  try {  // a file of another kind may begin so, too
    RecordReader reader("", text, form, {});
    while (const std::optional<JsonRecord> record = reader.next()) {
      if (text_of_record(record->value, column).found != nullptr) return form;
    }
  } catch (const Error&) {
  }
  return std::nullopt;
}

std::optional<JsonRecord> RecordReader::next() {
  return form_ == RecordForm::lines ? next_line() : next_value();
}

std::optional<JsonRecord> RecordReader::next_line() {
  while (at_.byte < text_.size()) {
    const TextPosition begin = at_;
    const std::size_t end = std::min(text_.find('\n', at_.byte), text_.size());
    const std::string_view line = text_.substr(at_.byte, end - at_.byte);
    if (line.find_first_not_of(kWhite) != std::string_view::npos) {
      nlohmann::json value = parsed(line);
      at_ = {begin.file, end + 1, begin.line + 1};
      return JsonRecord{std::move(value), begin, begin.line + 1, line};
    }
    at_ = {begin.file, end + 1, begin.line + 1};
  }
  return {};
}

std::optional<JsonRecord> RecordReader::next_value() {
  const bool array = form_ == RecordForm::array;
  if (array && at_.byte == 0) {
    pass_over(kWhite);
    ++at_.byte;  // [
  }
  pass_over(array ? " \t\r\n," : kWhite);
  if (array && at_.byte < text_.size() && text_[at_.byte] == ']') {
    ++at_.byte;
    pass_over(kWhite);
    if (at_.byte < text_.size()) fail("more text after the end of the array");
    return {};
  }
  if (at_.byte >= text_.size()) {
    if (array) fail("the file ends within the array");
    return {};
  }
  const TextPosition begin = at_;
  const std::size_t end = end_of_value();
  nlohmann::json value = parsed(text_.substr(begin.byte, end - begin.byte));
  at_.line += std::count(text_.begin() + static_cast<std::ptrdiff_t>(begin.byte),
                         text_.begin() + static_cast<std::ptrdiff_t>(end), '\n');
  at_.byte = end;
  return JsonRecord{std::move(value), begin, begin.line + 1, text_.substr(begin.byte, end - begin.byte)};
}

void RecordReader::pass_over(std::string_view characters) {
  for (; at_.byte < text_.size() && characters.find(text_[at_.byte]) != std::string_view::npos; ++at_.byte)
    at_.line += text_[at_.byte] == '\n';
}

// The end of the value at at_: of a text, of what is in brackets, or of a word.
std::size_t RecordReader::end_of_value() const {
  std::size_t depth = 0, at = at_.byte;
  for (bool quoted = false; at < text_.size(); ++at) {
    const char c = text_[at];
    if (quoted) {
      if (c == '\\')
        ++at;
      else if (c == '"')
        quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (depth == 0) return std::max(at, at_.byte + 1);
      --depth;
    } else {
      if (depth == 0 && at > at_.byte && (c == ',' || kWhite.find(c) != std::string_view::npos)) return at;
      continue;
    }
    if (depth == 0 && !quoted) return at + 1;
  }
  return text_.size();
}

nlohmann::json RecordReader::parsed(std::string_view slice) const {
  nlohmann::json value = parsed_or_discarded(slice);
  if (!value.is_discarded()) return value;
  std::string reason = "no JSON";
  try {
    reason = nlohmann::json::parse(slice).type_name();
  } catch (const nlohmann::json::exception& e) {
    reason = e.what();
  }
  fail(fmt::format("expected a JSON object, got {}: {}", in_quotes(slice), reason));
}

void RecordReader::fail(const std::string& reason) const {
  fail_usage("[data] {}:{}: {}", path_, at_.line + 1, valid_utf8(reason));
}

}  // namespace switchyard
