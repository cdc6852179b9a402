// Conversations in rows of whole documents.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "data/best_fit.h"
#include "data/conversations.h"
#include "data/row_layout.h"
#include "data/token_stream.h"
#include "data/whole_documents.h"

namespace switchyard {
namespace {

std::int64_t length_of(const Conversation& conversation) {
  return std::ssize(conversation.tokens);
}

std::int64_t targets_within(const Conversation& conversation, std::int64_t sequence) {
  const std::int64_t end = std::min(length_of(conversation), sequence + 1);
  return end < 2 ? 0 : std::count(conversation.mask.begin() + 1, conversation.mask.begin() + end, 1);
}

struct PackedConversations {
  std::shared_ptr<StoredTokens> stream;
  std::unique_ptr<WholeDocuments> layout;
};

// A row takes the first `sequence` tokens of a document and one more as a target. A document that has it
// fills its row alone, so each row is one range of the stream.
PackedConversations packed(const std::vector<Conversation>& conversations, const PackingOptions& packing) {
  PackedConversations out{std::make_shared<StoredTokens>(),
                          std::make_unique<WholeDocuments>(packing.sequence)};
  for (const std::vector<std::int64_t>& row : conversation_rows(conversations, packing)) {
    for (const std::int64_t d : row) {
      const Conversation& conversation = conversations[static_cast<std::size_t>(d)];
      const auto count = static_cast<std::size_t>(std::min(length_of(conversation), packing.sequence + 1));
      out.stream->add_document(std::span(conversation.tokens).first(count),
                               std::span(conversation.mask).first(count));
    }
    out.layout->end_row(out.stream->tokens());
  }
  return out;
}

void refuse_nothing_left(const std::vector<Conversation>& conversations, const std::string& paths,
                         const PackingOptions& packing) {
  const auto dropped = [&](const Conversation& c) { return is_dropped(c, packing.sequence); };
  if (!std::ranges::all_of(conversations, dropped)) return;
  fail_usage(
      "[data] data_path={}: none of its {} conversations has an answer that counts within "
      "max_target_length={} tokens; set it higher, or give other conversations",
      paths, conversations.size(), packing.sequence);
}

// Moves the conversations that are held out away from `all`; if the hash names none, those of the least one.
std::vector<Conversation> take_held_out(std::vector<Conversation>& all, double fraction) {
  const std::uint64_t least = std::ranges::min_element(all, {}, &Conversation::hash)->hash;
  const auto below = [&](const Conversation& c) { return static_cast<double>(c.hash) < fraction * 0x1p64; };
  const bool any = std::ranges::any_of(all, below);
  std::vector<Conversation> held_out, rest;
  for (Conversation& conversation : all) {
    const bool is_out = any ? below(conversation) : conversation.hash == least;
    (is_out ? held_out : rest).push_back(std::move(conversation));
  }
  all = std::move(rest);
  return held_out;
}

}  // namespace

std::int64_t kept_inputs(const Conversation& conversation, std::int64_t sequence) {
  return std::min(length_of(conversation), sequence);
}

bool is_dropped(const Conversation& conversation, std::int64_t sequence) {
  return targets_within(conversation, sequence) == 0;
}

std::vector<std::vector<std::int64_t>> conversation_rows(const std::vector<Conversation>& conversations,
                                                         const PackingOptions& packing) {
  std::vector<std::int64_t> kept, lengths;
  for (std::int64_t i = 0; i < std::ssize(conversations); ++i) {
    const Conversation& conversation = conversations[static_cast<std::size_t>(i)];
    if (is_dropped(conversation, packing.sequence)) continue;
    kept.push_back(i);
    lengths.push_back(kept_inputs(conversation, packing.sequence));
  }
  std::vector<std::vector<std::int64_t>> rows;
  if (packing.pack) {
    rows = best_fit(lengths, packing.sequence, packing.most_documents);
  } else {
    for (std::int64_t i = 0; i < std::ssize(kept); ++i) rows.push_back({i});
  }
  for (std::vector<std::int64_t>& row : rows) {
    for (std::int64_t& document : row) document = kept[static_cast<std::size_t>(document)];
  }
  return rows;
}

std::string conversations_report(const std::vector<Conversation>& conversations,
                                 const PackingOptions& packing) {
  std::int64_t dropped = 0, unanswered = 0, cut = 0, tokens = 0, targets = 0, special = 0;
  for (const Conversation& conversation : conversations) {
    special += conversation.special_messages;
    if (is_dropped(conversation, packing.sequence)) {
      ++(targets_within(conversation, length_of(conversation)) > 0 ? dropped : unanswered);
      continue;
    }
    cut += length_of(conversation) > packing.sequence + 1 ? 1 : 0;
    tokens += kept_inputs(conversation, packing.sequence);
    targets += targets_within(conversation, packing.sequence);
  }
  const auto rows = std::ssize(conversation_rows(conversations, packing));
  const auto percent = [](std::int64_t part, std::int64_t all) {
    return 100.0 * static_cast<double>(part) / static_cast<double>(std::max<std::int64_t>(1, all));
  };
  std::string line = fmt::format(
      "{} conversations: {} tokens, of which {} ({:.1f}%) are targets; {} rows of {}, {:.1f}% filled; {} cut "
      "to "
      "a row",
      conversations.size(), tokens, targets, percent(targets, tokens), rows, packing.sequence,
      percent(tokens, rows * packing.sequence), cut);
  if (dropped > 0) line += fmt::format("; {} dropped, whose answers begin behind a row", dropped);
  if (unanswered > 0) line += fmt::format("; {} dropped, of which no answer counts", unanswered);
  if (special > 0)
    line += fmt::format(
        "; {} messages hold texts of special tokens, which are read as these tokens "
        "(sft_trust_messages=false: as text)",
        special);
  return line;
}

SplitData make_conversations(std::vector<Conversation> conversations, const std::string& paths,
                             const PackingOptions& packing, double eval_fraction, std::string& report) {
  std::vector<Conversation> held_out;
  if (eval_fraction > 0) held_out = take_held_out(conversations, eval_fraction);
  if (conversations.empty())
    fail_usage("[data] data_path={}: all its conversations are held out; give more, or set eval_data_path",
               paths);
  refuse_nothing_left(conversations, paths, packing);
  report = conversations_report(conversations, packing);
  SplitData data;
  PackedConversations train = packed(conversations, packing);
  if (train.layout->rows() < packing.batch)
    fail_usage(
        "[data] data_path={}: {} conversations make {} rows of {}, expected at least {} for one batch; "
        "give more of them or a smaller batch",
        paths, conversations.size(), train.layout->rows(), packing.sequence, packing.batch);
  data.train =
      make_training_rows(std::move(train.stream), std::move(train.layout), packing, ShuffleKind::drawn);
  if (eval_fraction > 0) data.eval = make_held_out_conversations(held_out, paths, packing);
  return data;
}

std::unique_ptr<Dataset> make_held_out_conversations(const std::vector<Conversation>& conversations,
                                                     const std::string& paths,
                                                     const PackingOptions& packing) {
  refuse_nothing_left(conversations, paths, packing);
  PackedConversations held_out = packed(conversations, packing);
  return make_held_out_rows(std::move(held_out.stream), std::move(held_out.layout), packing);
}

}  // namespace switchyard
