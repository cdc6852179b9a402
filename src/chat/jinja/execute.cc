#include <fmt/format.h>

#include "chat/jinja/interpreter.h"

namespace switchyard::jinja {

namespace {

Value filtered(Interpreter& interpreter, const std::vector<std::unique_ptr<const FilterCall>>& filters,
               Value value) {
  for (const auto& filter : filters) value = filter->apply(interpreter, value);
  return value;
}

}  // namespace

Flow Interpreter::execute(const Body& body) {
  Budget::check_stack();
  for (const auto& statement : body) {
    Flow flow = Flow::normal;
    execute_one(*statement, flow);
    if (flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

void Interpreter::execute_one(const Statement& statement, Flow& flow) {
  Budget::count_steps();
  try {
    flow = statement.execute(*this);
  } catch (TemplateError& error) {
    if (error.line == 0) error.line = statement.line;
    throw;
  }
}

Text Interpreter::text_of(const Body& body) {
  Text out;
  const OutputGuard guard(*this, out);
  execute(body);
  return out;
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (target.kind == Target::Kind::name) {
    scope_->set(target.name, value);
  } else if (target.kind == Target::Kind::attribute) {
    Value undefined;
    auto* space = dynamic_cast<Namespace*>(lookup(target.name, undefined).object());
    if (space == nullptr) fail_other("cannot assign attribute on non-namespace object");
    space->values->set(Value(std::string_view(target.attribute)), value);
  } else {
    const std::vector<Value> items = items_of(value);
    if (items.size() != target.parts.size()) {
      fail_other(fmt::format("{} values to unpack (expected {})",
                             items.size() < target.parts.size() ? "not enough" : "too many",
                             target.parts.size()));
    }
    for (std::size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i]);
  }
}

void Interpreter::bind(const MacroDefinition& definition, Scope& scope, const Arguments& arguments) {
  const auto& parameters = definition.parameters;
  std::vector<Value> more;
  for (std::size_t i = parameters.size(); i < arguments.positional.size(); ++i)
    more.push_back(arguments.positional[i]);
  if (!more.empty() && !definition.reads_varargs) {
    fail_other(
        fmt::format("macro '{}' takes not more than {} argument(s)", definition.name, parameters.size()));
  }
  auto rest = make_mapping();
  Value caller = undefined_value("No caller defined");
  for (const auto& [key, value] : arguments.named) {
    bool is_parameter = false;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].text != key) continue;
      if (i < arguments.positional.size()) fail_other(fmt::format("macro got multiple values for '{}'", key));
      is_parameter = true;
    }
    if (is_parameter) continue;
    if (key == "caller" && definition.reads_caller) {
      caller = value;
    } else {
      rest->set(Value(std::string_view(key)), value);
    }
  }
  if (!rest->entries().empty() && !definition.reads_kwargs) {
    fail_other(fmt::format("macro '{}' takes no keyword argument '{}'", definition.name,
                           rest->entries().front().first.text()->bytes));
  }
  if (definition.reads_varargs) scope.set(definition.varargs, make_tuple(std::move(more)));
  if (definition.reads_kwargs) scope.set(definition.kwargs, rest);
  if (definition.reads_caller) scope.set(definition.caller, caller);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Value* named = arguments.find(parameters[i].text);
    if (i < arguments.positional.size()) {
      scope.set(parameters[i].name, arguments.positional[i]);
    } else if (named != nullptr) {
      scope.set(parameters[i].name, *named);
    } else if (parameters[i].otherwise != nullptr) {
      scope.set(parameters[i].name, parameters[i].otherwise->evaluate(*this));
    } else {
      scope.set(parameters[i].name,
                undefined_value(fmt::format("parameter '{}' was not provided", parameters[i].text)));
    }
  }
}

Value Interpreter::call_macro(const MacroDefinition& definition, const std::shared_ptr<Scope>& scope,
                              const Arguments& arguments) {
  const DepthGuard depth(*this);
  const ScopeGuard guard(*this, std::make_shared<Scope>(scope));
  bind(definition, *scope_, arguments);
  return text_of(definition.body);
}

Flow Output::execute(Interpreter& interpreter) const {
  Text& out = interpreter.output();
  for (const ExpressionPtr& part : parts) append_str(out, part->evaluate(interpreter));
  return Flow::normal;
}

Flow If::execute(Interpreter& interpreter) const {
  for (const auto& [condition, body] : branches) {
    if (is_true(condition->evaluate(interpreter))) return interpreter.execute(body);
  }
  return interpreter.execute(otherwise);
}

Flow Set::execute(Interpreter& interpreter) const {
  interpreter.assign(target, value->evaluate(interpreter));
  return Flow::normal;
}

Flow SetBlock::execute(Interpreter& interpreter) const {
  Value value;
  {
    const ScopeGuard guard(interpreter);
    value = filtered(interpreter, filters, interpreter.text_of(body));
  }
  interpreter.assign(target, value);
  return Flow::normal;
}

Flow FilterBlock::execute(Interpreter& interpreter) const {
  const ScopeGuard guard(interpreter);
  append_str(interpreter.output(), filtered(interpreter, filters, interpreter.text_of(body)));
  return Flow::normal;
}

Flow Macro::execute(Interpreter& interpreter) const {
  const std::shared_ptr<Scope>& scope = interpreter.scope();
  scope->set(target, make_object<MacroValue>(definition, scope));
  interpreter.end_with_rendering([scope] { scope->clear(); });
  return Flow::normal;
}

Flow CallBlock::execute(Interpreter& interpreter) const {
  Arguments given = arguments.evaluate(interpreter);
  given.named.emplace_back("caller", make_object<MacroValue>(definition, interpreter.scope()));
  append_str(interpreter.output(), callee->call(interpreter, given));
  return Flow::normal;
}

Flow With::execute(Interpreter& interpreter) const {
  std::vector<Value> evaluated;
  for (const auto& [goal, value] : values) evaluated.push_back(value->evaluate(interpreter));
  const ScopeGuard guard(interpreter);
  for (std::size_t i = 0; i < values.size(); ++i) interpreter.assign(values[i].first, evaluated[i]);
  return interpreter.execute(body);
}

Flow Scoped::execute(Interpreter& interpreter) const {
  const ScopeGuard guard(interpreter,
                         std::make_shared<Scope>(sees_root_only ? interpreter.root() : interpreter.scope()));
  if (!is_generation) return interpreter.execute(body);
  const std::size_t begin = interpreter.output().size();
  const Flow flow = interpreter.execute(body);
  interpreter.mark_generated(begin);
  return flow;
}

Flow OtherTemplate::execute(Interpreter&) const {
  fail_other("no loader for this environment specified");
}

Flow For::execute(Interpreter& interpreter) const {
  const Value over = iterable->evaluate(interpreter);
  interpreter.run_loop(*this, over, 0);
  return Flow::normal;
}

}  // namespace switchyard::jinja
