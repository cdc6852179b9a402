// Pairs of answers as training data: lines of JSON with a prompt, and two answers of which one was preferred.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/conversations.h"

namespace switchyard {

// Both are the prompt and an answer, whose tokens are the targets.
struct PreferencePair {
  Conversation chosen, rejected;
};

// Error(usage) that names train_data_columns unless `columns` are columns of pairs with chosen and rejected.
void check_pair_columns(const std::vector<std::string>& columns);

// Reads a line's two answers: behind `prompt`, all three texts or lists of messages; or without it, where the
// messages with which both begin are the prompt. Only `columns` are read. `encoder` reads the columns prompt
// and completion. Error(usage) that begins with `place`.
PreferencePair encode_pair(nlohmann::ordered_json record, const std::string& place,
                           const ConversationEncoder& encoder, const std::vector<std::string>& columns);
std::vector<PreferencePair> read_pairs(const std::string& paths, const ConversationEncoder& encoder,
                                       const std::vector<std::string>& columns, ThreadPool& pool);

// A pair as its row has it: prompts cut from their beginning, answers from their end. A pair of more tokens
// than a row of `sequence` has half of the row for each side, and a quarter for the prompt where max_prompt
// does not say otherwise. Nothing where a side has no target left.
std::optional<PreferencePair> pair_within(PreferencePair pair, std::int64_t sequence,
                                          std::optional<std::int64_t> max_prompt);

// The pairs that are left of `pairs`, and the rows that they are trained in, by index among them.
struct PairRows {
  std::vector<PreferencePair> pairs;
  std::vector<std::vector<std::int64_t>> rows;
  std::string report;  // the counts in one line, without a line end
};
// Error(usage) that names `paths` where no pair is left.
PairRows pair_rows(const std::vector<PreferencePair>& pairs, const std::string& paths,
                   const PackingOptions& packing, std::optional<std::int64_t> max_prompt);

// Training data of pairs: the chosen and the rejected answer of a pair are two documents of one row, in this
// order. Error(usage) that names `paths` where they are too few for a batch.
std::unique_ptr<Dataset> make_pairs(const PairRows& of, const std::string& paths,
                                    const PackingOptions& packing);

}  // namespace switchyard
