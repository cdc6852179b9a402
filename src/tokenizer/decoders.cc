#include "tokenizer/decoders.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "core/json_file.h"
#include "tokenizer/normalizers.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

namespace switchyard {
namespace {

using Parts = std::vector<std::string>;

std::string join(const Parts& parts) {
  std::string whole;
  for (const std::string& part : parts) whole += part;
  return whole;
}

std::string replaced(std::string text, std::string_view old, std::string_view content) {
  for (std::size_t at = 0; !old.empty() && (at = text.find(old, at)) != std::string::npos;
       at += content.size())
    text.replace(at, old.size(), content);
  return text;
}

Parts byte_level(const Parts& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += alphabet_to_bytes(token).value_or(token);
  return {repaired_utf8(bytes)};
}

// Turns the marks of spaces into spaces, and removes those of the first token.
Decoder metaspace_decoder(const JsonReader& entry) {
  const std::string mark = entry.text("replacement", "\u2581");
  const std::string scheme =
      entry.text("prepend_scheme", entry.flag("add_prefix_space", true) ? "always" : "never");
  return [mark, strips = scheme != "never"](Parts tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = replaced(std::move(tokens[i]), mark, i == 0 && strips ? "" : " ");
    return tokens;
  };
}

// Undoes the spaces that cutting at punctuation left in English.
std::string tidy(std::string text) {
  constexpr std::array<std::array<const char*, 2>, 11> changes = {{{" .", "."},
                                                                   {" ?", "?"},
                                                                   {" !", "!"},
                                                                   {" ,", ","},
                                                                   {" ' ", "'"},
                                                                   {" n't", "n't"},
                                                                   {" 'm", "'m"},
                                                                   {" do not", " don't"},
                                                                   {" 's", "'s"},
                                                                   {" 've", "'ve"},
                                                                   {" 're", "'re"}}};
  for (const auto& [old, content] : changes) text = replaced(std::move(text), old, content);
  return text;
}

Decoder word_piece(const JsonReader& entry) {
  return [prefix = entry.text("prefix", "##"), cleanup = entry.flag("cleanup", true)](Parts tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) {
        if (tokens[i].starts_with(prefix))
          tokens[i].erase(0, prefix.size());
        else
          tokens[i].insert(0, 1, ' ');
      }
      if (cleanup) tokens[i] = tidy(std::move(tokens[i]));
    }
    return tokens;
  };
}

Decoder word_ends(const JsonReader& entry) {
  return [suffix = entry.text("suffix", "</w>")](Parts tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = replaced(std::move(tokens[i]), suffix, i + 1 < tokens.size() ? " " : "");
    return tokens;
  };
}

// Runs of byte tokens become their text, or one U+FFFD a byte when it is broken.
Parts byte_fallback(const Parts& tokens) {
  Parts parts;
  std::string bytes;
  const auto flush = [&] {
    if (valid_utf8(bytes) == bytes && !bytes.empty())
      parts.push_back(bytes);
    else
      parts.insert(parts.end(), bytes.size(), "\xef\xbf\xbd");
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    if (const auto byte = byte_token(token)) {
      bytes += *byte;
      continue;
    }
    flush();
    parts.push_back(token);
  }
  flush();
  return parts;
}

Decoder strip(const JsonReader& entry) {
  const std::string content = entry.text("content");
  const std::int64_t start = entry.integer("start", 0, 1 << 24), stop = entry.integer("stop", 0, 1 << 24);
  if (content.empty() || utf8_length(content, 0) != content.size())
    entry.fail("content is not one character");
  return [=](Parts tokens) {
    for (std::string& token : tokens) {
      for (std::int64_t i = 0; i < start && token.starts_with(content); ++i) token.erase(0, content.size());
      for (std::int64_t i = 0; i < stop && token.ends_with(content); ++i)
        token.resize(token.size() - content.size());
    }
    return tokens;
  };
}

Decoder sequence_decoder(const JsonReader& entry) {
  std::vector<Decoder> steps;
  for (const JsonReader& step : entry.list("decoders")) steps.push_back(make_decoder(step));
  return [steps](Parts tokens) {
    for (const Decoder& step : steps) tokens = step(std::move(tokens));
    return tokens;
  };
}

bool has_step(const JsonReader& entry, std::string_view type) {
  const std::string own = entry.text("type");
  if (own != "Sequence") return own == type;
  const std::vector<JsonReader> steps = entry.list("decoders");
  return std::ranges::any_of(steps, [&](const JsonReader& step) { return has_step(step, type); });
}

}  // namespace

std::optional<char> byte_token(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return {};
  unsigned value = 0;
  const auto [end, status] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  return status == std::errc() && end == token.data() + 5 ? std::optional(static_cast<char>(value))
                                                          : std::nullopt;
}

TokenDecoder make_token_decoder(const Decoder& decode) {
  // Returns a token's text between two others, where no rule for a text's beginning or end applies.
  const std::string alone = join(decode({"a"})), twice = join(decode({"a", "a"}));
  return [decode, before = alone.size(), behind = twice.size() - alone.size()](const std::string& token) {
    const std::string text = join(decode({"a", token, "a"}));
    return text.size() < before + behind ? "" : text.substr(before, text.size() - before - behind);
  };
}

TokenDecoder make_token_decoder(const JsonReader& entry, const Decoder& decode) {
  if (has_step(entry, "ByteLevel"))
    return [](const std::string& token) { return alphabet_to_bytes(token).value_or(token); };
  TokenDecoder within = make_token_decoder(decode);
  if (!has_step(entry, "ByteFallback")) return within;
  return [within](const std::string& token) {
    const auto byte = byte_token(token);
    return byte ? std::string(1, *byte) : within(token);
  };
}

Decoder make_decoder(const JsonReader& entry) {
  const std::string type = entry.text("type");
  if (type == "Sequence") return sequence_decoder(entry);
  if (type == "ByteLevel") return byte_level;
  if (type == "Metaspace") return metaspace_decoder(entry);
  if (type == "WordPiece") return word_piece(entry);
  if (type == "BPEDecoder") return word_ends(entry);
  if (type == "ByteFallback") return byte_fallback;
  if (type == "Fuse") return [](const Parts& tokens) { return Parts{join(tokens)}; };
  if (type == "Strip") return strip(entry);
  if (type == "Replace") {
    const Normalizer replace = make_normalizer(entry);
    return [replace](Parts tokens) {
      for (std::string& token : tokens) token = replace(std::move(token));
      return tokens;
    };
  }
  entry.fail("decoder " + in_quotes(type) + " is not supported");
}

}  // namespace switchyard
