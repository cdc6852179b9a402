#include "grammar/json_rules.h"

#include <fmt/format.h>

#include <cmath>
#include <deque>
#include <map>

#include "grammar/counted.h"
#include "grammar/grammar.h"
#include "grammar/numbers.h"

namespace switchyard::grammar {

namespace {

constexpr std::string_view short_escapes = "\"\\\b\f\n\r\t", short_names = "\"\\bfnrt";

CodePoints must_escape() {
  CodePoints set(0, 0x1F);
  set.add(set_of("\"\\"));
  return set;
}

Expression hex() {
  return one_of(set_of("0123456789abcdefABCDEF"));
}

// The four digits after \u: no half of a surrogate pair.
Expression unicode_escape() {
  const Expression d = one_of(set_of("dD"));
  const Expression low = sequence({text("\\u"), d, one_of(set_of("cdefCDEF")), hex(), hex()});
  return choice({sequence({one_of(set_of("0123456789abcefABCEF")), repeat(hex(), 3, 3)}),
                 sequence({d, one_of({'0', '7'}), hex(), hex()}),
                 sequence({d, one_of(set_of("89abAB")), hex(), hex(), low})});
}

Expression plain_character() {
  return one_of(must_escape().complement());
}

Expression escaped_character() {
  return sequence(
      {text("\\"), choice({one_of(set_of("\"\\/bfnrt")), sequence({text("u"), unicode_escape()})})});
}

// Each open node costs some 40 ms of compiling at 150,000 tokens. So only the first few, by depth, are open:
// a key that shares a longer beginning with a name is not made.
constexpr int most_open_nodes = 4;

// The beginnings of names, as a tree of their code points.
struct Trie {
  bool ends = false, open = false;  // `open`: other keys may begin with the code points that lead here
  std::map<std::uint32_t, Trie> next;
};

// Adds as much of the name as open nodes can tell from other keys.
void add_to(Trie& trie, const std::vector<std::uint32_t>& name) {
  Trie* at = &trie;
  for (std::size_t place = 0; place < name.size(); ++place) {
    if (place > most_open_nodes) return;
    at = &at->next[name[place]];
  }
  at->ends = true;
}

void open_first_nodes(Trie& root) {
  std::deque<Trie*> waiting = {&root};
  for (int opened = 0; opened < most_open_nodes && !waiting.empty(); ++opened) {
    Trie* node = waiting.front();
    waiting.pop_front();
    node->open = true;
    for (auto& [point, next] : node->next) waiting.push_back(&next);
  }
}

// The form of a code point in a key: escaped only where it must be, so that each key has one form. Nothing
// for a control character without a short escape: such a key is not made.
std::string form_of(std::uint32_t point) {
  if (!must_escape().has(point)) return utf8_of(point);
  const std::size_t i = point < 0x80 ? short_escapes.find(static_cast<char>(point)) : std::string_view::npos;
  return i == std::string_view::npos ? "" : std::string("\\") + short_names[i];
}

Expression key_character(const CodePoints& without) {
  CodePoints letters;
  for (std::size_t i = 0; i < short_escapes.size(); ++i) {
    const auto letter = static_cast<std::uint32_t>(short_names[i]);
    if (!without.has(static_cast<std::uint32_t>(short_escapes[i]))) letters.add(letter, letter);
  }
  return choice(
      {one_of(must_escape().complement().without(without)), sequence({text("\\"), one_of(letters)})});
}

// The rest of a key whose beginning is the trie's node.
Expression rest_of_key(const Trie& trie, std::int32_t any_rest) {
  std::vector<Expression> forms;
  CodePoints known;
  for (const auto& [point, next] : trie.next) {
    known.add(point, point);
    const std::string form = form_of(point);
    if (!form.empty() && next.open) forms.push_back(sequence({text(form), rest_of_key(next, any_rest)}));
  }
  forms.push_back(sequence({key_character(known), call(any_rest)}));
  if (!trie.ends) forms.push_back(text("\""));
  return choice(std::move(forms));
}

}  // namespace

JsonRules::JsonRules(Rules& rules)
    : rules_(rules),
      space_(rules.reserve()),
      string_(rules.reserve()),
      value_(rules.reserve()),
      object_(rules.reserve()),
      array_(rules.reserve()) {
  rules.set(space_, choice({text(""), text(" "), sequence({text("\n"), repeat(text(" "), 0, 19)})}));
  rules.set(string_, string(0, -1));
  const Expression pair = sequence({string(), colon(), value()});
  rules.set(object_, braces(sequence({pair, repeat(sequence({comma(), pair}), 0)}), true));
  rules.set(array_, brackets(sequence({value(), repeat(sequence({comma(), value()}), 0)}), true));
  rules.set(value_,
            choice({string(), object(), array(), any_number(), text("true"), text("false"), text("null")}));
}

Expression JsonRules::enclosed(std::string_view begin, Expression inside, std::string_view end,
                               bool may_be_empty) const {
  Expression filled = sequence({std::move(inside), space(), text(end)});
  return sequence({text(begin), space(), choice({std::move(filled), may_be_empty ? text(end) : never()})});
}

Expression JsonRules::string(std::int64_t min, std::int64_t max) {
  const CharacterForms forms = {plain_character(), escaped_character()};
  return sequence({text("\""), counted(rules_, forms, min, max, text("\""))});
}

std::string json_text_of(std::string_view text) {
  std::string out = "\"";
  for (std::uint32_t point : code_points_of(text)) {
    const std::string form = form_of(point);
    out += form.empty() ? fmt::format("\\u{:04x}", point) : form;
  }
  return out + "\"";
}

Expression JsonRules::exactly(const Json& value) const {
  if (value.is_string()) return text(json_text_of(value.get_ref<const std::string&>()));
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::floor(number) == number && std::abs(number) < 1e15) {
      return choice({text(fmt::format("{:.0f}", number)), text(value.dump())});
    }
  }
  if (!value.is_structured()) return text(value.dump());
  if (value.empty()) return value.is_object() ? braces(never(), true) : brackets(never(), true);
  std::vector<Expression> parts;
  for (const auto& item : value.items()) {
    if (!parts.empty()) parts.push_back(comma());
    if (value.is_object()) {
      parts.push_back(text(json_text_of(item.key())));
      parts.push_back(colon());
    }
    parts.push_back(exactly(item.value()));
  }
  return value.is_object() ? braces(sequence(std::move(parts)), false)
                           : brackets(sequence(std::move(parts)), false);
}

Expression JsonRules::key_but(const std::vector<std::string>& names) {
  if (names.empty()) return string();
  Trie trie;
  for (const std::string& name : names) add_to(trie, code_points_of(name));
  open_first_nodes(trie);
  const std::int32_t any_rest = rules_.reserve();
  rules_.set(any_rest, choice({text("\""), sequence({key_character({}), call(any_rest)})}));
  return sequence({text("\""), call(rules_.add(rest_of_key(trie, any_rest)))});
}

}  // namespace switchyard::grammar
