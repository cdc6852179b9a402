// Characters in numbers, in forms that xgrammar is quick with.
#pragma once

#include <cstdint>

#include "grammar/rules.h"

namespace switchyard::grammar {

// One character of a set: as it is, and escaped.
struct CharacterForms {
  Expression plain, escaped;
};

// `min` to `max` (-1: without end) characters and then `tail`. Up to sixteen are counted exactly. Beyond that
// an escaped character counts as many as it has code points, so that a text with escapes may have to end
// before `max`.
Expression counted(Rules& rules, const CharacterForms& forms, std::int64_t min, std::int64_t max,
                   const Expression& tail);

}  // namespace switchyard::grammar
