// Value: what an expression of a template gives. Containers are shared, as in Python.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "chat/jinja/budget.h"
#include "chat/jinja/text.h"

namespace switchyard::jinja {

class Interpreter;
class Value;
struct Arguments;
struct List;
struct Tuple;
struct Mapping;
struct Object;

// Wide enough for signed and unsigned numbers of 64 bits; whole() refuses results beyond.
__extension__ typedef __int128 Integer;

struct Undefined {
  std::shared_ptr<const std::string> message;  // of the error that a use of it is
  bool unsafe = false;                         // a use is an error of kind security
};
struct None {};

class Value {
 public:
  Value() : held_(None{}) {}
  Value(Undefined undefined) : held_(std::move(undefined)) {}
  Value(None) : held_(None{}) {}
  Value(bool flag) : held_(flag) {}
  Value(Integer number) : held_(number) {}
  Value(int number) : held_(static_cast<Integer>(number)) {}
  Value(std::size_t number) : held_(static_cast<Integer>(number)) {}
  Value(double number) : held_(number) {}
  Value(Text text);
  Value(std::string_view plain) : Value(Text(std::string(plain))) {}
  Value(const char* plain) : Value(std::string_view(plain)) {}
  Value(std::shared_ptr<const Text> text) : held_(std::move(text)) {}
  Value(std::shared_ptr<List> list) : held_(std::move(list)) {}
  Value(std::shared_ptr<const Tuple> tuple) : held_(std::move(tuple)) {}
  Value(std::shared_ptr<Mapping> mapping) : held_(std::move(mapping)) {}
  Value(std::shared_ptr<Object> object) : held_(std::move(object)) {}

  bool is_undefined() const { return std::holds_alternative<Undefined>(held_); }
  bool is_none() const { return std::holds_alternative<None>(held_); }
  bool is_text() const { return std::holds_alternative<std::shared_ptr<const Text>>(held_); }
  bool is_sequence() const { return list() != nullptr || tuple() != nullptr; }

  // Null where the value is of another type.
  const Undefined* undefined() const { return std::get_if<Undefined>(&held_); }
  const bool* boolean() const { return std::get_if<bool>(&held_); }
  const double* real() const { return std::get_if<double>(&held_); }
  const Text* text() const { return get<const Text>(); }
  List* list() const { return get<List>(); }
  const Tuple* tuple() const { return get<const Tuple>(); }
  Mapping* mapping() const { return get<Mapping>(); }
  Object* object() const { return get<Object>(); }
  const std::shared_ptr<List>* shared_list() const { return std::get_if<std::shared_ptr<List>>(&held_); }
  const std::shared_ptr<Mapping>* shared_mapping() const {
    return std::get_if<std::shared_ptr<Mapping>>(&held_);
  }
  // Booleans are integers, as in Python.
  std::optional<Integer> integer() const;
  std::optional<double> number() const;
  // The items of a list or tuple; null for others.
  const std::vector<Value>* items() const;
  const void* identity() const;
  bool holds_values() const;

 private:
  template <typename T>
  T* get() const {
    const auto* found = std::get_if<std::shared_ptr<T>>(&held_);
    return found == nullptr ? nullptr : found->get();
  }

  std::variant<None, Undefined, bool, Integer, double, std::shared_ptr<const Text>, std::shared_ptr<List>,
               std::shared_ptr<const Tuple>, std::shared_ptr<Mapping>, std::shared_ptr<Object>>
      held_;
};

// Ends values one after the other, not within each other, and without failing.
void bury(std::vector<Value>& items);

struct List {
  explicit List(std::vector<Value> items_);
  ~List();
  List(const List&) = delete;
  List& operator=(const List&) = delete;
  void push_back(Value value);
  std::vector<Value> items;

 private:
  std::size_t charged_;
};

struct Tuple {
  explicit Tuple(std::vector<Value> items_, bool is_group_ = false);
  ~Tuple();
  Tuple(const Tuple&) = delete;
  Tuple& operator=(const Tuple&) = delete;
  std::vector<Value> items;
  bool is_group;  // of groupby: items have the names `grouper` and `list`

 private:
  std::size_t charged_;
};

// Python's dict: keys in the order of their first setting. Keys are texts, numbers, none or tuples of such.
struct Mapping {
  using Entry = std::pair<Value, Value>;
  Mapping() = default;
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const std::vector<Entry>& entries() const { return entries_; }
  // TemplateError of kind other for a key that cannot be one.
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(const Value& key, Value value);
  bool erase(const Value& key);
  void clear();

 private:
  static constexpr std::size_t kIndexedFrom = 9;  // fewer are found sooner by looking at each
  std::size_t position(const Value& key) const;   // entries_.size() where it is not there
  std::size_t position(std::string_view key) const;
  void make_index();

  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, std::size_t> index_;  // of texts; views into the keys
  std::size_t other_keys_ = 0, charged_ = 0;
};

// Everything else: functions, namespaces, loops, views, iterators. Values within are held through a List or a
// Mapping, whose destructors do not recurse.
struct Object {
  virtual ~Object() = default;
  virtual std::string_view type_name() const = 0;
  virtual void show(Text& out) const;
  virtual bool is_callable() const { return false; }
  virtual Value call(Interpreter& interpreter, const Arguments& arguments);
  virtual std::optional<Value> attribute(std::string_view name) const;
  // One iteration over it; null where it has none.
  virtual std::shared_ptr<struct Cursor> iterate() { return nullptr; }
  virtual std::optional<std::size_t> length() const { return std::nullopt; }
  virtual bool is_sequence() const { return false; }
  virtual std::optional<Value> item(Integer) const { return std::nullopt; }
};

// Gives one value after another.
struct Cursor {
  virtual ~Cursor() = default;
  virtual bool next(Value& value) = 0;  // false: the end
};

// Python's generators and iterators: read once.
struct Iterator : Object {
  explicit Iterator(std::shared_ptr<Cursor> cursor_) : cursor(std::move(cursor_)) {}
  std::string_view type_name() const override { return "generator"; }
  std::shared_ptr<Cursor> iterate() override { return cursor; }
  std::shared_ptr<Cursor> cursor;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  const Value* find(std::string_view name) const;
};

// The arguments of one call to a function whose parameters have `names`. TemplateError of kind other where
// there are too many, one is not known or given twice, or one of the first `required` is not there.
class Parameters {
 public:
  Parameters(std::string_view function, const Arguments& arguments, std::initializer_list<const char*> names,
             std::size_t required = 0);
  bool has(std::size_t index) const { return values_[index] != nullptr; }
  bool has_value(std::size_t index) const { return has(index) && !values_[index]->is_none(); }
  const Value& operator[](std::size_t index) const;
  bool flag(std::size_t index, bool otherwise) const;
  Integer integer(std::size_t index, Integer otherwise) const;
  Text text(std::size_t index, std::string_view otherwise) const;

 private:
  std::string_view function_;
  std::vector<const Value*> values_;
};

std::shared_ptr<List> make_list(std::vector<Value> items = {});
std::shared_ptr<const Tuple> make_tuple(std::vector<Value> items);
std::shared_ptr<Mapping> make_mapping();
Value make_iterator(std::vector<Value> items);
std::shared_ptr<Cursor> cursor_of(std::vector<Value> items);
Value undefined_value(std::string message, bool unsafe = false);

std::string type_name(const Value& value);  // Python's
bool is_true(const Value& value);
bool equal(const Value& a, const Value& b);
// Less than zero, zero or more. TemplateError of kind other where Python does not order them.
int compare(const Value& a, const Value& b, const char* sign = "<");
bool contains(const Value& container, const Value& item);
std::optional<std::size_t> length_of(const Value& value);
// Null where Python says "not iterable".
std::shared_ptr<Cursor> try_iterate(const Value& value);
std::shared_ptr<Cursor> iterate(const Value& value);
std::vector<Value> items_of(const Value& value);
Integer whole(Integer number);        // TemplateError of kind other where it has more than 64 bits
std::size_t to_size(Integer number);  // of 0 or more, no larger than can be
// A step for each value that a list or text has; fails on undefined with its own message.
[[noreturn]] void fail_undefined(const Undefined& undefined);
void refuse_undefined(const Value& value);
[[noreturn]] void fail_type(const std::string& message, const Value& value);  // or undefined's own error

// print.cc: Python's str and repr.
void append_str(Text& out, const Value& value);
void append_repr(Text& out, const Value& value);
Text str(const Value& value);       // always a plain text
Text soft_str(const Value& value);  // Markup stays Markup
std::string float_repr(double value);
std::string integer_text(Integer value);

}  // namespace switchyard::jinja
