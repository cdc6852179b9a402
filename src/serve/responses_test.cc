// Answers of /v1/responses: streams build the whole answer, and what is stored is found again.
#include <gtest/gtest.h>

#include <thread>

#include "serve/http/testing.h"
#include "serve/http_server.h"
#include "serve/protocol/responses_paths.h"
#include "serve/responses_testing.h"

namespace switchyard::serve {
namespace {

using chat::Delta;
using chat::Json;
using Kind = Delta::Kind;

std::vector<Piece> pieces_with_call() {
  return {{.tokens = 1, .deltas = {{Kind::reasoning, "Add"}}, .reasoning_tokens = 1},
          {.tokens = 1, .deltas = {{Kind::reasoning, " them."}, {Kind::content, "I "}}},
          {.tokens = 1, .cached_tokens = 2, .deltas = {{Kind::content, "add."}}},
          {.tokens = 1, .deltas = {{Kind::call, "", 0, "add", ""}, {Kind::arguments, "{\"a\": ", 0}}},
          {.tokens = 1, .deltas = {{Kind::arguments, "1}", 0}, {Kind::call, "", 1, "stop", ""}}},
          {.finish = Finish::stop, .deltas = {{Kind::arguments, "{}", 1}}}};
}

struct Answered {
  std::string bytes;
  Json kept;  // the output
};

Answered response_to(const std::string& body, const std::vector<Piece>& pieces) {
  static const ServedModel model = chatting_model();
  StoredResponses stored;
  ResponsesRequest request = read_responses(Json::parse(body), stored, {}, "t");
  const ChatRequest chat = chat_of_responses(request, model, 1, kNobody);
  Answered result;
  ResponsesAnswer answer(chat, request, model, 5,
                         [&](const std::string&, const Json& output) { result.kept = output; });
  result.bytes = answer.begin();
  for (const Piece& piece : pieces) result.bytes += answer.add(piece);
  EXPECT_TRUE(answer.is_finished());
  result.bytes += answer.end();
  return result;
}

std::vector<Json> response_events(const std::string& stream) {
  std::vector<Json> events;
  std::istringstream lines(stream);
  std::string name;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("event: ")) name = line.substr(7);
    if (!line.starts_with("data: ")) continue;
    events.push_back(Json::parse(line.substr(6)));
    EXPECT_EQ(events.back()["type"], name);
    EXPECT_EQ(events.back()["sequence_number"], events.size() - 1);
  }
  return events;
}

// Builds the output from the deltas alone, and checks that every event fits what came before.
Json built_output(const std::vector<Json>& events) {
  Json output = Json::array();
  const auto append = [](Json& text, const Json& more) {
    text = text.get<std::string>() + more.get<std::string>();
  };
  for (const Json& event : events) {
    const std::string type = event["type"];
    if (!event.contains("output_index")) continue;
    const auto index = event["output_index"].get<std::size_t>();
    if (type == "response.output_item.added") {
      EXPECT_EQ(index, output.size());
      output.push_back(event["item"]);
      EXPECT_EQ(event["item"]["status"], "in_progress");
      continue;
    }
    EXPECT_EQ(index + 1, output.size()) << type;
    Json& item = output.back();
    EXPECT_EQ(event.contains("item_id") ? event["item_id"] : event["item"]["id"], item["id"]);
    if (type == "response.content_part.added") item["content"].push_back(event["part"]);
    if (type == "response.output_text.delta" || type == "response.reasoning_text.delta")
      append(item["content"][0]["text"], event["delta"]);
    if (type == "response.function_call_arguments.delta") append(item["arguments"], event["delta"]);
    if (event.contains("text")) {
      EXPECT_EQ(event["text"], item["content"][0]["text"]);
    } else if (event.contains("arguments")) {
      EXPECT_EQ(event["arguments"], item["arguments"]);
    } else if (type == "response.content_part.done") {
      EXPECT_EQ(event["part"], item["content"][0]);
    }
    if (type != "response.output_item.done") continue;
    item["status"] = event["item"]["status"];
    EXPECT_EQ(event["item"], item);
  }
  return output;
}

TEST(Responses, EventsBuildTheWholeAnswer) {
  const Answered stream = response_to(R"({"input": "Hi", "stream": true})", pieces_with_call());
  const Answered whole = response_to(R"({"input": "Hi"})", pieces_with_call());
  const std::vector<Json> events = response_events(stream.bytes);
  std::vector<std::string> types;
  for (const Json& event : events) types.push_back(event["type"].get<std::string>().substr(9));
  EXPECT_EQ(types, (std::vector<std::string>{"created",
                                             "in_progress",
                                             "output_item.added",
                                             "content_part.added",
                                             "reasoning_text.delta",
                                             "reasoning_text.delta",
                                             "reasoning_text.done",
                                             "content_part.done",
                                             "output_item.done",
                                             "output_item.added",
                                             "content_part.added",
                                             "output_text.delta",
                                             "output_text.delta",
                                             "output_text.done",
                                             "content_part.done",
                                             "output_item.done",
                                             "output_item.added",
                                             "function_call_arguments.delta",
                                             "function_call_arguments.delta",
                                             "function_call_arguments.done",
                                             "output_item.done",
                                             "output_item.added",
                                             "function_call_arguments.delta",
                                             "function_call_arguments.done",
                                             "output_item.done",
                                             "completed"}));
  EXPECT_EQ(events[0]["response"]["status"], "in_progress");
  EXPECT_TRUE(events[0]["response"]["output"].empty());
  Json last = events.back()["response"], answer = Json::parse(whole.bytes);
  EXPECT_EQ(built_output(events), last["output"]);
  EXPECT_EQ(last["output"], stream.kept);
  for (Json* const one : {&last, &answer}) {
    for (std::size_t i = 2; i < 4; ++i) {
      EXPECT_TRUE((*one)["output"][i]["call_id"].get<std::string>().starts_with("call_"));
      (*one)["output"][i].erase("call_id");
    }
    one->erase("completed_at");
  }
  EXPECT_EQ(last, answer);
  EXPECT_EQ(answer["status"], "completed");
  EXPECT_EQ(answer["object"], "response");
  EXPECT_EQ(answer["output"][0]["content"][0]["text"], "Add them.");
  EXPECT_TRUE(answer["output"][0]["encrypted_content"].is_null());
  EXPECT_EQ(answer["output"][1]["content"][0]["text"], "I add.");
  EXPECT_EQ(answer["output"][2]["arguments"], "{\"a\": 1}");
  EXPECT_EQ(answer["output"][3]["name"], "stop");
  EXPECT_EQ(answer["usage"]["output_tokens"], 5);
  EXPECT_EQ(answer["usage"]["input_tokens_details"]["cached_tokens"], 2);
  EXPECT_EQ(answer["usage"]["output_tokens_details"]["reasoning_tokens"], 1);
}

TEST(Responses, ACutAnswerIsIncomplete) {
  const std::vector<Piece> pieces{{.tokens = 1, .deltas = {{Kind::content, "Hel"}}},
                                  {.finish = Finish::length}};
  const Json whole = Json::parse(response_to(R"({"input": "Hi"})", pieces).bytes);
  EXPECT_EQ(whole["status"], "incomplete");
  EXPECT_EQ(whole["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(whole["output"][0]["status"], "incomplete");
  EXPECT_EQ(response_events(response_to(R"({"input": "Hi", "stream": true})", pieces).bytes).back()["type"],
            "response.incomplete");
}

TEST(Responses, AnAnswerWithoutAWordIsAMessage) {
  const Json whole = Json::parse(response_to(R"({"input": "Hi"})", {{.finish = Finish::stop}}).bytes);
  EXPECT_EQ(whole["output"][0]["content"][0]["text"], "");
  EXPECT_EQ(whole["output"][0]["status"], "completed");
}

TEST(Responses, AFailedTextFails) {
  const std::vector<Piece> pieces{{.finish = Finish::failed, .problem = "no numbers"}};
  const Answered whole = response_to(R"({"input": "Hi"})", pieces);
  EXPECT_EQ(Json::parse(whole.bytes)["error"]["message"], "no numbers");
  EXPECT_TRUE(whole.kept.is_null());
  const Json last = response_events(response_to(R"({"input": "Hi", "stream": true})", pieces).bytes).back();
  EXPECT_EQ(last["type"], "response.failed");
  EXPECT_EQ(last["response"]["error"]["message"], "no numbers");
}

TEST(Responses, ReasoningIsSealedWhereThatIsAskedFor) {
  const Json whole = Json::parse(
      response_to(R"({"input": "Hi", "store": false, "include": ["reasoning.encrypted_content"]})",
                  pieces_with_call())
          .bytes);
  EXPECT_EQ(whole["output"][0]["encrypted_content"], sealed_reasoning("Add them."));
}

// Of a text's tokens only those of the content are shown.
TEST(Responses, LogProbsAreOfTheContent) {
  const auto token = [](char letter) {
    return TokenLogProb{letter, std::string(1, letter), -1.0, {{"a", -0.5}}, {'a'}, 0};
  };
  const std::vector<Piece> pieces{
      {.tokens = 1, .log_probs = {token('r')}, .deltas = {{Kind::reasoning, "r"}}, .reasoning_tokens = 1},
      {.tokens = 1, .log_probs = {token('x')}},  // its text comes later
      {.tokens = 1, .log_probs = {token('y')}, .deltas = {{Kind::content, "xy"}}},
      {.tokens = 1,
       .log_probs = {token('c')},
       .deltas = {{Kind::call, "", 0, "f", "1"}, {Kind::arguments, "{}", 0}}},
      {.tokens = 1, .log_probs = {{256, "", -1.0, {}, {}, 0}}, .finish = Finish::stop}};
  const std::string body =
      R"({"input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 1, "stream": )";
  const Json whole = Json::parse(response_to(body + "false}", pieces).bytes);
  const Json& shown = whole["output"][1]["content"][0]["logprobs"];
  ASSERT_EQ(shown.size(), 2u);
  EXPECT_EQ(shown[0]["token"], "x");
  EXPECT_EQ(shown[1]["token"], "y");
  EXPECT_EQ(shown[1]["bytes"], Json::array({'y'}));
  EXPECT_EQ(shown[1]["top_logprobs"][0]["logprob"], -0.5);
  Json streamed = Json::array();
  for (const Json& event : response_events(response_to(body + "true}", pieces).bytes)) {
    if (event["type"] == "response.output_text.delta")
      streamed.insert(streamed.end(), event["logprobs"].begin(), event["logprobs"].end());
    if (event.contains("text") && event.contains("logprobs")) {
      EXPECT_EQ(event["logprobs"], shown);
    }
  }
  EXPECT_EQ(streamed, shown);
}

TEST(StoredResponses, HaveLimits) {
  const auto response = [](const std::string& id, std::size_t bytes) {
    StoredResponse made{std::string(bytes, 'x'), {}};
    made.conversation.push_back(std::make_shared<const StoredItem>(StoredItem{"item_" + id, "{}"}));
    return made;
  };
  StoredResponses stored(3, 10000);
  for (const char* id : {"a", "b", "c"}) stored.keep({}, id, response(id, 10));
  EXPECT_NE(stored.find({}, "a"), nullptr);  // used: b is the oldest now
  stored.keep({}, "d", response("d", 10));
  EXPECT_EQ(stored.find({}, "b"), nullptr);
  EXPECT_NE(stored.find({}, "a"), nullptr);
  stored.keep({}, "large", response("large", 9000));
  EXPECT_EQ(stored.find({}, "c"), nullptr);
  EXPECT_NE(stored.find({}, "large"), nullptr);
  stored.keep({}, "too large", response("too large", 10000));
  EXPECT_EQ(stored.find({}, "too large"), nullptr);
  EXPECT_NE(stored.find({}, "large"), nullptr);
  EXPECT_TRUE(stored.erase({}, "large"));
  EXPECT_FALSE(stored.erase({}, "large"));
}

TEST(StoredResponses, BelongToAKey) {
  StoredResponses stored;
  StoredResponse made{"{}", {std::make_shared<const StoredItem>(StoredItem{"msg_1", "{\"a\":1}"})}, 0, 1};
  stored.keep(1, "resp_1", made);
  EXPECT_EQ(stored.find({}, "resp_1"), nullptr);
  EXPECT_EQ(stored.find(0, "resp_1"), nullptr);
  EXPECT_FALSE(stored.erase(0, "resp_1"));
  EXPECT_TRUE(stored.find_items(0, {"msg_1"}).empty());
  EXPECT_EQ(stored.find_items(1, {"msg_1", "msg_2"}),
            (std::map<std::string, std::string>{{"msg_1", "{\"a\":1}"}}));
  EXPECT_NE(stored.find(1, "resp_1"), nullptr);
}

// A server whose model answers every text with the same pieces, and remembers its prompt.
class ResponsesServer {
 public:
  explicit ResponsesServer(std::vector<Piece> pieces, http::Options options = {})
      : pieces_(std::move(pieces)), options_(std::move(options)) {
    server_ = std::make_unique<HttpServer>(options_, model_, inbox_, statistics_);
    server_->start();
    answers_ = std::thread([this] {
      while (!inbox_.is_done()) {
        inbox_.wait(0.05);
        while (const auto text = inbox_.take()) {
          {
            const std::lock_guard lock(mutex_);
            prompt_ = model_.tokenizer->decode(text->request.prompt);
          }
          for (const Piece& piece : pieces_) text->pieces->add(piece);
          inbox_.finished(*text);
        }
      }
    });
  }
  ~ResponsesServer() {
    inbox_.close();
    answers_.join();
  }
  Json ask(const std::string& method, const std::string& path, const std::string& body = "", int status = 200,
           const std::string& key = "") const {
    std::string headers = method == "POST" ? "Content-Type: application/json\r\n" : "";
    if (!key.empty()) headers += "Authorization: Bearer " + key + "\r\n";
    const auto answer = client().request(method, path, headers, body);
    EXPECT_EQ(answer.status, status) << path << " " << answer.body;
    return Json::parse(answer.body, nullptr, false);
  }
  http::Client client() const { return http::Client(server_->port()); }
  std::string prompt() const {
    const std::lock_guard lock(mutex_);
    return prompt_;
  }

 private:
  const std::vector<Piece> pieces_;
  const http::Options options_;
  const ServedModel model_ = chatting_model();
  Statistics statistics_;
  Inbox inbox_{{.slots = 2, .waiting = 8}, statistics_};
  std::unique_ptr<HttpServer> server_;
  std::thread answers_;
  mutable std::mutex mutex_;
  std::string prompt_;
};

TEST(Responses, GoOnFromAnEarlierOne) {
  const ResponsesServer server(pieces_with_call());
  const Json first = server.ask("POST", "/v1/responses", R"({"input": "One", "instructions": "Old."})");
  const std::string id = first["id"], call = first["output"][2]["call_id"],
                    other = first["output"][3]["call_id"];
  const Json second = server.ask(
      "POST", "/v1/responses",
      Json{{"previous_response_id", id},
           {"instructions", "New."},
           {"input", Json::array({{{"type", "function_call_output"}, {"call_id", call}, {"output", "3"}},
                                  {{"type", "function_call_output"}, {"call_id", other}, {"output", "ok"}},
                                  {{"role", "user"}, {"content", "Two"}}})}}
          .dump());
  EXPECT_EQ(server.prompt(),
            "[system|New.][user|One][assistant|(Add them.)I add.<add {\"a\": 1}><stop {}>][tool|3][tool|ok]"
            "[user|Two][assistant|");
  EXPECT_EQ(second["previous_response_id"], id);
  const Json third =
      server.ask("POST", "/v1/responses",
                 Json{{"previous_response_id", second["id"]}, {"input", "Three"}, {"store", false}}.dump());
  EXPECT_TRUE(server.prompt().starts_with("[user|One]")) << server.prompt();
  EXPECT_TRUE(server.prompt().ends_with("[user|Three][assistant|")) << server.prompt();
  EXPECT_EQ(server.ask("GET", "/v1/responses/" + id), first);
  server.ask("GET", "/v1/responses/" + third["id"].get<std::string>(), "", 404);
  server.ask("GET", "/v1/responses/" + id + "?stream=true", "", 400);

  const std::string items = "/v1/responses/" + second["id"].get<std::string>() + "/input_items";
  const Json all = server.ask("GET", items), some = server.ask("GET", items + "?order=asc&limit=2");
  EXPECT_EQ(all["data"].size(), 3u);
  EXPECT_EQ(all["data"][0]["content"][0]["text"], "Two");
  EXPECT_EQ(all["has_more"], false);
  EXPECT_EQ(some["data"][0]["call_id"], call);
  EXPECT_EQ(some["has_more"], true);
  const Json rest = server.ask("GET", items + "?order=asc&after=" + some["last_id"].get<std::string>());
  EXPECT_EQ(rest["data"], Json::array({all["data"][0]}));
  for (const char* query : {"?limit=0", "?limit=x", "?order=up", "?after=nothing"})
    server.ask("GET", items + query, "", 400);

  // Items of stored responses are named instead of sent.
  server.ask("POST", "/v1/responses",
             Json{{"input", Json::array({{{"type", "item_reference"}, {"id", first["output"][1]["id"]}},
                                         {{"role", "user"}, {"content", "Four"}}})}}
                 .dump());
  EXPECT_EQ(server.prompt(), "[assistant|I add.][user|Four][assistant|");

  const std::string foreign = "Origin: http://page.test\r\n";  // another site's page deletes nothing
  EXPECT_EQ(server.client().request("DELETE", "/v1/responses/" + id, foreign).status, 403);
  EXPECT_EQ(server.ask("DELETE", "/v1/responses/" + id)["deleted"], true);
  server.ask("DELETE", "/v1/responses/" + id, "", 404);
  server.ask("GET", "/v1/responses/" + id, "", 404);
  const Json gone =
      server.ask("POST", "/v1/responses", Json{{"previous_response_id", id}, {"input", "a"}}.dump(), 400);
  EXPECT_EQ(gone["error"]["code"], "previous_response_not_found");
  EXPECT_EQ(gone["error"]["param"], "previous_response_id");
}

TEST(Responses, AreNotFoundByAnotherKey) {
  http::Options options;
  options.keys.add("mine");
  options.keys.add("yours");
  const ResponsesServer server({{.finish = Finish::stop, .deltas = {{Kind::content, "Hi"}}}}, options);
  const Json made = server.ask("POST", "/v1/responses", R"({"input": "a"})", 200, "mine");
  const std::string path = "/v1/responses/" + made["id"].get<std::string>();
  const std::string next = Json{{"previous_response_id", made["id"]}, {"input", "b"}}.dump();
  const std::string named =
      Json{{"input", Json::array({{{"type", "item_reference"}, {"id", made["output"][0]["id"]}}})}}.dump();
  server.ask("GET", path, "", 404, "yours");
  server.ask("GET", path + "/input_items", "", 404, "yours");
  server.ask("DELETE", path, "", 404, "yours");
  server.ask("POST", "/v1/responses", next, 400, "yours");
  server.ask("POST", "/v1/responses", named, 404, "yours");
  server.ask("GET", path, "", 401);
  server.ask("POST", "/v1/responses", next, 200, "mine");
  server.ask("POST", "/v1/responses", named, 200, "mine");
  server.ask("GET", path, "", 200, "mine");
}

TEST(Responses, CountInputTokens) {
  const ResponsesServer server({});
  const Json counted = server.ask("POST", "/v1/responses/input_tokens", R"({"input": "abc"})");
  EXPECT_EQ(counted["input_tokens"], std::string("[user|abc][assistant|").size());
  EXPECT_EQ(counted["object"], "response.input_tokens");
}

}  // namespace
}  // namespace switchyard::serve
