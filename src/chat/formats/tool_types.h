// ToolTypes: which tools a request has, and of which types their parameters are.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "chat/answer_parser.h"

namespace switchyard::chat::formats {

// The JSON types that a schema takes, a bit each; none where it says nothing of them.
struct JsonTypes {
  enum Bit : unsigned { text = 1, integer = 2, number = 4, boolean = 8, null = 16, list = 32, object = 64 };
  unsigned bits = 0;

  // Returns whether a value is always a text: so is one of which nothing is known.
  bool is_text() const { return (bits & ~static_cast<unsigned>(text)) == 0; }
  bool has(Bit bit) const { return (bits & bit) != 0; }
};
// Finds the types of a schema that stands within `root`, to which its references point.
JsonTypes types_of_schema(const Json& schema, const Json& root);
// Returns the JSON of a value that a model wrote as plain text: the text itself where it is JSON of one of
// the types, else a JSON text of it.
std::string json_of_value(std::string_view text, JsonTypes types);
// Appends a piece of a text with JSON's escapes, without quotes around the piece.
void append_escaped(std::string& json, std::string_view piece);
// Returns a text as JSON.
std::string json_text(std::string_view text);

class ToolTypes {
 public:
  // `tools`: a request's list of tools; anything else has none.
  explicit ToolTypes(const Json& tools);
  bool has(const std::string& name) const { return types_.contains(name); }
  bool empty() const { return types_.empty(); }
  std::vector<std::string> names() const;
  JsonTypes type(const std::string& tool, const std::string& parameter) const;

 private:
  std::map<std::string, std::map<std::string, JsonTypes>> types_;
};

// Returns the object that names a tool: its `function`, or the tool itself; null where it is no object.
const Json* function_of_tool(const Json& tool);

}  // namespace switchyard::chat::formats
