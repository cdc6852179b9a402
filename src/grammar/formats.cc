#include "grammar/formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace switchyard::grammar {

namespace {

// Days of the Gregorian calendar, years 1000 to 9999.
std::string date() {
  const std::string year = "[1-9][0-9]{3}";
  const std::string leap_year = "([1-9][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)";
  return fmt::format(
      "({0}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"
      "02-(0[1-9]|1[0-9]|2[0-8]))|{1}-02-29)",
      year, leap_year);
}

std::string time() {
  return "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
}

std::string host() {
  const std::string label = "[A-Za-z0-9]+(-[A-Za-z0-9]+)*";
  return fmt::format("{0}(\\.{0})*", label);
}

std::string email() {
  return "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@" + host();
}

std::string ipv4() {
  const std::string byte = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
  return fmt::format("{0}\\.{0}\\.{0}\\.{0}", byte);
}

// Eight groups, or fewer around one `::`.
std::string ipv6() {
  const std::string group = "[0-9A-Fa-f]{1,4}";
  std::string pattern = fmt::format("(({0}:){{7}}{0}|::({0}(:{0}){{0,6}})?", group);
  for (int before = 1; before <= 6; ++before) {
    pattern += fmt::format("|{0}(:{0}){{{1}}}::({0}(:{0}){{0,{2}}})?", group, before - 1, 6 - before);
  }
  return pattern + fmt::format("|({0}:){{7}}:)", group);
}

// Any number of a set's characters and of escapes. Masks are quick where a set alone is repeated.
std::string uri_characters(const std::string& more) {
  return fmt::format("[A-Za-z0-9._~!$&'()*+,;=:@{0}-]*(%[0-9A-Fa-f]{{2}}[A-Za-z0-9._~!$&'()*+,;=:@{0}-]*)*",
                     more);
}

std::string uri() {
  return fmt::format(
      "[A-Za-z][A-Za-z0-9+.-]*:(//{0}(:[0-9]{{1,5}})?(/"
      "{1})?|([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{{2}}){1})"
      "(\\?{2})?(#{2})?",
      host(), uri_characters("/"), uri_characters("/?"));
}

}  // namespace

bool is_format_not_kept(std::string_view format) {
  constexpr std::array<std::string_view, 11> kFormats = {
      "duration",      "hostname",      "idn-hostname", "idn-email",    "iri",
      "iri-reference", "uri-reference", "uri-template", "json-pointer", "relative-json-pointer",
      "regex"};
  return std::ranges::find(kFormats, format) != kFormats.end();
}

std::optional<std::string> pattern_of_format(std::string_view format) {
  std::string pattern;
  if (format == "date") pattern = date();
  if (format == "time") pattern = time();
  if (format == "date-time") pattern = date() + "T" + time();
  if (format == "email") pattern = email();
  if (format == "uuid") pattern = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}";
  if (format == "ipv4") pattern = ipv4();
  if (format == "ipv6") pattern = ipv6();
  if (format == "uri") pattern = uri();
  if (pattern.empty()) return std::nullopt;
  return "^" + pattern + "$";
}

}  // namespace switchyard::grammar
