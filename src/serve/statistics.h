// Statistics: the numbers behind /metrics, of what a loop of texts tells. Any thread may call any function.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "serve/histogram.h"
#include "serve/texts.h"

namespace switchyard::serve {

// Counts since the start.
struct Counts {
  std::int64_t stopped = 0, length = 0, abandoned = 0, refused = 0, failed = 0;  // texts by their end
  std::int64_t prompt_tokens = 0, shared_tokens = 0, new_tokens = 0;  // read, copied from a slot, generated
  std::int64_t prompt_calls = 0, token_calls = 0;                     // of the model
  std::int64_t drafts = 0, accepted_drafts = 0, held_drafts = 0;
  double prompt_seconds = 0, token_seconds = 0;  // of these calls
  // Requests of conversations by how they ended, and calls of tools by the format that the model wrote.
  std::map<std::string, std::int64_t> chat_requests = {}, tool_calls = {};
};

// How the texts fared that had a slot. Times begin when the request was taken.
struct Timings {
  Histogram queue_seconds = Histogram::of_seconds();        // until it got a slot
  Histogram first_token_seconds = Histogram::of_seconds();  // until its first token
  Histogram next_token_seconds = Histogram::of_seconds();   // between two of its tokens
  Histogram text_seconds = Histogram::of_seconds();         // until its end
  Histogram prompt_tokens = Histogram::of_tokens();
  Histogram new_tokens = Histogram::of_tokens();
  Histogram grammar_mask_seconds = Histogram::of_seconds();  // to make a grammar's mask of tokens
};

// Tokens that running texts have in the KV cache, and how many fit.
struct CacheUse {
  std::int64_t tokens = 0, capacity = 0;
};

// The (token, expert) assignments of one layer's experts.
struct LayerAssignments {
  std::int64_t layer;
  std::vector<double> of_expert;
};

class Statistics : public Observer {
 public:
  // The name of the served model labels the metrics that have vLLM's names.
  explicit Statistics(std::string model_name = "") : model_name_(std::move(model_name)) {}

  void refused(std::int64_t texts) override;
  void ended(Finish how) override;
  void started(double seconds_waited, std::int64_t cached_tokens) override;
  void called(const CallReport& call) override;
  void finished(const FinishedText& text) override;
  void cache_holds(std::int64_t tokens, std::int64_t capacity) override;
  // Every call has the same layers.
  void assigned(std::span<const double> assignments, std::span<const std::int64_t> layers,
                std::size_t experts) override;

  Counts counts() const;
  Timings timings() const;
  const std::string& model_name() const { return model_name_; }

  CacheUse cache_use() const;
  std::vector<LayerAssignments> assignments() const;

 private:
  const std::string model_name_;
  mutable std::mutex mutex_;  // guards all below
  Counts counts_;
  Timings timings_;
  CacheUse cache_use_;
  std::vector<LayerAssignments> assignments_;
};

// Returns the numbers in Prometheus' text format: under names of this program, and those that dashboards for
// vLLM look for under its names, too. `running` texts hold a slot, `waiting` texts wait for one.
std::string metrics_text(const Statistics& statistics, std::int64_t running, std::int64_t waiting);

}  // namespace switchyard::serve
