#include "serve/request_cost.h"

#include <gtest/gtest.h>

#include "serve/http/lanes.h"

namespace switchyard::serve {
namespace {

bool is_slow(const std::string& path, const std::string& body) {
  http::Request request{
      .method = "POST", .path = path, .query = "", .name = "", .headers = {}, .body = body, .key = {}};
  return cost_of(request) >= http::Lanes::kLeastOfSlow;
}

TEST(RequestCost, IsTheBodysUnlessMoreMayStandBehindIt) {
  EXPECT_FALSE(is_slow("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "Hi"}]})"));
  EXPECT_FALSE(is_slow("/v1/chat/completions", R"({"messages": [], "tools": [{"id": 1}]})"));
  EXPECT_TRUE(is_slow("/v1/chat/completions", R"({"response_format": {}})"));
  EXPECT_TRUE(is_slow("/v1/chat/completions", R"({"respons\u0065_format": {}})"));
  EXPECT_TRUE(is_slow("/v1/messages", R"({"output_config": {}})"));
  EXPECT_TRUE(is_slow("/v1/messages", std::string(100000, ' ')));
}

TEST(RequestCost, OfResponsesKnowsTheirToolsAndWhatIsStored) {
  EXPECT_FALSE(is_slow("/v1/responses", R"({"input": "Hi", "instructions": "Be brief."})"));
  EXPECT_TRUE(is_slow("/v1/responses", R"({"input": "Hi", "text": {"format": {}}})"));
  EXPECT_TRUE(is_slow("/v1/responses", R"({"input": "Hi", "tools": [{"type": "function", "name": "f"}]})"));
  EXPECT_TRUE(is_slow("/v1/responses", R"({"input": "Hi", "previous_response_id": "resp_1"})"));
  EXPECT_TRUE(is_slow("/v1/responses/input_tokens", R"({"input": [{"id": "msg_1"}]})"));
}

}  // namespace
}  // namespace switchyard::serve
