// Operators, from those that bind the least to those that bind the most. The order is Jinja2's own: `~` binds
// tighter than `+`, and a sign tighter than `**`.
#include <fmt/format.h>

#include "chat/jinja/parser.h"

namespace switchyard::jinja {

namespace {

struct ArithmeticSymbol {
  const char* symbol;
  Arithmetic arithmetic;
};
struct ComparisonSymbol {
  const char* symbol;
  Comparison comparison;
};

constexpr ArithmeticSymbol kSums[] = {{"+", Arithmetic::add}, {"-", Arithmetic::subtract}};
constexpr ArithmeticSymbol kProducts[] = {{"*", Arithmetic::multiply},
                                          {"/", Arithmetic::divide},
                                          {"//", Arithmetic::floor_divide},
                                          {"%", Arithmetic::modulo}};
constexpr ArithmeticSymbol kPowers[] = {{"**", Arithmetic::power}};
constexpr ComparisonSymbol kComparisons[] = {{"==", Comparison::equal},  {"!=", Comparison::unequal},
                                             {"<", Comparison::less},    {"<=", Comparison::less_equal},
                                             {">", Comparison::greater}, {">=", Comparison::greater_equal}};

template <typename Symbols>
auto find_symbol(const Symbols& symbols, const Token& token) -> decltype(&symbols[0]) {
  for (const auto& each : symbols) {
    if (token.is_symbol(each.symbol)) return &each;
  }
  return nullptr;
}

// operand (symbol operand)*
template <typename Symbols, typename Current, typename Take, typename Operand>
ExpressionPtr arithmetic_chain(const Symbols& symbols, const Current& current, const Take& take,
                               const Operand& operand) {
  const int line = current().line;
  ExpressionPtr first = operand();
  if (find_symbol(symbols, current()) == nullptr) return first;
  auto chain = std::make_unique<ArithmeticChain>(line);
  chain->first = std::move(first);
  while (const auto* found = find_symbol(symbols, current())) {
    take();
    chain->rest.emplace_back(found->arithmetic, operand());
  }
  return chain;
}

}  // namespace

ExpressionPtr Parser::expression(bool with_condition) {
  const Nesting nesting(*this);
  return with_condition ? conditional() : logic_or();
}

ExpressionPtr Parser::conditional() {
  const Nesting nesting(*this);
  const int line = current().line;
  const std::size_t unknown_before = unknown_.size();
  ExpressionPtr node = logic_or();
  for (int depth = 0; skip_name("if"); ++depth) {
    if (depth > 100) fail_syntax("the template is nested too deep", line);
    auto choice = std::make_unique<Conditional>(line);
    choice->then = std::move(node);
    choice->condition = logic_or();
    if (skip_name("else")) choice->otherwise = conditional();
    unknown_.resize(unknown_before);
    node = std::move(choice);
  }
  return node;
}

ExpressionPtr Parser::logic_or() {
  const int line = current().line;
  ExpressionPtr first = logic_and();
  if (!current().is_name("or")) return first;
  auto logic = std::make_unique<Logic>(false, line);
  logic->operands.push_back(std::move(first));
  while (skip_name("or")) logic->operands.push_back(logic_and());
  return logic;
}

ExpressionPtr Parser::logic_and() {
  const int line = current().line;
  ExpressionPtr first = logic_not();
  if (!current().is_name("and")) return first;
  auto logic = std::make_unique<Logic>(true, line);
  logic->operands.push_back(std::move(first));
  while (skip_name("and")) logic->operands.push_back(logic_not());
  return logic;
}

ExpressionPtr Parser::logic_not() {
  const Nesting nesting(*this);
  const int line = current().line;
  if (skip_name("not")) return std::make_unique<Unary>(Unary::Operator::logical_not, logic_not(), line);
  return comparison();
}

ExpressionPtr Parser::comparison() {
  auto chain = std::make_unique<ComparisonChain>(current().line);
  chain->first = sum();
  while (true) {
    if (const auto* found = find_symbol(kComparisons, current())) {
      take();
      chain->rest.emplace_back(found->comparison, sum());
    } else if (skip_name("in")) {
      chain->rest.emplace_back(Comparison::in, sum());
    } else if (current().is_name("not") && look().is_name("in")) {
      take();
      take();
      chain->rest.emplace_back(Comparison::not_in, sum());
    } else {
      break;
    }
  }
  if (chain->rest.empty()) return std::move(chain->first);
  return chain;
}

ExpressionPtr Parser::sum() {
  return arithmetic_chain(
      kSums, [this]() -> const Token& { return current(); }, [this] { take(); }, [this] { return concat(); });
}

ExpressionPtr Parser::concat() {
  const int line = current().line;
  ExpressionPtr first = product();
  if (!current().is_symbol("~")) return first;
  auto concat = std::make_unique<Concat>(line);
  concat->parts.push_back(std::move(first));
  while (skip_symbol("~")) concat->parts.push_back(product());
  return concat;
}

ExpressionPtr Parser::product() {
  return arithmetic_chain(
      kProducts, [this]() -> const Token& { return current(); }, [this] { take(); },
      [this] { return power(); });
}

ExpressionPtr Parser::power() {
  return arithmetic_chain(
      kPowers, [this]() -> const Token& { return current(); }, [this] { take(); },
      [this] { return unary(); });
}

ExpressionPtr Parser::unary(bool with_filters) {
  const Nesting nesting(*this);
  const int line = current().line;
  ExpressionPtr node;
  if (skip_symbol("-")) {
    node = std::make_unique<Unary>(Unary::Operator::minus, unary(false), line);
  } else if (skip_symbol("+")) {
    node = std::make_unique<Unary>(Unary::Operator::plus, unary(false), line);
  } else {
    node = primary();
  }
  node = postfix(std::move(node));
  return with_filters ? filters(std::move(node)) : std::move(node);
}

}  // namespace switchyard::jinja
