// `for`: its iterations, and the value `loop` within them.
#include <fmt/format.h>

#include <deque>
#include <optional>

#include "chat/jinja/interpreter.h"

namespace switchyard::jinja {

namespace {

// The items that the loop's condition lets pass. The loop asks for one at a time, since a condition may read
// variables that the body changes.
class LoopItems {
 public:
  LoopItems(Interpreter& interpreter, const For& loop, const Value& iterable)
      : interpreter_(interpreter), loop_(loop), cursor_(iterate(iterable)) {}

  bool next(Value& value) {
    if (!ahead_.empty()) {
      value = std::move(ahead_.front());
      ahead_.pop_front();
      return true;
    }
    return fetch(value);
  }

  const Value* peek() {
    if (ahead_.empty()) {
      Value value;
      if (!fetch(value)) return nullptr;
      ahead_.push_back(std::move(value));
    }
    return &ahead_.front();
  }

  std::size_t count_rest() {
    for (Value value; fetch(value);) {
      Budget::check_bytes(ahead_.size() * sizeof(Value));
      ahead_.push_back(std::move(value));
    }
    return ahead_.size();
  }

 private:
  bool fetch(Value& value) {
    while (cursor_->next(value)) {
      Budget::count_steps();
      if (loop_.condition == nullptr || passes(value)) return true;
    }
    return false;
  }

  bool passes(const Value& value) {
    const ScopeGuard guard(interpreter_, std::make_shared<Scope>(scope_));
    interpreter_.assign(loop_.target, value);
    return is_true(loop_.condition->evaluate(interpreter_));
  }

  Interpreter& interpreter_;
  const For& loop_;
  std::shared_ptr<Scope> scope_ = interpreter_.scope();
  std::shared_ptr<Cursor> cursor_;
  std::deque<Value> ahead_;
};

struct LoopValue : Object {
  LoopValue(Interpreter& interpreter, const For& loop_, const Value& iterable, std::size_t depth_)
      : loop(loop_), items(interpreter, loop_, iterable), scope(interpreter.scope()), depth(depth_) {}

  std::string_view type_name() const override { return "LoopContext"; }
  bool is_callable() const override { return loop.recursive; }
  std::optional<std::size_t> length() const override { return all(); }

  bool next(Value& value) {
    if (!items.next(value)) return false;
    ++index;
    previous->items[0] = current->items[0];
    current->items[0] = value;
    return true;
  }

  // The length is asked for once, before an iteration changes what is over.
  std::size_t all() const {
    if (!known_length) known_length = index + items.count_rest();
    return *known_length;
  }

  Value call(Interpreter& interpreter, const Arguments& arguments) override {
    if (!loop.recursive) {
      fail_other("The loop must have the 'recursive' marker to be called recursively.");
    }
    const Parameters parameters("loop", arguments, {"iterable"}, 1);
    const DepthGuard deeper(interpreter);
    const ScopeGuard guard(interpreter, scope);
    Text out;
    const OutputGuard output(interpreter, out);
    interpreter.run_loop(loop, parameters[0], depth + 1);
    return out;
  }

  std::optional<Value> attribute(std::string_view name) const override;

  const For& loop;
  mutable LoopItems items;
  std::shared_ptr<Scope> scope;
  std::size_t depth, index = 0;
  mutable std::optional<std::size_t> known_length;
  std::shared_ptr<List> previous = make_list({Value()}), current = make_list({Value()}),
                        changed = make_list();
  std::weak_ptr<Object> self;
};

// loop.cycle and loop.changed.
struct LoopMethod : Object {
  LoopMethod(std::shared_ptr<Object> loop_, bool is_cycle_) : loop(std::move(loop_)), is_cycle(is_cycle_) {}
  std::string_view type_name() const override { return "method"; }
  bool is_callable() const override { return true; }

  Value call(Interpreter&, const Arguments& arguments) override {
    auto& state = static_cast<LoopValue&>(*loop);
    if (is_cycle) {
      if (arguments.positional.empty()) fail_other("no items for cycling given");
      return arguments.positional[(state.index - 1) % arguments.positional.size()];
    }
    const Value now = make_tuple(arguments.positional);
    auto& last = state.changed->items;
    if (!last.empty() && equal(last.front(), now)) return false;
    last.assign(1, now);
    return true;
  }

  std::shared_ptr<Object> loop;
  bool is_cycle;
};

std::optional<Value> LoopValue::attribute(std::string_view name) const {
  if (name == "index") return Value(index);
  if (name == "index0") return Value(index - 1);
  if (name == "first") return Value(index == 1);
  if (name == "last") return Value(items.peek() == nullptr);
  if (name == "length") return Value(all());
  if (name == "revindex") return Value(all() - index + 1);
  if (name == "revindex0") return Value(all() - index);
  if (name == "depth") return Value(depth + 1);
  if (name == "depth0") return Value(depth);
  if (name == "previtem") {
    return index == 1 ? undefined_value("there is no previous item") : previous->items[0];
  }
  if (name == "nextitem") {
    const Value* next = items.peek();
    return next == nullptr ? undefined_value("there is no next item") : *next;
  }
  if (name == "cycle" || name == "changed") return make_object<LoopMethod>(self.lock(), name == "cycle");
  return std::nullopt;
}

}  // namespace

void Interpreter::run_loop(const For& loop, const Value& iterable, std::size_t depth) {
  Budget::check_stack();
  const auto state = std::make_shared<LoopValue>(*this, loop, iterable, depth);
  state->self = state;
  const Value loop_value{std::shared_ptr<Object>(state)};
  const auto loop_name = program_.ids.find("loop")->second;
  auto scope = std::make_shared<Scope>(scope_);
  for (Value value; state->next(value);) {
    // A scope that a macro holds stays as that iteration left it.
    if (scope.use_count() > 1) scope = std::make_shared<Scope>(scope_);
    scope->clear();
    const ScopeGuard guard(*this, scope);
    scope->set(loop_name, loop_value);
    assign(loop.target, value);
    if (execute(loop.body) == Flow::breaks) break;
  }
  scope->clear();
  if (state->index > 0) return;
  const ScopeGuard guard(*this);
  execute(loop.otherwise);
}

}  // namespace switchyard::jinja
