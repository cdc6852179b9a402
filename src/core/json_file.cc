#include "core/json_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "checkpoint/mapped_file.h"
#include "core/error.h"

namespace switchyard {

std::string in_quotes(std::string_view text) {
  using nlohmann::json;
  const bool cut = text.size() > 100;
  return json(std::string(text.substr(0, 100))).dump(-1, ' ', false, json::error_handler_t::replace) +
         (cut ? "..." : "");
}

namespace {

bool is_hex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// The code of an escape \uXXXX that begins at `at`; -1 for anything else.
int escaped_code(std::string_view text, std::size_t at) {
  if (at + 6 > text.size() || text[at] != '\\' || text[at + 1] != 'u') return -1;
  if (!std::all_of(text.begin() + static_cast<std::ptrdiff_t>(at) + 2,
                   text.begin() + static_cast<std::ptrdiff_t>(at) + 6, is_hex))
    return -1;
  return std::stoi(std::string(text.substr(at + 2, 4)), nullptr, 16);
}

bool is_first_half(int code) {
  return code >= 0xd800 && code < 0xdc00;
}
bool is_second_half(int code) {
  return code >= 0xdc00 && code < 0xe000;
}

// Behind the parser's message of a number that is too large, which ends with that in quotes: its line.
std::string line_of_number(std::string_view text, std::string_view message) {
  if (message.find("number overflow") == std::string_view::npos) return "";
  const std::size_t end = message.rfind('\''), begin = message.rfind('\'', end - 1) + 1;
  const std::size_t at = text.find(message.substr(begin, end - begin));
  if (at == std::string_view::npos) return "";
  const std::size_t line = text.find_last_of("\n{,", at) + 1;
  const std::string_view whole = text.substr(line, at + (end - begin) - line);
  return fmt::format(" in {}",
                     in_quotes(whole.substr(std::min(whole.size(), whole.find_first_not_of(" \t")))));
}

}  // namespace

std::string standard_json(std::string_view text) {
  std::string result;
  bool inside = false;  // a string
  for (std::size_t at = 0; at < text.size();) {
    const auto take = [&](std::size_t count) {
      result += text.substr(at, count);
      at += std::min(count, text.size() - at);
    };
    if (inside) {
      const int code = escaped_code(text, at);
      if (is_first_half(code) && is_second_half(escaped_code(text, at + 6))) {
        take(12);
      } else if (is_first_half(code) || is_second_half(code)) {
        result += "\\ufffd";
        at += 6;
      } else if (text[at] == '\\') {
        take(2);
      } else {
        inside = text[at] != '"';
        take(1);
      }
      continue;
    }
    const std::string_view rest = text.substr(at);
    std::size_t number = 0;
    for (const std::string_view name : {"NaN", "Infinity", "-Infinity"}) {
      if (rest.starts_with(name)) number = name.size();
    }
    if (number > 0) {
      result += "null";
      at += number;
    } else {
      inside = text[at] == '"';
      take(1);
    }
  }
  return result;
}

nlohmann::json parse_json(std::string_view text, const std::string& name) {
  using nlohmann::json;
  constexpr int kMaxDepth = 256;
  std::vector<std::set<std::string>> keys;  // of the open objects and arrays
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (depth >= kMaxDepth) fail_usage("[json] {}: nested deeper than {} levels", name, kMaxDepth);
        keys.emplace_back();
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end:
        keys.pop_back();
        break;
      case json::parse_event_t::key: {
        auto key = parsed.get<std::string>();
        if (!keys.back().insert(key).second) fail_usage("[json] {}: duplicate key {}", name, in_quotes(key));
        break;
      }
      default:
        break;
    }
    return true;
  };
  if (text.find('\0') != std::string_view::npos)  // to the parser it ends the text
    fail_usage("[json] {}: not valid JSON: a NUL byte", name);
  try {
    return json::parse(text, check);
  } catch (const json::exception& e) {
    keys.clear();
    const json lenient = json::parse(standard_json(text), nullptr, false);
    if (lenient.is_discarded())
      fail_usage("[json] {}: not valid JSON: {}{}", name, in_quotes(e.what()),
                 line_of_number(text, e.what()));
    return json::parse(standard_json(text), check);
  }
}

nlohmann::json read_json_file(const std::string& path) {
  return parse_json(read_whole_file(path), path);
}

std::string read_whole_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_usage("[file] {}: cannot be opened: {}", path, std::strerror(errno));
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) fail_usage("[file] {}: cannot be read", path);
  if (is_lfs_pointer(bytes))
    fail_usage("[file] {}: a Git LFS pointer of {} bytes, not the file itself: `git lfs pull` fetches it",
               path, bytes.size());
  return bytes;
}

}  // namespace switchyard
