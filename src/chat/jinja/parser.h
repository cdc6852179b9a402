// Parser: tokens to a tree, with Jinja2's precedences.
#pragma once

#include <initializer_list>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "chat/jinja/ast.h"
#include "chat/jinja/lexer.h"

namespace switchyard::jinja {

class Parser {
 public:
  Parser(std::vector<Token> tokens, ParsedTemplate& program)
      : tokens_(std::move(tokens)), program_(program), declared_(1) {}
  void parse();  // into the program

 private:
  friend class Nesting;
  using Words = std::initializer_list<const char*>;

  // parser.cc: tokens and names
  const Token& current() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take();
  bool skip_symbol(std::string_view symbol);
  bool skip_name(std::string_view name);
  void expect_symbol(std::string_view symbol);
  std::string expect_name();
  void expect(Token::Type type);
  [[noreturn]] void fail_unexpected() const;
  NameId id_of(const std::string& name);
  void declare(NameId name) { declared_.back().insert(name); }
  void declare(const Target& target);
  void read(NameId name);
  void note_unknown(const char* kind, const std::string& name, int line);
  bool is_declared(NameId name) const;

  // parse_expression.cc
  ExpressionPtr expression(bool with_condition = true);
  ExpressionPtr conditional();
  ExpressionPtr logic_or();
  ExpressionPtr logic_and();
  ExpressionPtr logic_not();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concat();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters = true);
  ExpressionPtr primary();
  ExpressionPtr name_or_constant();
  ExpressionPtr strings();
  ExpressionPtr tuple(bool with_condition, bool in_parentheses, bool ends_at_in = false);
  bool tuple_ends(bool ends_at_in) const;
  ExpressionPtr list();
  ExpressionPtr dict();
  ExpressionPtr postfix(ExpressionPtr node);
  ExpressionPtr filters(ExpressionPtr node);
  ExpressionPtr attribute(ExpressionPtr node);
  ExpressionPtr subscript(ExpressionPtr node);
  ExpressionPtr call(ExpressionPtr node);
  std::unique_ptr<FilterCall> filter(ExpressionPtr subject);
  ExpressionPtr test(ExpressionPtr subject);
  ArgumentList arguments();
  std::string dotted_name();
  bool argument_of_test_follows() const;

  // parse_statement.cc
  Body body_until(Words ends);
  Body block(Words ends);  // after block_end, to the ends, of which the word is still current
  void statement(Body& body);
  std::unique_ptr<const Statement> for_loop(int line);
  std::unique_ptr<const Statement> if_branches(int line);
  std::unique_ptr<const Statement> set(int line);
  std::unique_ptr<const Statement> macro(int line);
  std::unique_ptr<const Statement> call_block(int line);
  std::unique_ptr<const Statement> filter_block(int line);
  std::unique_ptr<const Statement> with(int line);
  std::unique_ptr<const Statement> scoped(int line, const char* end, bool is_block);
  std::unique_ptr<const Statement> other_template(int line);
  std::unique_ptr<const Statement> jump(Flow flow, int line);
  std::unique_ptr<const Statement> autoescape(int line);
  std::vector<std::unique_ptr<const FilterCall>> filter_chain(bool begins_with_name);
  void parameters(MacroDefinition& definition);
  void macro_body(MacroDefinition& definition, Words ends);
  Target target(bool with_attributes, bool ends_at_in);
  Target single_target(bool with_attributes);

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  ParsedTemplate& program_;
  std::vector<std::set<NameId>> declared_;
  std::vector<std::set<NameId>*> read_in_macro_;
  // Filters and tests that are not known. Jinja2 refuses them, but for those in a branch of `if` (soft_) or
  // in a conditional expression, which fail when they run.
  std::vector<std::pair<std::string, int>> unknown_;
  bool soft_ = false;
  int nesting_ = 0, loops_ = 0;
};

// One level of brackets, operators or blocks; TemplateError of kind syntax beyond those a stack can hold.
class Nesting {
 public:
  explicit Nesting(Parser& parser);
  ~Nesting() { --parser_.nesting_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  Parser& parser_;
};

}  // namespace switchyard::jinja
