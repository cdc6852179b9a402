// A text made beside others, or after cached tokens, equals the text made alone, on any layout.
#include "serve/serve_testing.h"

namespace switchyard::serve {
namespace {

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
    EXPECT_EQ(service.inbox().running() + service.inbox().waiting(), 0);
  }
}

// With few possible tokens guesses are often right and often wrong. Texts with guesses equal those without.
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

// Layers with windows copy all cached tokens of a slot, or all but the last. The model reads the tokens in
// between again, and the texts are the same.
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
    for (const char* layout :
         {"", "ranks=2 ici_pipeline_parallelism=2", "ranks=2 ici_tensor_parallelism=2"}) {
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
          texts[checkpoints].push_back(service.ask(
              {{"prompt", prompt}, {"max_tokens", 9}, {"ignore_eos", true}})["choices"][0]["text"]);
        service.stop();
        // The second prompt's state is kept in place of the first one's, with which the third would go on.
        const auto kept = static_cast<std::int64_t>(first.size()) - 16,
                   kept_second = static_cast<std::int64_t>(second.size()) - 16;
        // The second prompt goes on in the first one's slot, and its checkpoint takes the first one's place:
        // the third prompt finds none.
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

}  // namespace
}  // namespace switchyard::serve
