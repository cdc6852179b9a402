#include "serve/statistics.h"

#include <fmt/format.h>

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

void Statistics::count_finish(Finish how) {
  change([&](Counts& counts) {
    (how == Finish::stop     ? counts.stopped
     : how == Finish::length ? counts.length
     : how == Finish::failed ? counts.failed
                             : counts.abandoned) += 1;
  });
}

Counts Statistics::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void Statistics::add_assignments(std::span<const double> assignments, std::span<const std::int64_t> layers,
                                 std::size_t experts) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (assignments_.size() == i) assignments_.push_back({layers[i], std::vector<double>(experts)});
    for (std::size_t e = 0; e < experts; ++e) assignments_[i].of_expert[e] += assignments[i * experts + e];
  }
}

std::vector<LayerAssignments> Statistics::assignments() const {
  const std::lock_guard lock(mutex_);
  return assignments_;
}

std::string metrics_text(const Statistics& statistics, std::int64_t running, std::int64_t waiting) {
  const Counts counts = statistics.counts();
  const auto of = [](std::int64_t count) { return static_cast<double>(count); };
  std::string text;
  add(text, "texts_running", "gauge", "Texts that hold a slot of the KV cache.", {{"", of(running)}});
  add(text, "texts_waiting", "gauge", "Texts that wait for a slot.", {{"", of(waiting)}});
  add(text, "texts_total", "counter", "Texts by what ended them.",
      {{"{end=\"stop\"}", of(counts.stopped)},
       {"{end=\"length\"}", of(counts.length)},
       {"{end=\"abandoned\"}", of(counts.abandoned)},
       {"{end=\"failed\"}", of(counts.failed)},
       {"{end=\"refused\"}", of(counts.refused)}});
  add(text, "prompt_tokens_total", "counter", "Prompt tokens that the model read.",
      {{"", of(counts.prompt_tokens)}});
  add(text, "shared_tokens_total", "counter", "Prompt tokens that were copied from a slot instead of read.",
      {{"", of(counts.shared_tokens)}});
  add(text, "new_tokens_total", "counter", "Tokens that were generated.", {{"", of(counts.new_tokens)}});
  add(text, "drafts_total", "counter", "Draft tokens (mtp_draft), and those that the model accepted.",
      {{"{kind=\"guessed\"}", of(counts.drafts)}, {"{kind=\"accepted\"}", of(counts.accepted_drafts)}});
  add(text, "model_calls_total", "counter",
      "Calls of the model: for prompts, and for the next token of each slot.",
      {{"{kind=\"prompt\"}", of(counts.prompt_calls)}, {"{kind=\"token\"}", of(counts.token_calls)}});
  add(text, "model_seconds_total", "counter", "Seconds in these calls.",
      {{"{kind=\"prompt\"}", counts.prompt_seconds}, {"{kind=\"token\"}", counts.token_seconds}});
  std::vector<Sample> assigned;
  for (const LayerAssignments& layer : statistics.assignments()) {
    for (std::size_t e = 0; e < layer.of_expert.size(); ++e)
      assigned.push_back({fmt::format("{{layer=\"{}\",expert=\"{}\"}}", layer.layer, e), layer.of_expert[e]});
  }
  if (!assigned.empty())
    add(text, "expert_rows_total", "counter", "Token assignments that the router gave to each expert.",
        assigned);
  return text;
}

}  // namespace switchyard::serve
