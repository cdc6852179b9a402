// Functions that every template has.
#include <fmt/format.h>

#include <array>
#include <ctime>

#include "chat/jinja/interpreter.h"

namespace switchyard::jinja {

namespace {

using Function = Value (*)(Interpreter& interpreter, const Arguments& arguments);

constexpr Integer kLongestRange = 100'000;  // Jinja2's sandbox has the same

struct FunctionValue : Object {
  FunctionValue(std::string_view name_, Function function_) : name(name_), function(function_) {}
  std::string_view type_name() const override { return "function"; }
  void show(Text& out) const override { out.append(fmt::format("<function {}>", name)); }
  bool is_callable() const override { return true; }
  Value call(Interpreter& interpreter, const Arguments& arguments) override {
    return function(interpreter, arguments);
  }
  std::string_view name;
  Function function;
};

struct Range : Object {
  Range(Integer start_, Integer step_, std::size_t count_) : start(start_), step(step_), count(count_) {}
  std::string_view type_name() const override { return "range"; }
  void show(Text& out) const override {
    out.append(fmt::format("range({}, {}", integer_text(start), integer_text(stop)));
    if (step != 1) out.append(fmt::format(", {}", integer_text(step)));
    out.append(")");
  }
  std::optional<std::size_t> length() const override { return count; }
  bool is_sequence() const override { return true; }
  std::optional<Value> item(Integer at) const override { return Value(start + at * step); }
  std::shared_ptr<Cursor> iterate() override {
    struct Numbers : Cursor {
      Numbers(Integer at_, Integer step_, std::size_t left_) : at(at_), step(step_), left(left_) {}
      bool next(Value& value) override {
        if (left == 0) return false;
        value = at;
        at += step;
        --left;
        return true;
      }
      Integer at, step;
      std::size_t left;
    };
    return std::make_shared<Numbers>(start, step, count);
  }
  Integer start, stop = 0, step;
  std::size_t count;
};

struct Cycler : Object {
  explicit Cycler(std::vector<Value> values) : items(make_list(std::move(values))) {}
  std::string_view type_name() const override { return "Cycler"; }
  std::optional<Value> attribute(std::string_view name) const override;
  std::shared_ptr<List> items;
  mutable std::size_t at = 0;
  std::weak_ptr<Object> self;
};

struct CyclerMethod : Object {
  CyclerMethod(std::shared_ptr<Object> cycler_, bool is_next_)
      : cycler(std::move(cycler_)), is_next(is_next_) {}
  std::string_view type_name() const override { return "method"; }
  bool is_callable() const override { return true; }
  Value call(Interpreter&, const Arguments&) override {
    auto& state = static_cast<Cycler&>(*cycler);
    if (!is_next) {
      state.at = 0;
      return Value();
    }
    Value out = state.items->items[state.at];
    state.at = (state.at + 1) % state.items->items.size();
    return out;
  }
  std::shared_ptr<Object> cycler;
  bool is_next;
};

std::optional<Value> Cycler::attribute(std::string_view name) const {
  if (name == "current") return items->items[at];
  if (name == "items") return Value(items);
  if (name == "pos") return Value(at);
  if (name == "next" || name == "reset") return make_object<CyclerMethod>(self.lock(), name == "next");
  return std::nullopt;
}

struct Joiner : Object {
  explicit Joiner(const Value& separator) : held(make_list({separator})) {}
  std::string_view type_name() const override { return "Joiner"; }
  bool is_callable() const override { return true; }
  Value call(Interpreter&, const Arguments&) override {
    if (used) return held->items.front();
    used = true;
    return "";
  }
  std::shared_ptr<List> held;
  bool used = false;
};

Value raise_exception(Interpreter&, const Arguments& arguments) {
  const Parameters parameters("raise_exception", arguments, {"message"}, 1);
  fail(TemplateError::Kind::raised, str(parameters[0]).bytes);
}

Value strftime_now(Interpreter& interpreter, const Arguments& arguments) {
  const Parameters parameters("strftime_now", arguments, {"format"}, 1);
  const Text format = parameters.text(0, "");
  std::tm now{};
  if (interpreter.options().now) {
    now = interpreter.options().now();
  } else {
    const std::time_t seconds = std::time(nullptr);
    localtime_r(&seconds, &now);
  }
  // A mark at the end tells an empty result from one that has no room.
  const std::string marked = format.bytes + "|";
  Budget::check_bytes(marked.size() * 64);
  std::string out(marked.size() * 64 + 64, '\0');
  out.resize(std::strftime(out.data(), out.size(), marked.c_str(), &now));
  if (!out.empty()) out.pop_back();
  return Text(std::move(out), format.any_foreign());
}

Value make_namespace(Interpreter& interpreter, const Arguments& arguments) {
  auto space = std::make_shared<Namespace>();
  for (const Value& each : arguments.positional) {
    if (each.mapping() == nullptr) fail_type("namespace() takes mappings", each);
    for (const auto& [key, value] : each.mapping()->entries()) space->values->set(key, value);
  }
  for (const auto& [key, value] : arguments.named) space->values->set(Value(std::string_view(key)), value);
  interpreter.end_with_rendering([values = space->values] { values->clear(); });
  return std::shared_ptr<Object>(std::move(space));
}

Value make_dict(Interpreter&, const Arguments& arguments) {
  if (arguments.positional.size() > 1) fail_other("dict expected at most 1 argument");
  auto out = make_mapping();
  for (const Value& each : arguments.positional) {
    if (each.mapping() != nullptr) {
      for (const auto& [key, value] : each.mapping()->entries()) out->set(key, value);
      continue;
    }
    for (const Value& pair : items_of(each)) {
      const auto items = items_of(pair);
      if (items.size() != 2) fail_other("dictionary update sequence element has not 2 items");
      out->set(items[0], items[1]);
    }
  }
  for (const auto& [key, value] : arguments.named) out->set(Value(std::string_view(key)), value);
  return out;
}

Value range(Interpreter&, const Arguments& arguments) {
  if (!arguments.named.empty()) fail_other("range() takes no keyword arguments");
  const Parameters parameters("range", arguments, {"start", "stop", "step"}, 1);
  const bool only_stop = !parameters.has(1);
  const Integer start = only_stop ? 0 : parameters.integer(0, 0);
  const Integer stop = only_stop ? parameters.integer(0, 0) : parameters.integer(1, 0);
  const Integer step = parameters.integer(2, 1);
  if (step == 0) fail_other("range() arg 3 must not be zero");
  const Integer span = step > 0 ? stop - start : start - stop, size = step > 0 ? step : -step;
  const Integer count = span > 0 ? (span + size - 1) / size : 0;
  if (count > kLongestRange) fail_other("Range too big. The sandbox blocks ranges larger than 100000.");
  auto out = std::make_shared<Range>(start, step, static_cast<std::size_t>(count));
  out->stop = stop;
  return std::shared_ptr<Object>(std::move(out));
}

Value make_cycler(Interpreter&, const Arguments& arguments) {
  if (arguments.positional.empty()) fail_other("at least one item has to be provided");
  auto out = std::make_shared<Cycler>(arguments.positional);
  out->self = out;
  return std::shared_ptr<Object>(std::move(out));
}

Value make_joiner(Interpreter&, const Arguments& arguments) {
  const Parameters parameters("joiner", arguments, {"sep"});
  return make_object<Joiner>(parameters.has(0) ? parameters[0] : Value(", "));
}

struct FunctionEntry {
  std::string_view name;
  Function function;
};

constexpr std::array<FunctionEntry, 7> kFunctions = {{{"raise_exception", raise_exception},
                                                      {"strftime_now", strftime_now},
                                                      {"namespace", make_namespace},
                                                      {"dict", make_dict},
                                                      {"range", range},
                                                      {"cycler", make_cycler},
                                                      {"joiner", make_joiner}}};

}  // namespace

bool is_function(std::string_view name) {
  return find_entry(kFunctions, name) != nullptr;
}

std::optional<Value> find_function(std::string_view name) {
  const auto* entry = find_entry(kFunctions, name);
  if (entry == nullptr) return std::nullopt;
  return make_object<FunctionValue>(entry->name, entry->function);
}

}  // namespace switchyard::jinja
