#include "grammar/counted.h"

#include <algorithm>

namespace switchyard::grammar {

namespace {

// xgrammar makes masks for each place of such a chain when it compiles, and none of its repetitions of
// alternatives: those cost up to a tenth of a second a mask.
constexpr std::int64_t longest_chain = 16;

bool is_empty(const Expression& expression) {
  return expression.kind == Expression::Kind::text && expression.text.empty();
}

// (plain | escaped)* is plain* (escaped plain*)*, of which the masks are known without trying each token.
Expression any_number_of(const CharacterForms& forms) {
  const Expression plain = repeat(forms.plain, 0);
  return sequence({plain, repeat(sequence({forms.escaped, plain}), 0)});
}

// A rule that ends with itself, `tail` and all, is the quickest.
Expression any_number_before(Rules& rules, const CharacterForms& forms, const Expression& tail) {
  if (is_empty(tail)) return any_number_of(forms);
  const std::int32_t rest = rules.reserve();
  rules.set(rest, choice({tail, sequence({forms.plain, call(rest)}), sequence({forms.escaped, call(rest)})}));
  return call(rest);
}

// `count` characters before `next`; from the `min`th on `tail` may come instead.
Expression chain(Rules& rules, const CharacterForms& forms, std::int64_t count, std::int64_t min,
                 Expression next, const Expression& tail) {
  for (std::int64_t place = count - 1; place >= 0; --place) {
    Expression here = choice(
        {sequence({forms.plain, next}), sequence({forms.escaped, next}), place >= min ? tail : never()});
    next = call(rules.add(std::move(here)));
  }
  return next;
}

}  // namespace

Expression counted(Rules& rules, const CharacterForms& forms, std::int64_t min, std::int64_t max,
                   const Expression& tail) {
  if (max >= 0 && max < min) return never();
  if (max >= 0 && max <= longest_chain) return chain(rules, forms, max, min, tail, tail);
  const std::int64_t exact = std::min(min, longest_chain);
  Expression rest;
  if (max < 0) {
    rest = any_number_before(rules, forms, tail);
  } else if (max > min) {
    rest = sequence({call(rules.add_limited(any_number_of(forms), max - min)), tail});
  } else {
    rest = tail;
  }
  const Expression either = choice({forms.plain, forms.escaped});
  return sequence(
      {repeat(either, min - exact, min - exact), chain(rules, forms, exact, exact, std::move(rest), tail)});
}

}  // namespace switchyard::grammar
