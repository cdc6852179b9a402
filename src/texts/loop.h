// Loop: texts that grow by one call of the model after another, on all ranks of a session. Rank 0 has the
// texts: it decides what the model reads next (Batcher), orders it of all ranks, and picks the tokens.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "generate/generator.h"
#include "texts/inbox.h"
#include "texts/limits.h"
#include "texts/observer.h"
#include "tokenizer/tokenizer.h"

namespace switchyard::texts {

class Loop {
 public:
  // Work on the generator or its weights that all ranks do between two calls of the model.
  struct Task {
    std::string what;         // for run_task
    bool ends_texts = false;  // that run, before it
  };
  // Rank 0 alone has a head.
  struct Head {
    Inbox& inbox;
    const Tokenizer* tokenizer = nullptr;  // null: pieces have tokens, and no text
    Observer& observer = Observer::none();
    OnFinished on_finished = {};
    std::function<std::optional<Task>()> next_task = {};  // asked between two calls of the model
  };
  // `head` is null on all ranks but 0. `run_task` does rank 0's tasks on each rank. The generator and what
  // the head refers to must outlive the loop.
  Loop(Generator& generator, const Limits& limits, const Head* head,
       std::function<void(const std::string& task)> run_task = {});
  // Closes the inbox, and abandons the texts that run.
  ~Loop();
  Loop(const Loop&) = delete;

  // Calls the model once at most, for `only` these texts (null: for all). Where no text runs, waits up to
  // `idle_seconds` for one. Returns false, and calls nothing, when nothing is left to do: when `only` names
  // no text, or else when the inbox is closed and no text runs. Only rank 0's arguments count. Collective.
  bool step(double idle_seconds = 0, const std::vector<const Pieces*>* only = nullptr);

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::texts
