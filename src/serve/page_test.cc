#include "serve/page.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <regex>
#include <span>

#include "core/sha256.h"
#include "core/testing.h"
#include "tokenizer/base64.h"

namespace switchyard::serve {
namespace {

TEST(Page, IsTheFileByteForByte) {
  std::ifstream file(std::string(kSourceFolder) + "/src/serve/page/page.html", std::ios::binary);
  const std::string source{std::istreambuf_iterator<char>(file), {}};
  ASSERT_FALSE(source.empty());
  EXPECT_EQ(page_html(), source);
  EXPECT_LE(source.size(), 80U << 10);
}

TEST(Page, AsksNoOtherPlaceForAnything) {
  const std::string page(page_html());
  EXPECT_FALSE(std::regex_search(page, std::regex("(src|action|srcset)=|<link|@import|url\\(|innerHTML|"
                                                  "outerHTML|insertAdjacent|document\\.write|eval\\(")));
  EXPECT_FALSE(
      std::regex_search(page, std::regex("<[a-z][^>]* on[a-z]+=")));  // the policy would refuse such a script
}

// tests/peers/page_markdown.mjs has the cases; without node nothing can run the page's functions.
TEST(Page, ShowsMarkdown) {
  if (std::system("command -v node > /dev/null") != 0) GTEST_SKIP() << "node is not there";
  const std::string folder = kSourceFolder;
  const std::string command =
      fmt::format("node '{0}/tests/peers/page_markdown.mjs' '{0}/src/serve/page/page.html' >&2", folder);
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST(Page, HasOneScriptWhoseHashThePolicyNames) {
  const std::string page(page_html());
  const std::size_t begin = page.find("<script>") + 8, end = page.find("</script>");
  ASSERT_LT(begin, end);
  EXPECT_EQ(page.find("<script", begin), page.npos);
  Sha256 sum;
  sum.add(std::as_bytes(std::span(page).subspan(begin, end - begin)));

  const std::string policy = page_content_security_policy();
  std::smatch found;
  ASSERT_TRUE(std::regex_search(policy, found, std::regex("; script-src 'sha256-([A-Za-z0-9+/]{43}=)'; ")));
  const std::optional<std::string> bytes = from_base64(found[1].str());
  ASSERT_TRUE(bytes.has_value());
  std::string digest;
  for (const char byte : *bytes) {
    digest += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  EXPECT_EQ(digest, sum.hex());
  EXPECT_TRUE(policy.starts_with("default-src 'none'; ")) << policy;
  EXPECT_TRUE(
      policy.ends_with("; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"))
      << policy;
}

}  // namespace
}  // namespace switchyard::serve
