// Scheduler: decides which texts the model continues in its next call, and with which tokens. Texts join
// and leave between two calls (continuous batching, Yu et al. 2022, Orca); long prompts are read in chunks
// between the other texts' tokens (Agrawal et al. 2023, Sarathi). A Scheduler has no threads and no clock.
//
// Two rules make the scheduling fair:
// 1. While texts run and prompts wait, a call for a chunk of prompts and a call for the next token of every
//    running text take turns. So a prompt of any length holds a running text for one chunk a token.
// 2. Prompts take turns, too: the prompt that has waited longest since its last chunk is next. So every
//    other prompt in a slot gets one chunk at most between two chunks of a prompt, and no prompt starves.
//
// Texts that are wanted together (Limits::prompts_together) need neither rule: the model first reads all
// prompts, then makes the tokens of all texts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "generate/generator.h"
#include "texts/limits.h"

namespace switchyard::texts {

// The state of a text that holds a slot, as far as the scheduler needs it.
struct Progress {
  std::span<const std::int32_t> prompt;
  bool scores_prompt = false;             // the logits before each prompt token are wanted,
  std::size_t scores_from = 0;            // from this one on
  std::int64_t turn = 0;                  // the place in the order in which texts came
  std::size_t read = 0;                   // prompt tokens that are cached
  std::size_t checkpoint = 0;             // prompt tokens after which the slot's state is kept; 0: none
  std::int32_t last_token = 0;            // new token that the model has not read yet
  std::vector<std::int32_t> drafts = {};  // of the tokens after last_token

  bool reads_prompt() const { return read < prompt.size(); }
  bool scores() const { return scores_prompt && read + 1 >= scores_from; }  // its next tokens' logits
  std::size_t left() const { return prompt.size() - read; }
};

// One call of the model.
struct Step {
  std::vector<SlotTokens> fed;         // none: nothing to do
  bool drafted = false;                // all tokens of a slot but the first are drafts
  bool scored = false;                 // the logits of all prompt tokens of the call are wanted
  std::vector<std::size_t> kept = {};  // slots whose states after the call are kept

  bool wants_each() const { return drafted || scored; }  // logits after every token
};

class Scheduler {
 public:
  explicit Scheduler(const Limits& limits)
      : prompt_chunk_(static_cast<std::size_t>(limits.prompt_chunk)),
        scored_chunk_(static_cast<std::size_t>(limits.scored_chunk)),
        together_(limits.prompts_together),
        deterministic_(limits.deterministic) {}

  // Returns the next call. `slots` has the text of each slot, null for a free slot. Chunks of prompts
  // and next tokens take turns.
  Step next(std::span<const Progress* const> slots);

 private:
  // The turn of a text that reads its prompt, and the prompt step before which the text began to wait.
  struct Waiting {
    std::int64_t turn = -1, since = 0;
  };

  Step prompt_step(std::span<const Progress* const> slots);
  Step prompts_together(std::span<const Progress* const> slots) const;
  std::vector<std::size_t> waiting_longest_first(std::span<const Progress* const> slots);
  Step token_step(std::span<const Progress* const> slots) const;

  std::size_t prompt_chunk_, scored_chunk_;
  bool together_, deterministic_;
  std::vector<Waiting> waiting_;  // by slot
  std::int64_t prompt_steps_ = 0;
  bool prompts_next_ = true;
};

}  // namespace switchyard::texts
