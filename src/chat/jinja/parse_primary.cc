// Names, literals, displays, and what follows them: attributes, items, calls, filters and tests.
#include <fmt/format.h>

#include <algorithm>

#include "chat/jinja/parser.h"

namespace switchyard::jinja {

namespace {

using Type = Token::Type;

constexpr int kMostPostfixes = 400;  // each is a level of the tree

void count_postfix(int& count, int line) {
  if (++count > kMostPostfixes) fail_syntax("an expression is nested too deep", line);
}

}  // namespace

ExpressionPtr Parser::primary() {
  const Token& token = current();
  const int line = token.line;
  if (token.type == Type::name) return name_or_constant();
  if (token.type == Type::string) return strings();
  if (token.type == Type::integer) return std::make_unique<Constant>(Value(take().integer), line);
  if (token.type == Type::real) return std::make_unique<Constant>(Value(take().real), line);
  if (skip_symbol("(")) {
    ExpressionPtr node = tuple(true, true);
    expect_symbol(")");
    return node;
  }
  if (token.is_symbol("[")) return list();
  if (token.is_symbol("{")) return dict();
  fail_unexpected();
}

ExpressionPtr Parser::name_or_constant() {
  const int line = current().line;
  const std::string name = take().text;
  if (name == "true" || name == "True") return std::make_unique<Constant>(Value(true), line);
  if (name == "false" || name == "False") return std::make_unique<Constant>(Value(false), line);
  if (name == "none" || name == "None") return std::make_unique<Constant>(Value(), line);
  const NameId id = id_of(name);
  read(id);
  return std::make_unique<Name>(id, line);
}

ExpressionPtr Parser::strings() {
  const int line = current().line;
  std::string text;
  while (current().type == Type::string) text += take().text;
  return std::make_unique<Constant>(Value(std::string_view(text)), line);
}

bool Parser::tuple_ends(bool ends_at_in) const {
  return current().type == Type::variable_end || current().type == Type::block_end ||
         current().is_symbol(")") || (ends_at_in && current().is_name("in"));
}

ExpressionPtr Parser::tuple(bool with_condition, bool in_parentheses, bool ends_at_in) {
  auto node = std::make_unique<TupleDisplay>(current().line);
  bool is_tuple = false;
  while (!tuple_ends(ends_at_in)) {
    node->items.push_back(expression(with_condition));
    if (!skip_symbol(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return node;
  if (!node->items.empty()) return std::move(node->items.front());
  if (!in_parentheses) fail_unexpected();
  return node;
}

ExpressionPtr Parser::list() {
  auto node = std::make_unique<ListDisplay>(current().line);
  expect_symbol("[");
  while (!current().is_symbol("]")) {
    if (!node->items.empty()) expect_symbol(",");
    if (current().is_symbol("]")) break;
    node->items.push_back(expression());
  }
  expect_symbol("]");
  return node;
}

ExpressionPtr Parser::dict() {
  auto node = std::make_unique<DictDisplay>(current().line);
  expect_symbol("{");
  while (!current().is_symbol("}")) {
    if (!node->entries.empty()) expect_symbol(",");
    if (current().is_symbol("}")) break;
    ExpressionPtr key = expression();
    expect_symbol(":");
    node->entries.emplace_back(std::move(key), expression());
  }
  expect_symbol("}");
  return node;
}

ExpressionPtr Parser::postfix(ExpressionPtr node) {
  for (int count = 0;;) {
    count_postfix(count, current().line);
    if (current().is_symbol(".")) {
      node = attribute(std::move(node));
    } else if (current().is_symbol("[")) {
      node = subscript(std::move(node));
    } else if (current().is_symbol("(")) {
      node = call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::filters(ExpressionPtr node) {
  for (int count = 0;;) {
    count_postfix(count, current().line);
    if (skip_symbol("|")) {
      node = filter(std::move(node));
    } else if (current().is_name("is")) {
      node = test(std::move(node));
    } else if (current().is_symbol("(")) {
      node = call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr Parser::attribute(ExpressionPtr node) {
  const int line = take().line;
  if (current().type == Type::name) return std::make_unique<Attribute>(std::move(node), take().text, line);
  if (current().type != Type::integer) fail_syntax("expected name or number", current().line);
  auto index = std::make_unique<Constant>(Value(current().integer), line);
  take();
  return std::make_unique<Item>(std::move(node), std::move(index), line);
}

ExpressionPtr Parser::subscript(ExpressionPtr node) {
  const int line = take().line;
  ExpressionPtr start;
  if (!current().is_symbol(":")) start = tuple(true, false);
  if (!skip_symbol(":")) {
    expect_symbol("]");
    return std::make_unique<Item>(std::move(node), std::move(start), line);
  }
  auto slice = std::make_unique<Slice>(line);
  slice->subject = std::move(node);
  slice->start = std::move(start);
  if (!current().is_symbol(":") && !current().is_symbol("]")) slice->stop = expression();
  if (skip_symbol(":") && !current().is_symbol("]")) slice->step = expression();
  expect_symbol("]");
  return slice;
}

ExpressionPtr Parser::call(ExpressionPtr node) {
  auto call = std::make_unique<Call>(current().line);
  call->callee = std::move(node);
  call->arguments = arguments();
  return call;
}

ArgumentList Parser::arguments() {
  const int line = current().line;
  const auto ensure = [&](bool right) {
    if (!right) fail_syntax("invalid syntax for function call expression", line);
  };
  ArgumentList out;
  expect_symbol("(");
  while (!current().is_symbol(")")) {
    if (skip_symbol("**")) {
      ensure(out.more_named == nullptr);
      out.more_named = expression();
    } else if (skip_symbol("*")) {
      ensure(out.more_positional == nullptr && out.more_named == nullptr);
      out.more_positional = expression();
    } else if (current().type == Type::name && look().is_symbol("=")) {
      ensure(out.more_named == nullptr);
      const std::string name = take().text;
      take();
      for (const auto& [other, value] : out.named) ensure(other != name);
      out.named.emplace_back(name, expression());
    } else {
      ensure(out.more_positional == nullptr && out.more_named == nullptr && out.named.empty());
      out.positional.push_back(expression());
    }
    if (!current().is_symbol(")")) expect_symbol(",");
  }
  expect_symbol(")");
  return out;
}

std::string Parser::dotted_name() {
  std::string name = expect_name();
  while (skip_symbol(".")) name += "." + expect_name();
  return name;
}

std::unique_ptr<FilterCall> Parser::filter(ExpressionPtr subject) {
  auto node = std::make_unique<FilterCall>(current().line);
  node->subject = std::move(subject);
  node->name = dotted_name();
  node->filter = find_filter(node->name);
  if (node->filter == nullptr) note_unknown("filter", node->name, node->line);
  if (current().is_symbol("(")) node->arguments = arguments();
  return node;
}

bool Parser::argument_of_test_follows() const {
  const Token& token = current();
  if (token.type == Type::name)
    return !token.is_name("else") && !token.is_name("or") && !token.is_name("and");
  return token.type == Type::string || token.type == Type::integer || token.type == Type::real ||
         token.is_symbol("[") || token.is_symbol("{");
}

ExpressionPtr Parser::test(ExpressionPtr subject) {
  auto node = std::make_unique<TestCall>(take().line);
  node->subject = std::move(subject);
  node->negated = skip_name("not");
  node->name = dotted_name();
  node->test = find_test(node->name);
  if (node->test == nullptr) note_unknown("test", node->name, node->line);
  if (current().is_symbol("(")) {
    node->arguments = arguments();
  } else if (argument_of_test_follows()) {
    if (current().is_name("is")) fail_syntax("You cannot chain multiple tests with is", current().line);
    const Nesting nesting(*this);
    node->arguments.positional.push_back(postfix(primary()));
  }
  return node;
}

}  // namespace switchyard::jinja
