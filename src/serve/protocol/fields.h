// The fields of a request's JSON body, and the JSON of an error: shared by all protocols.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "chat/bad_request.h"

namespace switchyard::serve {

using chat::BadRequest;

constexpr std::size_t kDeepestJson = 100;  // lists and objects in one another

// Returns whether a text of JSON nests deeper than `levels`. Needs no stack, unlike what reads such a text.
bool nests_deeper(std::string_view text, std::size_t levels);

// Parses a body that must be a JSON object, of at most kDeepestJson levels. BadRequest.
nlohmann::json parse_object(const std::string& body);

// Reads the fields of an object. Null is as not there. All functions throw BadRequest for a value of another
// type or out of bounds. The object must outlive the reader.
class Fields {
 public:
  explicit Fields(const nlohmann::json& object) : object_(object) {}

  // Returns null where the field is not there.
  const nlohmann::json* find(const std::string& name);
  std::int64_t integer(const std::string& name, std::int64_t otherwise, std::int64_t least,
                       std::int64_t most);
  double number(const std::string& name, double otherwise, double least, double most);
  bool boolean(const std::string& name);
  // One text is a list of one.
  std::vector<std::string> strings(const std::string& name);
  // Accepts no other value than `value`.
  void only(const std::string& name, const nlohmann::json& value);
  // Returns whether one of the functions above was called for the field.
  bool knows(const std::string& name) const { return known_.contains(name); }
  // Refuses fields that none of the functions above was called for.
  void refuse_others() const;
  // Returns a value as error messages show it: of lists and objects only the kind.
  static std::string shown(const nlohmann::json& value);

 private:
  const nlohmann::json& object_;
  std::set<std::string> known_;
};

// Returns JSON on one line. Bytes that are no UTF-8 become U+FFFD.
std::string to_text(const nlohmann::json& value);

// Returns an event of a stream (server-sent events).
std::string event_text(const nlohmann::json& value);

}  // namespace switchyard::serve
