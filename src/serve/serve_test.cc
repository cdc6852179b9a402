// Texts that are generated together are the same as alone, on any layout. Clients get what they ask for, or
// are told why not.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>

#include "core/testing.h"
#include "engine/session.h"
#include "generate/generate.h"
#include "serve/http/testing.h"
#include "serve/http_server.h"
#include "serve/protocol/completions.h"
#include "serve/serve_loop.h"

namespace switchyard::serve {
namespace {

using nlohmann::json;

constexpr std::int64_t kVocabulary = 259, kCapacity = 40;
constexpr std::int64_t kTokens = 257;  // of the tokenizer; the model has rows beyond them

std::map<std::string, json> small_model() {
  return {{"vocab_size", kVocabulary},
          {"base_emb_dim", 24},
          {"base_mlp_dim", 20},
          {"base_moe_mlp_dim", 12},
          {"dtype", "float32"},
          {"weight_dtype", "float32"},
          {"num_experts", 4},
          {"num_experts_per_tok", 2},
          {"init_weights_seed", 3},
          {"max_target_length", kCapacity},
          {"decoder_block", "deepseek"},
          {"base_num_decoder_layers", 3},
          {"first_num_dense_layers", 1},
          {"base_num_query_heads", 4},
          {"base_num_kv_heads", 4},
          {"attention_type", "mla"},
          {"q_lora_rank", 10},
          {"kv_lora_rank", 14},
          {"qk_nope_head_dim", 6},
          {"qk_rope_head_dim", 4},
          {"v_head_dim", 8},
          {"rope_type", "default"}};
}

// Every layer has a window of six tokens.
std::map<std::string, json> windowed_model() {
  std::map<std::string, json> keys;
  for (const char* key : {"vocab_size", "base_emb_dim", "dtype", "weight_dtype", "num_experts",
                          "num_experts_per_tok", "init_weights_seed", "max_target_length"})
    keys[key] = small_model().at(key);
  keys.insert({{"decoder_block", "mixtral"},
               {"base_mlp_dim", 12},
               {"base_num_decoder_layers", 2},
               {"base_num_query_heads", 4},
               {"base_num_kv_heads", 2},
               {"head_dim", 6},
               {"sliding_window_size", 6}});
  return keys;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

// A server that answers until the end of the test.
class Service {
 public:
  explicit Service(const std::string& layout = "", const Limits& given = {.slots = 3, .waiting = 8},
                   std::int64_t capacity = kCapacity, const std::map<std::string, json>& keys = small_model(),
                   std::int64_t broken = -1)  // a token whose embedding is no number
      : config_(Config::from_map(keys, words_of(layout))), model_(model_config(config_)) {
    Limits limits = given;
    if (limits.vocab == 0) limits.vocab = tokenizer_->vocab_size();
    limits.drafts = model_.predictions > 0;
    limits.ends.push_back(*tokenizer_->eos());
    served_ = {.name = "small",
               .tokenizer = tokenizer_.get(),
               .vocab = kVocabulary,
               .capacity = capacity,
               .most_texts = limits.slots + limits.waiting};
    queue_ = std::make_unique<RequestQueue>(limits, statistics_);
    batcher_ = std::make_unique<Batcher>(*tokenizer_, limits, *queue_, statistics_);
    server_ = std::make_unique<HttpServer>(http::Options(), served_, *queue_, statistics_);
    server_->start();
    session_ = std::thread([this, limits, capacity, broken] {
      run_session(config_, mesh_from_config(config_), [&](Context& context) {
        const Parameters parameters =
            Parameters::create(context, stage_specs(parameter_specs(model_), context.stage, model_),
                               model_.init_seed, {}, nullptr);
        if (broken >= 0) {
          Tensor table = parameters["embedding"].tensor();
          table.span<float>()[static_cast<std::size_t>(broken * table.dim(1))] = std::nanf("");
        }
        Generator generator(context, model_, parameters, limits.slots, capacity,
                            !config_.get_bool("enable_prefix_caching"), limits.checkpoints);
        ServeHead head{*batcher_, *queue_, statistics_};
        run_serve_loop(context, model_, generator, context.comm->rank() == 0 ? &head : nullptr);
      });
    });
  }
  ~Service() { stop(); }
  void stop() {
    queue_->close();
    if (session_.joinable()) session_.join();
  }

  RequestQueue& queue() { return *queue_; }
  Counts counts() const { return statistics_.counts(); }
  const ServedModel& served() const { return served_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  http::Client client() const { return http::Client(server_->port()); }
  int port() const { return server_->port(); }
  json ask(const json& request, int status = 200) const {
    const auto answer = client().post("/v1/completions", request.dump());
    EXPECT_TRUE(answer.is_whole) << request;
    if (!answer.is_whole) return {};
    EXPECT_EQ(answer.status, status) << request << "\n" << answer.body;
    return json::parse(answer.body);
  }
  std::string get(const std::string& path, int status = 200) const {
    const auto answer = client().get(path);
    EXPECT_EQ(answer.status, status) << path;
    return answer.body;
  }

 private:
  const Config config_;
  const ModelConfig model_;
  const std::unique_ptr<Tokenizer> tokenizer_ = make_tokenizer("byte", "");
  ServedModel served_;
  Statistics statistics_;
  std::unique_ptr<RequestQueue> queue_;
  std::unique_ptr<Batcher> batcher_;
  std::unique_ptr<HttpServer> server_;
  std::thread session_;
};

// What the model makes of a prompt alone.
std::vector<std::int32_t> made_alone(const std::string& prompt, const GenerateOptions& options) {
  const Config config = Config::from_map(small_model(), {});
  const ModelConfig model = model_config(config);
  const auto tokenizer = make_tokenizer("byte", "");
  std::vector<std::int32_t> tokens;
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const Parameters parameters =
        Parameters::create(context, parameter_specs(model), model.init_seed, {}, nullptr);
    Generator generator(context, model, parameters, 1, kCapacity);
    tokens = generate(generator, {tokenizer->encode(prompt)}, options, [](std::size_t, std::int32_t) {})
                 .texts[0]
                 .tokens;
  });
  return tokens;
}

TEST(StopText, KeepsWhatMayBeABeginning) {
  StopText stop({"end", "\n\n"});
  EXPECT_EQ(stop.add("one e"), "one ");
  EXPECT_EQ(stop.add("n"), "");
  EXPECT_EQ(stop.add("vy\n"), "envy");
  EXPECT_EQ(stop.add("two\n"), "\ntwo");
  EXPECT_FALSE(stop.found());
  EXPECT_EQ(stop.add("\nmore"), "");
  EXPECT_TRUE(stop.found());
  EXPECT_EQ(stop.finish(), "");
  EXPECT_EQ(stop.add("after"), "");

  StopText never({"abc"});
  EXPECT_EQ(never.add("xab"), "x");
  EXPECT_EQ(never.finish(), "ab");
  StopText first({"bcd", "c"});
  EXPECT_EQ(first.add("abc"), "ab");  // bcd begins before c, but c is whole first
  EXPECT_TRUE(first.found());
  EXPECT_EQ(StopText({}).add("all"), "all");
}

TEST(Serve, TextsTogetherAreThoseAlone) {
  const std::vector<std::string> prompts{"a", "the second one", "third: twenty bytes..", "of four", "five"};
  SamplingConfig drawn{SamplingStrategy::composite, 1.5, 0.9, 100};
  std::map<std::string, std::vector<std::int32_t>> alone;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    GenerateOptions options{.most_tokens = 9, .vocab = kTokens, .seed = 5};
    if (i % 2 == 0) options.sampling = drawn;
    alone[prompts[i]] = made_alone(prompts[i], options);
  }
  for (const char* layout : {"", "ranks=4 ici_expert_parallelism=4", "ranks=3 ici_fsdp_parallelism=3",
                             "ranks=2 ici_pipeline_parallelism=2", "ranks=2 ici_tensor_parallelism=2",
                             "mtp_num_layers=1", "mtp_num_layers=1 ranks=3 ici_fsdp_parallelism=3"}) {
    SCOPED_TRACE(layout);
    Service service(layout, {.slots = 3, .waiting = 8, .prompt_chunk = 6});
    std::vector<std::thread> clients;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      clients.emplace_back([&, i] {
        json request{{"prompt", prompts[i]}, {"max_tokens", 9}, {"ignore_eos", true}, {"seed", 5}};
        if (i % 2 == 0) request.update({{"temperature", 1.5}, {"top_p", 0.9}, {"top_k", 100}});
        const json answer = service.ask(request);
        EXPECT_EQ(answer["usage"]["completion_tokens"], 9);
        EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
        const std::string want = json(service.tokenizer().decode(alone[prompts[i]]))
                                     .dump(-1, ' ', false, json::error_handler_t::replace);
        EXPECT_EQ(answer["choices"][0]["text"], json::parse(want)) << prompts[i];
      });
    }
    for (std::thread& client : clients) client.join();
    service.stop();
    const Counts counts = service.counts();
    EXPECT_EQ(counts.length, 5);
    EXPECT_EQ(counts.new_tokens, 45);
    EXPECT_EQ(counts.prompt_tokens, 1 + 14 + 21 + 7 + 4);
    EXPECT_EQ(counts.abandoned + counts.refused, 0);
    EXPECT_EQ(service.queue().running() + service.queue().waiting(), 0);
  }
}

// Of a few possible tokens guesses are right often, and wrong often: the texts are those without guesses.
TEST(Serve, DraftsChangeNoText) {
  constexpr std::int64_t kFewTokens = 6;
  const std::vector<std::string> prompts{"a", "the second one", "third: twenty bytes..", "of four"};
  for (const char* layout : {"mtp_num_layers=1", "mtp_num_layers=1 ranks=4 ici_expert_parallelism=4",
                             "mtp_num_layers=1 ranks=3 ici_fsdp_parallelism=3"}) {
    SCOPED_TRACE(layout);
    Service service(layout, {.slots = 3, .waiting = 8, .prompt_chunk = 6, .vocab = kFewTokens});
    std::vector<std::thread> clients;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      clients.emplace_back([&, i] {
        const bool drawn = i % 2 == 0;
        json request{{"prompt", prompts[i]}, {"max_tokens", 14}, {"ignore_eos", true}, {"seed", 5}};
        if (drawn) request.update({{"temperature", 1.5}});
        GenerateOptions options{.most_tokens = 14, .vocab = kFewTokens, .seed = 5};
        if (drawn) options.sampling = {SamplingStrategy::weighted, 1.5};
        const json answer = service.ask(request);
        EXPECT_EQ(answer["usage"]["completion_tokens"], 14);
        EXPECT_EQ(answer["choices"][0]["text"], service.tokenizer().decode(made_alone(prompts[i], options)))
            << prompts[i];
      });
    }
    for (std::thread& client : clients) client.join();
    service.stop();
    const Counts counts = service.counts();
    EXPECT_EQ(counts.new_tokens, 14 * std::ssize(prompts));
    EXPECT_GT(counts.accepted_drafts, 0);
    EXPECT_LT(counts.accepted_drafts, counts.drafts);
    EXPECT_LT(counts.drafts, 13 * std::ssize(prompts)) << "tokens without a call of their own";
    EXPECT_NE(service.get("/metrics").find("switchyard_drafts_total{kind=\"accepted\"}"), std::string::npos);
  }
}

// A slot's cached tokens, of a text that runs or has ended, are not read again, and the text is the same.
TEST(Serve, SharedBeginnings) {
  const std::string long_beginning = "a beginning of 28 characters";
  for (const char* layout : {"", "ranks=2 ici_pipeline_parallelism=2", "ranks=2 ici_fsdp_parallelism=2",
                             "ranks=2 ici_tensor_parallelism=2", "mtp_num_layers=1", "quantize_kvcache=true",
                             "quantize_kvcache=true ranks=2 ici_tensor_parallelism=2"}) {
    SCOPED_TRACE(layout);
    std::vector<json> texts[2];
    for (const bool shares : {false, true}) {
      Service service(layout, {.slots = 4, .waiting = 8, .prompt_chunk = 64, .shares_prefixes = shares});
      const auto ask = [&](const json& prompt, int n) {
        const json answer =
            service.ask({{"prompt", prompt}, {"max_tokens", 4}, {"n", n}, {"ignore_eos", true}});
        for (const json& choice : answer["choices"]) texts[shares].push_back(choice["text"]);
      };
      ask(long_beginning + "1", 1);
      ask(long_beginning + "2, too", 1);
      ask("something else altogether", 1);
      ask(long_beginning, 3);
      ask("a beginning of no", 1);
      service.stop();
      const Counts counts = service.counts();
      if (!shares) {
        EXPECT_EQ(counts.shared_tokens, 0);
        EXPECT_EQ(counts.prompt_tokens, 29 + 34 + 25 + 3 * 28 + 17);
        continue;
      }
      EXPECT_EQ(counts.shared_tokens + counts.prompt_tokens, 29 + 34 + 25 + 3 * 28 + 17);
      // Each text that begins alike but the first: 28, three times 27 (the last token is read), none of 15.
      // On a split batch texts of the other part begin anew.
      if (std::string(layout).find("fsdp") == std::string::npos) {
        EXPECT_EQ(counts.shared_tokens, 28 + 3 * 27);
      } else {
        EXPECT_GE(counts.shared_tokens, 28);
      }
    }
    EXPECT_EQ(texts[0], texts[1]);
  }
}

// Where layers have windows, all cached tokens of a slot are copied, or all but the last. The tokens in
// between are read again, and the texts are the same.
TEST(Serve, SharedBeginningsOfModelsWithWindows) {
  const std::string beginning = "a beginning of 28 characters";
  for (const char* layout : {"", "ranks=2 ici_pipeline_parallelism=2", "ranks=2 ici_tensor_parallelism=2",
                             "ranks=2 ici_fsdp_parallelism=2", "mtp_num_layers=1", "quantize_kvcache=true",
                             "enable_prefix_caching=true", "enable_prefix_caching=true mtp_num_layers=1"}) {
    SCOPED_TRACE(layout);
    const bool remembers_all = std::string(layout).starts_with("enable_prefix_caching");
    std::vector<json> texts[2];
    for (const bool shares : {false, true}) {
      Service service(layout, {.slots = 4, .waiting = 8, .prompt_chunk = 11, .shares_prefixes = shares},
                      kCapacity, windowed_model());
      const auto ask = [&](const std::string& prompt, int n, int tokens) {
        const json answer =
            service.ask({{"prompt", prompt}, {"max_tokens", tokens}, {"n", n}, {"ignore_eos", true}});
        for (const json& choice : answer["choices"]) texts[shares].push_back(choice["text"]);
      };
      ask(beginning, 1, 1);                // a token that is picked last is not fed
      ask(beginning + "1", 1, 1);          // after all of it
      ask(beginning + "2", 1, 1);          // after all but the last of it
      ask(beginning + "23", 3, 5);         // after all of it, three times
      ask(beginning.substr(0, 20), 1, 1);  // it has forgotten these
      ask("a beginning of 28 others", 1, 5);
      service.stop();
      const Counts counts = service.counts();
      EXPECT_EQ(counts.shared_tokens + counts.prompt_tokens, 28 + 29 + 29 + 3 * 30 + 20 + 24);
      if (!shares) {
        EXPECT_EQ(counts.shared_tokens, 0);
      } else if (std::string(layout).find("fsdp") == std::string::npos) {
        EXPECT_EQ(counts.shared_tokens, 28 + 28 + 3 * 29 + (remembers_all ? 19 + 18 : 0));
      } else {  // texts of the other part begin anew
        EXPECT_GE(counts.shared_tokens, 28 + 28 + 29);
      }
    }
    EXPECT_EQ(texts[0], texts[1]);
  }
}

// Models that cannot be cut go on with the next turn of a conversation where the last prompt was kept.
TEST(Serve, NextTurnsOfModelsWithCheckpoints) {
  std::map<std::string, json> delta_nets = windowed_model();
  delta_nets.erase("sliding_window_size");
  delta_nets["decoder_block"] = "qwen3_next";
  delta_nets["base_num_decoder_layers"] = 3;
  delta_nets.insert({{"inhomogeneous_layer_cycle_interval", 3},
                     {"use_qk_norm", true},
                     {"gdn_num_key_heads", 2},
                     {"gdn_num_value_heads", 4},
                     {"gdn_key_head_dim", 6},
                     {"gdn_value_head_dim", 5},
                     {"gdn_chunk_size", 4},
                     {"shared_experts", 1},
                     {"shared_expert_mlp_dim", 12}});
  delta_nets["base_moe_mlp_dim"] = 12;
  const std::string first = "the first words of a conversation, asked:";
  const std::string second = first + " answered: and asked again";
  for (const auto& model : {windowed_model(), delta_nets}) {
    for (const char* layout : {"", "ranks=2 ici_pipeline_parallelism=2", "ranks=2 ici_tensor_parallelism=2"}) {
      SCOPED_TRACE(model.at("decoder_block").get<std::string>() + " " + layout);
      std::vector<json> texts[2];
      for (const std::int64_t checkpoints : {0, 1}) {
        Service service(layout,
                        {.slots = 3,
                         .waiting = 8,
                         .prompt_chunk = 11,
                         .shares_prefixes = checkpoints > 0,
                         .checkpoints = checkpoints},
                        100, model);
        for (const std::string& prompt : {first, second, first + " or", second})
          texts[checkpoints].push_back(
              service.ask({{"prompt", prompt}, {"max_tokens", 9}, {"ignore_eos", true}})["choices"][0]["text"]);
        service.stop();
        // The second prompt's state is kept in place of the first one's, with which the third would go on.
        const auto kept = static_cast<std::int64_t>(first.size()) - 16,
                   kept_second = static_cast<std::int64_t>(second.size()) - 16;
        // The second prompt goes on in the first one's slot, and its checkpoint takes the first one's place: the third
        // prompt finds none.
        EXPECT_EQ(service.counts().shared_tokens, checkpoints == 0 ? 0 : kept + kept_second);
      }
      EXPECT_EQ(texts[0], texts[1]);
    }
  }
}

TEST(Serve, EveryExpertsRowsAreCounted) {
  Service service("ranks=2 ici_expert_parallelism=2");
  service.ask({{"prompt", "seven b"}, {"max_tokens", 4}, {"ignore_eos", true}});
  service.stop();
  const std::string metrics = service.get("/metrics");
  std::map<std::string, double> of_layer;
  std::istringstream lines(metrics);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("switchyard_expert_rows_total{")) continue;
    of_layer[line.substr(line.find("layer"), 9)] += std::stod(line.substr(line.rfind(' ')));
  }
  // Seven tokens of the prompt and three new ones, each with two experts; the last one is not fed.
  EXPECT_EQ(of_layer, (std::map<std::string, double>{{"layer=\"1\"", 20}, {"layer=\"2\"", 20}})) << metrics;
}

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
  refused({{"prompt", "a"}, {"model", "large"}}, "model", "expected small");
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
    return parse_completion(request.dump(), model, 0).texts[0].sampling;
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
      scores.push_back(log_probability(logits.span<float>(), text[i + 1]));
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
  EXPECT_EQ(streamed, whole["text"]);
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
  ASSERT_EQ(service.queue().submit(std::move(texts)), RequestQueue::Submitted::yes);
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
