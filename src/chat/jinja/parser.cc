#include "chat/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>

namespace switchyard::jinja {

namespace {

constexpr int kMostNesting = 150;

std::string shown(const Token& token) {
  switch (token.type) {
    case Token::Type::data:
      return "text";
    case Token::Type::block_begin:
      return "begin of statement block";
    case Token::Type::block_end:
      return "end of statement block";
    case Token::Type::variable_begin:
      return "begin of print statement";
    case Token::Type::variable_end:
      return "end of print statement";
    case Token::Type::string:
      return "string";
    case Token::Type::integer:
      return "integer";
    case Token::Type::real:
      return "float";
    case Token::Type::end:
      return "end of template";
    default:
      return token.text;
  }
}

}  // namespace

Nesting::Nesting(Parser& parser) : parser_(parser) {
  if (parser_.nesting_ >= kMostNesting) fail_syntax("the template is nested too deep", parser.current().line);
  ++parser_.nesting_;
}

void Parser::parse() {
  program_.body = body_until({});
  if (current().type != Token::Type::end) fail_unexpected();
  if (!unknown_.empty()) fail_syntax(unknown_.front().first, unknown_.front().second);
}

const Token& Parser::take() {
  const Token& token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool Parser::skip_symbol(std::string_view symbol) {
  if (!current().is_symbol(symbol)) return false;
  take();
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  take();
  return true;
}

void Parser::expect_symbol(std::string_view symbol) {
  if (!skip_symbol(symbol)) {
    fail_syntax(fmt::format("expected token '{}', got '{}'", symbol, shown(current())), current().line);
  }
}

std::string Parser::expect_name() {
  if (current().type != Token::Type::name) {
    fail_syntax(fmt::format("expected token 'name', got '{}'", shown(current())), current().line);
  }
  return take().text;
}

void Parser::expect(Token::Type type) {
  if (current().type != type) {
    fail_syntax(
        fmt::format("expected token '{}', got '{}'", shown(Token{type, {}, 0, 0, 0}), shown(current())),
        current().line);
  }
  take();
}

void Parser::fail_unexpected() const {
  fail_syntax(fmt::format("unexpected '{}'", shown(current())), current().line);
}

void Parser::note_unknown(const char* kind, const std::string& name, int line) {
  if (!soft_) unknown_.emplace_back(fmt::format("No {} named '{}'.", kind, name), line);
}

NameId Parser::id_of(const std::string& name) {
  const auto [found, is_new] = program_.ids.emplace(name, program_.names.size());
  if (is_new) program_.names.push_back(name);
  return found->second;
}

void Parser::declare(const Target& target) {
  if (target.kind == Target::Kind::name) declare(target.name);
  if (target.kind == Target::Kind::attribute) read(target.name);
  for (const Target& part : target.parts) declare(part);
}

bool Parser::is_declared(NameId name) const {
  return std::any_of(declared_.begin(), declared_.end(),
                     [&](const auto& names) { return names.count(name) > 0; });
}

void Parser::read(NameId name) {
  for (std::set<NameId>* names : read_in_macro_) names->insert(name);
  if (!is_declared(name) && !is_function(program_.names[name]))
    program_.free_names.insert(program_.names[name]);
}

}  // namespace switchyard::jinja
