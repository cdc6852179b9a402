#include "tokenizer/pre_tokenizers.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "core/json_file.h"
#include "tokenizer/normalizers.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"
#include "tokenizer/unicode_tables.h"

namespace switchyard {
namespace {

enum class Behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

Behavior behavior_of(const JsonReader& entry, const std::string& absent) {
  const std::string text = entry.text("behavior", absent);
  if (text == "Isolated") return Behavior::isolated;
  if (text == "Removed") return Behavior::removed;
  if (text == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (text == "MergedWithNext") return Behavior::merged_with_next;
  if (text == "Contiguous") return Behavior::contiguous;
  entry.fail("unknown behavior " + in_quotes(text));
}

struct Range {
  std::size_t begin, end;
  bool match;
};

// Cuts the text into matches and gaps, joined as `behavior` says. An empty match cuts, too.
std::vector<Range> split_ranges(std::string_view text, const Regex& regex, Behavior behavior, bool invert) {
  std::vector<Range> ranges;
  const auto add = [&](std::size_t begin, std::size_t end, bool match) {
    match = match != invert;
    Range* last = ranges.empty() ? nullptr : &ranges.back();
    const bool join =
        last != nullptr && ((behavior == Behavior::contiguous && last->match == match) ||
                            (behavior == Behavior::merged_with_previous && match && !last->match) ||
                            (behavior == Behavior::merged_with_next && !match && last->match));
    if (join) {
      last->end = end;
      // A range that has taken its neighbour takes no second one.
      if (behavior == Behavior::merged_with_previous) last->match = true;
      if (behavior == Behavior::merged_with_next) last->match = false;
    } else if (!(match && behavior == Behavior::removed)) {
      ranges.push_back({begin, end, match});
    }
  };
  std::size_t at = 0;
  for (const auto& [begin, end] : regex.matches(text)) {
    if (begin > at) add(at, begin, false);
    add(begin, end, true);
    at = end;
  }
  if (at < text.size()) add(at, text.size(), false);
  std::erase_if(ranges, [](const Range& range) { return range.begin == range.end; });
  return ranges;
}

using Split = std::function<std::vector<TextPiece>(std::vector<TextPiece>)>;

Split split_by(const std::string& pattern, Behavior behavior, bool invert) {
  const Regex regex(pattern, "tokenizer.json");
  return [=](std::vector<TextPiece> pieces) {
    std::vector<TextPiece> out;
    for (const TextPiece& piece : pieces) {
      for (const Range& r : split_ranges(piece.text, regex, behavior, invert)) {
        out.push_back({piece.text.substr(r.begin, r.end - r.begin), piece.first && r.begin == 0});
      }
    }
    return out;
  };
}

Split byte_level(const JsonReader& entry) {
  const bool prefix = entry.flag("add_prefix_space", true);
  Split split = [](std::vector<TextPiece> pieces) { return pieces; };
  if (entry.flag("use_regex", true)) {
    split = split_by(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
                     Behavior::isolated, false);
  }
  return [=](std::vector<TextPiece> pieces) {
    for (TextPiece& piece : pieces) {
      if (prefix && !piece.text.starts_with(' ')) piece.text.insert(0, 1, ' ');
    }
    return split(std::move(pieces));
  };
}

Split metaspace_split(const JsonReader& entry) {
  const std::string mark = entry.text("replacement", "\u2581");
  const std::string scheme =
      entry.text("prepend_scheme", entry.flag("add_prefix_space", true) ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    entry.fail("unknown prepend_scheme " + in_quotes(scheme));
  if (mark.empty() || utf8_length(mark, 0) != mark.size()) entry.fail("replacement is not one character");
  const bool cut = entry.flag("split", true);
  const Regex regex(fmt::format("\\x{{{:x}}}", code_point(mark)), "tokenizer.json");
  return [=](std::vector<TextPiece> pieces) {
    std::vector<TextPiece> out;
    for (const TextPiece& piece : pieces) {
      std::string text;
      for (char c : piece.text) {
        if (c == ' ')
          text += mark;
        else
          text += c;
      }
      const bool prepend = scheme == "always" || (scheme == "first" && piece.first);
      if (prepend && !text.starts_with(mark)) text.insert(0, mark);
      if (!cut) {
        out.push_back({text, piece.first});
        continue;
      }
      for (const Range& r : split_ranges(text, regex, Behavior::merged_with_next, false)) {
        out.push_back({text.substr(r.begin, r.end - r.begin), piece.first && r.begin == 0});
      }
    }
    return out;
  };
}

// `step` on pieces of bytes, as if they were written in the byte alphabet.
Split in_byte_alphabet(const Split& step) {
  return [step](std::vector<TextPiece> pieces) {
    for (TextPiece& piece : pieces) piece.text = bytes_to_alphabet(piece.text);
    pieces = step(std::move(pieces));
    for (TextPiece& piece : pieces) piece.text = alphabet_to_bytes(piece.text).value_or(piece.text);
    return pieces;
  };
}

PreTokenizer sequence_pre_tokenizer(const JsonReader& entry) {
  PreTokenizer whole;
  std::vector<Split> steps;
  for (const JsonReader& step : entry.list("pretokenizers")) {
    PreTokenizer made = make_pre_tokenizer(step);
    if (whole.byte_level && (made.byte_level || step.text("type") == "Metaspace"))
      entry.fail(in_quotes(step.text("type")) + " after ByteLevel is not supported");
    steps.push_back(whole.byte_level ? in_byte_alphabet(made.split) : std::move(made.split));
    whole.byte_level = whole.byte_level || made.byte_level;
  }
  whole.split = [steps](std::vector<TextPiece> pieces) {
    for (const Split& step : steps) pieces = step(std::move(pieces));
    return pieces;
  };
  return whole;
}

// A set of the characters of a table.
std::string class_of(std::span<const CodeRange> table) {
  std::string text = "[";
  for (const CodeRange& range : table) text += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", range.first, range.last);
  return text + "]";
}

PreTokenizer bert() {
  const Split spaces = split_by(R"(\s+)", Behavior::removed, false),
              marks = split_by(class_of(unicode_tables().old_punctuation), Behavior::isolated, false);
  return {[=](std::vector<TextPiece> pieces) { return marks(spaces(std::move(pieces))); }};
}

std::string escaped_delimiter(const JsonReader& entry) {
  const std::string delimiter = entry.text("delimiter");
  if (delimiter.empty() || utf8_length(delimiter, 0) != delimiter.size())
    entry.fail("delimiter is not one character");
  return fmt::format("\\x{{{:x}}}", code_point(delimiter));
}

}  // namespace

PreTokenizer make_pre_tokenizer(const JsonReader& entry) {
  const std::string type = entry.text("type");
  if (type == "Sequence") return sequence_pre_tokenizer(entry);
  if (type == "ByteLevel") return {byte_level(entry), true};
  if (type == "Metaspace") return {metaspace_split(entry)};
  if (type == "Split") {
    return {split_by(pattern_of(entry), behavior_of(entry, ""), entry.flag("invert", false))};
  }
  if (type == "Digits") {
    return {split_by(class_of(unicode_tables().numbers) + (entry.flag("individual_digits", false) ? "" : "+"),
                     Behavior::isolated, false)};
  }
  if (type == "Punctuation") {
    return {split_by(class_of(unicode_tables().old_punctuation), behavior_of(entry, "Isolated"), false)};
  }
  if (type == "Whitespace")
    return {split_by(R"([[:word:]\x{200c}\x{200d}]+|[^[:word:]\s\x{200c}\x{200d}]+)", Behavior::removed, true)};
  if (type == "WhitespaceSplit") return {split_by(R"(\s+)", Behavior::removed, false)};
  if (type == "CharDelimiterSplit") return {split_by(escaped_delimiter(entry), Behavior::removed, false)};
  if (type == "BertPreTokenizer") return bert();
  if (type == "FixedLength") {
    const std::int64_t length = entry.integer("length", 1, 65535, 5);
    return {split_by(fmt::format("(?m:.{{1,{}}})", length), Behavior::isolated, false)};
  }
  entry.fail("pre-tokenizer " + in_quotes(type) + " is not supported");
}

}  // namespace switchyard
