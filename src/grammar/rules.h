// Rules: a grammar over code points and tokens, built as expressions and printed as xgrammar's EBNF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace switchyard::grammar {

// Code points as sorted ranges that neither touch nor overlap; both ends are in a range. None has surrogates.
class CodePoints {
 public:
  using Range = std::pair<std::uint32_t, std::uint32_t>;
  CodePoints() = default;
  CodePoints(std::uint32_t first, std::uint32_t last) { add(first, last); }
  static CodePoints all();

  void add(std::uint32_t first, std::uint32_t last);
  void add(const CodePoints& other);
  CodePoints without(const CodePoints& other) const;
  CodePoints complement() const { return all().without(*this); }
  bool has(std::uint32_t code_point) const;
  bool has_all(std::uint32_t first, std::uint32_t last) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

// The set of ASCII characters.
CodePoints set_of(std::string_view characters);
// GrammarError where `text` is not UTF-8.
std::vector<std::uint32_t> code_points_of(std::string_view text);
std::string utf8_of(std::uint32_t code_point);

struct Expression {
  enum class Kind { never, text, set, sequence, choice, repeat, rule, token };
  Kind kind = Kind::never;
  std::string text;  // UTF-8
  CodePoints set;
  std::vector<Expression> of;
  std::int64_t min = 0, max = -1;  // of a repeat; -1: without end
  std::int32_t id = 0;             // of a rule or a token
};

Expression never();
Expression text(std::string_view value);
Expression one_of(CodePoints set);
Expression sequence(std::vector<Expression> of);
Expression choice(std::vector<Expression> of);
Expression repeat(Expression of, std::int64_t min, std::int64_t max = -1);
inline Expression optional(Expression of) {
  return repeat(std::move(of), 0, 1);
}
Expression call(std::int32_t rule);
Expression token(std::int32_t id);

class Rules {
 public:
  // GrammarError beyond `max_rules`.
  std::int32_t reserve();
  void set(std::int32_t rule, Expression expression);
  std::int32_t add(Expression expression);
  // A rule that takes at most `characters` code points (a beginning of one more where it must not end there).
  std::int32_t add_limited(Expression expression, std::int64_t characters);
  // Prints all rules that `root` reaches. What can never end (a value that must have itself inside) is left
  // out; nothing where that is all of it.
  std::optional<std::string> ebnf(std::int32_t root) const;

  static constexpr std::size_t max_rules = 20'000;

 private:
  std::vector<bool> productive() const;
  std::vector<Expression> rules_;
  std::map<std::int32_t, std::int64_t> limits_;
};

}  // namespace switchyard::grammar
