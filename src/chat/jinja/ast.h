// The tree of a template. Nodes are immutable after parsing; evaluate.cc and execute.cc run them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "chat/jinja/builtins.h"
#include "chat/jinja/value.h"

namespace switchyard::jinja {

using NameId = std::size_t;  // of ParsedTemplate::names

struct Expression {
  explicit Expression(int line_) : line(line_) {}
  virtual ~Expression() = default;
  Expression(const Expression&) = delete;
  Expression& operator=(const Expression&) = delete;
  virtual Value evaluate(Interpreter& interpreter) const = 0;
  // The value as the callee of a call, which methods make without an object between.
  virtual Value call(Interpreter& interpreter, const Arguments& arguments) const;
  int line;
};
using ExpressionPtr = std::unique_ptr<const Expression>;
using Expressions = std::vector<ExpressionPtr>;

enum class Flow { normal, breaks, continues };

struct Statement {
  explicit Statement(int line_) : line(line_) {}
  virtual ~Statement() = default;
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  virtual Flow execute(Interpreter& interpreter) const = 0;
  int line;
};
using Body = std::vector<std::unique_ptr<const Statement>>;

struct Constant : Expression {
  Constant(Value value_, int line_) : Expression(line_), value(std::move(value_)) {}
  Value evaluate(Interpreter& interpreter) const override;
  Value value;
};

struct Name : Expression {
  Name(NameId id_, int line_) : Expression(line_), id(id_) {}
  Value evaluate(Interpreter& interpreter) const override;
  NameId id;
};

struct ListDisplay : Expression {
  using Expression::Expression;
  Value evaluate(Interpreter& interpreter) const override;
  Expressions items;
};

struct TupleDisplay : Expression {
  using Expression::Expression;
  Value evaluate(Interpreter& interpreter) const override;
  Expressions items;
};

struct DictDisplay : Expression {
  using Expression::Expression;
  Value evaluate(Interpreter& interpreter) const override;
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};

struct Attribute : Expression {
  Attribute(ExpressionPtr subject_, std::string name_, int line_)
      : Expression(line_), subject(std::move(subject_)), name(std::move(name_)) {}
  Value evaluate(Interpreter& interpreter) const override;
  Value call(Interpreter& interpreter, const Arguments& arguments) const override;
  ExpressionPtr subject;
  std::string name;
};

struct Item : Expression {
  Item(ExpressionPtr subject_, ExpressionPtr index_, int line_)
      : Expression(line_), subject(std::move(subject_)), index(std::move(index_)) {}
  Value evaluate(Interpreter& interpreter) const override;
  ExpressionPtr subject, index;
};

struct Slice : Expression {
  using Expression::Expression;
  Value evaluate(Interpreter& interpreter) const override;
  ExpressionPtr subject, start, stop, step;  // the last three: null where they are not given
};

struct ArgumentList {
  Arguments evaluate(Interpreter& interpreter) const;
  Expressions positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr more_positional, more_named;  // *a and **b; null without
};

struct Call : Expression {
  using Expression::Expression;
  Value evaluate(Interpreter& interpreter) const override;
  ExpressionPtr callee;
  ArgumentList arguments;
};

struct FilterCall : Expression {
  using Expression::Expression;
  Value evaluate(Interpreter& interpreter) const override;
  Value apply(Interpreter& interpreter, const Value& value) const;
  ExpressionPtr subject;  // null: of a block
  std::string name;
  Filter filter = nullptr;  // null: not known, in a branch that may never run
  ArgumentList arguments;
};

struct TestCall : Expression {
  using Expression::Expression;
  Value evaluate(Interpreter& interpreter) const override;
  ExpressionPtr subject;
  std::string name;
  Test test = nullptr;  // as FilterCall::filter
  bool negated = false;
  ArgumentList arguments;
};

struct Unary : Expression {
  enum class Operator { logical_not, minus, plus };
  Unary(Operator operator__, ExpressionPtr operand_, int line_)
      : Expression(line_), operator_(operator__), operand(std::move(operand_)) {}
  Value evaluate(Interpreter& interpreter) const override;
  Operator operator_;
  ExpressionPtr operand;
};

enum class Arithmetic { add, subtract, multiply, divide, floor_divide, modulo, power };

// Operators of one precedence, from the left: a long sum is no deep tree.
struct ArithmeticChain : Expression {
  using Expression::Expression;
  Value evaluate(Interpreter& interpreter) const override;
  ExpressionPtr first;
  std::vector<std::pair<Arithmetic, ExpressionPtr>> rest;
};

struct Concat : Expression {
  using Expression::Expression;
  Value evaluate(Interpreter& interpreter) const override;
  Expressions parts;
};

enum class Comparison { equal, unequal, less, less_equal, greater, greater_equal, in, not_in };

struct ComparisonChain : Expression {
  using Expression::Expression;
  Value evaluate(Interpreter& interpreter) const override;
  ExpressionPtr first;
  std::vector<std::pair<Comparison, ExpressionPtr>> rest;
};

struct Logic : Expression {
  Logic(bool is_and_, int line_) : Expression(line_), is_and(is_and_) {}
  Value evaluate(Interpreter& interpreter) const override;
  bool is_and;
  Expressions operands;
};

struct Conditional : Expression {
  using Expression::Expression;
  Value evaluate(Interpreter& interpreter) const override;
  ExpressionPtr condition, then, otherwise;  // otherwise: null without `else`
};

// A target of `set`, `for` and `with`.
struct Target {
  enum class Kind { name, attribute, tuple };
  Kind kind = Kind::name;
  NameId name = 0;        // of an attribute: its namespace's
  std::string attribute;  // of a namespace
  std::vector<Target> parts;
};

struct Output : Statement {
  using Statement::Statement;
  Flow execute(Interpreter& interpreter) const override;
  Expressions parts;
};

struct For : Statement {
  using Statement::Statement;
  Flow execute(Interpreter& interpreter) const override;
  Target target;
  ExpressionPtr iterable, condition;  // condition: null without
  Body body, otherwise;
  bool recursive = false;
};

struct If : Statement {
  using Statement::Statement;
  Flow execute(Interpreter& interpreter) const override;
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body otherwise;
};

struct Set : Statement {
  using Statement::Statement;
  Flow execute(Interpreter& interpreter) const override;
  Target target;
  ExpressionPtr value;
};

struct SetBlock : Statement {
  using Statement::Statement;
  Flow execute(Interpreter& interpreter) const override;
  Target target;
  std::vector<std::unique_ptr<const FilterCall>> filters;  // in the order in which they work
  Body body;
};

struct FilterBlock : Statement {
  using Statement::Statement;
  Flow execute(Interpreter& interpreter) const override;
  std::vector<std::unique_ptr<const FilterCall>> filters;
  Body body;
};

struct MacroParameter {
  std::string text;
  NameId name;
  ExpressionPtr otherwise;  // null: none
};

// A macro, or the body of a call block.
struct MacroDefinition {
  std::string name;
  std::vector<MacroParameter> parameters;
  Body body;
  bool reads_varargs = false, reads_kwargs = false, reads_caller = false;
  NameId varargs = 0, kwargs = 0, caller = 0;
};

struct Macro : Statement {
  using Statement::Statement;
  Flow execute(Interpreter& interpreter) const override;
  NameId target = 0;
  MacroDefinition definition;
};

struct CallBlock : Statement {
  using Statement::Statement;
  Flow execute(Interpreter& interpreter) const override;
  ExpressionPtr callee;
  ArgumentList arguments;
  MacroDefinition definition;
};

struct With : Statement {
  using Statement::Statement;
  Flow execute(Interpreter& interpreter) const override;
  std::vector<std::pair<Target, ExpressionPtr>> values;
  Body body;
};

// A body with names of its own: `generation` and `block`.
struct Scoped : Statement {
  using Statement::Statement;
  Flow execute(Interpreter& interpreter) const override;
  Body body;
  bool sees_root_only = false;
  bool is_generation = false;
};

struct Jump : Statement {
  Jump(Flow flow_, int line_) : Statement(line_), flow(flow_) {}
  Flow execute(Interpreter&) const override { return flow; }
  Flow flow;
};

// include, import, from and extends: there are no other templates.
struct OtherTemplate : Statement {
  using Statement::Statement;
  Flow execute(Interpreter& interpreter) const override;
};

struct ParsedTemplate {
  std::vector<std::string> names;
  std::map<std::string, NameId, std::less<>> ids;
  std::set<std::string> free_names;
  Body body;
  bool marks_generation = false;
};

}  // namespace switchyard::jinja
