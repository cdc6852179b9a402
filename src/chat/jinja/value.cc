#include "chat/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>

namespace switchyard::jinja {

namespace {

// A text whose bytes are counted as long as it lives.
struct CountedText : Text {
  explicit CountedText(Text&& text)
      : Text(std::move(text)), charged(Budget::take(sizeof(CountedText) + bytes.size())) {}
  ~CountedText() { Budget::give_back(charged); }
  CountedText(const CountedText&) = delete;
  CountedText& operator=(const CountedText&) = delete;
  std::size_t charged;
};

// Ends containers one after the other, not within each other: a template can nest them a million deep.
class Graveyard {
 public:
  void bury(Value&& value) {
    if (value.holds_values()) waiting_.push_back(std::move(value));
  }
  void empty() {
    if (busy_) return;
    busy_ = true;
    while (!waiting_.empty()) {
      const Value last = std::move(waiting_.back());
      waiting_.pop_back();
    }
    busy_ = false;
  }

 private:
  std::vector<Value> waiting_;
  bool busy_ = false;
};

Graveyard& graveyard() {
  thread_local Graveyard of_thread;
  return of_thread;
}

bool any_holds_values(const std::vector<Value>& items) {
  return std::any_of(items.begin(), items.end(), [](const Value& item) { return item.holds_values(); });
}

std::size_t charge_items(const std::vector<Value>& items) {
  Budget::count_steps(1 + items.size() / 16);
  return Budget::take(items.size() * sizeof(Value) + 64);
}

struct ItemsCursor : Cursor {
  explicit ItemsCursor(std::vector<Value> items_) : items(make_list(std::move(items_))) {}
  bool next(Value& value) override {
    if (at >= items->items.size()) return false;
    value = items->items[at++];
    return true;
  }
  std::shared_ptr<List> items;
  std::size_t at = 0;
};

}  // namespace

void bury(std::vector<Value>& items) {
  if (!any_holds_values(items)) return;
  for (Value& item : items) graveyard().bury(std::move(item));
  graveyard().empty();
}

Value::Value(Text text)
    : held_(std::shared_ptr<const Text>(std::make_shared<CountedText>(std::move(text)))) {}

std::optional<Integer> Value::integer() const {
  if (const auto* number = std::get_if<Integer>(&held_)) return *number;
  if (const bool* flag = boolean()) return *flag ? 1 : 0;
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const double* value = real()) return *value;
  if (const auto whole_number = integer()) return static_cast<double>(*whole_number);
  return std::nullopt;
}

const std::vector<Value>* Value::items() const {
  if (const List* values = list()) return &values->items;
  if (const Tuple* values = tuple()) return &values->items;
  return nullptr;
}

const void* Value::identity() const {
  if (text() != nullptr) return text();
  if (list() != nullptr) return list();
  if (tuple() != nullptr) return tuple();
  if (mapping() != nullptr) return mapping();
  return object();
}

bool Value::holds_values() const {
  return held_.index() >= 6;
}

List::List(std::vector<Value> items_) : items(std::move(items_)), charged_(charge_items(items)) {}

List::~List() {
  Budget::give_back(charged_);
  bury(items);
}

void List::push_back(Value value) {
  charged_ += Budget::take(sizeof(Value));
  items.push_back(std::move(value));
}

Tuple::Tuple(std::vector<Value> items_, bool is_group_)
    : items(std::move(items_)), is_group(is_group_), charged_(charge_items(items)) {}

Tuple::~Tuple() {
  Budget::give_back(charged_);
  bury(items);
}

void Object::show(Text& out) const {
  out.append(fmt::format("<{} object>", type_name()));
}

Value Object::call(Interpreter&, const Arguments&) {
  fail_other(fmt::format("'{}' object is not callable", type_name()));
}

std::optional<Value> Object::attribute(std::string_view) const {
  return std::nullopt;
}

std::shared_ptr<List> make_list(std::vector<Value> items) {
  return std::make_shared<List>(std::move(items));
}

std::shared_ptr<const Tuple> make_tuple(std::vector<Value> items) {
  return std::make_shared<const Tuple>(std::move(items));
}

std::shared_ptr<Mapping> make_mapping() {
  return std::make_shared<Mapping>();
}

std::shared_ptr<Cursor> cursor_of(std::vector<Value> items) {
  return std::make_shared<ItemsCursor>(std::move(items));
}

Value make_iterator(std::vector<Value> items) {
  return std::shared_ptr<Object>(std::make_shared<Iterator>(cursor_of(std::move(items))));
}

Value undefined_value(std::string message, bool unsafe) {
  return Undefined{std::make_shared<const std::string>(std::move(message)), unsafe};
}

std::string type_name(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "NoneType";
  if (value.boolean() != nullptr) return "bool";
  if (value.integer()) return "int";
  if (value.real() != nullptr) return "float";
  if (value.is_text()) return "str";
  if (value.list() != nullptr) return "list";
  if (value.tuple() != nullptr) return "tuple";
  if (value.mapping() != nullptr) return "dict";
  return std::string(value.object()->type_name());
}

Integer whole(Integer number) {
  constexpr Integer kLeast = INT64_MIN, kMost = UINT64_MAX;
  if (number < kLeast || number > kMost) fail_other("an integer has more than 64 bits");
  return number;
}

std::size_t to_size(Integer number) {
  constexpr Integer kMost = std::size_t{1} << 40;  // more than any budget has
  return static_cast<std::size_t>(std::clamp<Integer>(number, 0, kMost));
}

void fail_undefined(const Undefined& undefined) {
  fail(undefined.unsafe ? TemplateError::Kind::security : TemplateError::Kind::undefined,
       undefined.message ? *undefined.message : "an undefined value is used");
}

void refuse_undefined(const Value& value) {
  if (const Undefined* undefined = value.undefined()) fail_undefined(*undefined);
}

void fail_type(const std::string& message, const Value& value) {
  refuse_undefined(value);
  fail_other(message);
}

}  // namespace switchyard::jinja
