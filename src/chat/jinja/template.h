// Template: renders chat templates, which are written in Jinja2 as transformers runs it (Jinja2 3.1.6 with
// trim_blocks, lstrip_blocks, loop controls and `generation` blocks; docs/serving.md lists the language).
// A template is foreign code: rendering is limited in steps, bytes and depth, and cannot reach anything else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/text_range.h"

namespace switchyard::jinja {

using Json = nlohmann::ordered_json;

struct TemplateError : std::runtime_error {
  // syntax: also unknown filters and tests. raised: the template called raise_exception, and what() is its
  // text exactly. undefined: an attribute, call or sum of an undefined value. security: names that begin with
  // `_`, and changes of a list or mapping where they are not allowed. limit: RenderLimits. other: wrong
  // types, a division by zero and the like.
  enum class Kind { syntax, raised, undefined, security, limit, other };
  TemplateError(Kind kind_, const std::string& message, int line_ = 0)
      : std::runtime_error(message), kind(kind_), line(line_) {}
  Kind kind;
  int line;  // of the template, from 1; 0: not known
};

struct RenderLimits {
  std::size_t steps = 10'000'000, bytes = std::size_t{64} << 20, depth = 200;
};

// The texts that are known of a member of an object: {"role": {"user", "assistant"}}.
using MemberChoices = std::map<std::string, std::set<std::string>>;

struct RenderOptions {
  std::function<std::tm()> now = {};  // local time for strftime_now; without: the clock's
  bool allow_mutation = false;        // append, pop, update, … of lists and mappings
  RenderLimits limits = {};
  MemberChoices choices = {};  // members of foreign objects that, with one of these texts, are not foreign
};

struct Rendered {
  std::string text;
  // The parts of `text` that came from the foreign context, in order, apart from each other. What a filter
  // made of foreign text is foreign, too.
  std::vector<TextRange> foreign;
  // The parts of `text` that `generation` blocks printed into it, in order. A block within a macro, a filter
  // or a block of `set` makes a value, and nothing says where in the text that value will stand.
  std::vector<TextRange> generated;
};

// Immutable after parse(); any thread may call any function.
class Template {
 public:
  // TemplateError of kind syntax.
  static Template parse(std::string_view text);
  // Renders with the names of `trusted` and `foreign` (objects; a name in both is that of `foreign`). Texts
  // within `foreign` are tracked into Rendered::foreign. TemplateError.
  Rendered render(const Json& trusted, const Json& foreign, const RenderOptions& options) const;
  // True where the template has a `generation` block.
  bool marks_generation() const;
  // Names that the template reads from the context.
  const std::set<std::string>& free_names() const;

 private:
  struct Program;
  std::shared_ptr<const Program> program_;
};

}  // namespace switchyard::jinja
