// Programs that train on answers ask for tokens, log probabilities of the draw, and experts.
#include "serve/protocol/chat_request.h"
#include "serve/responses_testing.h"
#include "serve/serve_testing.h"
#include "tokenizer/base64.h"

namespace switchyard::serve {
namespace {

// The members of a choice that a stream's events have in pieces, put together.
json streamed(const Service& service, json request) {
  request["stream"] = true;
  const auto answer = service.client().post("/v1/completions", request.dump());
  EXPECT_TRUE(answer.is_whole);
  json choice{{"token_ids", json::array()}};
  std::istringstream lines(answer.body);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: {")) continue;
    const json event = json::parse(line.substr(6))["choices"][0];
    for (const json& id : event.at("token_ids")) choice["token_ids"].push_back(id);
    for (const char* name : {"prompt_token_ids", "routed_experts"}) {
      if (event.contains(name)) choice[name] = event[name];
    }
  }
  return choice;
}

TEST(TrainingFields, TokensAreThoseThatWereSampled) {
  Service service;
  const json request{{"prompt", {"to be", {1, 258}}},
                     {"max_tokens", 12},
                     {"return_token_ids", true},
                     {"temperature", 1},
                     {"seed", 4},
                     {"ignore_eos", true}};
  const json choices = service.ask(request)["choices"];
  EXPECT_EQ(choices[0]["prompt_token_ids"], json(service.tokenizer().encode("to be")));
  EXPECT_EQ(choices[1]["prompt_token_ids"], json({1, 258}));
  const json& ids = choices[0]["token_ids"];
  ASSERT_EQ(ids.size(), 12u);
  json one = request;
  one["prompt"] = "to be";
  const json events = streamed(service, one);
  EXPECT_EQ(events["token_ids"], ids);
  EXPECT_EQ(events["prompt_token_ids"], choices[0]["prompt_token_ids"]);
  // The end is among them, though it has no text.
  one["stop_token_ids"] = json::array({ids[3]});
  const json ended = service.ask(one)["choices"][0];
  EXPECT_EQ(ended["finish_reason"], "stop");
  EXPECT_EQ(ended["token_ids"].back(), ids[3]);
  EXPECT_EQ(streamed(service, one)["token_ids"], ended["token_ids"]);
  one.erase("return_token_ids");
  EXPECT_FALSE(service.ask(one)["choices"][0].contains("token_ids"));
}

TEST(TrainingFields, LogProbabilitiesOfTheModelAndOfTheDraw) {
  Service service;
  json request{{"prompt", "to be"},       {"max_tokens", 8}, {"seed", 4},
               {"temperature", 0.5},      {"logprobs", 20},  {"ignore_eos", true},
               {"return_token_ids", true}};
  const auto asked = [&](const json& with) {
    json other = request;
    other.update(with);
    return service.ask(other)["choices"][0];
  };
  const json raw = asked({{"logprobs_mode", "raw_logprobs"}}),
             processed = asked({{"logprobs_mode", "processed_logprobs"}});
  EXPECT_EQ(asked(json::object())["logprobs"], raw["logprobs"]);
  EXPECT_EQ(processed["token_ids"], raw["token_ids"]);
  for (std::size_t i = 0; i < 8; ++i) {
    // Half the temperature makes twice the differences.
    const auto distances = [&](const json& choice) {
      std::map<std::string, double> values;
      for (const auto& [token, value] : choice["logprobs"]["top_logprobs"][i].items()) values[token] = value;
      const double top = std::ranges::max(values | std::views::values);
      for (auto& [token, value] : values) value -= top;
      return values;
    };
    const auto of_model = distances(raw), of_draw = distances(processed);
    for (const auto& [token, value] : of_model) EXPECT_NEAR(of_draw.at(token), 2 * value, 1e-5) << token;
  }
  // Without alternatives the sampled token's stands alone; of the only token that may be drawn it is 0.
  const json alone = asked({{"logprobs", 0}, {"logprobs_mode", "processed_logprobs"}})["logprobs"];
  EXPECT_EQ(alone["token_logprobs"], processed["logprobs"]["token_logprobs"]);
  const json two = asked({{"top_k", 2}, {"logprobs_mode", "processed_logprobs"}})["logprobs"];
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(two["top_logprobs"][i].size(), 2u);
    double sum = 0;
    for (const json& value : two["top_logprobs"][i]) sum += std::exp(value.get<double>());
    EXPECT_NEAR(sum, 1, 1e-6);
    EXPECT_TRUE(two["top_logprobs"][i].contains(two["tokens"][i].get<std::string>()));
  }
  const json greedy = asked({{"temperature", 0}, {"logprobs_mode", "processed_logprobs"}})["logprobs"];
  EXPECT_EQ(greedy["token_logprobs"], json(std::vector<double>(8, 0)));
}

// A record without what says whose it is: its header, and its hash.
std::string body_of(const std::string& record) {
  EXPECT_TRUE(record.starts_with("SYROUTE1") && record.size() > 72);
  return record.substr(64, record.size() - 72);
}

std::string body_in(const json& choice) {
  return body_of(from_base64(choice["routed_experts"].get<std::string>()).value_or(""));
}

// The record of a text that a generator of its own reads.
std::string body_alone(const std::vector<std::int32_t>& tokens) {
  const Config config = Config::from_map(small_model(), {});
  const ModelConfig model = model_config(config);
  std::string record;
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const Parameters parameters =
        Parameters::create(context, parameter_specs(model), model.init_seed, {}, nullptr);
    Generator generator(context, model, parameters, 1, kCapacity);
    generator.record_routing();
    const SlotTokens fed{0, tokens};
    generator.feed(std::span(&fed, 1));
    record = routing_record(routed_layers(model), {}, tokens, generator.routing(0, std::ssize(tokens)));
  });
  return body_of(record);
}

TEST(TrainingFields, ExpertsAreThoseOfPromptAndAnswer) {
  for (const std::string layout : {"", "ranks=2 ici_expert_parallelism=2"}) {
    SCOPED_TRACE(layout);
    Service service(layout + " return_routed_experts=true");
    json request{{"prompt", "to be or not to be"},
                 {"max_tokens", 9},
                 {"n", 2},
                 {"ignore_eos", true},
                 {"return_token_ids", true},
                 {"temperature", 1},
                 {"return_routed_experts", true}};
    for (int again = 0; again < 2; ++again) {  // what a row remembers is not read again
      for (const json& choice : service.ask(request)["choices"]) {
        std::vector<std::int32_t> tokens = choice["prompt_token_ids"];
        for (const json& id : choice["token_ids"]) tokens.push_back(id);
        tokens.pop_back();  // is never read
        EXPECT_EQ(body_in(choice), body_alone(tokens));
      }
    }
    request.update({{"n", 1}, {"seed", 3}});
    EXPECT_EQ(body_in(streamed(service, request)), body_in(service.ask(request)["choices"][0]));
    request.erase("return_routed_experts");
    EXPECT_FALSE(service.ask(request)["choices"][0].contains("routed_experts"));
  }
}

TEST(TrainingFields, AreRefusedInOneLine) {
  ServedModel chatting = chatting_model();
  const auto refused = [&](const json& fields, const std::string& field, const std::string& words) {
    json completion{{"prompt", "a"}}, chat{{"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
    completion.update(fields), chat.update(fields);
    const auto expect = [&](const std::function<void()>& parse) {
      try {
        parse();
        ADD_FAILURE() << fields;
      } catch (const BadRequest& error) {
        EXPECT_EQ(error.field, field);
        EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
      }
    };
    expect([&] { parse_completion(completion.dump(), chatting, 0, 0); });
    expect([&] { parse_chat(parse_chat_body(chat.dump()), chatting, 0, 0); });
  };
  refused({{"return_token_ids", 1}}, "return_token_ids", "expected true or false, got 1");
  refused({{"return_routed_experts", "yes"}}, "return_routed_experts", "expected true or false, got \"yes\"");
  refused({{"return_routed_experts", true}}, "return_routed_experts",
          "start it with return_routed_experts=true");
  for (const json& mode : {json("raw"), json(3), json::array({"raw_logprobs"})})
    refused({{"logprobs_mode", mode}}, "logprobs_mode", "expected raw_logprobs or processed_logprobs, got ");
  chatting.records_routing = true;
  const ChatRequest request = parse_chat(
      parse_chat_body(
          R"({"messages": [{"role": "user", "content": "Hi"}], "logprobs": true, "return_token_ids":
        true, "logprobs_mode": "processed_logprobs", "return_routed_experts": true})"),
      chatting, 0, 0);
  EXPECT_TRUE(request.texts[0].returns_token_ids && request.texts[0].returns_routing &&
              request.texts[0].processed_log_probs);
  EXPECT_EQ(request.texts[0].log_probs, 0);
  EXPECT_TRUE(request.ignored.empty());
}

}  // namespace
}  // namespace switchyard::serve
