// Lexer: a template's text to tokens, with white space control (trim_blocks and lstrip_blocks are on).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chat/jinja/value.h"

namespace switchyard::jinja {

struct Token {
  enum class Type {
    data,
    block_begin,
    block_end,
    variable_begin,
    variable_end,
    name,
    string,
    integer,
    real,
    symbol,
    end
  };
  Type type = Type::end;
  std::string text;  // data, name, string and symbol
  Integer integer = 0;
  double real = 0;
  int line = 0;

  bool is_symbol(std::string_view symbol) const { return type == Type::symbol && text == symbol; }
  bool is_name(std::string_view name) const { return type == Type::name && text == name; }
};

// The last token has the type `end`. TemplateError of kind syntax.
std::vector<Token> tokens_of(std::string_view text);
[[noreturn]] void fail_syntax(const std::string& message, int line);

// lexer_literals.cc: what follows at `at`, which moves behind it.
Token number_at(std::string_view text, std::size_t& at, int line);
Token string_at(std::string_view text, std::size_t& at, int line);

}  // namespace switchyard::jinja
