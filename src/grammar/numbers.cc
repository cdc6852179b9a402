#include "grammar/numbers.h"

#include <algorithm>
#include <string>

namespace switchyard::grammar {

namespace {

Expression digit(char first, char last) {
  if (first > last) return never();
  return one_of({static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(last)});
}

// The most digits before the point, and after it, where no bound asks for fewer: a model cannot write digits
// for ever, and no reader takes the number for infinite.
constexpr std::int64_t most_digits = 30;

Expression digits(std::int64_t min, std::int64_t max) {
  return repeat(digit('0', '9'), min, max);
}

// Numbers with as many digits as the text, not less (`up`), or not more, than the text's number.
Expression bounded(const std::string& from, bool up) {
  if (from.empty()) return text("");
  const char first = from[0];
  const auto rest = static_cast<std::int64_t>(from.size()) - 1;
  const Expression beyond =
      up ? digit(static_cast<char>(first + 1), '9') : digit('0', static_cast<char>(first - 1));
  return choice(
      {sequence({digit(first, first), bounded(from.substr(1), up)}), sequence({beyond, digits(rest, rest)})});
}

// Two texts of one length.
Expression between(const std::string& low, const std::string& high) {
  if (low.empty()) return text("");
  if (low[0] == high[0]) return sequence({digit(low[0], low[0]), between(low.substr(1), high.substr(1))});
  const auto rest = static_cast<std::int64_t>(low.size()) - 1;
  return choice(
      {sequence({digit(low[0], low[0]), bounded(low.substr(1), true)}),
       sequence({digit(static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1)), digits(rest, rest)}),
       sequence({digit(high[0], high[0]), bounded(high.substr(1), false)})});
}

// The integers from `low` (0 or more) to `high` (nothing: without end).
Expression natural(std::uint64_t low, std::optional<std::uint64_t> high) {
  if (high && *high < low) return never();
  const std::string from = std::to_string(low);
  const auto length = static_cast<std::int64_t>(from.size());
  const Expression lead = digit('1', '9');
  if (!high) {
    Expression same = low == 0 ? digit('0', '9') : bounded(from, true);
    return choice({std::move(same), sequence({lead, digits(length, most_digits - 1)})});
  }
  const std::string to = std::to_string(*high);
  const auto last = static_cast<std::int64_t>(to.size());
  if (length == last) return between(from, to);
  return choice({bounded(from, true),
                 last - length > 1 ? sequence({lead, digits(length, last - 2)}) : never(),
                 between("1" + std::string(to.size() - 1, '0'), to)});
}

std::uint64_t magnitude(std::int64_t value) {
  return value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
}

constexpr std::int64_t fraction_digits = 9;

// The fractions that may follow this integer part: exactly the integer (`whole`), or more.
Expression whole() {
  return optional(sequence({text("."), repeat(text("0"), 1, fraction_digits)}));
}

Expression beyond_whole() {
  std::vector<Expression> forms;
  for (std::int64_t zeros = 0; zeros < fraction_digits; ++zeros) {
    forms.push_back(
        sequence({repeat(text("0"), zeros, zeros), digit('1', '9'), digits(0, fraction_digits - 1 - zeros)}));
  }
  return sequence({text("."), choice(std::move(forms))});
}

// Numbers from `low` (0 or more) to `high`.
Expression positive(std::uint64_t low, bool above_low, std::optional<std::uint64_t> high, bool below_high) {
  const Expression fraction = optional(sequence({text("."), digits(1, fraction_digits)}));
  std::vector<Expression> forms;
  if (high && *high < low) return never();
  if (high && *high == low) {
    return above_low || below_high ? never() : sequence({text(std::to_string(low)), whole()});
  }
  if (above_low) forms.push_back(sequence({text(std::to_string(low)), beyond_whole()}));
  const std::uint64_t first = above_low ? low + 1 : low;
  if (!high) {
    forms.push_back(sequence({natural(first, std::nullopt), fraction}));
  } else {
    if (*high > first) forms.push_back(sequence({natural(first, *high - 1), fraction}));
    if (!below_high) forms.push_back(sequence({text(std::to_string(*high)), whole()}));
  }
  return choice(std::move(forms));
}

}  // namespace

Expression any_integer() {
  return sequence(
      {optional(text("-")), choice({text("0"), sequence({digit('1', '9'), digits(0, most_digits - 1)})})});
}

Expression any_number() {
  CodePoints e('e', 'e'), sign('+', '+');
  e.add('E', 'E');
  sign.add('-', '-');
  // At most 259: with thirty digits before the point the number stays below 1e308, a reader's largest.
  const Expression power = choice({digits(1, 2), sequence({digit('1', '1'), digits(2, 2)}),
                                   sequence({text("2"), digit('0', '5'), digits(1, 1)})});
  return sequence({any_integer(), optional(sequence({text("."), digits(1, most_digits)})),
                   optional(sequence({one_of(e), optional(one_of(sign)), power}))});
}

Expression integer_between(const Bounds& bounds) {
  std::optional<std::int64_t> low = bounds.min, high = bounds.max;
  if (low && bounds.above_min) {
    if (*low == INT64_MAX) return never();
    ++*low;
  }
  if (high && bounds.below_max) {
    if (*high == INT64_MIN) return never();
    --*high;
  }
  if (!low && !high) return any_integer();
  if (low && high && *low > *high) return never();
  std::vector<Expression> forms;
  if (!high || *high >= 0) {
    std::optional<std::uint64_t> to;
    if (high) to = magnitude(*high);
    forms.push_back(natural(low && *low > 0 ? magnitude(*low) : 0, to));
  }
  if (!low || *low < 0) {
    std::optional<std::uint64_t> to;
    if (low) to = magnitude(*low);
    forms.push_back(sequence({text("-"), natural(high && *high < 0 ? magnitude(*high) : 1, to)}));
  }
  return choice(std::move(forms));
}

Expression number_between(const Bounds& bounds) {
  if (!bounds.min && !bounds.max) return any_number();
  const bool low_is_positive = bounds.min && *bounds.min >= 0,
             high_is_positive = !bounds.max || *bounds.max >= 0;
  std::vector<Expression> forms;
  if (high_is_positive) {
    std::optional<std::uint64_t> to;
    if (bounds.max) to = magnitude(*bounds.max);
    forms.push_back(positive(low_is_positive ? magnitude(*bounds.min) : 0,
                             low_is_positive && bounds.above_min, to, bounds.below_max));
  }
  if (!bounds.min || *bounds.min < 0) {  // -0 is left out
    const bool to_zero = high_is_positive;
    std::optional<std::uint64_t> to;
    if (bounds.min) to = magnitude(*bounds.min);
    forms.push_back(sequence({text("-"), positive(to_zero ? 0 : magnitude(*bounds.max),
                                                  to_zero || bounds.below_max, to, bounds.above_min)}));
  }
  return choice(std::move(forms));
}

}  // namespace switchyard::grammar
