// `attribute=` of filters: names and numbers with dots between them.
#pragma once

#include <vector>

#include "chat/jinja/value.h"

namespace switchyard::jinja {

class AttributePath {
 public:
  // `attribute` is a text or a number; `otherwise`, where it is given, replaces an undefined value.
  explicit AttributePath(const Value& attribute, Value otherwise = Value());
  Value of(Interpreter& interpreter, const Value& value) const;

 private:
  std::vector<Value> parts_;
  Value otherwise_;
};

// One path for each part between commas.
std::vector<AttributePath> attribute_paths(const Value& attributes);

}  // namespace switchyard::jinja
