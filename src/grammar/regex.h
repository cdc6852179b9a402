// Regular expressions as JSON Schema has them (ECMA-262 with Unicode code points, no look-around and no
// back-references), parsed to a tree and turned into grammar expressions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "grammar/rules.h"

namespace switchyard::grammar {

struct Regex {
  enum class Kind { set, sequence, choice, repeat, begin, end };
  Kind kind = Kind::sequence;
  CodePoints set;
  std::vector<Regex> of;
  std::int64_t min = 0, max = -1;  // of a repeat; -1: without end
};

// GrammarError names the part that is not kept or not well formed. `\w`, `\d`, `\b` and the like are those of
// ECMA-262, but `\s` and `.` leave out what other languages judge otherwise (line ends, rare spaces).
Regex parse_regex(std::string_view pattern);

// Returns the expression of whole texts in which `regex` is found (`find`), or which `regex` matches as a
// whole, without ^ and $. GrammarError for ^ or $ within the expression.
Regex anchored(const Regex& regex, bool find);

// The fewest and the most code points of an anchored regex's texts; the most is -1 where there is no end.
std::pair<std::int64_t, std::int64_t> length_of(const Regex& regex);
// The texts of an anchored regex with `min` to `max` (-1: no end) code points, where that is simple: where
// all are, or where the regex repeats something of one length between parts of one length.
std::optional<Regex> with_length(const Regex& regex, std::int64_t min, std::int64_t max);

// The texts of an anchored regex as they are, and within a JSON text (escaped where that must be).
Expression as_text(Rules& rules, const Regex& regex);
Expression in_json(Rules& rules, const Regex& regex);

}  // namespace switchyard::grammar
