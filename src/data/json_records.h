// The records of a JSON file, one after the other.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "data/text_source.h"

namespace switchyard {

// How a file holds records: a line each, values one after the other, or the items of one array.
enum class RecordForm { lines, values, array };

// The form of a text that is JSON; none where it is no JSON, or no record of it has a text under `column`.
// `named_lines`: its name says that it holds records, a line each unless it is an array.
std::optional<RecordForm> record_form(std::string_view text, const std::string& column, bool named_lines);

struct JsonRecord {
  nlohmann::json value;
  TextPosition begin;          // where its line or its value begins
  std::int64_t line;           // the number of that line, from 1 on
  std::string_view text = {};  // as the file has it
};

// Reads records from `at` on, where one begins. Error(usage) that names file and line for broken JSON.
class RecordReader {
 public:
  RecordReader(std::string path, std::string_view text, RecordForm form, TextPosition at)
      : path_(std::move(path)), text_(text), form_(form), at_(at) {}
  std::optional<JsonRecord> next();

 private:
  std::optional<JsonRecord> next_line();
  std::optional<JsonRecord> next_value();
  void pass_over(std::string_view characters);
  std::size_t end_of_value() const;
  nlohmann::json parsed(std::string_view slice) const;
  [[noreturn]] void fail(const std::string& reason) const;

  std::string path_;
  std::string_view text_;
  RecordForm form_;
  TextPosition at_;
};

// A record's text, or the reason why the record has none.
struct RecordText {
  const std::string* found = nullptr;
  std::string kind;  // "null", "a number", "none" for no such key, "an empty text"
};
RecordText text_of_record(const nlohmann::json& record, const std::string& column);

}  // namespace switchyard
