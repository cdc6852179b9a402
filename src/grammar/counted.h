// Characters in numbers, in forms that xgrammar is quick with.
#pragma once

#include <cstdint>

#include "grammar/rules.h"

namespace switchyard::grammar {

// One character of a set: as it is, and escaped.
struct CharacterForms {
  Expression plain, escaped;
};

// `min` to `max` (-1: without end) characters and then `tail`. Up to sixteen are counted exactly. Beyond them an
// escaped character counts its escape's code points, so a text with escapes may have to end before `max`.
Expression counted(Rules& rules, const CharacterForms& forms, std::int64_t min, std::int64_t max,
                   const Expression& tail);

}  // namespace switchyard::grammar
