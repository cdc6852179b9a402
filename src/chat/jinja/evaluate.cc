#include <fmt/format.h>

#include "chat/jinja/interpreter.h"

namespace switchyard::jinja {

namespace {

Value evaluated(const ExpressionPtr& expression, Interpreter& interpreter) {
  return expression == nullptr ? Value() : expression->evaluate(interpreter);
}

std::vector<Value> evaluated_all(const Expressions& expressions, Interpreter& interpreter) {
  std::vector<Value> out;
  out.reserve(expressions.size());
  for (const ExpressionPtr& each : expressions) out.push_back(each->evaluate(interpreter));
  return out;
}

Value calculated(Interpreter& interpreter, Arithmetic arithmetic, const Value& a, const Value& b) {
  Budget::count_steps();
  switch (arithmetic) {
    case Arithmetic::add:
      return add(a, b);
    case Arithmetic::subtract:
      return subtract(a, b);
    case Arithmetic::multiply:
      return multiply(a, b);
    case Arithmetic::divide:
      return divide(a, b);
    case Arithmetic::floor_divide:
      return floor_divide(a, b);
    case Arithmetic::modulo:
      return modulo(interpreter, a, b);
    default:
      return power(a, b);
  }
}

bool is_nan(const Value& value) {
  return value.real() != nullptr && *value.real() != *value.real();
}

bool holds(Comparison comparison, const Value& a, const Value& b) {
  switch (comparison) {
    case Comparison::equal:
      return equal(a, b);
    case Comparison::unequal:
      return !equal(a, b);
    case Comparison::in:
      return contains(b, a);
    case Comparison::not_in:
      return !contains(b, a);
    default:
      break;
  }
  const char* const signs[] = {"==", "!=", "<", "<=", ">", ">="};
  const int order = compare(a, b, signs[static_cast<int>(comparison)]);
  if (is_nan(a) || is_nan(b)) return false;
  switch (comparison) {
    case Comparison::less:
      return order < 0;
    case Comparison::less_equal:
      return order <= 0;
    case Comparison::greater:
      return order > 0;
    default:
      return order >= 0;
  }
}

}  // namespace

Value Expression::call(Interpreter& interpreter, const Arguments& arguments) const {
  return interpreter.call(evaluate(interpreter), arguments);
}

Value Constant::evaluate(Interpreter&) const {
  return value;
}

Value Name::evaluate(Interpreter& interpreter) const {
  Budget::count_steps();
  Value undefined;
  return interpreter.lookup(id, undefined);
}

Value ListDisplay::evaluate(Interpreter& interpreter) const {
  Budget::check_stack();
  return make_list(evaluated_all(items, interpreter));
}

Value TupleDisplay::evaluate(Interpreter& interpreter) const {
  Budget::check_stack();
  return make_tuple(evaluated_all(items, interpreter));
}

Value DictDisplay::evaluate(Interpreter& interpreter) const {
  Budget::check_stack();
  auto mapping = make_mapping();
  for (const auto& [key, value] : entries) {
    const Value evaluated_key = key->evaluate(interpreter);
    mapping->set(evaluated_key, value->evaluate(interpreter));
  }
  return mapping;
}

Value Attribute::evaluate(Interpreter& interpreter) const {
  Budget::check_stack();
  return interpreter.attribute(subject->evaluate(interpreter), name);
}

Value Attribute::call(Interpreter& interpreter, const Arguments& arguments) const {
  return interpreter.call_method(subject->evaluate(interpreter), name, arguments);
}

Value Item::evaluate(Interpreter& interpreter) const {
  Budget::check_stack();
  const Value value = subject->evaluate(interpreter);
  return interpreter.item(value, index->evaluate(interpreter));
}

Value Slice::evaluate(Interpreter& interpreter) const {
  Budget::check_stack();
  const Value value = subject->evaluate(interpreter), from = evaluated(start, interpreter),
              to = evaluated(stop, interpreter);
  return slice(value, from, to, evaluated(step, interpreter));
}

Arguments ArgumentList::evaluate(Interpreter& interpreter) const {
  Arguments out;
  out.positional = evaluated_all(positional, interpreter);
  for (const auto& [name, value] : named) out.named.emplace_back(name, value->evaluate(interpreter));
  if (more_positional != nullptr) {
    for (Value& each : items_of(more_positional->evaluate(interpreter)))
      out.positional.push_back(std::move(each));
  }
  if (more_named == nullptr) return out;
  const Value more = more_named->evaluate(interpreter);
  if (more.mapping() == nullptr) fail_type("argument after ** must be a mapping", more);
  for (const auto& [key, value] : more.mapping()->entries()) {
    if (!key.is_text()) fail_other("keywords must be strings");
    if (out.find(key.text()->bytes) != nullptr) fail_other("got multiple values for keyword argument");
    out.named.emplace_back(key.text()->bytes, value);
  }
  return out;
}

Value Call::evaluate(Interpreter& interpreter) const {
  Budget::check_stack();
  return callee->call(interpreter, arguments.evaluate(interpreter));
}

Value FilterCall::evaluate(Interpreter& interpreter) const {
  Budget::check_stack();
  return apply(interpreter, subject->evaluate(interpreter));
}

Value FilterCall::apply(Interpreter& interpreter, const Value& value) const {
  Budget::count_steps();
  if (filter == nullptr) fail_other(fmt::format("No filter named '{}' found.", name));
  return filter(interpreter, value, arguments.evaluate(interpreter));
}

Value TestCall::evaluate(Interpreter& interpreter) const {
  Budget::count_steps();
  Budget::check_stack();
  if (test == nullptr) fail_other(fmt::format("No test named '{}' found.", name));
  const Value value = subject->evaluate(interpreter);
  return test(interpreter, value, arguments.evaluate(interpreter)) != negated;
}

Value Unary::evaluate(Interpreter& interpreter) const {
  Budget::check_stack();
  const Value value = operand->evaluate(interpreter);
  if (operator_ == Operator::logical_not) return !is_true(value);
  return operator_ == Operator::minus ? negative(value) : positive(value);
}

Value ArithmeticChain::evaluate(Interpreter& interpreter) const {
  Budget::check_stack();
  Value value = first->evaluate(interpreter);
  for (const auto& [arithmetic, operand] : rest) {
    value = calculated(interpreter, arithmetic, value, operand->evaluate(interpreter));
  }
  return value;
}

Value Concat::evaluate(Interpreter& interpreter) const {
  Budget::check_stack();
  Text out;
  for (const ExpressionPtr& part : parts) append_str(out, part->evaluate(interpreter));
  return out;
}

Value ComparisonChain::evaluate(Interpreter& interpreter) const {
  Budget::check_stack();
  Value left = first->evaluate(interpreter);
  for (const auto& [comparison, operand] : rest) {
    Value right = operand->evaluate(interpreter);
    if (!holds(comparison, left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Logic::evaluate(Interpreter& interpreter) const {
  Budget::check_stack();
  Value value;
  for (const ExpressionPtr& operand : operands) {
    value = operand->evaluate(interpreter);
    if (is_true(value) != is_and) return value;
  }
  return value;
}

Value Conditional::evaluate(Interpreter& interpreter) const {
  Budget::check_stack();
  if (is_true(condition->evaluate(interpreter))) return then->evaluate(interpreter);
  if (otherwise != nullptr) return otherwise->evaluate(interpreter);
  return undefined_value("the inline if-expression evaluated to false and no else section was defined.");
}

}  // namespace switchyard::jinja
