// Service: a server with a small random model, which answers until the end of a test.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>

#include "core/testing.h"
#include "engine/session.h"
#include "serve/http/testing.h"
#include "serve/http_server.h"
#include "serve/protocol/completions.h"
#include "serve/routing_recorder.h"
#include "texts/generate.h"
#include "texts/loop.h"

namespace switchyard::serve {

using nlohmann::json;

constexpr std::int64_t kVocabulary = 259, kCapacity = 40;
constexpr std::int64_t kTokens = 257;  // of the tokenizer; the model has rows beyond them

inline std::map<std::string, json> small_model() {
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
inline std::map<std::string, json> windowed_model() {
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

inline std::vector<std::string> words_of(const std::string& text) {
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
               .most_texts = limits.slots + limits.waiting,
               .records_routing = config_.get_bool("return_routed_experts")};
    limits.counts_experts = true;
    inbox_ = std::make_unique<Inbox>(limits, statistics_);
    server_ = std::make_unique<HttpServer>(http::Options(), served_, *inbox_, statistics_);
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
        Loop::Head head{*inbox_, tokenizer_.get(), statistics_};
        if (served_.records_routing) {
          generator.record_routing();
          head.on_finished = routing_recorder(nullptr, generator);
        }
        Loop loop(generator, limits, context.comm->rank() == 0 ? &head : nullptr);
        while (loop.step(0.2)) {
        }
      });
    });
  }
  ~Service() { stop(); }
  void stop() {
    inbox_->close();
    if (session_.joinable()) session_.join();
  }

  Inbox& inbox() { return *inbox_; }
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
  std::unique_ptr<Inbox> inbox_;
  std::unique_ptr<HttpServer> server_;
  std::thread session_;
};

// The model's text after a prompt that it reads alone.
inline std::vector<std::int32_t> made_alone(const std::string& prompt, const GenerateOptions& options) {
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

}  // namespace switchyard::serve
