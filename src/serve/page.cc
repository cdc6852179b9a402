#include "serve/page.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/sha256.h"
#include "tokenizer/base64.h"

namespace switchyard::serve {
namespace {

// Returns the text that a browser hashes: all between the two tags, line ends included.
std::string_view page_script() {
  const std::string_view page = page_html(), begin_tag = "<script>", end_tag = "</script>";
  const std::size_t begin = page.find(begin_tag), end = page.find(end_tag);
  CHECK(begin != page.npos && end != page.npos && begin < end, "the page has no script");
  return page.substr(begin + begin_tag.size(), end - begin - begin_tag.size());
}

std::string sha256_base64(std::string_view text) {
  Sha256 sum;
  sum.add(std::as_bytes(std::span(text)));
  const Sha256::Digest digest = sum.digest();
  return to_base64({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

}  // namespace

std::string page_content_security_policy() {
  return fmt::format(
      "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{}'; connect-src 'self'; base-uri "
      "'none'; "
      "form-action 'none'; frame-ancestors 'none'",
      sha256_base64(page_script()));
}

}  // namespace switchyard::serve
