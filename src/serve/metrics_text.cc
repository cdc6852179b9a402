// The text of /metrics: https://prometheus.io/docs/instrumenting/exposition_formats, version 0.0.4.
#include <fmt/format.h>

#include "serve/statistics.h"

namespace switchyard::serve {
namespace {

struct Sample {
  std::string labels;  // what stands between the braces, or empty
  double value;
};

double as_double(std::int64_t count) {
  return static_cast<double>(count);
}

std::string label(std::string_view name, std::string_view value) {
  std::string escaped;
  for (const char c : value) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return fmt::format("{}=\"{}\"", name, escaped);
}

// Families of metrics whose names begin alike and whose samples have the same labels before their own.
class MetricsWriter {
 public:
  MetricsWriter(std::string& text, std::string prefix, std::string labels)
      : text_(text), prefix_(std::move(prefix)), labels_(std::move(labels)) {}

  void gauge(std::string_view name, std::string_view help, double value) {
    add(name, "gauge", help, {{"", value}});
  }
  void counter(std::string_view name, std::string_view help, double value) {
    add(name, "counter", help, {{"", value}});
  }
  void counters(std::string_view name, std::string_view help, const std::vector<Sample>& samples) {
    add(name, "counter", help, samples);
  }
  void histogram(std::string_view name, std::string_view help, const Histogram& histogram) {
    head(name, "histogram", help);
    histogram.append_samples(text_, prefix_ + std::string(name), labels_);
  }

 private:
  void head(std::string_view name, std::string_view type, std::string_view help) {
    text_ += fmt::format("# HELP {0}{1} {2}\n# TYPE {0}{1} {3}\n", prefix_, name, help, type);
  }
  void add(std::string_view name, std::string_view type, std::string_view help,
           const std::vector<Sample>& samples) {
    head(name, type, help);
    for (const Sample& sample : samples) {
      const std::string labels =
          labels_.empty() || sample.labels.empty() ? labels_ + sample.labels : labels_ + "," + sample.labels;
      text_ +=
          fmt::format("{}{}{} {}\n", prefix_, name, labels.empty() ? "" : "{" + labels + "}", sample.value);
    }
  }

  std::string& text_;
  const std::string prefix_, labels_;
};

std::vector<Sample> by_label(std::string_view name, const std::map<std::string, std::int64_t>& counts) {
  std::vector<Sample> samples;
  for (const auto& [value, count] : counts) samples.push_back({label(name, value), as_double(count)});
  return samples;
}

void add_texts(MetricsWriter& own, const Counts& counts, std::int64_t running, std::int64_t waiting) {
  own.gauge("texts_running", "Texts that hold a slot of the KV cache.", as_double(running));
  own.gauge("texts_waiting", "Texts that wait for a slot.", as_double(waiting));
  own.counters("texts_total", "Texts by what ended them.",
               {{"end=\"stop\"", as_double(counts.stopped)},
                {"end=\"length\"", as_double(counts.length)},
                {"end=\"abandoned\"", as_double(counts.abandoned)},
                {"end=\"failed\"", as_double(counts.failed)},
                {"end=\"refused\"", as_double(counts.refused)}});
  own.counters("chat_requests_total", "Requests of conversations by how their answers ended.",
               by_label("finish", counts.chat_requests));
  own.counters("tool_calls_total", "Calls of tools by the format in which the model wrote them.",
               by_label("format", counts.tool_calls));
}

void add_tokens(MetricsWriter& own, const Counts& counts, const CacheUse& cache) {
  own.counter("prompt_tokens_total", "Prompt tokens that the model read.", as_double(counts.prompt_tokens));
  own.counter("shared_tokens_total", "Prompt tokens that were copied from a slot instead of read.",
              as_double(counts.shared_tokens));
  own.counter("prompt_tokens_reused_total", "Prompt tokens that were cached and so not read again.",
              as_double(counts.shared_tokens));
  own.counter("new_tokens_total", "Tokens that were generated.", as_double(counts.new_tokens));
  own.counters(
      "drafts_total",
      "Draft tokens that the model read, those that it accepted, and those held back because they would cost "
      "more than they save.",
      {{"kind=\"guessed\"", as_double(counts.drafts)},
       {"kind=\"accepted\"", as_double(counts.accepted_drafts)},
       {"kind=\"held\"", as_double(counts.held_drafts)}});
  own.gauge("cache_tokens", "Tokens of running texts in the KV cache.", as_double(cache.tokens));
  own.gauge("cache_capacity_tokens", "Tokens that fit into the KV cache.", as_double(cache.capacity));
}

void add_model(MetricsWriter& own, const Counts& counts, const std::vector<LayerAssignments>& layers) {
  own.counters("model_calls_total", "Calls of the model: for prompts, and for the next token of each slot.",
               {{"kind=\"prompt\"", as_double(counts.prompt_calls)},
                {"kind=\"token\"", as_double(counts.token_calls)}});
  own.counters("model_seconds_total", "Seconds in these calls.",
               {{"kind=\"prompt\"", counts.prompt_seconds}, {"kind=\"token\"", counts.token_seconds}});
  std::vector<Sample> assigned;
  for (const LayerAssignments& layer : layers) {
    for (std::size_t e = 0; e < layer.of_expert.size(); ++e)
      assigned.push_back({fmt::format("layer=\"{}\",expert=\"{}\"", layer.layer, e), layer.of_expert[e]});
  }
  if (!assigned.empty())
    own.counters("expert_rows_total", "Token assignments that the router gave to each expert.", assigned);
}

void add_timings(MetricsWriter& own, const Timings& timings) {
  own.histogram("queue_time_seconds", "Seconds until a text got a slot.", timings.queue_seconds);
  own.histogram("time_to_first_token_seconds", "Seconds until a text's first token.",
                timings.first_token_seconds);
  own.histogram("time_per_output_token_seconds", "Seconds between two tokens of a text.",
                timings.next_token_seconds);
  own.histogram("text_seconds", "Seconds until a text's end.", timings.text_seconds);
  own.histogram("text_prompt_tokens", "Tokens of a text's prompt.", timings.prompt_tokens);
  own.histogram("text_new_tokens", "Tokens that were generated for a text.", timings.new_tokens);
  own.histogram("grammar_mask_seconds", "Seconds to make a grammar's mask of tokens.",
                timings.grammar_mask_seconds);
}

// The names of vLLM's metrics, old and new, so that its dashboards and alerts show this server, too. A
// request there is a text here.
void add_as_vllm(MetricsWriter& vllm, const Counts& counts, const Timings& timings, const CacheUse& cache,
                 std::int64_t running, std::int64_t waiting) {
  vllm.gauge("num_requests_running", "Texts that hold a slot of the KV cache.", as_double(running));
  vllm.gauge("num_requests_waiting", "Texts that wait for a slot.", as_double(waiting));
  const double use = cache.capacity == 0 ? 0 : as_double(cache.tokens) / as_double(cache.capacity);
  for (const char* name : {"kv_cache_usage_perc", "gpu_cache_usage_perc"})
    vllm.gauge(name, "Part of the KV cache that running texts use, 0 to 1.", use);
  const std::int64_t prompts = counts.prompt_tokens + counts.shared_tokens;
  vllm.counter("prompt_tokens_total", "Prompt tokens, cached ones included.", as_double(prompts));
  vllm.counter("generation_tokens_total", "Tokens that were generated.", as_double(counts.new_tokens));
  vllm.counter("prefix_cache_queries_total", "Prompt tokens that were looked for in the cache.",
               as_double(prompts));
  vllm.counter("prefix_cache_hits_total", "Prompt tokens that were found there.",
               as_double(counts.shared_tokens));
  vllm.counters("request_success_total", "Texts that ended, by the reason.",
                {{"finished_reason=\"stop\"", as_double(counts.stopped)},
                 {"finished_reason=\"length\"", as_double(counts.length)},
                 {"finished_reason=\"abort\"", as_double(counts.abandoned)}});
  vllm.histogram("time_to_first_token_seconds", "Seconds until a text's first token.",
                 timings.first_token_seconds);
  for (const char* name : {"time_per_output_token_seconds", "inter_token_latency_seconds"})
    vllm.histogram(name, "Seconds between two tokens of a text.", timings.next_token_seconds);
  vllm.histogram("e2e_request_latency_seconds", "Seconds until a text's end.", timings.text_seconds);
  vllm.histogram("request_queue_time_seconds", "Seconds until a text got a slot.", timings.queue_seconds);
  vllm.histogram("request_prompt_tokens", "Tokens of a text's prompt.", timings.prompt_tokens);
  vllm.histogram("request_generation_tokens", "Tokens that were generated for a text.", timings.new_tokens);
}

}  // namespace

std::string metrics_text(const Statistics& statistics, std::int64_t running, std::int64_t waiting) {
  const Counts counts = statistics.counts();
  const Timings timings = statistics.timings();
  const CacheUse cache = statistics.cache_use();
  std::string text;
  MetricsWriter own(text, "switchyard_", "");
  add_texts(own, counts, running, waiting);
  add_tokens(own, counts, cache);
  add_model(own, counts, statistics.assignments());
  add_timings(own, timings);
  MetricsWriter vllm(text, "vllm:", label("model_name", statistics.model_name()));
  add_as_vllm(vllm, counts, timings, cache, running, waiting);
  return text;
}

}  // namespace switchyard::serve
