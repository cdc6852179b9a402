// Sets of characters: the algebra of the classes in regular expressions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tokenizer/unicode_tables.h"

namespace switchyard {

// Characters as ranges in order, apart from each other. Surrogates are no characters and belong to no set.
class CodeSet {
 public:
  CodeSet() = default;
  CodeSet(std::uint32_t first, std::uint32_t last) : CodeSet(std::vector<CodeRange>{{first, last}}) {}
  explicit CodeSet(std::vector<CodeRange> ranges);
  explicit CodeSet(std::span<const CodeRange> ranges) : CodeSet(std::vector(ranges.begin(), ranges.end())) {}

  bool contains(std::uint32_t c) const { return in_ranges(ranges_, c); }
  bool empty() const { return ranges_.empty(); }
  const std::vector<CodeRange>& ranges() const { return ranges_; }

  CodeSet operator|(const CodeSet& other) const;
  CodeSet operator&(const CodeSet& other) const;
  CodeSet operator-(const CodeSet& other) const { return *this & other.complement(); }
  CodeSet complement() const;
  // With all characters that differ from one of the set by case only.
  CodeSet folded() const;

 private:
  std::vector<CodeRange> ranges_;
};

constexpr std::array<std::string_view, 29> kCategoryNames = {
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cn", "Co"};

// The characters of a property, \p{name}: a general category, a script, Alphabetic and the like. Case, spaces, dashes
// and underscores of the name do not matter. Nothing for a name that is not known.
std::optional<CodeSet> class_named(std::string_view name);
// class_named() for a class outside a set. There, and only there, the engine takes the superscripts and
// fractions of Latin-1 for parts of words.
std::optional<CodeSet> class_alone(std::string_view name);
// The characters of a bracketed class, [:name:]. Some differ from the properties of that name.
std::optional<CodeSet> posix_class(std::string_view name);

}  // namespace switchyard
