#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "core/error.h"
#include "tokenizer/unicode.h"

namespace switchyard {

struct Regex::Code {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  ~Code() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
};

namespace {

// PCRE2's own \s also has U+180E, and its \w lacks marks.
constexpr std::string_view kSpaces =
    R"(\t-\r\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";

bool compiles(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

// The pattern in PCRE2's words.
class Translation {
 public:
  Translation(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {
    while (at_ < pattern_.size()) step();
  }
  std::string text() && { return std::move(out_); }

 private:
  char peek(std::size_t ahead) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  void take(std::size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }

  void step() {
    if (pattern_[at_] == '\\') {
      escape();
    } else if (in_set_) {
      if (pattern_[at_] == '[' && peek(1) != ':') refuse("a set inside a set");
      if (pattern_[at_] == '&' && peek(1) == '&') refuse("an intersection of sets");
      if (pattern_[at_] == '[') {
        take(std::min(pattern_.find(":]", at_), pattern_.size() - 2) + 2 - at_);
        return;
      }
      if (pattern_[at_] == ']') in_set_ = false;
      take(1);
    } else if (pattern_[at_] == '[') {
      in_set_ = true;
      take(peek(1) == '^' ? 2 : 1);
      if (peek(0) == ']') take(1);  // stands for itself there
    } else {
      take(1);
    }
  }

  void escape() {
    const char letter = peek(1);
    if (letter == 's' || letter == 'w') {
      replace(letter == 's' ? kSpaces : kWord, false);
    } else if ((letter == 'S' || letter == 'W') && !in_set_) {
      replace(letter == 'S' ? kSpaces : kWord, true);
    } else if ((letter == 'p' || letter == 'P') && peek(2) == '{') {
      property();
    } else {
      take(2);
    }
  }

  void replace(std::string_view members, bool negated) {
    if (in_set_) {
      out_ += members;
    } else {
      out_.append(negated ? "[^" : "[").append(members).append("]");
    }
    at_ += 2;
  }

  // A script's name means the script alone; to PCRE2 also characters that are common to several.
  void property() {
    const std::size_t end = std::min(pattern_.find('}', at_), pattern_.size() - 1);
    std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    const std::string script = fmt::format("\\p{{sc:{}}}", name);
    if (name.size() > 2 && compiles(script)) {
      out_ += fmt::format("\\{}{{{}sc:{}}}", pattern_[at_ + 1], negated ? "^" : "", name);
      at_ = end + 1;
    } else {
      take(end + 1 - at_);
    }
  }

  [[noreturn]] void refuse(const char* what) const {
    fail_usage("[tokenizer] {}: {} in a pattern is not supported (byte {})", where_, what, at_);
  }

  std::string_view pattern_;
  const std::string& where_;
  std::string out_;
  std::size_t at_ = 0;
  bool in_set_ = false;
};

// One for each thread: making one costs more than most matches.
pcre2_match_data* match_data() {
  thread_local const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  CHECK(data != nullptr, "out of memory");
  return data.get();
}

}  // namespace

Regex::Regex(const std::string& pattern, const std::string& where, Anchors anchors) {
  auto made = std::make_shared<Code>();
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::string translated = Translation(pattern, where).text();
  const std::uint32_t ends = anchors == Anchors::lines ? PCRE2_MULTILINE : PCRE2_DOLLAR_ENDONLY;
  made->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                             PCRE2_UTF | PCRE2_UCP | ends, &error, &offset, nullptr);
  if (made->code == nullptr) {
    PCRE2_UCHAR reason[128] = {};
    pcre2_get_error_message(error, reason, sizeof(reason));
    fail_usage("[tokenizer] {}: the pattern does not compile: {}", where,
               reinterpret_cast<const char*>(reason));
  }
  pcre2_jit_compile(made->code, PCRE2_JIT_COMPLETE);  // without it matching is slower, nothing else
  made->context = pcre2_match_context_create(nullptr);
  CHECK(made->context != nullptr, "out of memory");
  pcre2_set_match_limit(made->context, 10'000'000);
  code_ = std::move(made);
}

std::vector<std::pair<std::size_t, std::size_t>> Regex::matches(std::string_view text) const {
  pcre2_match_data* data = match_data();
  std::vector<std::pair<std::size_t, std::size_t>> found;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  std::size_t at = 0;
  while (at < text.size()) {
    // Validity was established by the caller; checking again would make this quadratic.
    int status = pcre2_match(code_->code, subject, text.size(), at, PCRE2_NO_UTF_CHECK, data, code_->context);
    if (status == PCRE2_ERROR_JIT_STACKLIMIT) {
      status = pcre2_match(code_->code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data,
                           code_->context);
    }
    if (status == PCRE2_ERROR_NOMATCH) break;
    if (status < 0)
      fail_runtime("[tokenizer] splitting pattern gave up on a text of {} bytes (code {})", text.size(),
                   status);
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data);
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

}  // namespace switchyard
