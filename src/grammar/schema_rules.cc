#include "grammar/schema_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "grammar/grammar.h"
#include "grammar/regex.h"
#include "grammar/schema_check.h"
#include "grammar/schema_node.h"
#include "grammar/work_limit.h"

namespace switchyard::grammar {

namespace {

constexpr int max_place_depth = 200;

class SchemaCompiler {
 public:
  SchemaCompiler(JsonRules& json, const Json& root) : json_(json), root_(root) {}

  // A rule for each different schema: so those that refer to themselves end, and equal ones are made once.
  Expression value(const Json& schema) {
    if (schema.is_boolean()) return schema.get<bool>() ? json_.value() : never();
    const std::string key = schema.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (const auto known = rule_of_.find(key); known != rule_of_.end()) return call(known->second);
    if (++depth_ > max_place_depth)
      throw GrammarError("a schema that refers to itself in ever new forms is not kept");
    const std::int32_t rule = json_.rules().reserve();
    rule_of_.emplace(key, rule);
    json_.rules().set(rule, of_node(SchemaNode(root_, schema), 0));
    --depth_;
    return call(rule);
  }

 private:
  // Long expressions become rules of their own, as they are copied and nested.
  Expression short_of(Expression expression) {
    constexpr std::size_t longest = 16;
    return expression.of.size() <= longest ? std::move(expression)
                                           : call(json_.rules().add(std::move(expression)));
  }

  Expression of_node(SchemaNode node, int choices) {
    WorkLimit::check();
    if (++places_ > Rules::max_rules) {
      throw GrammarError(
          fmt::format("the schema has more than {} places, with those of its references", Rules::max_rules));
    }
    if (choices > max_place_depth) throw GrammarError("an anyOf that refers to itself is not kept");
    if (!node.choices.empty()) {
      std::vector<Expression> of;
      const bool alone = node.only_choices();
      const Json branches = node.take_choice();
      for (const Json& branch : branches) {
        if (alone) {
          of.push_back(value(branch));
          continue;
        }
        SchemaNode both = node;
        both.add(branch);
        of.push_back(of_node(std::move(both), choices + 1));
      }
      return choice(std::move(of));
    }
    return node.values ? exact_values(node) : of_kinds(node);
  }

  Expression exact_values(SchemaNode& node) {
    const Json list = std::move(*node.values);
    node.values.reset();
    std::vector<Expression> of;
    for (const Json& value : list) {  // what stands beside an enum may keep a value of it out
      if (node_holds(root_, node, value, 0)) of.push_back(json_.exactly(value));
    }
    return choice(std::move(of));
  }

  Expression of_kinds(const SchemaNode& node) {
    std::vector<Expression> of;
    if (node.kinds & kind_object) of.push_back(object(node));
    if (node.kinds & kind_array) of.push_back(array(node));
    if (node.kinds & kind_string) of.push_back(string(node));
    if (node.kinds & kind_fraction) {
      of.push_back(number(node));
    } else if (node.kinds & kind_integer) {
      of.push_back(integer_between(node.integers));
    }
    if (node.kinds & kind_boolean) of.push_back(choice({text("true"), text("false")}));
    if (node.kinds & kind_null) of.push_back(text("null"));
    return choice(std::move(of));
  }

  static Expression number(const SchemaNode& node) {
    constexpr std::int64_t exact = std::int64_t{1} << 53;
    for (const auto& bound : {node.numbers.min, node.numbers.max}) {
      if (bound && (*bound > exact || *bound < -exact))
        throw GrammarError(
            "\"minimum\" or \"maximum\" beyond 2^53, of numbers that may have a fraction, is not kept");
    }
    if (node.fraction_bound)
      throw GrammarError(
          "\"minimum\" or \"maximum\" with a fraction, of numbers that may have one, is not kept");
    constexpr std::int64_t most = 1'000'000;  // with nine digits of fraction still exact enough
    const auto open = [](const std::optional<std::int64_t>& bound, bool out) {
      return out && bound && (*bound > most || *bound < -most);
    };
    if (open(node.numbers.min, node.numbers.above_min) || open(node.numbers.max, node.numbers.below_max)) {
      throw GrammarError(
          "\"exclusiveMinimum\" or \"exclusiveMaximum\" beyond a million, of numbers that may have a "
          "fraction, is not kept");
    }
    return number_between(node.numbers);
  }

  Expression string(const SchemaNode& node) {
    const bool any_length = node.min_length == 0 && node.max_length < 0;
    if (node.patterns.size() > 1)
      throw GrammarError("two \"pattern\" or \"format\" for one text are not kept");
    if (node.max_length >= 0 && node.max_length < node.min_length) return never();
    if (node.patterns.empty()) {
      if (any_length) return json_.string();
      return json_.string(node.min_length, node.max_length);
    }
    Regex regex = anchored(parse_regex(node.patterns.front()), true);
    if (!any_length) {
      std::optional<Regex> cut = with_length(regex, node.min_length, node.max_length);
      if (!cut)
        throw GrammarError(
            "\"minLength\" or \"maxLength\" beside this \"pattern\" or \"format\" is not kept");
      regex = std::move(*cut);
    }
    return sequence({text("\""), in_json(json_.rules(), regex), text("\"")});
  }

  Expression array(const SchemaNode& node) {
    if (node.array_parts.empty() && node.min_items == 0 && node.max_items < 0) return json_.array();
    const auto listed = static_cast<std::int64_t>(node.listed_items());
    const Json others = node.other_items();
    const bool no_others = others.is_boolean() && !others.get<bool>();
    std::int64_t most = node.max_items;
    if (no_others) most = most < 0 ? listed : std::min(most, listed);
    for (std::int64_t i = 0; i < listed; ++i) {
      const Json item = node.item(static_cast<std::size_t>(i));
      if (item.is_boolean() && !item.get<bool>()) most = most < 0 ? i : std::min(most, i);
    }
    if (most >= 0 && most < node.min_items) return never();
    Expression rest = text("");  // what stands after the listed items, with a comma before each
    if (!no_others && (most < 0 || most > listed)) {
      const std::int64_t to = most < 0 ? -1 : most - std::max<std::int64_t>(listed, 1);
      const std::int64_t from = std::max<std::int64_t>(0, node.min_items - std::max<std::int64_t>(listed, 1));
      rest = repeat(sequence({json_.comma(), value(others)}), from, to);
    }
    const std::int64_t first = most < 0 ? listed : std::min(listed, most);
    for (std::int64_t i = first - 1; i >= 1; --i) {
      rest = sequence({json_.comma(), value(node.item(static_cast<std::size_t>(i))), std::move(rest)});
      if (i >= node.min_items) rest = call(json_.rules().add(optional(std::move(rest))));
      rest = short_of(std::move(rest));
    }
    if (most == 0) return json_.brackets(never(), true);
    return json_.brackets(sequence({value(listed > 0 ? node.item(0) : others), std::move(rest)}),
                          node.min_items == 0);
  }

  Expression object(const SchemaNode& node) {
    if (node.object_parts.empty() && node.required.empty()) return json_.object();
    const std::vector<std::string> names = node.names();
    const Json others = node.additional();
    const bool no_others = others.is_boolean() && !others.get<bool>();
    Expression other = no_others ? never() : sequence({json_.key_but(names), json_.colon(), value(others)});
    // Built from the end: what may follow after a property, and what an object may begin with.
    Expression after = repeat(sequence({json_.comma(), other}), 0);
    Expression begin = sequence({std::move(other), after});
    if (!no_others) after = call(json_.rules().add(std::move(after)));
    bool may_be_empty = true;
    for (auto name = names.rbegin(); name != names.rend(); ++name) {
      const bool needed = std::find(node.required.begin(), node.required.end(), *name) != node.required.end();
      Expression pair = sequence({text(json_text_of(*name)), json_.colon(), value(node.property(*name))});
      if (pair.kind == Expression::Kind::never && !needed) continue;
      Expression from_here = sequence({pair, after});
      Expression next = sequence({json_.comma(), pair, after});
      if (needed) {
        may_be_empty = false;
        begin = short_of(std::move(from_here));
        after = short_of(std::move(next));
      } else {
        begin = short_of(choice({std::move(from_here), std::move(begin)}));
        after = call(json_.rules().add(choice({std::move(next), after})));
      }
    }
    return json_.braces(std::move(begin), may_be_empty);
  }

  JsonRules& json_;
  const Json& root_;
  std::map<std::string, std::int32_t> rule_of_;
  int depth_ = 0;
  std::size_t places_ = 0;
};

}  // namespace

Expression schema_expression(JsonRules& json, const Json& schema) {
  const WorkLimit limit;
  check_schema(schema);
  return SchemaCompiler(json, schema).value(schema);
}

}  // namespace switchyard::grammar
