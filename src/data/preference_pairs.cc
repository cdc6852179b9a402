#include "data/preference_pairs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"
#include "core/json_file.h"
#include "data/best_fit.h"
#include "data/row_layout.h"
#include "data/token_stream.h"
#include "data/whole_documents.h"

namespace switchyard {
namespace {

using PairJson = nlohmann::ordered_json;

constexpr std::array<std::string_view, 5> kPairColumns{"prompt", "chosen", "rejected", "tools",
                                                       "chat_template_kwargs"};
constexpr std::array<const char*, 2> kAnswers{"chosen", "rejected"};

bool has_column(const PairJson& record, const std::vector<std::string>& columns, const std::string& column) {
  return std::ranges::find(columns, column) != columns.end() && record.contains(column) &&
         !record.at(column).is_null();
}

void check_answers(const PairJson& record, const std::string& place) {
  for (const char* const column : kAnswers) {
    if (!record.contains(column) || record.at(column).is_null())
      fail_usage("[data] {}: {}: expected an answer, got none", place, column);
    const PairJson& answer = record.at(column);
    if (!answer.is_string() && !answer.is_array())
      fail_usage("[data] {}: {}: expected a text or a list of messages, got {}", place, column,
                 in_quotes(answer.dump()));
  }
}

// Moves the messages that both answers begin with to the prompt.
void take_common_beginning(PairJson& record, const std::string& place) {
  PairJson &chosen = record.at("chosen"), &rejected = record.at("rejected");
  if (!chosen.is_array() || !rejected.is_array())
    fail_usage("[data] {}: expected a prompt beside chosen and rejected, or two lists of messages", place);
  const auto ends = std::ranges::mismatch(chosen, rejected);
  if (ends.in1 == chosen.begin() || ends.in1 == chosen.end() || ends.in2 == rejected.end())
    fail_usage(
        "[data] {}: chosen and rejected: expected a prompt, or messages that begin alike and then differ, "
        "got {}",
        place,
        ends.in1 == chosen.begin() ? "other ones from the first on" : "one that the other begins with");
  PairJson prompt = PairJson::array();
  for (auto message = chosen.begin(); message != ends.in1; ++message) prompt.push_back(*message);
  rejected.erase(rejected.begin(), ends.in2);
  chosen.erase(chosen.begin(), ends.in1);
  record["prompt"] = std::move(prompt);  // may move the two lists
}

Conversation side_of(const PairJson& record, const char* answer, const std::string& place,
                     const ConversationEncoder& encoder) {
  PairJson line{{"prompt", record.at("prompt")}, {"completion", record.at(answer)}};
  for (const char* const more : {"tools", "chat_template_kwargs"})
    if (record.contains(more)) line[more] = record.at(more);
  return encoder.encode(std::move(line), fmt::format("{}: prompt and {}", place, answer));
}

std::int64_t tokens_of(const Conversation& side) {
  return std::ssize(side.tokens);
}

std::int64_t tokens_of(const PreferencePair& pair) {
  return tokens_of(pair.chosen) + tokens_of(pair.rejected);
}

// Leaves the tokens [begin, end). The text stays whole, so that they have no places in it.
void keep_tokens(Conversation& side, std::int64_t begin, std::int64_t end) {
  const auto cut = [&](auto& values) {
    if (values.empty()) return;
    values.erase(values.begin() + end, values.end());
    values.erase(values.begin(), values.begin() + begin);
  };
  if (begin == 0 && end == tokens_of(side)) return;
  cut(side.tokens), cut(side.mask);
  side.ends.clear();
}

void cut_prompt(Conversation& side, std::int64_t most) {
  const std::int64_t prompt = std::ranges::find(side.mask, 1) - side.mask.begin();
  if (prompt > most) keep_tokens(side, prompt - most, tokens_of(side));
}

std::int64_t targets_of(const Conversation& side) {
  return side.mask.empty() ? 0 : std::count(side.mask.begin() + 1, side.mask.end(), 1);
}

}  // namespace

void check_pair_columns(const std::vector<std::string>& columns) {
  const auto has = [&](const char* column) { return std::ranges::find(columns, column) != columns.end(); };
  const bool known = std::ranges::all_of(columns, [](const std::string& column) {
    return std::ranges::find(kPairColumns, column) != kPairColumns.end();
  });
  if (!known || !has("chosen") || !has("rejected"))
    fail_usage("[data] train_data_columns={}: expected chosen and rejected of {} with use_dpo=true",
               fmt::join(columns, ","), fmt::join(kPairColumns, ", "));
}

PreferencePair encode_pair(PairJson record, const std::string& place, const ConversationEncoder& encoder,
                           const std::vector<std::string>& columns) {
  if (!record.is_object())
    fail_usage("[data] {}: expected an object with prompt, chosen and rejected, got {}", place,
               in_quotes(record.dump()));
  check_answers(record, place);
  if (!has_column(record, columns, "prompt")) take_common_beginning(record, place);
  return {side_of(record, "chosen", place, encoder), side_of(record, "rejected", place, encoder)};
}

std::vector<PreferencePair> read_pairs(const std::string& paths, const ConversationEncoder& encoder,
                                       const std::vector<std::string>& columns, ThreadPool& pool) {
  const std::vector<ConversationRecord> records = read_conversation_records(paths);
  std::vector<PreferencePair> pairs(records.size());
  for_each_record(records, pool, [&](std::size_t i, PairJson record) {
    pairs[i] = encode_pair(std::move(record), records[i].place, encoder, columns);
  });
  return pairs;
}

std::optional<PreferencePair> pair_within(PreferencePair pair, std::int64_t sequence,
                                          std::optional<std::int64_t> max_prompt) {
  const auto cut_prompts = [&](std::int64_t most) {
    cut_prompt(pair.chosen, most), cut_prompt(pair.rejected, most);
  };
  if (max_prompt) cut_prompts(*max_prompt);
  if (tokens_of(pair) > sequence) {
    if (!max_prompt) cut_prompts(std::max<std::int64_t>(1, sequence / 4));
    for (Conversation* const side : {&pair.chosen, &pair.rejected})
      keep_tokens(*side, 0, std::min(tokens_of(*side), sequence / 2));
  }
  if (targets_of(pair.chosen) == 0 || targets_of(pair.rejected) == 0) return {};
  return pair;
}

PairRows pair_rows(const std::vector<PreferencePair>& pairs, const std::string& paths,
                   const PackingOptions& packing, std::optional<std::int64_t> max_prompt) {
  PairRows out;
  std::vector<std::int64_t> lengths;
  std::int64_t cut = 0, targets = 0, tokens = 0;
  for (const PreferencePair& pair : pairs) {
    std::optional<PreferencePair> kept = pair_within(pair, packing.sequence, max_prompt);
    if (!kept) continue;
    cut += tokens_of(*kept) < tokens_of(pair) ? 1 : 0;
    tokens += tokens_of(*kept);
    targets += targets_of(kept->chosen) + targets_of(kept->rejected);
    lengths.push_back(tokens_of(*kept));
    out.pairs.push_back(*std::move(kept));
  }
  if (out.pairs.empty())
    fail_usage(
        "[data] data_path={}: none of its {} pairs has two answers within max_target_length={} tokens; set "
        "it "
        "higher, or give other pairs",
        paths, pairs.size(), packing.sequence);
  if (packing.pack) {
    const std::int64_t most = packing.most_documents;
    out.rows = best_fit(lengths, packing.sequence, most < 0 ? most : most / 2);
  } else {
    for (std::int64_t i = 0; i < std::ssize(lengths); ++i) out.rows.push_back({i});
  }
  out.report = fmt::format(
      "{} pairs: {} tokens, of which {} are targets; {} rows of {}, {:.1f}% filled; {} cut", pairs.size(),
      tokens, targets, out.rows.size(), packing.sequence,
      100.0 * static_cast<double>(tokens) / static_cast<double>(std::ssize(out.rows) * packing.sequence),
      cut);
  if (const auto dropped = pairs.size() - out.pairs.size(); dropped > 0)
    out.report +=
        fmt::format("; {} dropped, of which an answer is empty or begins behind its part of a row", dropped);
  return out;
}

std::unique_ptr<Dataset> make_pairs(const PairRows& of, const std::string& paths,
                                    const PackingOptions& packing) {
  auto stream = std::make_shared<StoredTokens>();
  auto layout = std::make_unique<WholeDocuments>(packing.sequence);
  for (const std::vector<std::int64_t>& row : of.rows) {
    for (const std::int64_t p : row) {
      const PreferencePair& pair = of.pairs[static_cast<std::size_t>(p)];
      stream->add_document(pair.chosen.tokens, pair.chosen.mask);
      stream->add_document(pair.rejected.tokens, pair.rejected.mask);
    }
    layout->end_row(stream->tokens());
  }
  if (layout->rows() < packing.batch)
    fail_usage(
        "[data] data_path={}: {} pairs make {} rows of {}, expected at least {} for one batch; give more of "
        "them or a smaller batch",
        paths, of.pairs.size(), layout->rows(), packing.sequence, packing.batch);
  return make_training_rows(std::move(stream), std::move(layout), packing, ShuffleKind::drawn);
}

}  // namespace switchyard
