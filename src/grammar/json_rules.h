// The rules of JSON itself: strings, values of any kind, white space, exact values.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/rules.h"

namespace switchyard::grammar {

using Json = nlohmann::ordered_json;

// White space where it may stand: none, one space, or a line end and up to nineteen spaces (so a model cannot
// run away in blanks). It stands after { [ : , and before } ].
class JsonRules {
 public:
  explicit JsonRules(Rules& rules);
  Rules& rules() { return rules_; }

  Expression space() const { return call(space_); }
  Expression comma() const { return sequence({text(","), space()}); }
  Expression colon() const { return sequence({text(":"), space()}); }
  // An object or array of what is inside (never(): only the empty one), or also the empty one.
  Expression braces(Expression inside, bool may_be_empty) const {
    return enclosed("{", std::move(inside), "}", may_be_empty);
  }
  Expression brackets(Expression inside, bool may_be_empty) const {
    return enclosed("[", std::move(inside), "]", may_be_empty);
  }
  Expression string() const { return call(string_); }
  // With `min` to `max` code points (-1: no end), as counted.h counts. An escaped pair of surrogates is one.
  Expression string(std::int64_t min, std::int64_t max);
  Expression value() const { return call(value_); }
  Expression object() const { return call(object_); }
  Expression array() const { return call(array_); }
  // Exactly this value; objects with their keys in this order. GrammarError for a text that is not UTF-8.
  Expression exactly(const Json& value) const;
  // A key that is none of `names`, with its quotes.
  Expression key_but(const std::vector<std::string>& names);

 private:
  Expression enclosed(std::string_view begin, Expression inside, std::string_view end,
                      bool may_be_empty) const;

  Rules& rules_;
  std::int32_t space_, string_, value_, object_, array_;
};

// The text as JSON has it with the fewest escapes, with its quotes.
std::string json_text_of(std::string_view text);

}  // namespace switchyard::grammar
