#include "chat/jinja/interpreter.h"

#include <fmt/format.h>

#include "chat/jinja/parser.h"

namespace switchyard::jinja {

const Value* Scope::find(NameId name) const {
  for (const auto& [id, value] : values_) {
    if (id == name) return &value;
  }
  return nullptr;
}

void Scope::set(NameId name, Value value) {
  for (auto& [id, old] : values_) {
    if (id != name) continue;
    old = std::move(value);
    return;
  }
  values_.emplace_back(name, std::move(value));
}

void Scope::clear() {
  std::vector<Value> containers;
  for (auto& [id, value] : values_) {
    if (value.holds_values()) containers.push_back(std::move(value));
  }
  values_.clear();
  bury(containers);
}

Interpreter::Interpreter(const ParsedTemplate& program, const RenderOptions& options)
    : program_(program),
      options_(options),
      budget_(options.limits),
      root_values_(program.names.size()),
      root_is_known_(program.names.size(), false),
      root_(std::make_shared<Scope>(nullptr)),
      scope_(root_) {}

Interpreter::~Interpreter() {
  for (const auto& release : releases_) release();
}

void Interpreter::fill_root(const Json& trusted, const Json& foreign) {
  const auto fill = [&](const Json& context, bool is_foreign, NameId id) {
    const auto found = context.find(program_.names[id]);
    if (found == context.end()) return false;
    root_values_[id] = value_of_json(*found, is_foreign, options_.choices);
    return true;
  };
  for (NameId id = 0; id < program_.names.size(); ++id) {
    bool known =
        (foreign.is_object() && fill(foreign, true, id)) || (trusted.is_object() && fill(trusted, false, id));
    if (!known) {
      if (auto function = find_function(program_.names[id])) {
        root_values_[id] = std::move(*function);
        known = true;
      }
    }
    root_is_known_[id] = known;
  }
}

const Value& Interpreter::lookup(NameId name, Value& undefined) const {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->outer().get()) {
    if (const Value* value = scope->find(name)) return *value;
  }
  if (root_is_known_[name]) return root_values_[name];
  undefined = undefined_value(fmt::format("'{}' is undefined", program_.names[name]));
  return undefined;
}

Text Interpreter::render(const Json& trusted, const Json& foreign) {
  fill_root(trusted, foreign);
  Text out;
  const OutputGuard guard(*this, out);
  top_output_ = output_;
  execute(program_.body);
  return out;
}

void Interpreter::mark_generated(std::size_t begin) {
  if (output_ == top_output_) generated_.push_back({begin, output_->size()});
}

DepthGuard::DepthGuard(Interpreter& interpreter) : interpreter_(interpreter) {
  if (interpreter.depth_ >= interpreter.options_.limits.depth)
    fail_limit("the template's calls are nested too deep");
  ++interpreter.depth_;
}

struct Template::Program : ParsedTemplate {};

Template Template::parse(std::string_view text) {
  auto program = std::make_shared<Program>();
  Parser(tokens_of(text), *program).parse();
  Template out;
  out.program_ = std::move(program);
  return out;
}

Rendered Template::render(const Json& trusted, const Json& foreign, const RenderOptions& options) const {
  Interpreter interpreter(*program_, options);
  Text text = interpreter.render(trusted, foreign);
  return {std::move(text.bytes), std::move(text.foreign), interpreter.generated()};
}

bool Template::marks_generation() const {
  return program_->marks_generation;
}

const std::set<std::string>& Template::free_names() const {
  return program_->free_names;
}

}  // namespace switchyard::jinja
