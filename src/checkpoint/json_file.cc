#include "checkpoint/json_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "core/error.h"

namespace switchyard {

std::string in_quotes(std::string_view text) {
  using nlohmann::json;
  const bool cut = text.size() > 100;
  return json(std::string(text.substr(0, 100))).dump(-1, ' ', false, json::error_handler_t::replace) +
         (cut ? "..." : "");
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
    fail_usage("[json] {}: not valid JSON: {}", name, in_quotes(e.what()));
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
  return bytes;
}

}  // namespace switchyard
