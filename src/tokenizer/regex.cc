#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "core/error.h"

namespace switchyard {

struct Regex::Code {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  ~Code() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
};

Regex::Regex(const std::string& pattern, const std::string& where) {
  auto made = std::make_shared<Code>();
  int error = 0;
  PCRE2_SIZE offset = 0;
  made->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                             PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  if (made->code == nullptr) {
    PCRE2_UCHAR reason[128] = {};
    pcre2_get_error_message(error, reason, sizeof(reason));
    fail_usage("[tokenizer] {}: the pattern does not compile at byte {}: {}", where, offset,
               reinterpret_cast<const char*>(reason));
  }
  pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE);  // without it matching is slower, nothing else
  made->context = pcre2_match_context_create(nullptr);
  CHECK(made->context != nullptr, "out of memory");
  pcre2_set_match_limit(made->context, 10'000'000);
  code_ = std::move(made);
}

std::vector<std::pair<std::size_t, std::size_t>> Regex::matches(std::string_view text) const {
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create_from_pattern(code_->code, nullptr), pcre2_match_data_free);
  CHECK(data != nullptr, "out of memory");
  std::vector<std::pair<std::size_t, std::size_t>> found;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  std::size_t at = 0;
  while (at < text.size()) {
    // Validity was established by the caller; checking again would make this quadratic.
    int status =
        pcre2_match(code_->code, subject, text.size(), at, PCRE2_NO_UTF_CHECK, data.get(), code_->context);
    if (status == PCRE2_ERROR_JIT_STACKLIMIT) {
      status = pcre2_match(code_->code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                           data.get(), code_->context);
    }
    if (status == PCRE2_ERROR_NOMATCH) break;
    if (status < 0)
      fail_runtime("[tokenizer] splitting pattern gave up on a text of {} bytes (code {})", text.size(),
                   status);
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
    if (ends[0] < ends[1] && ends[0] >= at) {
      found.emplace_back(ends[0], ends[1]);
      at = ends[1];
    } else {  // an empty match (or \K moved its ends): go on behind the next character
      at = std::max(at, static_cast<std::size_t>(ends[1]));
      if (at < text.size()) at += std::max<std::size_t>(1, utf8_length(text, at));
    }
  }
  return found;
}

std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) -> std::uint32_t {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  const std::uint32_t first = byte(0);
  if (at >= text.size()) return 0;
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf5   ? 0
                             : first >= 0xf0 ? 4
                             : first >= 0xe0 ? 3
                             : first >= 0xc2 ? 2
                                             : 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0u) != 0x80u) return 0;
  }
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) >= 0xa0))
    return 0;  // overlong, surrogates
  if ((first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) >= 0x90))
    return 0;  // overlong, > U+10FFFF
  return length;
}

std::string valid_utf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    if (length == 0) {
      valid += "\xef\xbf\xbd";
      ++at;
    } else {
      valid.append(text, at, length);
      at += length;
    }
  }
  return valid;
}

std::string utf8_of(std::uint32_t c) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80u | ((c >> shift) & 0x3fu)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xc0u | (c >> 6)), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xe0u | (c >> 12)), tail(6), tail(0)};
  return {static_cast<char>(0xf0u | (c >> 18)), tail(12), tail(6), tail(0)};
}

}  // namespace switchyard
