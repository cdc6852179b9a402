// Observer: what a loop of texts tells about its work. All functions do nothing unless they are overridden.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "texts/text.h"

namespace switchyard::texts {

// One call of the model.
struct CallReport {
  bool prompts = false;            // the call read chunks of prompts; else it made next tokens
  double seconds = 0;              // of the model
  std::int64_t prompt_tokens = 0;  // that it read
  std::int64_t new_tokens = 0, drafts = 0, accepted_drafts = 0;
  std::int64_t held_drafts = 0;                  // that would have cost more than they save (draft_rule.h)
  std::vector<double> first_token_seconds = {};  // since texts that got their first token were asked for
  std::vector<double> next_token_seconds = {};   // of each other new token, since its text's last one
  std::vector<double> mask_seconds = {};         // that a grammar took to make a mask of tokens
};

// A text that had a slot, at its end.
struct FinishedText {
  const TextRequest& request;
  Finish how;
  std::size_t slot;
  std::span<const std::int32_t> cached;  // tokens that the slot holds
  std::int64_t new_tokens;
  double seconds;     // since it was asked for
  std::size_t calls;  // of tools that its answer has begun
};

// Called at the end of a text, before its last piece is sent, to which it may add.
using OnFinished = std::function<void(const FinishedText&, Piece& last)>;

class Observer {
 public:
  // An observer that does nothing.
  static Observer& none() {
    static Observer observer;
    return observer;
  }
  virtual ~Observer() = default;

  // Any thread calls these.
  virtual void refused(std::int64_t /*texts*/) {}
  virtual void ended(Finish /*how*/) {}  // every text that was taken, with a slot or without

  // The model's thread calls these. A text gets a slot, which begins with tokens that were cached.
  virtual void started(double /*seconds_waited*/, std::int64_t /*cached_tokens*/) {}
  virtual void called(const CallReport& /*call*/) {}
  virtual void finished(const FinishedText& /*text*/) {}
  // Tokens that running texts have in the KV cache, and how many fit.
  virtual void cache_holds(std::int64_t /*tokens*/, std::int64_t /*capacity*/) {}
  // (token, expert) assignments since the last call of this function: `experts` numbers for each layer.
  virtual void assigned(std::span<const double> /*assignments*/, std::span<const std::int64_t> /*layers*/,
                        std::size_t /*experts*/) {}
};

}  // namespace switchyard::texts
