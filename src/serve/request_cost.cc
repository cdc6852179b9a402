#include "serve/request_cost.h"

#include <algorithm>
#include <array>
#include <string>

#include "serve/http/lanes.h"

namespace switchyard::serve {
namespace {

// A grammar may cost many times as much as its text, and so may a template.
constexpr std::size_t kOfGrammars = 64;
// That a body has none is not known where its names may be written with escapes.
constexpr std::array kSignsOfGrammars = {"\"response_format\"", "\"structured_outputs\"",
                                         "\"guided_",           "\"output_config\"",
                                         "\"output_format\"",   "\"format\"",
                                         "\"strict\"",          "\"tool_choice\"",
                                         "\"chat_template\"",   "\\u00"};
// Tools of /v1/responses are strict where nothing else is said.
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
