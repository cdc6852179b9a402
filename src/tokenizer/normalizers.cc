#include "tokenizer/normalizers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "core/error.h"
#include "core/json_file.h"
#include "tokenizer/base64.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

namespace switchyard {
namespace {

// The characters of `text` for which `keep` returns true.
template <typename Keep>
std::string filter(const std::string& text, Keep keep) {
  std::string kept;
  for_characters(text, [&](std::string_view character) {
    if (keep(code_point(character))) kept += character;
  });
  return kept;
}

std::string replace_all(const std::string& text, const Regex& regex, const std::string& content) {
  if (text.empty()) return "";  // with nothing in it, also where the pattern matches nothing
  std::string out;
  std::size_t at = 0;
  for (const auto& [begin, end] : regex.matches(text)) {
    out.append(text, at, begin - at).append(content);
    at = end;
  }
  return out.append(text, at);
}

std::string strip(const std::string& text, bool left, bool right) {
  std::size_t begin = text.size(), end = 0, at = 0;  // around what is no white space
  for_characters(text, [&](std::string_view character) {
    const bool space = is_white_space(code_point(character));
    if (!space && begin == text.size()) begin = at;
    at += character.size();
    if (!space) end = at;
  });
  if (!left) begin = 0;
  if (!right) end = text.size();
  return begin < end ? text.substr(begin, end - begin) : "";
}

// Follows SentencePiece's rules for machine translation: drops control characters, makes white space a space.
std::string nmt(const std::string& text) {
  std::string out;
  for_characters(text, [&](std::string_view character) {
    const std::uint32_t c = code_point(character);
    const bool dropped =
        (c >= 0x1 && c <= 0x8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f;
    const bool space = c == 0x9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 ||
                       (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                       c == 0xfeff || c == 0xfffd;
    if (!dropped) out += space ? " " : character;
  });
  return out;
}

// CJK ideographs as BERT has them, with its slip in the last but two range.
bool is_bert_ideograph(std::uint32_t c) {
  constexpr std::array<std::array<std::uint32_t, 2>, 8> ranges = {{{0x4e00, 0x9fff},
                                                                   {0x3400, 0x4dbf},
                                                                   {0x20000, 0x2a6df},
                                                                   {0x2a700, 0x2b73f},
                                                                   {0x2b740, 0x2b81f},
                                                                   {0x2b920, 0x2ceaf},
                                                                   {0xf900, 0xfaff},
                                                                   {0x2f800, 0x2fa1f}}};
  return std::any_of(ranges.begin(), ranges.end(), [c](const auto& r) { return c >= r[0] && c <= r[1]; });
}

std::string bert_clean(const std::string& text) {
  std::string out;
  for_characters(text, [&](std::string_view character) {
    const std::uint32_t c = code_point(character);
    const bool line_space = c == '\t' || c == '\n' || c == '\r';
    if (c == 0 || c == 0xfffd || (is_other(c) && !line_space)) return;
    out += is_white_space(c) ? " " : character;
  });
  return out;
}

std::string bert_ideographs(const std::string& text) {
  std::string out;
  for_characters(text, [&](std::string_view character) {
    const bool apart = is_bert_ideograph(code_point(character));
    out.append(apart ? " " : "").append(character).append(apart ? " " : "");
  });
  return out;
}

std::string without_accents(const std::string& text) {
  return filter(normal_form(text, NormalForm::nfd), [](std::uint32_t c) { return !is_nonspacing_mark(c); });
}

Normalizer bert(const JsonReader& entry) {
  const bool clean = entry.flag("clean_text", true), ideographs = entry.flag("handle_chinese_chars", true),
             lower = entry.flag("lowercase", true), accents = entry.flag("strip_accents", lower);
  return [=](std::string text) {
    if (clean) text = bert_clean(text);
    if (ideographs) text = bert_ideographs(text);
    if (accents) text = without_accents(text);
    return lower ? lower_case(text) : text;
  };
}

Normalizer sequence_normalizer(const JsonReader& entry) {
  std::vector<Normalizer> steps;
  for (const JsonReader& step : entry.list("normalizers")) steps.push_back(make_normalizer(step));
  return [steps](std::string text) {
    for (const Normalizer& step : steps) text = step(std::move(text));
    return text;
  };
}

}  // namespace

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

Normalizer make_normalizer(const JsonReader& entry) {
  const std::string type = entry.text("type");
  const auto form = [](NormalForm f) {
    return [f](const std::string& text) { return normal_form(text, f); };
  };
  if (type == "NFC") return form(NormalForm::nfc);
  if (type == "NFD") return form(NormalForm::nfd);
  if (type == "NFKC") return form(NormalForm::nfkc);
  if (type == "NFKD") return form(NormalForm::nfkd);
  if (type == "Lowercase") return [](const std::string& text) { return lower_case(text); };
  if (type == "Nmt") return nmt;
  if (type == "BertNormalizer") return bert(entry);
  if (type == "ByteLevel") return [](const std::string& text) { return bytes_to_alphabet(text); };
  if (type == "StripAccents") {
    return [](const std::string& text) { return filter(text, [](std::uint32_t c) { return !is_mark(c); }); };
  }
  if (type == "Strip") {
    return [left = entry.flag("strip_left", true), right = entry.flag("strip_right", true)](
               const std::string& text) { return strip(text, left, right); };
  }
  if (type == "Precompiled") {
    const auto bytes = from_base64(entry.text("precompiled_charsmap"));
    if (!bytes) entry.fail("precompiled_charsmap is not base64");
    return make_charsmap(*bytes, "tokenizer.json");
  }
  if (type == "Prepend") {
    return [prefix = entry.text("prepend")](std::string text) { return text.empty() ? text : prefix + text; };
  }
  if (type == "Replace") {
    return [regex = Regex(pattern_of(entry), "tokenizer.json"), content = entry.text("content")](
               const std::string& text) { return replace_all(text, regex, content); };
  }
  if (type == "Sequence") return sequence_normalizer(entry);
  entry.fail("normalizer " + in_quotes(type) + " is not supported");
}

}  // namespace switchyard
