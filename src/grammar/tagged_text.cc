#include "grammar/tagged_text.h"

#include <algorithm>
#include <set>
#include <utility>

#include "grammar/counted.h"
#include "grammar/grammar.h"
#include "grammar/regex.h"
#include "grammar/schema_check.h"
#include "grammar/schema_node.h"
#include "grammar/schema_rules.h"
#include "grammar/work_limit.h"

namespace switchyard::grammar {

namespace {

constexpr std::size_t max_leaves = 1'000;
constexpr int max_choices = 64;  // within each other

// The schema once for each way through its choices.
void add_leaves(SchemaNode node, int choices, std::vector<SchemaNode>& leaves) {
  WorkLimit::check();
  if (choices > max_choices) throw GrammarError("an anyOf that refers to itself is not kept");
  if (node.choices.empty()) {
    if (leaves.size() >= max_leaves)
      throw GrammarError("more than a thousand branches of \"anyOf\" are not kept");
    leaves.push_back(std::move(node));
    return;
  }
  for (const Json& branch : node.take_choice()) {
    SchemaNode both = node;
    both.add(branch);
    add_leaves(std::move(both), choices + 1, leaves);
  }
}

unsigned kind_of(const Json& value) {
  if (value.is_null()) return kind_null;
  if (value.is_boolean()) return kind_boolean;
  if (value.is_number()) return kind_number;
  if (value.is_array()) return kind_array;
  return value.is_object() ? unsigned{kind_object} : 0u;
}

// The kinds other than text that the leaf takes.
unsigned other_kinds(const SchemaNode& leaf) {
  if (!leaf.values) return leaf.kinds & ~kind_string;
  unsigned kinds = 0;
  for (const Json& value : *leaf.values) kinds |= kind_of(value);
  return kinds;
}

// Returns the kinds, other than text, of which the leaf takes only some values.
unsigned demanding_kinds(const SchemaNode& leaf) {
  unsigned kinds = 0;
  if (leaf.values) return other_kinds(leaf) & ~kind_null;
  if (leaf.integers.min || leaf.integers.max) kinds |= kind_number;
  if (!leaf.array_parts.empty() || leaf.min_items > 0 || leaf.max_items >= 0) kinds |= kind_array;
  if (!leaf.object_parts.empty() || !leaf.required.empty()) kinds |= kind_object;
  return kinds & leaf.kinds;
}

// The characters with which JSON of the kinds, or its Python, begins.
CodePoints beginnings(unsigned kinds) {
  CodePoints set;
  if (kinds & kind_number) set.add(set_of("-0123456789"));
  if (kinds & kind_array) set.add(set_of("["));
  if (kinds & kind_object) set.add(set_of("{"));
  if (kinds & kind_boolean) set.add(set_of("tfTF"));
  if (kinds & kind_null) set.add(set_of("nN"));
  if (!set.empty()) set.add(set_of(" \t\n\v\f\r<"));
  return set;
}

// Returns whether a text is JSON of one of the kinds, or its Python.
bool is_json_of(const std::string& text, unsigned kinds) {
  constexpr const char* kSpace = " \t\n\v\f\r";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos) return false;
  const std::string bare = text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
  if (bare == "True" || bare == "False") return kinds & kind_boolean;
  if (bare == "None") return kinds & kind_null;
  const Json value = Json::parse(bare, nullptr, false);
  return !value.is_discarded() && (kind_of(value) & kinds) != 0;
}

// Takes the tag's first character out of a regex's sets or, where the regex asks for it, the second.
void leave_out(Regex& regex, std::uint32_t character, bool& asks_for_it) {
  if (regex.kind == Regex::Kind::set && regex.set.has(character)) {
    CodePoints others = regex.set.without({character, character});
    asks_for_it = asks_for_it || others.empty();
    if (!others.empty()) regex.set = std::move(others);
  }
  for (Regex& part : regex.of) leave_out(part, character, asks_for_it);
}

class TaggedCompiler {
 public:
  TaggedCompiler(JsonRules& json, std::string_view tag, const Expression& end)
      : json_(json), tag_(code_points_of(tag)), end_(end), text_tag_(tag) {}

  // The exact texts of a leaf with values. `others`: kinds as which a text may be read.
  void add_values(const Json& root, SchemaNode& leaf, unsigned others, std::vector<Expression>& of) {
    const Json list = std::move(*leaf.values);
    leaf.values.reset();
    std::size_t written = 0, left_out = 0;
    for (const Json& value : list) {
      if (!value.is_string() || !node_holds(root, leaf, value, 0)) continue;
      const auto one = value.get<std::string>();
      const bool is_read = one.find(text_tag_) == std::string::npos && !is_json_of(one, others);
      is_read ? ++written : ++left_out;
      if (is_read) of.push_back(sequence({text(one), end_}));
    }
    if (written == 0 && left_out > 0)
      throw GrammarError(
          "\"enum\" or \"const\" with a text that would be read as another value between tags is not kept");
  }

  Expression string(const SchemaNode& leaf, unsigned demanding) {
    if (leaf.patterns.size() > 1)
      throw GrammarError("two \"pattern\" or \"format\" for one text are not kept");
    const std::int64_t min = leaf.min_length, max = leaf.max_length;
    if (max >= 0 && max < min) return never();
    const CodePoints not_first = beginnings(demanding);
    if (!leaf.patterns.empty()) {
      if (!not_first.empty())
        throw GrammarError(
            "\"pattern\" or \"format\" of a text beside other types with demands is not kept where tags "
            "stand "
            "around values");
      return sequence({as_text(json_.rules(), regex_of(leaf)), end_});
    }
    if (not_first.empty()) return of_length(min, max);
    if (max == 0) return end_;
    Expression some = sequence({one_of(not_first.complement()),
                                of_length(std::max<std::int64_t>(min, 1) - 1, max < 0 ? -1 : max - 1)});
    return min > 0 ? some : choice({end_, std::move(some)});
  }

 private:
  Regex regex_of(const SchemaNode& leaf) const {
    Regex regex = anchored(parse_regex(leaf.patterns.front()), true);
    if (leaf.min_length > 0 || leaf.max_length >= 0) {
      std::optional<Regex> cut = with_length(regex, leaf.min_length, leaf.max_length);
      if (!cut)
        throw GrammarError(
            "\"minLength\" or \"maxLength\" beside this \"pattern\" or \"format\" is not kept");
      regex = std::move(*cut);
    }
    bool asks_for_first = false, asks_for_second = false;
    leave_out(regex, tag_[0], asks_for_first);
    if (asks_for_first) leave_out(regex, tag_[1], asks_for_second);
    if (asks_for_second)
      throw GrammarError("a \"pattern\" whose texts may have the tag that ends the value is not kept");
    return regex;
  }

  // Counted characters leave out the tag's first one.
  Expression of_length(std::int64_t min, std::int64_t max) {
    const CharacterForms forms{one_of(CodePoints(tag_[0], tag_[0]).complement()), never()};
    if (max >= 0) return counted(json_.rules(), forms, min, max, end_);
    if (min == 0) return call(any_text());
    return counted(json_.rules(), forms, min, min, call(any_text()));
  }

  // A state for each number of the tag's characters that the text ends with (Knuth, Morris and Pratt).
  std::int32_t any_text() {
    if (any_text_) return *any_text_;
    std::vector<std::int32_t> states;
    for (std::size_t i = 0; i < tag_.size(); ++i) states.push_back(json_.rules().reserve());
    const std::set<std::uint32_t> alphabet(tag_.begin(), tag_.end());
    CodePoints others = CodePoints::all();
    for (std::uint32_t c : alphabet) others = others.without({c, c});
    for (std::size_t at = 0; at < tag_.size(); ++at) {
      std::vector<Expression> of;
      for (std::uint32_t c : alphabet) {
        const std::size_t next = state_after(at, c);
        if (next < tag_.size()) of.push_back(sequence({text(utf8_of(c)), call(states[next])}));
      }
      of.push_back(sequence({one_of(others), call(states[0])}));
      of.push_back(end_);
      json_.rules().set(states[at], choice(std::move(of)));
    }
    any_text_ = states[0];
    return *any_text_;
  }

  std::size_t state_after(std::size_t at, std::uint32_t next) const {
    std::vector<std::uint32_t> seen(tag_.begin(), tag_.begin() + static_cast<std::ptrdiff_t>(at));
    seen.push_back(next);
    while (!seen.empty() && !std::equal(seen.begin(), seen.end(), tag_.begin())) seen.erase(seen.begin());
    return seen.size();
  }

  JsonRules& json_;
  const std::vector<std::uint32_t> tag_;
  const Expression end_;
  const std::string_view text_tag_;
  std::optional<std::int32_t> any_text_;
};

// The schema without texts.
Json without_texts(const Json& schema) {
  Json made = Json::object();
  for (const char* key : {"$defs", "definitions"})
    if (schema.is_object() && schema.contains(key)) made[key] = schema.at(key);
  made["allOf"] = Json::array(
      {schema, {{"type", Json::array({"null", "boolean", "integer", "number", "array", "object"})}}});
  return made;
}

}  // namespace

Expression tagged_expression(JsonRules& json, const Json& schema, bool is_text, std::string_view tag,
                             const Expression& end) {
  const WorkLimit limit;
  check_schema(schema);
  std::vector<SchemaNode> leaves;
  add_leaves(SchemaNode(schema, schema), 0, leaves);
  unsigned others = 0, demanding = 0;
  for (const SchemaNode& leaf : leaves) {
    others |= is_text ? 0 : other_kinds(leaf);
    demanding |= is_text ? 0 : demanding_kinds(leaf);
  }
  TaggedCompiler compiler(json, tag, end);
  std::vector<Expression> of;
  for (SchemaNode& leaf : leaves) {
    if (leaf.values)
      compiler.add_values(schema, leaf, others, of);
    else if (leaf.kinds & kind_string)
      of.push_back(compiler.string(leaf, demanding));
  }
  if (!is_text) of.push_back(sequence({schema_expression(json, without_texts(schema)), end}));
  return choice(std::move(of));
}

}  // namespace switchyard::grammar
