#include "serve/statistics.h"

#include <gtest/gtest.h>

#include <map>
#include <sstream>

namespace switchyard::serve {
namespace {

// The samples of a text by their names with labels. Each family has one HELP and one TYPE before its samples.
std::map<std::string, double> samples_of(const std::string& text) {
  std::map<std::string, double> samples;
  std::map<std::string, std::string> types;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# HELP ")) continue;
    if (line.starts_with("# TYPE ")) {
      const std::size_t space = line.rfind(' ');
      EXPECT_TRUE(types.emplace(line.substr(7, space - 7), line.substr(space + 1)).second) << line;
      continue;
    }
    const std::size_t space = line.rfind(' ');
    std::string family = line.substr(0, std::min(space, line.find('{')));
    for (const char* end : {"_bucket", "_sum", "_count"}) {
      const std::string_view suffix(end);
      if (!types.contains(family) && family.ends_with(suffix)) family.resize(family.size() - suffix.size());
    }
    EXPECT_TRUE(types.contains(family)) << line;
    EXPECT_TRUE(samples.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second) << line;
  }
  return samples;
}

TEST(Histogram, CountsUpToEachBound) {
  const double bounds[] = {1, 2.5};
  Histogram histogram(bounds);
  histogram.observe(1);
  histogram.observe(2, 3);
  histogram.observe(100);
  std::string text;
  histogram.append_samples(text, "x", "a=\"b\"");
  EXPECT_EQ(text,
            "x_bucket{a=\"b\",le=\"1\"} 1\nx_bucket{a=\"b\",le=\"2.5\"} 4\nx_bucket{a=\"b\",le=\"+Inf\"} 5\n"
            "x_sum{a=\"b\"} 107\nx_count{a=\"b\"} 5\n");
  text.clear();
  Histogram(bounds).append_samples(text, "y", "");
  EXPECT_EQ(text,
            "y_bucket{le=\"1\"} 0\ny_bucket{le=\"2.5\"} 0\ny_bucket{le=\"+Inf\"} 0\ny_sum 0\ny_count 0\n");
}

TEST(Statistics, OwnNamesAndThoseOfVllm) {
  Statistics statistics("a \"small\" model");
  TextRequest chat{.prompt = {1}};
  chat.answer = std::make_shared<AnswerForm>(AnswerForm{.format = chat::Format::hermes});
  statistics.started(0, 30);
  statistics.called({.prompts = true, .prompt_tokens = 70, .new_tokens = 1, .first_token_seconds = {0.2}});
  statistics.called(
      {.new_tokens = 11, .next_token_seconds = std::vector<double>(11, 0.02), .mask_seconds = {1e-5}});
  statistics.finished({.request = chat,
                       .how = Finish::stop,
                       .slot = 0,
                       .cached = {},
                       .new_tokens = 12,
                       .seconds = 3,
                       .calls = 4});
  for (int i = 0; i < 2; ++i) statistics.ended(Finish::stop);
  statistics.cache_holds(25, 100);
  const auto samples = samples_of(metrics_text(statistics, 3, 1));
  const std::string model = "model_name=\"a \\\"small\\\" model\"";
  const auto of = [&](const std::string& name) {
    EXPECT_TRUE(samples.contains(name)) << name;
    return samples.contains(name) ? samples.at(name) : -1;
  };
  const auto vllm = [&](const std::string& name, const std::string& more = "") {
    return of("vllm:" + name + "{" + model + more + "}");
  };
  EXPECT_EQ(of("switchyard_prompt_tokens_reused_total"), 30);
  EXPECT_EQ(of("switchyard_chat_requests_total{finish=\"tool_calls\"}"), 1);
  EXPECT_EQ(of("switchyard_tool_calls_total{format=\"hermes\"}"), 4);
  EXPECT_EQ(of("switchyard_time_to_first_token_seconds_bucket{le=\"0.1\"}"), 0);
  EXPECT_EQ(of("switchyard_time_to_first_token_seconds_bucket{le=\"0.25\"}"), 1);
  EXPECT_EQ(of("switchyard_time_per_output_token_seconds_count"), 11);
  EXPECT_EQ(of("switchyard_grammar_mask_seconds_bucket{le=\"0.001\"}"), 1);
  EXPECT_EQ(vllm("num_requests_running"), 3);
  EXPECT_EQ(vllm("num_requests_waiting"), 1);
  EXPECT_EQ(vllm("kv_cache_usage_perc"), 0.25);
  EXPECT_EQ(vllm("gpu_cache_usage_perc"), 0.25);
  EXPECT_EQ(vllm("prompt_tokens_total"), 100);
  EXPECT_EQ(vllm("generation_tokens_total"), 12);
  EXPECT_EQ(vllm("prefix_cache_queries_total"), 100);
  EXPECT_EQ(vllm("prefix_cache_hits_total"), 30);
  EXPECT_EQ(vllm("request_success_total", ",finished_reason=\"stop\""), 2);
  EXPECT_EQ(vllm("time_to_first_token_seconds_bucket", ",le=\"+Inf\""), 1);
  EXPECT_EQ(vllm("inter_token_latency_seconds_count"), 11);
  EXPECT_EQ(vllm("time_per_output_token_seconds_count"), 11);
  EXPECT_EQ(vllm("e2e_request_latency_seconds_sum"), 3);
  EXPECT_EQ(vllm("request_queue_time_seconds_count"), 1);
  EXPECT_EQ(vllm("request_generation_tokens_sum"), 12);
}

}  // namespace
}  // namespace switchyard::serve
