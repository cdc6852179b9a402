#include "grammar/regex.h"

#include <fmt/format.h>

#include <algorithm>

#include "grammar/counted.h"
#include "grammar/grammar.h"

namespace switchyard::grammar {

namespace {

using Node = Regex::Kind;

Regex anything() {
  Regex any;
  any.kind = Node::set;
  any.set = CodePoints::all();
  Regex made;
  made.kind = Node::repeat;
  made.of.push_back(std::move(any));
  return made;
}

enum class Side { left, right };

// Anchors one side: what begins with ^ (ends with $) keeps its place, all else may have anything before it.
Regex anchor(Regex regex, Side side, bool find) {
  const Node mark = side == Side::left ? Node::begin : Node::end;
  if (regex.kind == Node::choice) {
    for (Regex& part : regex.of) part = anchor(std::move(part), side, find);
    return regex;
  }
  if (regex.kind != Node::sequence) {
    Regex made;
    made.of.push_back(std::move(regex));
    regex = std::move(made);
  }
  bool marked = false;
  auto edge = [&] { return side == Side::left ? regex.of.begin() : std::prev(regex.of.end()); };
  while (!regex.of.empty() && edge()->kind == mark) {
    regex.of.erase(edge());
    marked = true;
  }
  if (marked || (!regex.of.empty() && (edge()->kind == Node::choice || edge()->kind == Node::sequence))) {
    if (!marked) *edge() = anchor(std::move(*edge()), side, find);
    return regex;
  }
  if (find) regex.of.insert(side == Side::left ? regex.of.begin() : regex.of.end(), anything());
  return regex;
}

void refuse_marks(const Regex& regex) {
  if (regex.kind == Node::begin || regex.kind == Node::end) {
    throw GrammarError("a ^ or $ within a regular expression is not kept");
  }
  for (const Regex& part : regex.of) refuse_marks(part);
}

using Leaf = CharacterForms (*)(const CodePoints&);

Expression built(Rules& rules, const Regex& regex, Leaf leaf) {
  if (regex.kind == Node::set) {
    CharacterForms forms = leaf(regex.set);
    return choice({std::move(forms.plain), std::move(forms.escaped)});
  }
  if (regex.kind == Node::repeat && regex.of.front().kind == Node::set && regex.max != 1) {
    return counted(rules, leaf(regex.of.front().set), regex.min, regex.max, text(""));
  }
  std::vector<Expression> of;
  for (const Regex& part : regex.of) of.push_back(built(rules, part, leaf));
  if (regex.kind == Node::repeat) return repeat(std::move(of.front()), regex.min, regex.max);
  return regex.kind == Node::choice ? choice(std::move(of)) : sequence(std::move(of));
}

// In a JSON text what must be escaped has its short escape.
CharacterForms json_character(const CodePoints& set) {
  CodePoints escaped(0, 0x1F);
  escaped.add('"', '"');
  escaped.add('\\', '\\');
  std::vector<Expression> forms;
  CodePoints letters;
  constexpr std::string_view points = "\"\\\b\f\n\r\t", names = "\"\\bfnrt";
  for (std::size_t i = 0; i < points.size(); ++i) {
    const auto letter = static_cast<std::uint32_t>(names[i]);
    if (set.has(static_cast<std::uint32_t>(points[i]))) letters.add(letter, letter);
  }
  forms.push_back(sequence({text("\\"), one_of(letters)}));
  if (set.has_all(0, 0x1F)) {
    CodePoints digit('0', '9');
    digit.add('a', 'f');
    digit.add('A', 'F');
    forms.push_back(sequence({text("\\u00"), one_of({'0', '1'}), one_of(digit)}));
  }
  return {one_of(set.without(escaped)), choice(std::move(forms))};
}

// Adds lengths; -1 is without end.
std::int64_t sum(std::int64_t a, std::int64_t b) {
  return a < 0 || b < 0 ? -1 : std::min<std::int64_t>(a + b, 1 << 30);
}

std::int64_t product(std::int64_t a, std::int64_t b) {
  if (a == 0 || b == 0) return 0;
  return a < 0 || b < 0 ? -1 : std::min<std::int64_t>(a * b, 1 << 30);
}

bool within(std::pair<std::int64_t, std::int64_t> length, std::int64_t min, std::int64_t max) {
  return length.first >= min && (max < 0 || (length.second >= 0 && length.second <= max));
}

}  // namespace

Regex anchored(const Regex& regex, bool find) {
  Regex made = anchor(anchor(regex, Side::left, find), Side::right, find);
  refuse_marks(made);
  return made;
}

std::pair<std::int64_t, std::int64_t> length_of(const Regex& regex) {
  if (regex.kind == Node::set) return {1, 1};
  if (regex.kind == Node::repeat) {
    const auto [least, most] = length_of(regex.of.front());
    return {product(least, regex.min), product(most, regex.max)};
  }
  std::pair<std::int64_t, std::int64_t> length = {0, 0};
  for (std::size_t i = 0; i < regex.of.size(); ++i) {
    const auto [least, most] = length_of(regex.of[i]);
    if (regex.kind == Node::sequence) {
      length = {sum(length.first, least), sum(length.second, most)};
    } else if (i == 0) {
      length = {least, most};
    } else {
      length = {std::min(length.first, least),
                length.second < 0 || most < 0 ? -1 : std::max(length.second, most)};
    }
  }
  return length;
}

std::optional<Regex> with_length(const Regex& regex, std::int64_t min, std::int64_t max) {
  if (within(length_of(regex), min, max)) return regex;
  if (regex.kind == Node::choice) {
    Regex made = regex;
    for (Regex& part : made.of) {
      std::optional<Regex> cut = with_length(part, min, max);
      if (!cut) return std::nullopt;
      part = std::move(*cut);
    }
    return made;
  }
  if (regex.kind == Node::repeat) {
    const auto [least, most] = length_of(regex.of.front());
    if (least != most || least == 0) return std::nullopt;
    Regex made = regex;
    made.min = std::max(regex.min, (min + least - 1) / least);
    if (max >= 0) made.max = regex.max < 0 ? max / least : std::min(regex.max, max / least);
    if (made.max >= 0 && made.max < made.min) throw GrammarError("no text has the pattern and the length");
    return made;
  }
  if (regex.kind != Node::sequence) return std::nullopt;
  Regex made = regex;
  Regex* varying = nullptr;  // the only part of several lengths
  std::int64_t others = 0;
  for (Regex& part : made.of) {
    const auto [least, most] = length_of(part);
    if (least == most) {
      others += least;
    } else if (varying != nullptr) {
      return std::nullopt;
    } else {
      varying = &part;
    }
  }
  if (varying == nullptr || (max >= 0 && max < others))
    throw GrammarError("no text has the pattern and the length");
  std::optional<Regex> cut =
      with_length(*varying, std::max<std::int64_t>(0, min - others), max < 0 ? -1 : max - others);
  if (!cut) return std::nullopt;
  *varying = std::move(*cut);
  return made;
}

Expression as_text(Rules& rules, const Regex& regex) {
  return built(rules, regex, [](const CodePoints& set) { return CharacterForms{one_of(set), never()}; });
}

Expression in_json(Rules& rules, const Regex& regex) {
  return built(rules, regex, json_character);
}

}  // namespace switchyard::grammar
