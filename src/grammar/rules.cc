#include "grammar/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "core/error.h"
#include "grammar/grammar.h"

namespace switchyard::grammar {

using Kind = Expression::Kind;

Expression never() {
  return {};
}

Expression text(std::string_view value) {
  Expression made;
  made.kind = Kind::text;
  made.text = value;
  return made;
}

Expression one_of(CodePoints set) {
  Expression made;
  if (set.empty()) return made;
  made.kind = Kind::set;
  made.set = std::move(set);
  return made;
}

Expression sequence(std::vector<Expression> of) {
  Expression made;
  made.kind = Kind::sequence;
  for (Expression& part : of) {
    if (part.kind == Kind::never) return never();
    if (part.kind == Kind::sequence) {
      std::move(part.of.begin(), part.of.end(), std::back_inserter(made.of));
    } else if (part.kind == Kind::text && !made.of.empty() && made.of.back().kind == Kind::text) {
      made.of.back().text += part.text;
    } else if (part.kind != Kind::text || !part.text.empty()) {
      made.of.push_back(std::move(part));
    }
  }
  if (made.of.empty()) return text("");
  if (made.of.size() == 1) return Expression(std::move(made.of.front()));
  return made;
}

Expression choice(std::vector<Expression> of) {
  Expression made;
  made.kind = Kind::choice;
  for (Expression& part : of) {
    if (part.kind == Kind::never) continue;
    if (part.kind == Kind::choice) {
      std::move(part.of.begin(), part.of.end(), std::back_inserter(made.of));
    } else {
      made.of.push_back(std::move(part));
    }
  }
  if (made.of.empty()) return never();
  if (made.of.size() == 1) return Expression(std::move(made.of.front()));
  return made;
}

Expression repeat(Expression of, std::int64_t min, std::int64_t max) {
  if (max >= 0 && max < min) return never();
  if (of.kind == Kind::never) return min == 0 ? text("") : never();
  if (max == 0) return text("");
  if (min == 1 && max == 1) return of;
  Expression made;
  made.kind = Kind::repeat;
  made.of.push_back(std::move(of));
  made.min = min;
  made.max = max;
  return made;
}

Expression call(std::int32_t rule) {
  Expression made;
  made.kind = Kind::rule;
  made.id = rule;
  return made;
}

Expression token(std::int32_t id) {
  Expression made;
  made.kind = Kind::token;
  made.id = id;
  return made;
}

std::int32_t Rules::reserve() {
  if (rules_.size() >= max_rules) {
    throw GrammarError(fmt::format("the grammar needs more than {} rules", max_rules));
  }
  rules_.emplace_back();
  return static_cast<std::int32_t>(rules_.size() - 1);
}

void Rules::set(std::int32_t rule, Expression expression) {
  rules_.at(static_cast<std::size_t>(rule)) = std::move(expression);
}

std::int32_t Rules::add(Expression expression) {
  const std::int32_t rule = reserve();
  set(rule, std::move(expression));
  return rule;
}

std::int32_t Rules::add_limited(Expression expression, std::int64_t characters) {
  const std::int32_t rule = add(std::move(expression));
  limits_.emplace(rule, characters);
  return rule;
}

namespace {

// Drops what calls a rule that can never end. Without: also a call of a rule is kept as it is.
Expression pruned(const Expression& from, const std::vector<bool>& productive) {
  if (from.kind == Kind::rule) return productive[static_cast<std::size_t>(from.id)] ? from : never();
  if (from.of.empty()) return from;
  std::vector<Expression> of;
  of.reserve(from.of.size());
  for (const Expression& part : from.of) of.push_back(pruned(part, productive));
  switch (from.kind) {
    case Kind::sequence:
      return sequence(std::move(of));
    case Kind::choice:
      return choice(std::move(of));
    default:
      return repeat(std::move(of.front()), from.min, from.max);
  }
}

bool can_end(const Expression& expression, const std::vector<bool>& productive) {
  const auto part_can_end = [&](const Expression& part) { return can_end(part, productive); };
  switch (expression.kind) {
    case Kind::never:
      return false;
    case Kind::rule:
      return productive[static_cast<std::size_t>(expression.id)];
    case Kind::sequence:
      return std::all_of(expression.of.begin(), expression.of.end(), part_can_end);
    case Kind::choice:
      return std::any_of(expression.of.begin(), expression.of.end(), part_can_end);
    case Kind::repeat:
      return expression.min == 0 || part_can_end(expression.of.front());
    default:
      return true;
  }
}

void print_code_point(std::string& out, std::uint32_t point) {
  const bool plain = (point >= '0' && point <= '9') || (point >= 'a' && point <= 'z') ||
                     (point >= 'A' && point <= 'Z') || point == ' ' || point == '_';
  if (plain) {
    out += static_cast<char>(point);
  } else {
    fmt::format_to(std::back_inserter(out), "\\U{:08X}", point);
  }
}

void print_text(std::string& out, const std::string& text) {
  out += '"';
  for (std::uint32_t point : code_points_of(text)) print_code_point(out, point);
  out += '"';
}

void print(std::string& out, const Expression& expression, bool within);

void print_all(std::string& out, const Expression& expression, std::string_view between, bool within) {
  if (within) out += '(';
  for (std::size_t i = 0; i < expression.of.size(); ++i) {
    if (i > 0) out += between;
    print(out, expression.of[i], true);
  }
  if (within) out += ')';
}

void print_set(std::string& out, const CodePoints& set) {
  out += '[';
  for (const auto& [first, last] : set.ranges()) {
    print_code_point(out, first);
    if (last == first) continue;
    out += '-';
    print_code_point(out, last);
  }
  out += ']';
}

void print_repeat(std::string& out, const Expression& expression) {
  print(out, expression.of.front(), true);
  if (expression.min == 0 && expression.max == -1) {
    out += '*';
  } else if (expression.min == 1 && expression.max == -1) {
    out += '+';
  } else if (expression.min == 0 && expression.max == 1) {
    out += '?';
  } else {
    out += fmt::format("{{{},{}}}", expression.min, expression.max < 0 ? "" : std::to_string(expression.max));
  }
}

// `within`: beside others, so that several parts need brackets.
void print(std::string& out, const Expression& expression, bool within) {
  switch (expression.kind) {
    case Kind::never:
      CHECK(false, "a pruned expression has no never");
      break;
    case Kind::text:
      print_text(out, expression.text);
      break;
    case Kind::set:
      print_set(out, expression.set);
      break;
    case Kind::sequence:
      print_all(out, expression, " ", within);
      break;
    case Kind::choice:
      print_all(out, expression, " | ", within);
      break;
    case Kind::repeat:
      if (within) out += '(';
      print_repeat(out, expression);
      if (within) out += ')';
      break;
    case Kind::rule:
      out += "r" + std::to_string(expression.id);
      break;
    case Kind::token:
      out += fmt::format("Token({})", expression.id);
      break;
  }
}

void calls_of(const Expression& expression, std::vector<std::int32_t>& calls) {
  if (expression.kind == Kind::rule) calls.push_back(expression.id);
  for (const Expression& part : expression.of) calls_of(part, calls);
}

}  // namespace

std::vector<bool> Rules::productive() const {
  std::vector<bool> found(rules_.size());
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t rule = rules_.size(); rule-- > 0;) {  // what is called is mostly made later
      if (found[rule] || !can_end(rules_[rule], found)) continue;
      found[rule] = changed = true;
    }
  }
  return found;
}

std::optional<std::string> Rules::ebnf(std::int32_t root) const {
  const std::vector<bool> ends = productive();
  if (!ends[static_cast<std::size_t>(root)]) return std::nullopt;
  std::string out = fmt::format("root ::= r{}\n", root);
  std::vector<bool> seen(rules_.size());
  std::vector<std::int32_t> open = {root};
  seen[static_cast<std::size_t>(root)] = true;
  while (!open.empty()) {
    const std::int32_t rule = open.back();
    open.pop_back();
    const Expression expression = pruned(rules_[static_cast<std::size_t>(rule)], ends);
    const auto limit = limits_.find(rule);
    const std::string option = limit == limits_.end() ? "" : fmt::format("[max_chars={}]", limit->second);
    out += fmt::format("r{}{} ::= ", rule, option);
    print(out, expression, false);
    out += '\n';
    std::vector<std::int32_t> calls;
    calls_of(expression, calls);
    for (std::int32_t called : calls) {
      if (seen[static_cast<std::size_t>(called)]) continue;
      seen[static_cast<std::size_t>(called)] = true;
      open.push_back(called);
    }
  }
  return out;
}

}  // namespace switchyard::grammar
