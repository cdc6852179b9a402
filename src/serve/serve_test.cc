// Clients get what they ask for, or are told why not.
#include "generate/generator_testing.h"
#include "serve/serve_testing.h"

namespace switchyard::serve {
namespace {

TEST(Serve, Answers) {
  Service service;
  const json four{{"prompt", json::array({"one", json::array({116, 119})})},
                  {"n", 2},
                  {"max_tokens", 3},
                  {"echo", true},
                  {"temperature", 1},
                  {"seed", 1},
                  {"ignore_eos", true}};
  const json answer = service.ask(four);
  ASSERT_EQ(answer["choices"].size(), 4u);
  EXPECT_EQ(answer["usage"], json({{"prompt_tokens", 5}, {"completion_tokens", 12}, {"total_tokens", 17}}));
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(answer["choices"][i]["index"], i);
    EXPECT_TRUE(answer["choices"][i]["text"].get<std::string>().starts_with(i < 2 ? "one" : "tw"));
  }
  EXPECT_NE(answer["choices"][0]["text"], answer["choices"][1]["text"]);
  EXPECT_EQ(service.ask(four)["choices"], answer["choices"]);

  const json probable = service.ask({{"prompt", "x"}, {"max_tokens", 2}, {"logprobs", 2}});
  const json& log_probs = probable["choices"][0]["logprobs"];
  ASSERT_EQ(log_probs["token_logprobs"].size(), 2u);
  EXPECT_EQ(log_probs["top_logprobs"][0].size(), 2u);
  EXPECT_EQ(log_probs["top_logprobs"][0][log_probs["tokens"][0].get<std::string>()],
            log_probs["token_logprobs"][0]);

  // A text ends before a word that it must not contain.
  const std::string whole = service.ask({{"prompt", "y"}, {"max_tokens", 20}})["choices"][0]["text"];
  const std::string word(
      1, *std::find_if(whole.begin() + 1, whole.end(), [](char c) { return c >= ' ' && c <= '~'; }));
  const json stopped = service.ask({{"prompt", "y"}, {"max_tokens", 20}, {"stop", word}})["choices"][0];
  EXPECT_EQ(stopped["text"], whole.substr(0, whole.find(word)));
  EXPECT_EQ(stopped["finish_reason"], "stop");
  const json models = json::parse(service.get("/v1/models"));
  EXPECT_EQ(models["data"][0]["id"], "small");
  EXPECT_EQ(json::parse(service.get("/v1/models/small")), models["data"][0]);
  EXPECT_EQ(json::parse(service.get("/v1/models/large", 404))["error"]["code"], "model_not_found");
  EXPECT_EQ(service.client().head("/v1/models/small").status, 200);
  EXPECT_EQ(service.client().head("/v1/models/large").status, 404);
  EXPECT_EQ(json::parse(service.get("/health"))["status"], "ok");
}

TEST(Serve, StreamsWhatItWouldAnswer) {
  Service service;
  json request{{"prompt", "to be"}, {"max_tokens", 12}, {"ignore_eos", true}, {"n", 2}};
  const json whole = service.ask(request);
  request.update({{"stream", true}, {"stream_options", {{"include_usage", true}}}});
  auto answer = service.client().post("/v1/completions", request.dump());
  ASSERT_TRUE(answer.is_whole);
  EXPECT_EQ(answer.header("Content-Type"), "text/event-stream");
  std::vector<std::string> texts(2);
  int finished = 0;
  json usage;
  std::istringstream lines(answer.body);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    ASSERT_TRUE(line.starts_with("data: ")) << line;
    last = line.substr(6);
    if (last == "[DONE]") break;
    const json part = json::parse(last);
    if (part.contains("usage")) usage = part["usage"];
    for (const json& choice : part["choices"]) {
      texts[choice["index"]] += choice["text"];
      finished += choice["finish_reason"] == "length";
    }
  }
  EXPECT_EQ(last, "[DONE]");
  EXPECT_EQ(finished, 2);
  EXPECT_EQ(usage, whole["usage"]);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(texts[i], whole["choices"][i]["text"].get<std::string>());
}

TEST(Serve, RefusesInOneLine) {
  Service service;
  const auto refused = [&](const json& request, const std::string& field, const std::string& words) {
    const json error = service.ask(request, 400)["error"];
    EXPECT_EQ(error["param"], field) << error;
    EXPECT_NE(error["message"].get<std::string>().find(words), std::string::npos) << error;
  };
  const json unknown = service.ask({{"prompt", "a"}, {"model", "large"}}, 404)["error"];
  EXPECT_EQ(unknown["code"], "model_not_found");
  EXPECT_NE(unknown["message"].get<std::string>().find("expected small"), std::string::npos);
  refused(json::object(), "prompt", "expected a text");
  refused({{"prompt", ""}}, "prompt", "one token or more");
  refused({{"prompt", json::array()}}, "prompt", "expected a text");
  refused({{"prompt", json::array({"a", 3})}}, "prompt", "lists of tokens");
  refused({{"prompt", json::array({259})}}, "prompt", "outside the model's vocabulary of 259");
  EXPECT_EQ(service.ask({{"prompt", json::array({257, 258})}, {"max_tokens", 1}})["usage"]["prompt_tokens"],
            2);
  refused({{"prompt", json::array({-1})}}, "prompt", "outside");
  refused({{"prompt", "a"}, {"max_tokens", -1}}, "max_tokens", "0 to");
  refused({{"prompt", "a"}, {"max_tokens", 1.5}}, "max_tokens", "whole number");
  refused({{"prompt", "a"}, {"max_tokens", 18446744073709551615u}}, "max_tokens", "expected");
  refused({{"prompt", "a"}, {"max_tokens", kCapacity}}, "max_tokens", "at most 40 together");
  refused({{"prompt", std::string(kCapacity, 'a')}}, "prompt", "at most 40 together");
  refused({{"prompt", "a"}, {"temperature", "hot"}}, "temperature", "a number");
  refused({{"prompt", "a"}, {"top_p", 1.01}}, "top_p", "0 to 1");
  refused({{"prompt", "a"}, {"stop", json::array({"a", ""})}}, "stop", "not empty");
  refused({{"prompt", "a"}, {"stop", 3}}, "stop", "list of texts");
  refused({{"prompt", "a"}, {"n", 129}}, "n", "1 to 128");
  refused({{"prompt", json::array({"a", "b"})}, {"n", 100}}, "n", "at most 11 texts in all, got 200");
  refused({{"prompt", json(std::vector<std::string>(12, "a"))}}, "prompt", "at most 11 texts in all, got 12");
  refused({{"prompt", "a"}, {"stop_token_ids", 5}}, "stop_token_ids", "a list");
  refused({{"prompt", "a"}, {"stop_token_ids", {5, 259}}}, "stop_token_ids", "0 to 258, got 259");
  refused({{"prompt", "a"}, {"n", 2}, {"best_of", 3}}, "best_of", "got 3");
  refused({{"prompt", "a"}, {"min_p", 1.5}}, "min_p", "0 to 1, got 1.5");
  refused({{"prompt", "a"}, {"top_k", 0.5}}, "top_k", "whole number");
  refused({{"prompt", "a"}, {"repetition_penalty", 0}}, "repetition_penalty", "0.01 to 100, got 0");
  refused({{"prompt", "a"}, {"presence_penalty", 2.5}}, "presence_penalty", "-2 to 2, got 2.5");
  refused({{"prompt", "a"}, {"frequency_penalty", "x"}}, "frequency_penalty", "a number");
  refused({{"prompt", "a"}, {"logit_bias", 5}}, "logit_bias", "an object");
  refused({{"prompt", "a"}, {"logit_bias", {{"5", 101}}}}, "logit_bias", "-100 to 100 for token 5, got 101");
  for (const char* token : {"257", "-1", "05", "5x", "", "99999999999"})
    refused({{"prompt", "a"}, {"logit_bias", {{token, 1}}}}, "logit_bias", "tokens of 0 to 256");
  refused({{"prompt", "a"}, {"suffix", "b"}}, "suffix", "nothing else");
  refused({{"prompt", "a"}, {"stream_options", json::object()}}, "stream_options", "stream=true");
  refused({{"prompt", "a"}, {"stream", true}, {"stream_options", {{"x", 1}}}}, "x", "unknown");
  refused({{"prompt", "a"}, {"max_new_tokens", 5}}, "max_new_tokens", "unknown field");
  for (const char* body : {"", "{", "[]", "\"a\"", "\xff"}) {
    auto answer = service.client().post("/v1/completions", body);
    ASSERT_TRUE(answer.is_whole);
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_EQ(json::parse(answer.body)["error"]["type"], "invalid_request_error");
  }
  const std::string deep(100000, '['), end(100000, ']');
  for (const char* field : {"prompt", "stop", "logit_bias", "n", "x"}) {
    const std::string body = "{\"prompt\": \"a\", \"" + std::string(field) + "\": " + deep + end + "}";
    auto answer = service.client().post("/v1/completions", body);
    ASSERT_TRUE(answer.is_whole);
    EXPECT_EQ(answer.status, 400) << field;
  }
  auto answer = service.client().post("/v1/completions", std::string(17 << 20, ' '));
  EXPECT_EQ(answer.status, 413);
  const std::string spaces(100000, ' '), type = "application/x-www-form-urlencoded";  // as curl -d says
  answer = service.client().post("/v1/completions", R"({"prompt": "a"})" + spaces, type);
  EXPECT_EQ(answer.status, 200);
  answer = service.client().post("/v1/completions", "--x--\r\n", "multipart/form-data; boundary=x");
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(service.get("/v1/completion", 404)
                .find("GET /v1/completion: expected one of GET /health, GET /v1/models"),
            std::string::npos);
  // What is allowed besides.
  service.ask({{"prompt", "a"},
               {"model", "small"},
               {"user", "me"},
               {"best_of", 1},
               {"presence_penalty", 0},
               {"logit_bias", json::object()},
               {"suffix", nullptr},
               {"stop", nullptr},
               {"top_p", 0}});
}

// Each field does what it does in `generate`, with one row as with several at once.
TEST(Serve, PenaltiesAndBiases) {
  struct Asked {
    json fields;
    SamplingConfig sampling;
  };
  using enum SamplingStrategy;
  const auto with = [](SamplingConfig config, const auto& change) {
    change(config);
    return config;
  };
  const SamplingConfig drawn{weighted, 1};
  const std::vector<Asked> asked{
      {{{"repetition_penalty", 0.1}}, with({}, [](auto& c) { c.repetition_penalty = 0.1; })},
      {{{"presence_penalty", -2}}, with({}, [](auto& c) { c.presence_penalty = -2; })},
      {{{"frequency_penalty", -1.5}, {"temperature", 1}},
       with(drawn, [](auto& c) { c.frequency_penalty = -1.5; })},
      {{{"logit_bias", {{"65", 100}, {"66", -3.5}}}},
       with({},
            [](auto& c) {
              c.logit_bias = {{65, 100}, {66, -3.5}};
            })},
      {{{"min_p", 0.5}}, with(drawn, [](auto& c) { c.min_p = 0.5; })},
      {{{"top_k", 3}}, {composite, 1, 1, 3}}};
  Service service("", {.slots = 4, .waiting = 8});
  for (const Asked& a : asked) {
    const GenerateOptions options{.sampling = a.sampling, .most_tokens = 12, .vocab = kTokens, .seed = 5};
    const std::string want = service.tokenizer().decode(made_alone("a beginning", options));
    json request{{"prompt", json::array({"a beginning", "other"})},
                 {"max_tokens", 12},
                 {"ignore_eos", true},
                 {"seed", 5}};
    request.update(a.fields);
    const json answer = service.ask(request);
    const std::string dumped = json(want).dump(-1, ' ', false, json::error_handler_t::replace);
    EXPECT_EQ(answer["choices"][0]["text"], json::parse(dumped)) << a.fields;
    const bool is_greedy = a.sampling.strategy == greedy;
    const GenerateOptions plain{
        .sampling = is_greedy ? SamplingConfig{} : drawn, .most_tokens = 12, .vocab = kTokens, .seed = 5};
    EXPECT_NE(want, service.tokenizer().decode(made_alone("a beginning", plain))) << a.fields;
  }
  EXPECT_EQ(
      service.ask({{"prompt", "x"}, {"max_tokens", 3}, {"logit_bias", {{"65", 100}}}})["choices"][0]["text"],
      "AAA");
}

// What a request does not say, the command line has said.
TEST(Serve, RequestsAddToTheCommandLine) {
  Service service;
  ServedModel model = service.served();
  model.sampling = {SamplingStrategy::topk, 0.5, -1, 7};
  model.sampling.min_p = 0.1;
  model.sampling.repetition_penalty = 1.1;
  model.sampling.logit_bias = {{1, 2}};
  const auto sampling_of = [&](const json& fields) {
    json request{{"prompt", "a"}};
    request.update(fields);
    return parse_completion(request.dump(), model, 0, kNobody).texts[0].sampling;
  };
  const SamplingConfig same = sampling_of({{"presence_penalty", 0.5}});
  EXPECT_EQ(same.strategy, SamplingStrategy::topk);
  EXPECT_EQ(same.top_k, 7);
  EXPECT_EQ(same.presence_penalty, 0.5);
  EXPECT_EQ(same.repetition_penalty, 1.1);
  EXPECT_EQ(same.logit_bias.size(), 1u);
  const SamplingConfig other =
      sampling_of({{"top_p", 0.9}, {"repetition_penalty", 1}, {"logit_bias", json::object()}});
  EXPECT_EQ(other.strategy, SamplingStrategy::composite);
  EXPECT_EQ(other.temperature, 0.5);
  EXPECT_EQ(other.top_k, 7);
  EXPECT_EQ(other.min_p, 0.1);
  EXPECT_EQ(other.repetition_penalty, 1);
  EXPECT_TRUE(other.logit_bias.empty());
}

// Any of the ends ends a text.
TEST(Serve, TextsThatCannotFitAreRefusedUnread) {
  Service service;
  ServedModel model = service.served();
  model.longest_token = 4;
  const auto parse = [&](const json& request) { return parse_completion(request.dump(), model, 0, 3); };
  EXPECT_EQ(parse({{"prompt", "a"}, {"max_tokens", 1}}).texts[0].domain, (CacheDomain{3}));
  EXPECT_EQ(parse({{"prompt", "a"}, {"cache_salt", "s"}}).texts[0].domain, (CacheDomain{3, "s"}));
  model.keys_share_prefixes = true;
  EXPECT_EQ(parse({{"prompt", "a"}, {"max_tokens", 1}}).texts[0].domain, CacheDomain{});
  EXPECT_THROW(parse({{"prompt", "a"}, {"cache_salt", ""}}), BadRequest);
  try {
    parse({{"prompt", std::string(4 * kCapacity + 4, 'a')}});
    ADD_FAILURE();
  } catch (const BadRequest& error) {
    EXPECT_EQ(error.code, "context_length_exceeded");
  }
  EXPECT_THROW(parse({{"prompt", std::vector<int>(kCapacity + 1, 5)}}), BadRequest);
}

TEST(Serve, EndsAreSeveral) {
  const Limits limits{.slots = 2, .waiting = 8, .ends = {65, 66}};
  Service service("", limits);
  for (const char* token : {"65", "66", "256"}) {
    json request{{"prompt", "a"}, {"max_tokens", 5}, {"logit_bias", {{token, 100}}}};
    json answer = service.ask(request);
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop") << token;
    EXPECT_EQ(answer["usage"]["completion_tokens"], 1) << token;
    request["ignore_eos"] = true;
    answer = service.ask(request);
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "length") << token;
  }
  const json answer = service.ask({{"prompt", "a"}, {"max_tokens", 5}, {"logit_bias", {{"67", 100}}}});
  EXPECT_EQ(answer["choices"][0]["text"], "CCCCC");
}

TEST(Serve, RefusesMoreThanMayWait) {
  Service service("", {.slots = 1, .waiting = 2});
  // What can never be taken is refused for good.
  const json never = service.ask({{"prompt", "a"}, {"n", 4}}, 400)["error"];
  EXPECT_EQ(never["param"], "n");
  EXPECT_EQ(never["message"], "n: expected at most 3 texts in all, got 4");
  EXPECT_EQ(service.ask({{"prompt", "a"}, {"n", 3}, {"ignore_eos", true}})["usage"]["completion_tokens"], 48);
  service.stop();
  EXPECT_EQ(service.ask({{"prompt", "a"}}, 503)["error"]["type"], "overloaded_error");
  EXPECT_EQ(service.counts().refused, 1);
  EXPECT_EQ(json::parse(service.get("/health", 503))["status"], "stopping");
}

TEST(Serve, RequestsHaveEndsOfTheirOwn) {
  Service service;
  json request{
      {"prompt", "a"}, {"max_tokens", 5}, {"logit_bias", {{"66", 100}}}, {"stop_token_ids", {65, 66}}};
  for (const bool ignores : {false, true}) {
    request["ignore_eos"] = ignores;  // is of the tokens that end every text
    const json answer = service.ask(request);
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
    EXPECT_EQ(answer["choices"][0]["text"], "");
    EXPECT_EQ(answer["usage"]["completion_tokens"], 1);
  }
  request["stop_token_ids"] = json::array({67});
  EXPECT_EQ(service.ask(request)["choices"][0]["text"], "BBBBB");
}

// What the model, asked token by token, gives each token of a text.
std::vector<double> scores_alone(const std::string& text) {
  const Config config = Config::from_map(small_model(), {});
  const ModelConfig model = model_config(config);
  std::vector<double> scores;
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const Parameters parameters =
        Parameters::create(context, parameter_specs(model), model.init_seed, {}, nullptr);
    Generator generator(context, model, parameters, 1, kCapacity);
    for (std::size_t i = 0; i + 1 < text.size(); ++i) {
      const SlotTokens fed{0, {text[i]}};
      const Tensor logits = generator.feed(std::span(&fed, 1));
      scores.push_back(generator_test::log_probability(logits.span<float>(), text[i + 1]));
    }
  });
  return scores;
}

void expect_scores(const json& log_probs, const std::string& text) {
  const std::vector<double> expected = scores_alone(text);
  ASSERT_GE(log_probs["token_logprobs"].size(), text.size());
  EXPECT_TRUE(log_probs["token_logprobs"][0].is_null());
  EXPECT_TRUE(log_probs["top_logprobs"][0].is_null());
  for (std::size_t i = 0; i < text.size(); ++i) {
    EXPECT_EQ(log_probs["tokens"][i], std::string(1, text[i]));
    EXPECT_EQ(log_probs["text_offset"][i], i);
    if (i > 0) {
      EXPECT_NEAR(log_probs["token_logprobs"][i].get<double>(), expected[i - 1], 1e-5) << text << " " << i;
    }
  }
}

TEST(Serve, ScoresPrompts) {
  const std::string text = "to be or not to be", other = "no";
  for (const std::string layout : {"", "mtp_num_layers=1", "ranks=2 ici_fsdp_parallelism=2",
                                   "ranks=2 ici_tensor_parallelism=2 ici_fsdp_parallelism=1"}) {
    for (const std::int64_t piece : {1, 5, 64}) {
      SCOPED_TRACE(layout + fmt::format(", pieces of {}", piece));
      Service service(layout, {.slots = 4, .waiting = 8, .prompt_chunk = 64, .scored_chunk = piece});
      json request{{"prompt", {text, other}}, {"max_tokens", 1}, {"echo", true},
                   {"logprobs", 1},           {"n", 2},          {"ignore_eos", true}};
      for (int again = 0; again < 2; ++again) {  // what a row remembers is read again
        const json choices = service.ask(request)["choices"];
        ASSERT_EQ(choices.size(), 4u);
        for (std::size_t i = 0; i < 4; ++i) {
          const std::string& prompt = i < 2 ? text : other;
          expect_scores(choices[i]["logprobs"], prompt);
          EXPECT_EQ(choices[i]["logprobs"]["tokens"].size(), prompt.size() + 1);
          EXPECT_EQ(choices[i]["logprobs"]["text_offset"].back(), prompt.size());
          EXPECT_TRUE(choices[i]["text"].get<std::string>().starts_with(prompt));
        }
      }
      request.update({{"max_tokens", 0}, {"n", 1}});
      const json scored = service.ask(request);
      expect_scores(scored["choices"][0]["logprobs"], text);
      EXPECT_EQ(scored["choices"][0]["logprobs"]["tokens"].size(), text.size());
      EXPECT_EQ(scored["choices"][0]["text"], text);
      EXPECT_EQ(scored["choices"][0]["finish_reason"], "length");
      EXPECT_EQ(scored["usage"]["completion_tokens"], 0);
    }
  }
}

TEST(Serve, StreamsScores) {
  Service service("", {.slots = 2, .waiting = 8, .scored_chunk = 4});
  const std::string text = "to be or not";
  json request{{"prompt", text}, {"max_tokens", 2}, {"echo", true}, {"logprobs", 2}, {"ignore_eos", true}};
  const json whole = service.ask(request)["choices"][0];
  request["stream"] = true;
  auto answer = service.client().post("/v1/completions", request.dump());
  ASSERT_TRUE(answer.is_whole);
  json log_probs;
  std::string streamed;
  std::istringstream lines(answer.body);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: {")) continue;
    const json choice = json::parse(line.substr(6))["choices"][0];
    streamed += choice["text"];
    if (choice["logprobs"].is_null()) continue;
    for (const auto& [name, list] : choice["logprobs"].items())
      for (const json& value : list) log_probs[name].push_back(value);
  }
  EXPECT_EQ(streamed, whole["text"].get<std::string>());
  EXPECT_EQ(log_probs, whole["logprobs"]);
}

TEST(Serve, NothingToMakeIsAnsweredAtOnce) {
  Service service;
  const json echoed = service.ask({{"prompt", "abc"}, {"max_tokens", 0}, {"echo", true}});
  EXPECT_EQ(echoed["choices"][0]["text"], "abc");
  EXPECT_EQ(echoed["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(echoed["usage"]["total_tokens"], 3);
  EXPECT_EQ(service.ask({{"prompt", "abc"}, {"max_tokens", 0}})["choices"][0]["text"], "");
  service.ask({{"prompt", std::string(kCapacity, 'a')}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 0}});
  EXPECT_EQ(service.counts().length, 3);
}

// A text that the model breaks on ends with an error; its row and all others go on as if it had not been.
TEST(Serve, TextsWithoutNumbersEnd) {
  Service service("", {.slots = 2, .waiting = 8}, kCapacity, small_model(), 'X');
  const json good{{"prompt", "to be or not to be"}, {"max_tokens", 6}, {"ignore_eos", true}};
  const json expected = service.ask(good)["choices"];
  ASSERT_EQ(expected[0]["finish_reason"], "length") << expected;
  const std::string broken = "to be or not to be X";
  for (int i = 0; i < 3; ++i) {
    json both = good;
    both["prompt"] = {broken, "to be or not to be"};
    const json choices = service.ask(both)["choices"];
    EXPECT_EQ(choices[0]["finish_reason"], "error");
    EXPECT_EQ(choices[0]["error"]["message"].get<std::string>().substr(0, 63),
              "the model's logits after 20 tokens are no numbers: that of toke");
    EXPECT_EQ(choices[1]["text"], expected[0]["text"]);
    EXPECT_EQ(service.ask(good)["choices"], expected);
  }
  const json scored = service.ask({{"prompt", "aXb"}, {"max_tokens", 1}, {"echo", true}, {"logprobs", 1}});
  EXPECT_EQ(scored["choices"][0]["finish_reason"], "error");
  // Attention multiplies values of later tokens by zero: what is no number there may reach earlier ones.
  const json& tokens = scored["choices"][0]["logprobs"]["tokens"];
  EXPECT_EQ(tokens[0], "a");
  EXPECT_LE(tokens.size(), 2u);
  EXPECT_EQ(service.counts().failed, 4);
  EXPECT_NE(service.get("/metrics").find("switchyard_texts_total{end=\"failed\"} 4"), std::string::npos);
  const json streamed{{"prompt", "X"}, {"stream", true}};
  auto answer = service.client().post("/v1/completions", streamed.dump());
  ASSERT_TRUE(answer.is_whole);
  EXPECT_NE(answer.body.find("\"finish_reason\":\"error\""), std::string::npos) << answer.body;
  EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
}

// Texts that are still being made when whoever asked for them does the next thing.
constexpr std::int64_t kLong = 4000;
const std::string kLongModel = fmt::format("max_target_length={}", kLong);

// A text whose client has gone gives its row to others.
TEST(Serve, ForgetsWhatNobodyWaitsFor) {
  Service service(kLongModel, {.slots = 1, .waiting = 4}, kLong);
  const json request{
      {"prompt", "a"}, {"max_tokens", kLong - 2}, {"ignore_eos", true}, {"stream", true}, {"n", 5}};
  {
    http::ClientConnection client(service.port());
    const std::string body = request.dump();
    client.send(fmt::format("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{}",
                            body.size(), body));
    EXPECT_NE(client.receive(), "");
  }
  for (int i = 0; i < 400 && service.counts().abandoned < 4; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  EXPECT_EQ(service.ask({{"prompt", "b"}, {"max_tokens", 2}, {"ignore_eos", true}})["usage"]["total_tokens"],
            3);
  const Counts counts = service.counts();
  EXPECT_EQ(counts.length + counts.abandoned, 6);
  EXPECT_GE(counts.abandoned, 4);
}

// Those that have a row are finished, those that wait are not begun: their connections end without an answer.
TEST(Serve, StopsWhenTheRunningTextsAreDone) {
  Service service(kLongModel, {.slots = 1, .waiting = 4}, kLong);
  const auto pieces = std::make_shared<Pieces>();
  std::vector<WantedText> texts;
  for (std::size_t i = 0; i < 3; ++i) {
    TextRequest text;
    text.prompt = {97};
    text.most_tokens = kLong - 1;
    text.choice = i;
    text.ignore_end = true;
    texts.push_back({text, pieces});
  }
  ASSERT_EQ(service.inbox().submit(std::move(texts)), Inbox::Submitted::yes);
  ASSERT_FALSE(pieces->take(60).empty());
  service.stop();
  std::map<std::size_t, Finish> how;
  for (const Piece& piece : pieces->take(0)) {
    if (piece.finish) how[piece.choice] = *piece.finish;
  }
  EXPECT_EQ(how, (std::map<std::size_t, Finish>{
                     {0, Finish::length}, {1, Finish::abandoned}, {2, Finish::abandoned}}));
}

}  // namespace
}  // namespace switchyard::serve
