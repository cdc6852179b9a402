#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "core/error.h"
#include "tokenizer/pattern.h"
#include "tokenizer/unicode.h"

namespace switchyard {

struct Regex::Code {
  pcre2_code* all = nullptr;         // for every text
  pcre2_code* undisputed = nullptr;  // for most; null where it would be the same
  pcre2_match_context* context = nullptr;
  bool matches_empty = false;
  ~Code() {
    pcre2_match_context_free(context);
    pcre2_code_free(undisputed);
    pcre2_code_free(all);
  }
};

namespace {

// One for each thread: making one costs more than most matches.
pcre2_match_data* match_data() {
  thread_local const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  CHECK(data != nullptr, "out of memory");
  return data.get();
}

pcre2_code* compiled(const std::string& translated, const std::string& where, Regex::Anchors anchors) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> lines(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  CHECK(lines != nullptr, "out of memory");
  pcre2_set_newline(lines.get(), PCRE2_NEWLINE_LF);
  const std::uint32_t ends = anchors == Regex::Anchors::lines ? PCRE2_MULTILINE : PCRE2_DOLLAR_ENDONLY;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                   PCRE2_UTF | PCRE2_UCP | ends, &error, &offset, lines.get());
  if (code == nullptr) {
    PCRE2_UCHAR reason[128] = {};
    pcre2_get_error_message(error, reason, sizeof(reason));
    fail_usage("[tokenizer] {}: the pattern does not compile: {}", where, reinterpret_cast<const char*>(reason));
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without it matching is slower, nothing else
  return code;
}

}  // namespace

Regex::Regex(const std::string& pattern, const std::string& where, Anchors anchors) {
  auto made = std::make_shared<Code>();
  const std::string all = pcre2_pattern(pattern, where, Texts::all),
                    undisputed = pcre2_pattern(pattern, where, Texts::undisputed);
  made->all = compiled(all, where, anchors);
  if (undisputed != all) made->undisputed = compiled(undisputed, where, anchors);
  std::uint32_t matches_empty = 0;
  pcre2_pattern_info(made->all, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  made->matches_empty = matches_empty != 0;
  made->context = pcre2_match_context_create(nullptr);
  CHECK(made->context != nullptr, "out of memory");
  pcre2_set_match_limit(made->context, 10'000'000);
  code_ = std::move(made);
}

std::vector<std::pair<std::size_t, std::size_t>> Regex::matches(std::string_view text) const {
  pcre2_match_data* data = match_data();
  std::vector<std::pair<std::size_t, std::size_t>> found;
  const pcre2_code* code = code_->undisputed != nullptr && !has_disputed(text) ? code_->undisputed : code_->all;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  std::size_t at = 0, last = std::string_view::npos;  // where the last match ends
  while (at < text.size() || (at == text.size() && code_->matches_empty)) {
    // Validity was established by the caller; checking again would make this quadratic.
    int status = pcre2_match(code, subject, text.size(), at, PCRE2_NO_UTF_CHECK, data, code_->context);
    if (status == PCRE2_ERROR_JIT_STACKLIMIT) {
      status = pcre2_match(code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data,
                           code_->context);
    }
    if (status == PCRE2_ERROR_NOMATCH) break;
    if (status < 0)
      fail_runtime("[tokenizer] splitting pattern gave up on a text of {} bytes (code {})", text.size(),
                   status);
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data);
    if (ends[0] >= at && (ends[0] < ends[1] || (ends[0] == ends[1] && ends[1] != last))) {
      found.emplace_back(ends[0], ends[1]);
      at = last = ends[1];
    } else {  // an empty match behind another one (or \K moved its ends): go on behind the next character
      at = std::max(at, static_cast<std::size_t>(ends[1]));
      at += std::max<std::size_t>(1, utf8_length(text, at));
    }
  }
  return found;
}

}  // namespace switchyard
