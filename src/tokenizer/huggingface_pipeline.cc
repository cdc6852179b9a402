#include "tokenizer/huggingface_pipeline.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

#include "checkpoint/json_file.h"
#include "core/error.h"
#include "tokenizer/regex.h"

namespace switchyard {
namespace {

using nlohmann::json;

std::string normal_form(const std::string& text, int options) {
  utf8proc_uint8_t* mapped = nullptr;
  const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                   static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | options));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(mapped, std::free);
  if (length < 0) fail_runtime("[tokenizer] normalisation failed: {}", utf8proc_errmsg(length));
  return {reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(length)};
}

// A pattern entry, {"String": s} or {"Regex": r}, as a regular expression.
std::string pattern_of(const JsonReader& entry) {
  const JsonReader pattern = entry.object("pattern");
  if (pattern.has("Regex")) return pattern.text("Regex");
  const std::string literal = pattern.text("String");
  std::string escaped;
  for (char c : literal) {
    const bool plain = static_cast<unsigned char>(c) >= 0x80 || (c >= '0' && c <= '9') ||
                       (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (!plain) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string replace_all(const std::string& text, const Regex& regex, const std::string& content) {
  std::string out;
  std::size_t at = 0;
  for (const auto& [begin, end] : regex.matches(text)) {
    out.append(text, at, begin - at).append(content);
    at = end;
  }
  return out.append(text, at);
}

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

// The text as alternating matches and gaps, joined as `behavior` says.
std::vector<Range> split_ranges(std::string_view text, const Regex& regex, Behavior behavior, bool invert) {
  std::vector<Range> ranges;
  const auto add = [&](std::size_t begin, std::size_t end, bool match) {
    if (begin == end) return;
    match = match != invert;
    Range* last = ranges.empty() ? nullptr : &ranges.back();
    const bool join =
        last != nullptr && ((behavior == Behavior::contiguous && last->match == match) ||
                            (behavior == Behavior::merged_with_previous && match && !last->match) ||
                            (behavior == Behavior::merged_with_next && !match && last->match));
    if (join) {
      last->end = end;
      // What has taken its neighbour takes no second one.
      if (behavior == Behavior::merged_with_previous) last->match = true;
      if (behavior == Behavior::merged_with_next) last->match = false;
    } else if (!(match && behavior == Behavior::removed)) {
      ranges.push_back({begin, end, match});
    }
  };
  std::size_t at = 0;
  for (const auto& [begin, end] : regex.matches(text)) {
    add(at, begin, false);
    add(begin, end, true);
    at = end;
  }
  add(at, text.size(), false);
  return ranges;
}

using Split = std::function<std::vector<Piece>(std::vector<Piece>)>;

Split split_by(const std::string& pattern, Behavior behavior, bool invert) {
  const Regex regex(pattern, "tokenizer.json");
  return [=](std::vector<Piece> pieces) {
    std::vector<Piece> out;
    for (const Piece& piece : pieces) {
      for (const Range& r : split_ranges(piece.text, regex, behavior, invert)) {
        out.push_back({piece.text.substr(r.begin, r.end - r.begin), piece.first && r.begin == 0});
      }
    }
    return out;
  };
}

Split byte_level(const JsonReader& entry) {
  const bool prefix = entry.flag("add_prefix_space", true);
  Split split = [](std::vector<Piece> pieces) { return pieces; };
  if (entry.flag("use_regex", true)) {
    split = split_by(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
                     Behavior::isolated, false);
  }
  return [=](std::vector<Piece> pieces) {
    for (Piece& piece : pieces) {
      if (prefix && !piece.text.starts_with(' ')) piece.text.insert(0, 1, ' ');
    }
    return split(std::move(pieces));
  };
}

Split metaspace(const JsonReader& entry) {
  const std::string mark = entry.text("replacement", "\u2581");
  const std::string scheme =
      entry.text("prepend_scheme", entry.flag("add_prefix_space", true) ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    entry.fail("unknown prepend_scheme " + in_quotes(scheme));
  if (mark.empty() || utf8_length(mark, 0) != mark.size()) entry.fail("replacement is not one character");
  const bool cut = entry.flag("split", true);
  const Regex regex(mark == "\u2581" ? mark : "\\Q" + mark + "\\E", "tokenizer.json");
  return [=](std::vector<Piece> pieces) {
    std::vector<Piece> out;
    for (const Piece& piece : pieces) {
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

PreTokenizer sequence(const JsonReader& entry) {
  PreTokenizer whole;
  std::vector<Split> steps;
  for (const JsonReader& step : entry.list("pretokenizers")) {
    if (whole.byte_level) entry.fail("a pre-tokenizer after ByteLevel is not supported");
    PreTokenizer made = make_pre_tokenizer(step);
    whole.byte_level = made.byte_level;
    steps.push_back(std::move(made.split));
  }
  whole.split = [steps](std::vector<Piece> pieces) {
    for (const Split& step : steps) pieces = step(std::move(pieces));
    return pieces;
  };
  return whole;
}

}  // namespace

JsonReader::JsonReader(const json& value, std::string name) : value_(&value), name_(std::move(name)) {
  if (!value.is_object()) fail("expected an object");
}
bool JsonReader::has(const char* key) const {
  return value_->contains(key) && !value_->at(key).is_null();
}
const json& JsonReader::at(const char* key) const {
  if (!has(key)) fail(fmt::format("\"{}\" is missing", key));
  return value_->at(key);
}
JsonReader JsonReader::object(const char* key) const {
  return {at(key), name_ + "." + key};
}
std::vector<JsonReader> JsonReader::list(const char* key) const {
  const json& values = at(key);
  if (!values.is_array()) fail(fmt::format("\"{}\" is not a list", key));
  std::vector<JsonReader> readers;
  for (const json& value : values) readers.emplace_back(value, name_ + "." + key);
  return readers;
}
std::string JsonReader::text(const char* key) const {
  if (!at(key).is_string()) fail(fmt::format("\"{}\" is not a string", key));
  return at(key).get<std::string>();
}
std::string JsonReader::text(const char* key, const std::string& absent) const {
  return has(key) ? text(key) : absent;
}
bool JsonReader::flag(const char* key, bool absent) const {
  if (!has(key)) return absent;
  if (!at(key).is_boolean()) fail(fmt::format("\"{}\" is not true or false", key));
  return at(key).get<bool>();
}
std::int64_t JsonReader::integer(const char* key, std::int64_t low, std::int64_t high) const {
  const json& value = at(key);
  const bool whole =
      value.is_number_integer() && (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX);
  if (!whole || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high) {
    fail(fmt::format("\"{}\" is not a whole number from {} to {}", key, low, high));
  }
  return value.get<std::int64_t>();
}
void JsonReader::fail(const std::string& message) const {
  fail_usage("[tokenizer] {}: {}", name_, message);
}

Normalizer make_normalizer(const JsonReader& entry) {
  const std::string type = entry.text("type");
  const auto form = [](int options) {
    return [options](std::string text) { return normal_form(text, options); };
  };
  if (type == "NFC") return form(UTF8PROC_COMPOSE);
  if (type == "NFD") return form(UTF8PROC_DECOMPOSE);
  if (type == "NFKC") return form(UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
  if (type == "NFKD") return form(UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
  if (type == "Prepend") {
    return [prefix = entry.text("prepend")](std::string text) { return text.empty() ? text : prefix + text; };
  }
  if (type == "Replace") {
    return [regex = Regex(pattern_of(entry), "tokenizer.json"), content = entry.text("content")](
               const std::string& text) { return replace_all(text, regex, content); };
  }
  if (type == "Sequence") {
    std::vector<Normalizer> steps;
    for (const JsonReader& step : entry.list("normalizers")) steps.push_back(make_normalizer(step));
    return [steps](std::string text) {
      for (const Normalizer& step : steps) text = step(std::move(text));
      return text;
    };
  }
  entry.fail("normalizer " + in_quotes(type) + " is not supported");
}

PreTokenizer make_pre_tokenizer(const JsonReader& entry) {
  const std::string type = entry.text("type");
  if (type == "Sequence") return sequence(entry);
  if (type == "ByteLevel") return {byte_level(entry), true};
  if (type == "Metaspace") return {metaspace(entry)};
  if (type == "Split") {
    return {split_by(pattern_of(entry), behavior_of(entry, ""), entry.flag("invert", false))};
  }
  if (type == "Digits") {
    return {split_by(entry.flag("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)", Behavior::isolated,
                     false)};
  }
  if (type == "Punctuation") {
    return {split_by(R"([\p{P}$+<=>^`|~])", behavior_of(entry, "Isolated"), false)};
  }
  entry.fail("pre-tokenizer " + in_quotes(type) + " is not supported");
}

}  // namespace switchyard
