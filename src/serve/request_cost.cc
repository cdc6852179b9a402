#include "serve/request_cost.h"

#include <algorithm>
#include <array>
#include <string>

#include "serve/http/lanes.h"

namespace switchyard::serve {
namespace {

// The cost of a byte of a body with a grammar or a template: either may cost far more than its text.
constexpr std::size_t kOfGrammars = 64;
// A body with one of these may have a grammar or a template. An escape counts, for it may hide a name.
constexpr std::array kSignsOfGrammars = {"\"response_format\"", "\"structured_outputs\"",
                                         "\"guided_",           "\"output_config\"",
                                         "\"output_format\"",   "\"format\"",
                                         "\"strict\"",          "\"tool_choice\"",
                                         "\"chat_template\"",   "\\u00"};
// Tools of /v1/responses are strict by default, and a strict tool has a grammar.
constexpr std::array kSignsOfStrictTools = {"\"tools\""};
// A stored answer may be longer than the body that refers to it.
constexpr std::array kSignsOfStored = {"\"previous_response_id\"", "\"id\""};

bool has_any(const std::string& body, const auto& signs) {
  return std::ranges::any_of(signs, [&](const char* sign) { return body.find(sign) != body.npos; });
}

}  // namespace

std::size_t cost_of(const http::Request& request) {
  const std::string& body = request.body;
  const bool is_response = request.path.starts_with("/v1/responses");
  if (has_any(body, kSignsOfGrammars) || (is_response && has_any(body, kSignsOfStrictTools)))
    return http::Lanes::kLeastOfSlow + body.size() * kOfGrammars;
  if (is_response && has_any(body, kSignsOfStored)) return http::Lanes::kLeastOfSlow + body.size();
  return body.size();
}

}  // namespace switchyard::serve
