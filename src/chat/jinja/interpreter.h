// Interpreter: the state of one rendering.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "chat/jinja/ast.h"
#include "chat/jinja/budget.h"

namespace switchyard::jinja {

// Names of one body; those of the bodies around it are seen through it.
class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> outer) : outer_(std::move(outer)) {}
  ~Scope() { clear(); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  const Value* find(NameId name) const;
  void set(NameId name, Value value);
  void clear();
  const std::shared_ptr<Scope>& outer() const { return outer_; }

 private:
  std::vector<std::pair<NameId, Value>> values_;
  std::shared_ptr<Scope> outer_;
};

class Interpreter {
 public:
  Interpreter(const ParsedTemplate& program, const RenderOptions& options);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Text render(const Json& trusted, const Json& foreign);

  // execute.cc
  Flow execute(const Body& body);
  Text text_of(const Body& body);  // what the body prints, in a scope that the caller has entered
  void assign(const Target& target, const Value& value);
  Value call_macro(const MacroDefinition& definition, const std::shared_ptr<Scope>& scope,
                   const Arguments& arguments);
  void run_loop(const For& loop, const Value& iterable, std::size_t depth);  // loop.cc

  // access.cc
  Value attribute(const Value& value, const std::string& name);
  Value item(const Value& value, const Value& index);
  Value call(const Value& callee, const Arguments& arguments);
  Value call_method(const Value& value, const std::string& name, const Arguments& arguments);

  const Value& lookup(NameId name, Value& undefined) const;
  Text& output() { return *output_; }
  // A `generation` block printed what the output has from `begin` on.
  void mark_generated(std::size_t begin);
  const std::vector<TextRange>& generated() const { return generated_; }
  const RenderOptions& options() const { return options_; }
  const std::string& name(NameId id) const { return program_.names[id]; }
  const std::shared_ptr<Scope>& scope() const { return scope_; }
  const std::shared_ptr<Scope>& root() const { return root_; }
  // The rendering ends values that may hold themselves: namespaces, changed lists, scopes with a macro.
  void end_with_rendering(std::function<void()> release) { releases_.push_back(std::move(release)); }

 private:
  friend class ScopeGuard;
  friend class OutputGuard;
  friend class DepthGuard;
  void fill_root(const Json& trusted, const Json& foreign);
  void execute_one(const Statement& statement, Flow& flow);
  void bind(const MacroDefinition& definition, Scope& scope, const Arguments& arguments);

  const ParsedTemplate& program_;
  const RenderOptions& options_;
  Budget budget_;
  std::vector<Value> root_values_;   // by NameId
  std::vector<bool> root_is_known_;  // from the context or a function
  std::shared_ptr<Scope> root_, scope_;
  Text *output_ = nullptr, *top_output_ = nullptr;
  std::vector<TextRange> generated_;
  std::size_t depth_ = 0;
  std::vector<std::function<void()>> releases_;
};

// Runs what follows in another scope.
class ScopeGuard {
 public:
  ScopeGuard(Interpreter& interpreter, std::shared_ptr<Scope> scope)
      : interpreter_(interpreter), before_(std::move(interpreter.scope_)) {
    interpreter_.scope_ = std::move(scope);
  }
  // A new scope within the one that is current.
  explicit ScopeGuard(Interpreter& interpreter)
      : ScopeGuard(interpreter, std::make_shared<Scope>(interpreter.scope_)) {}
  ~ScopeGuard() { interpreter_.scope_ = std::move(before_); }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;
  const std::shared_ptr<Scope>& outer() const { return before_; }

 private:
  Interpreter& interpreter_;
  std::shared_ptr<Scope> before_;
};

// Prints what follows into another text.
class OutputGuard {
 public:
  OutputGuard(Interpreter& interpreter, Text& output)
      : interpreter_(interpreter), before_(interpreter.output_) {
    interpreter_.output_ = &output;
  }
  ~OutputGuard() { interpreter_.output_ = before_; }
  OutputGuard(const OutputGuard&) = delete;
  OutputGuard& operator=(const OutputGuard&) = delete;

 private:
  Interpreter& interpreter_;
  Text* before_;
};

// One call of a macro or of a recursive loop.
class DepthGuard {
 public:
  explicit DepthGuard(Interpreter& interpreter);
  ~DepthGuard() { --interpreter_.depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  Interpreter& interpreter_;
};

// Python's types that functions and methods give.
struct Namespace : Object {
  std::string_view type_name() const override { return "Namespace"; }
  std::optional<Value> attribute(std::string_view name) const override;
  void show(Text& out) const override;
  std::shared_ptr<Mapping> values = make_mapping();
};

struct BoundMethod : Object {
  BoundMethod(const Value& self, const MethodEntry& entry_) : held(make_list({self})), entry(entry_) {}
  std::string_view type_name() const override { return "builtin_function_or_method"; }
  bool is_callable() const override { return true; }
  Value call(Interpreter& interpreter, const Arguments& arguments) override;
  std::shared_ptr<List> held;
  const MethodEntry& entry;
};

struct MacroValue : Object {
  MacroValue(const MacroDefinition& definition_, std::shared_ptr<Scope> scope_)
      : definition(definition_), scope(std::move(scope_)) {}
  std::string_view type_name() const override { return "Macro"; }
  bool is_callable() const override { return true; }
  Value call(Interpreter& interpreter, const Arguments& arguments) override;
  std::optional<Value> attribute(std::string_view name) const override;
  const MacroDefinition& definition;
  std::shared_ptr<Scope> scope;
};

// dict.keys(), .values() and .items().
struct View : Object {
  View(std::string_view name, std::vector<Value> values) : name_(name), items(make_list(std::move(values))) {}
  std::string_view type_name() const override { return name_; }
  void show(Text& out) const override;
  std::shared_ptr<Cursor> iterate() override { return try_iterate(Value(items)); }
  std::optional<std::size_t> length() const override { return items->items.size(); }
  std::string_view name_;
  std::shared_ptr<List> items;
};

template <typename T, typename... Args>
Value make_object(Args&&... args) {
  return std::shared_ptr<Object>(std::make_shared<T>(std::forward<Args>(args)...));
}

}  // namespace switchyard::jinja
