// Upper, lower and title case. utf8proc maps one code point to one; the few that become several
// (Unicode's SpecialCasing.txt, without those of one language) are listed here.
#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "chat/jinja/text.h"

namespace switchyard::jinja {

namespace {

struct SpecialCase {
  std::int32_t code_point;
  std::string_view upper, title;
};

constexpr std::array kSpecialCases = {
    SpecialCase{0x00DF, "SS", "Ss"},
    SpecialCase{0x0149, "\u02BCN", "\u02BCN"},
    SpecialCase{0x01F0, "J\u030C", "J\u030C"},
    SpecialCase{0x0390, "\u0399\u0308\u0301", "\u0399\u0308\u0301"},
    SpecialCase{0x03B0, "\u03A5\u0308\u0301", "\u03A5\u0308\u0301"},
    SpecialCase{0x0587, "\u0535\u0552", "\u0535\u0582"},
    SpecialCase{0x1E96, "H\u0331", "H\u0331"},
    SpecialCase{0x1E97, "T\u0308", "T\u0308"},
    SpecialCase{0x1E98, "W\u030A", "W\u030A"},
    SpecialCase{0x1E99, "Y\u030A", "Y\u030A"},
    SpecialCase{0x1E9A, "A\u02BE", "A\u02BE"},
    SpecialCase{0xFB00, "FF", "Ff"},
    SpecialCase{0xFB01, "FI", "Fi"},
    SpecialCase{0xFB02, "FL", "Fl"},
    SpecialCase{0xFB03, "FFI", "Ffi"},
    SpecialCase{0xFB04, "FFL", "Ffl"},
    SpecialCase{0xFB05, "ST", "St"},
    SpecialCase{0xFB06, "ST", "St"},
};

const SpecialCase* special_case(std::int32_t value) {
  const auto* found = std::find_if(kSpecialCases.begin(), kSpecialCases.end(),
                                   [&](const SpecialCase& each) { return each.code_point == value; });
  return found == kSpecialCases.end() ? nullptr : found;
}

void append_upper(std::string& out, std::int32_t value) {
  if (value < 128) {
    out += static_cast<char>(value >= 'a' && value <= 'z' ? value - 32 : value);
  } else if (const SpecialCase* special = special_case(value)) {
    out += special->upper;
  } else {
    append_code_point(out, utf8proc_toupper(value));
  }
}

void append_title(std::string& out, std::int32_t value) {
  if (value < 128) {
    append_upper(out, value);
  } else if (const SpecialCase* special = special_case(value)) {
    out += special->title;
  } else {
    append_code_point(out, utf8proc_totitle(value));
  }
}

utf8proc_category_t category(std::int32_t value) {
  return utf8proc_category(value);
}

bool is_cased(std::int32_t value) {
  const auto kind = category(value);
  return kind == UTF8PROC_CATEGORY_LU || kind == UTF8PROC_CATEGORY_LL || kind == UTF8PROC_CATEGORY_LT;
}

bool is_case_ignorable(std::int32_t value) {
  const auto kind = category(value);
  return value == '\'' || value == '.' || value == ':' || value == 0x2019 || kind == UTF8PROC_CATEGORY_MN ||
         kind == UTF8PROC_CATEGORY_ME || kind == UTF8PROC_CATEGORY_CF || kind == UTF8PROC_CATEGORY_LM ||
         kind == UTF8PROC_CATEGORY_SK;
}

// A capital sigma that ends a word.
bool is_final_sigma(const std::vector<std::int32_t>& points, std::size_t at) {
  std::size_t before = at;
  while (before > 0 && is_case_ignorable(points[before - 1])) --before;
  if (before == 0 || !is_cased(points[before - 1])) return false;
  std::size_t after = at + 1;
  while (after < points.size() && is_case_ignorable(points[after])) ++after;
  return after == points.size() || !is_cased(points[after]);
}

void append_lower(std::string& out, const std::vector<std::int32_t>& points, std::size_t at) {
  const std::int32_t value = points[at];
  if (value < 128) {
    out += static_cast<char>(value >= 'A' && value <= 'Z' ? value + 32 : value);
  } else if (value == 0x0130) {
    out += "i\u0307";
  } else if (value == 0x03A3) {
    out += is_final_sigma(points, at) ? "\u03C2" : "\u03C3";
  } else {
    append_code_point(out, utf8proc_tolower(value));
  }
}

}  // namespace

std::string upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const std::int32_t point : code_points(text)) append_upper(out, point);
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  const auto points = code_points(text);
  for (std::size_t i = 0; i < points.size(); ++i) append_lower(out, points, i);
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  const auto points = code_points(text);
  bool after_cased = false;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (after_cased) {
      append_lower(out, points, i);
    } else {
      append_title(out, points[i]);
    }
    after_cased = is_cased(points[i]);
  }
  return out;
}

std::string capitalized(std::string_view text) {
  std::string out;
  const auto points = code_points(text);
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (i == 0) {
      append_title(out, points[i]);
    } else {
      append_lower(out, points, i);
    }
  }
  return out;
}

}  // namespace switchyard::jinja
