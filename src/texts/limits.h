// The sizes and rules of a loop of texts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "texts/draft_rule.h"

namespace switchyard::texts {

struct Limits {
  std::int64_t slots = 1;           // sequences in the KV cache at once
  std::int64_t waiting = 0;         // most texts that wait for a slot
  std::int64_t prompt_chunk = 512;  // most tokens of prompts in one call of the model
  std::int64_t scored_chunk = 64;   // the same for prompts whose tokens' logits are all wanted
  bool shares_prefixes = true;      // a prompt starts with the cached tokens of another slot
  std::int64_t checkpoints = 0;     // states of a slot's prompts that are kept (prompt_checkpoints)
  // All prompts that are read equally far have one call, and no text goes on before all prompts are read.
  bool prompts_together = false;
  bool counts_experts = false;          // the observer gets the experts' assignments
  bool deterministic = false;           // no text's bits depend on the others (deterministic_batches)
  std::int64_t texts_of_key = -1;       // most texts of one API key that run or wait; -1: any number
  double text_seconds = 0;              // after which a text ends as at its length; 0: never
  std::int64_t drafts = 0;              // most tokens after a text's last that the model drafts
  std::int64_t ngram_drafts = 0;        // most tokens that are guessed from the text itself (ngram_drafts.h)
  CallCost call_cost = {};              // what drafts are weighed by
  std::int64_t vocab = 0;               // ids from here on are never picked
  std::vector<std::int32_t> ends = {};  // ids that end every text
};

// The tokens whose logits are read at once: 64 MiB of them, and at most `chunk` tokens.
inline std::int64_t scored_chunk_of(std::int64_t vocab, std::int64_t chunk) {
  constexpr std::int64_t kScoredBytes = std::int64_t{64} << 20;
  return std::clamp<std::int64_t>(kScoredBytes / (4 * vocab), 1, chunk);
}

}  // namespace switchyard::texts
