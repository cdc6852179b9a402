// Every character's properties in the engines of the library `tokenizers`. scripts/make_unicode_tables.py
// made them; a machine's own libraries, which may know another version of Unicode, decide nothing.
#pragma once

#include <cstdint>
#include <span>

namespace switchyard {

// From the first to the last character.
struct CodeRange {
  std::uint32_t first, last;
};

// Every step-th character from `first` to `last` maps to the one at the distance `by`.
struct CodeMapping {
  std::uint32_t first, last;
  std::int32_t step, by;
};

struct UnicodeTables {
  // For the engine of regular expressions. Runs of characters with one general category, in the order of
  // kCategoryNames: the first one << 5 | the category. Likewise << 8 | the script's number from 1, or 0.
  std::span<const std::uint32_t> categories, scripts;
  std::span<const char* const> script_names;  // "hani=han", in lower case without underscores
  // The characters that a property has beyond its categories (class_named in code_set.cc).
  std::span<const CodeRange> alphabetic, uppercase, lowercase, emoji, extendedpictographic, ideographic;
  std::span<const CodeMapping> folded;  // to the lowest character that differs by case only

  // For the normalizers and pre-tokenizers.
  std::span<const CodeMapping> lower;
  std::span<const CodeRange> numbers, old_punctuation, old_marks, old_nonspacing;
  std::span<const CodeRange> old_other;      // control characters and their like, which BERT removes
  std::span<const CodeRange> beyond_normal;  // newer than the normal forms: they neither change nor combine
};

const UnicodeTables& unicode_tables();

// Returns what `c` maps to, or `c`.
std::uint32_t mapped(std::span<const CodeMapping> mappings, std::uint32_t c);
// Returns whether a table has `c`.
bool in_ranges(std::span<const CodeRange> ranges, std::uint32_t c);

}  // namespace switchyard
