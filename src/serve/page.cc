#include "serve/page.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "core/error.h"

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
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  CHECK(EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1,
        "SHA-256 is not to be had");
  std::array<unsigned char, EVP_MAX_MD_SIZE * 2> base64{};  // of 64 bytes at most: 88 characters and a zero
  const int length = EVP_EncodeBlock(base64.data(), digest.data(), static_cast<int>(size));
  return {base64.begin(), base64.begin() + length};
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
