// Attributes, items and calls, as Jinja2's sandbox allows them.
#include <fmt/format.h>

#include <algorithm>

#include "chat/jinja/interpreter.h"
#include "chat/jinja/markup.h"

namespace switchyard::jinja {

namespace {

std::string object_name(const Value& value) {
  if (value.is_none()) return "None";
  return type_name(value) + " object";
}

Value no_attribute(const Value& value, std::string_view name) {
  return undefined_value(fmt::format("'{}' has no attribute '{}'", object_name(value), name));
}

Value no_item(const Value& value, const Value& index) {
  if (const Text* text = index.text()) return no_attribute(value, text->bytes);
  return undefined_value(fmt::format("{} has no element {}", object_name(value), str(index).bytes));
}

bool is_dunder(std::string_view name) {
  return name.size() > 4 && name.substr(0, 2) == "__" && name.substr(name.size() - 2) == "__";
}

Value unsafe(const Value& value, std::string_view name) {
  return undefined_value(
      fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(value)), true);
}

// Returns the attribute that Python's getattr finds and the sandbox allows.
std::optional<Value> python_attribute(const Interpreter& interpreter, const Value& value,
                                      const std::string& name) {
  if (is_dunder(name)) return unsafe(value, name);
  if (const Object* object = value.object()) return object->attribute(name);
  if (const Tuple* tuple = value.tuple(); tuple != nullptr && tuple->is_group) {
    if (name == "grouper") return tuple->items[0];
    if (name == "list") return tuple->items[1];
  }
  const MethodEntry* method = find_method(value, name);
  if (method == nullptr) return std::nullopt;
  if (method->changes && !interpreter.options().allow_mutation) return unsafe(value, name);
  return make_object<BoundMethod>(value, *method);
}

Value called(Interpreter& interpreter, const Value& self, const MethodEntry& entry,
             const Arguments& arguments) {
  if (!is_markup(self)) return entry.method(interpreter, self, arguments);
  return markup_result(entry.name, entry.method(interpreter, self, markup_arguments(entry.name, arguments)));
}

std::optional<Value> indexed(const Value& value, const Value& index) {
  if (const Mapping* mapping = value.mapping()) {
    if (index.list() != nullptr || index.mapping() != nullptr) return std::nullopt;
    const Value* found = mapping->find(index);
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  auto position = index.integer();
  if (!position) return std::nullopt;
  const auto size = length_of(value);
  if (!size) return std::nullopt;
  if (*position < 0) *position += static_cast<Integer>(*size);
  if (*position < 0 || *position >= static_cast<Integer>(*size)) return std::nullopt;
  const auto at = static_cast<std::size_t>(*position);
  if (const auto* items = value.items()) return (*items)[at];
  if (const Text* text = value.text()) {
    const std::size_t begin = byte_of(text->bytes, at);
    return like(value, text->part(begin, code_point_at(text->bytes, begin).next));
  }
  if (const Object* object = value.object()) return object->item(*position);
  return std::nullopt;
}

}  // namespace

Value Interpreter::attribute(const Value& value, const std::string& name) {
  Budget::count_steps();
  if (const Undefined* undefined = value.undefined()) {
    if (is_dunder(name) && !undefined->unsafe) return unsafe(value, name);
    fail_undefined(*undefined);
  }
  if (auto found = python_attribute(*this, value, name)) return std::move(*found);
  if (const Mapping* mapping = value.mapping()) {
    if (const Value* found = mapping->find(name)) return *found;
  }
  return no_attribute(value, name);
}

Value Interpreter::item(const Value& value, const Value& index) {
  Budget::count_steps();
  refuse_undefined(value);
  if (auto found = indexed(value, index)) return std::move(*found);
  if (const Text* name = index.text()) {
    if (auto found = python_attribute(*this, value, name->bytes)) return std::move(*found);
  }
  return no_item(value, index);
}

Value Interpreter::call(const Value& callee, const Arguments& arguments) {
  Budget::count_steps();
  Budget::check_stack();
  refuse_undefined(callee);
  Object* object = callee.object();
  if (object == nullptr || !object->is_callable()) {
    fail_other(fmt::format("'{}' object is not callable", type_name(callee)));
  }
  const Value alive = callee;
  return object->call(*this, arguments);
}

Value Interpreter::call_method(const Value& value, const std::string& name, const Arguments& arguments) {
  const MethodEntry* method = value.object() != nullptr ? nullptr : find_method(value, name);
  if (method == nullptr || (method->changes && !options_.allow_mutation)) {
    return call(attribute(value, name), arguments);
  }
  Budget::count_steps();
  return called(*this, value, *method, arguments);
}

Value BoundMethod::call(Interpreter& interpreter, const Arguments& arguments) {
  return called(interpreter, held->items.front(), entry, arguments);
}

Value MacroValue::call(Interpreter& interpreter, const Arguments& arguments) {
  return interpreter.call_macro(definition, scope, arguments);
}

std::optional<Value> MacroValue::attribute(std::string_view name) const {
  if (name == "name") return Value(std::string_view(definition.name));
  if (name == "arguments") {
    std::vector<Value> names;
    for (const MacroParameter& parameter : definition.parameters)
      names.emplace_back(std::string_view(parameter.text));
    return Value(make_tuple(std::move(names)));
  }
  if (name == "catch_varargs") return Value(definition.reads_varargs);
  if (name == "catch_kwargs") return Value(definition.reads_kwargs);
  if (name == "caller") return Value(definition.reads_caller);
  return std::nullopt;
}

std::optional<Value> Namespace::attribute(std::string_view name) const {
  const Value* found = values->find(name);
  return found == nullptr ? std::nullopt : std::optional(*found);
}

void Namespace::show(Text& out) const {
  out.append("<Namespace ");
  append_repr(out, Value(values));
  out.append(">");
}

void View::show(Text& out) const {
  Budget::check_stack();
  out.append(fmt::format("{}(", name_));
  append_repr(out, Value(items));
  out.append(")");
}

}  // namespace switchyard::jinja
