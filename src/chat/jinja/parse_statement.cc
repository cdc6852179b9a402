#include <fmt/format.h>

#include <algorithm>

#include "chat/jinja/parser.h"

namespace switchyard::jinja {

namespace {

using Type = Token::Type;

bool is_one_of(const Token& token, std::initializer_list<const char*> words) {
  return std::any_of(words.begin(), words.end(), [&](const char* word) { return token.is_name(word); });
}

// Sets a value of the parser for one part of the template.
template <typename T>
class Within {
 public:
  Within(T& place, T value) : place_(place), before_(place) { place = std::move(value); }
  ~Within() { place_ = before_; }
  Within(const Within&) = delete;
  Within& operator=(const Within&) = delete;

 private:
  T& place_;
  T before_;
};

}  // namespace

Body Parser::body_until(Words ends) {
  const Nesting nesting(*this);
  Body body;
  std::unique_ptr<Output> output;
  const auto add = [&](ExpressionPtr part, int line) {
    if (output == nullptr) output = std::make_unique<Output>(line);
    output->parts.push_back(std::move(part));
  };
  while (current().type != Type::end) {
    const int line = current().line;
    if (current().type == Type::data) {
      add(std::make_unique<Constant>(Value(std::string_view(current().text)), line), line);
      take();
    } else if (current().type == Type::variable_begin) {
      take();
      add(tuple(true, false), line);
      expect(Type::variable_end);
    } else {
      if (output != nullptr) body.push_back(std::move(output));
      expect(Type::block_begin);
      if (is_one_of(current(), ends)) return body;
      statement(body);
      expect(Type::block_end);
    }
  }
  if (output != nullptr) body.push_back(std::move(output));
  if (ends.size() > 0) {
    fail_syntax(fmt::format("Unexpected end of template: '{}' is missing", *(ends.end() - 1)),
                current().line);
  }
  return body;
}

Body Parser::block(Words ends) {
  skip_symbol(":");
  expect(Type::block_end);
  return body_until(ends);
}

void Parser::statement(Body& body) {
  const int line = current().line;
  if (current().type != Type::name) fail_syntax("tag name expected", line);
  const std::string tag = take().text;
  if (tag == "for") return body.push_back(for_loop(line));
  if (tag == "if") return body.push_back(if_branches(line));
  if (tag == "set") return body.push_back(set(line));
  if (tag == "macro") return body.push_back(macro(line));
  if (tag == "call") return body.push_back(call_block(line));
  if (tag == "filter") return body.push_back(filter_block(line));
  if (tag == "with") return body.push_back(with(line));
  if (tag == "generation") return body.push_back(scoped(line, "endgeneration", false));
  if (tag == "block") return body.push_back(scoped(line, "endblock", true));
  if (tag == "break") return body.push_back(jump(Flow::breaks, line));
  if (tag == "continue") return body.push_back(jump(Flow::continues, line));
  if (tag == "autoescape") return body.push_back(autoescape(line));
  if (tag == "include" || tag == "import" || tag == "from" || tag == "extends") {
    return body.push_back(other_template(line));
  }
  if (tag == "print") {
    auto output = std::make_unique<Output>(line);
    while (current().type != Type::block_end) {
      if (!output->parts.empty()) expect_symbol(",");
      output->parts.push_back(expression());
    }
    return body.push_back(std::move(output));
  }
  fail_syntax(fmt::format("Encountered unknown tag '{}'.", tag), line);
}

std::unique_ptr<const Statement> Parser::for_loop(int line) {
  auto node = std::make_unique<For>(line);
  node->target = target(false, true);
  if (!skip_name("in"))
    fail_syntax(fmt::format("expected token 'in', got '{}'", current().text), current().line);
  node->iterable = tuple(false, false);
  const Within<bool> hard(soft_, false);
  declared_.emplace_back();
  declare(node->target);
  declare(id_of("loop"));
  if (skip_name("if")) node->condition = expression();
  node->recursive = skip_name("recursive");
  ++loops_;
  node->body = block({"else", "endfor"});
  --loops_;
  declared_.pop_back();
  if (skip_name("else")) {
    declared_.emplace_back();
    node->otherwise = block({"endfor"});
    declared_.pop_back();
  }
  take();
  return node;
}

std::unique_ptr<const Statement> Parser::if_branches(int line) {
  auto node = std::make_unique<If>(line);
  const Within<bool> soft(soft_, true);
  while (true) {
    ExpressionPtr condition = tuple(false, false);
    declared_.emplace_back();
    node->branches.emplace_back(std::move(condition), block({"elif", "else", "endif"}));
    declared_.pop_back();
    if (!skip_name("elif")) break;
  }
  if (skip_name("else")) {
    declared_.emplace_back();
    node->otherwise = block({"endif"});
    declared_.pop_back();
  }
  take();
  return node;
}

std::vector<std::unique_ptr<const FilterCall>> Parser::filter_chain(bool begins_with_name) {
  std::vector<std::unique_ptr<const FilterCall>> chain;
  if (begins_with_name) chain.push_back(filter(nullptr));
  while (skip_symbol("|")) chain.push_back(filter(nullptr));
  return chain;
}

std::unique_ptr<const Statement> Parser::set(int line) {
  Target goal = target(true, false);
  if (skip_symbol("=")) {
    auto node = std::make_unique<Set>(line);
    node->value = tuple(true, false);
    declare(goal);
    node->target = std::move(goal);
    return node;
  }
  const Within<bool> hard(soft_, false);
  auto node = std::make_unique<SetBlock>(line);
  node->filters = filter_chain(false);
  declared_.emplace_back();
  node->body = block({"endset"});
  declared_.pop_back();
  declare(goal);
  node->target = std::move(goal);
  take();
  return node;
}

void Parser::parameters(MacroDefinition& definition) {
  expect_symbol("(");
  while (!current().is_symbol(")")) {
    if (!definition.parameters.empty()) expect_symbol(",");
    if (current().is_symbol(")")) break;
    MacroParameter parameter;
    parameter.text = expect_name();
    parameter.name = id_of(parameter.text);
    declare(parameter.name);
    if (skip_symbol("=")) {
      parameter.otherwise = expression();
    } else if (!definition.parameters.empty() && definition.parameters.back().otherwise != nullptr) {
      fail_syntax("non-default argument follows default argument", current().line);
    }
    definition.parameters.push_back(std::move(parameter));
  }
  expect_symbol(")");
}

void Parser::macro_body(MacroDefinition& definition, Words ends) {
  definition.varargs = id_of("varargs");
  definition.kwargs = id_of("kwargs");
  definition.caller = id_of("caller");
  for (const NameId id : {definition.varargs, definition.kwargs, definition.caller}) declare(id);
  std::set<NameId> names;
  read_in_macro_.push_back(&names);
  const Within<int> no_loop(loops_, 0);
  definition.body = block(ends);
  read_in_macro_.pop_back();
  definition.reads_varargs = names.count(definition.varargs) > 0;
  definition.reads_kwargs = names.count(definition.kwargs) > 0;
  definition.reads_caller = names.count(definition.caller) > 0;
}

std::unique_ptr<const Statement> Parser::macro(int line) {
  const Within<bool> hard(soft_, false);
  auto node = std::make_unique<Macro>(line);
  node->definition.name = expect_name();
  node->target = id_of(node->definition.name);
  declare(node->target);
  declared_.emplace_back();
  parameters(node->definition);
  macro_body(node->definition, {"endmacro"});
  declared_.pop_back();
  take();
  return node;
}

std::unique_ptr<const Statement> Parser::call_block(int line) {
  const Within<bool> hard(soft_, false);
  auto node = std::make_unique<CallBlock>(line);
  node->definition.name = "caller";
  declared_.emplace_back();
  if (current().is_symbol("(")) parameters(node->definition);
  const int call_line = current().line;
  ExpressionPtr call = expression();
  auto* found = dynamic_cast<Call*>(const_cast<Expression*>(call.get()));
  if (found == nullptr) fail_syntax("expected call", call_line);
  node->callee = std::move(found->callee);
  node->arguments = std::move(found->arguments);
  macro_body(node->definition, {"endcall"});
  declared_.pop_back();
  take();
  return node;
}

std::unique_ptr<const Statement> Parser::filter_block(int line) {
  const Within<bool> hard(soft_, false);
  auto node = std::make_unique<FilterBlock>(line);
  node->filters = filter_chain(true);
  declared_.emplace_back();
  node->body = block({"endfilter"});
  declared_.pop_back();
  take();
  return node;
}

std::unique_ptr<const Statement> Parser::with(int line) {
  const Within<bool> hard(soft_, false);
  auto node = std::make_unique<With>(line);
  while (current().type != Type::block_end) {
    if (!node->values.empty()) expect_symbol(",");
    Target goal = single_target(false);
    expect_symbol("=");
    ExpressionPtr value = expression();
    node->values.emplace_back(std::move(goal), std::move(value));
  }
  declared_.emplace_back();
  for (const auto& [goal, value] : node->values) declare(goal);
  node->body = block({"endwith"});
  declared_.pop_back();
  take();
  return node;
}

std::unique_ptr<const Statement> Parser::scoped(int line, const char* end, bool is_block) {
  const Within<bool> hard(soft_, false);
  auto node = std::make_unique<Scoped>(line);
  if (is_block) {
    expect_name();
    node->sees_root_only = !skip_name("scoped");
    skip_name("required");
  }
  node->is_generation = !is_block;
  program_.marks_generation |= node->is_generation;
  declared_.emplace_back();
  node->body = block({end});
  declared_.pop_back();
  take();
  if (is_block && current().type == Type::name) take();
  return node;
}

std::unique_ptr<const Statement> Parser::autoescape(int line) {
  auto node = std::make_unique<Scoped>(line);
  const int value_line = current().line;
  if (!skip_name("false") && !skip_name("False")) fail_syntax("autoescape is not supported", value_line);
  node->body = block({"endautoescape"});
  take();
  return node;
}

std::unique_ptr<const Statement> Parser::other_template(int line) {
  expression();
  while (current().type != Type::block_end && current().type != Type::end) take();
  return std::make_unique<OtherTemplate>(line);
}

std::unique_ptr<const Statement> Parser::jump(Flow flow, int line) {
  if (loops_ == 0) fail_syntax("break or continue outside of a loop", line);
  return std::make_unique<Jump>(flow, line);
}

Target Parser::single_target(bool with_attributes) {
  Target out;
  if (current().is_symbol("(")) {
    const Nesting nesting(*this);
    take();
    out = target(with_attributes, false);
    expect_symbol(")");
    return out;
  }
  const int line = current().line;
  const std::string name = expect_name();
  for (const char* constant : {"true", "false", "none", "True", "False", "None"}) {
    if (name == constant) fail_syntax(fmt::format("can't assign to '{}'", name), line);
  }
  if (name == "loop" && loops_ > 0) fail_syntax("can't assign to the special variable 'loop'", line);
  out.name = id_of(name);
  if (with_attributes && skip_symbol(".")) {
    out.kind = Target::Kind::attribute;
    out.attribute = expect_name();
  }
  return out;
}

Target Parser::target(bool with_attributes, bool ends_at_in) {
  Target out;
  out.kind = Target::Kind::tuple;
  bool is_tuple = false;
  while (!tuple_ends(ends_at_in) && !current().is_symbol("=")) {
    out.parts.push_back(single_target(with_attributes));
    if (!skip_symbol(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return out;
  if (out.parts.empty()) fail_unexpected();
  Target only = std::move(out.parts.front());
  return only;
}

}  // namespace switchyard::jinja
