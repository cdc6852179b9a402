// map, select, reject and their like.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "chat/jinja/attribute_path.h"
#include "chat/jinja/interpreter.h"

namespace switchyard::jinja {

namespace {

Value path_part(std::string_view part) {
  const bool is_number =
      !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!is_number || part.size() > 18) return part;
  Integer number = 0;
  for (const char c : part) number = number * 10 + (c - '0');
  return number;
}

template <typename Each>
void split_at(std::string_view text, char separator, const Each& each) {
  for (std::size_t begin = 0;;) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    each(text.substr(begin, end - begin));
    if (end == text.size()) return;
    begin = end + 1;
  }
}

}  // namespace

AttributePath::AttributePath(const Value& attribute, Value otherwise) : otherwise_(std::move(otherwise)) {
  if (const Text* text = attribute.text()) {
    split_at(text->bytes, '.', [&](std::string_view part) { parts_.push_back(path_part(part)); });
  } else {
    parts_.push_back(attribute);
  }
}

Value AttributePath::of(Interpreter& interpreter, const Value& value) const {
  Value out = value;
  for (const Value& part : parts_) {
    out = interpreter.item(out, part);
    if (out.is_undefined() && !otherwise_.is_none()) out = otherwise_;
  }
  return out;
}

std::vector<AttributePath> attribute_paths(const Value& attributes) {
  std::vector<AttributePath> out;
  if (const Text* text = attributes.text()) {
    split_at(text->bytes, ',', [&](std::string_view path) { out.emplace_back(Value(path)); });
  } else {
    out.emplace_back(attributes);
  }
  return out;
}

namespace {
namespace choice_filters {

Arguments arguments_from(const Arguments& arguments, std::size_t first) {
  Arguments out;
  for (std::size_t i = first; i < arguments.positional.size(); ++i)
    out.positional.push_back(arguments.positional[i]);
  out.named = arguments.named;
  return out;
}

using Each = std::function<Value(const Value&)>;

// The change that `map` makes to each value: a filter by its name, or an attribute.
Each mapped(Interpreter& interpreter, const Arguments& arguments) {
  if (arguments.positional.empty() && arguments.find("attribute") != nullptr) {
    const Value* otherwise = arguments.find("default");
    for (const auto& [key, value] : arguments.named) {
      if (key != "attribute" && key != "default")
        fail_other(fmt::format("Unexpected keyword argument '{}'", key));
    }
    return [&interpreter,
            path = AttributePath(*arguments.find("attribute"), otherwise == nullptr ? Value() : *otherwise)](
               const Value& value) { return path.of(interpreter, value); };
  }
  if (arguments.positional.empty()) fail_other("map requires a filter argument");
  const Value& name = arguments.positional.front();
  const Filter filter = name.is_text() ? find_filter(name.text()->bytes) : nullptr;
  if (filter == nullptr) fail_other(fmt::format("No filter named '{}'.", str(name).bytes));
  return [&interpreter, filter, rest = arguments_from(arguments, 1)](const Value& value) {
    return filter(interpreter, value, rest);
  };
}

// A generator does its work when it is read.
struct MapCursor : Cursor {
  MapCursor(std::shared_ptr<Cursor> from_, Each each_) : from(std::move(from_)), each(std::move(each_)) {}
  bool next(Value& value) override {
    Budget::count_steps();
    Budget::check_stack();
    Value taken;
    if (!from->next(taken)) return false;
    value = each(taken);
    return true;
  }
  std::shared_ptr<Cursor> from;
  Each each;
};

Value map(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  if (!is_true(value)) return make_iterator({});
  return make_object<Iterator>(std::make_shared<MapCursor>(iterate(value), mapped(interpreter, arguments)));
}

struct ChoiceCursor : Cursor {
  ChoiceCursor(std::shared_ptr<Cursor> from_, Each passes_)
      : from(std::move(from_)), passes(std::move(passes_)) {}
  bool next(Value& value) override {
    Budget::check_stack();
    while (from->next(value)) {
      Budget::count_steps();
      if (is_true(passes(value))) return true;
    }
    return false;
  }
  std::shared_ptr<Cursor> from;
  Each passes;
};

Value chosen(Interpreter& interpreter, const Value& value, const Arguments& arguments, bool by_attribute,
             bool keeps) {
  if (!is_true(value)) return make_iterator({});
  const std::size_t first = by_attribute ? 1 : 0;
  if (arguments.positional.size() < first) fail_other("Missing parameter for attribute name");
  Test test = nullptr;
  if (arguments.positional.size() > first) {
    const Value& name = arguments.positional[first];
    test = name.is_text() ? find_test(name.text()->bytes) : nullptr;
    if (test == nullptr) fail_other(fmt::format("No test named '{}'.", str(name).bytes));
  }
  std::optional<AttributePath> path;
  if (by_attribute) path.emplace(arguments.positional[0]);
  const auto passes = [&interpreter, test, path, keeps,
                       rest = arguments_from(arguments, first + 1)](const Value& each) {
    const Value subject = path ? path->of(interpreter, each) : each;
    return Value((test == nullptr ? is_true(subject) : test(interpreter, subject, rest)) == keeps);
  };
  return make_object<Iterator>(std::make_shared<ChoiceCursor>(iterate(value), passes));
}

Value select(Interpreter& i, const Value& value, const Arguments& a) {
  return chosen(i, value, a, false, true);
}
Value reject(Interpreter& i, const Value& value, const Arguments& a) {
  return chosen(i, value, a, false, false);
}
Value selectattr(Interpreter& i, const Value& value, const Arguments& a) {
  return chosen(i, value, a, true, true);
}
Value rejectattr(Interpreter& i, const Value& value, const Arguments& a) {
  return chosen(i, value, a, true, false);
}

constexpr FilterEntry kFilters[] = {{"map", map},
                                    {"select", select},
                                    {"reject", reject},
                                    {"selectattr", selectattr},
                                    {"rejectattr", rejectattr}};

}  // namespace choice_filters
}  // namespace

std::optional<Filter> find_choice_filter(std::string_view name) {
  const FilterEntry* entry = find_entry(choice_filters::kFilters, name);
  return entry == nullptr ? std::nullopt : std::optional(entry->filter);
}

}  // namespace switchyard::jinja
