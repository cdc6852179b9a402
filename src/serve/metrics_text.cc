#include <fmt/format.h>

#include "serve/http_server.h"

namespace switchyard::serve {
namespace {

struct Sample {
  std::string labels;  // {name="value"}, or none
  double value;
};

void add(std::string& text, const char* name, const char* type, const char* help,
         const std::vector<Sample>& samples) {
  text += fmt::format("# HELP switchyard_{0} {1}\n# TYPE switchyard_{0} {2}\n", name, help, type);
  for (const Sample& sample : samples)
    text += fmt::format("switchyard_{}{} {}\n", name, sample.labels, sample.value);
}

}  // namespace

std::string metrics_text(const BatcherCounts& counts, const std::vector<ExpertRows::Layer>& experts) {
  const auto of = [](std::int64_t count) { return static_cast<double>(count); };
  std::string text;
  add(text, "texts_running", "gauge", "Texts that have a row of the model.", {{"", of(counts.running)}});
  add(text, "texts_waiting", "gauge", "Texts that wait for a row.", {{"", of(counts.waiting)}});
  add(text, "texts_total", "counter", "Texts by what ended them.",
      {{"{end=\"stop\"}", of(counts.stopped)},
       {"{end=\"length\"}", of(counts.length)},
       {"{end=\"abandoned\"}", of(counts.abandoned)},
       {"{end=\"failed\"}", of(counts.failed)},
       {"{end=\"refused\"}", of(counts.refused)}});
  add(text, "prompt_tokens_total", "counter", "Tokens of prompts that were read.",
      {{"", of(counts.prompt_tokens)}});
  add(text, "shared_tokens_total", "counter", "Tokens of prompts that were not read again.",
      {{"", of(counts.shared_tokens)}});
  add(text, "new_tokens_total", "counter", "Tokens that were made.", {{"", of(counts.new_tokens)}});
  add(text, "drafts_total", "counter",
      "Guesses of a text's next token (mtp_draft), and those that were right.",
      {{"{kind=\"guessed\"}", of(counts.drafts)}, {"{kind=\"accepted\"}", of(counts.accepted_drafts)}});
  add(text, "model_calls_total", "counter", "Calls of the model: for prompts, and for a token of each text.",
      {{"{kind=\"prompt\"}", of(counts.prompt_calls)}, {"{kind=\"token\"}", of(counts.token_calls)}});
  add(text, "model_seconds_total", "counter", "Time that these took.",
      {{"{kind=\"prompt\"}", counts.prompt_seconds}, {"{kind=\"token\"}", counts.token_seconds}});
  std::vector<Sample> rows;
  for (const ExpertRows::Layer& layer : experts) {
    for (std::size_t e = 0; e < layer.rows.size(); ++e)
      rows.push_back({fmt::format("{{layer=\"{}\",expert=\"{}\"}}", layer.layer, e), layer.rows[e]});
  }
  if (!rows.empty())
    add(text, "expert_rows_total", "counter", "Rows that the router sent to each expert.", rows);
  return text;
}

}  // namespace switchyard::serve
