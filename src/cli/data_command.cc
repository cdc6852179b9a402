#include "cli/data_command.h"

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <vector>

#include "cli/help_page.h"
#include "cli/progress.h"
#include "cli/report_error.h"
#include "cli/terminal_text.h"
#include "commands/options.h"
#include "config/config.h"
#include "core/cores.h"
#include "core/error.h"
#include "data/build.h"
#include "data/conversations.h"
#include "data/text_files.h"
#include "metrics/atomic_file.h"
#include "parallel/comm/stop_signal.h"
#include "train/run_data.h"
#include "train/sft_data.h"

namespace switchyard {
namespace {

constexpr const char* kDataHelp =
    R"(switchyard data build [CONFIG.yml] key=value ... --out DIR [--shard-tokens N]
switchyard data show DIR [--json FILE]
switchyard data show FILE key=value ... [--row N] [--json FILE]

build: tokenises the text of data_path (files, folders, JSON lines and arrays) into DIR, to be trained from with
dataset_type=tokenized data_path=DIR. Keys: data_path, tokenizer_type, tokenizer_path, eval_fraction, add_bos, add_eos,
train_data_columns, records_without_text. Run the same command again to resume a build that was killed; SIGTERM,
SIGINT, SIGHUP and SIGUSR1 save it and end with status 75.

  --out DIR         new or empty
  --shard-tokens N  tokens a shard, about; 134217728 without

show: what is in DIR. Every byte is hashed and compared; the exit status is 1 when a shard is not what was written.

  --json FILE  the same for programs

show FILE: what `train use_sft=true data_path=FILE` makes of conversations: a line of counts, then the first
conversation as the chat template renders it, with what is trained between ⟦ and ⟧. Keys: tokenizer_path (the model's
folder), chat_template_path, chat_template_kwargs, max_target_length, train_data_columns, packing,
max_segments_per_seq, sft_train_on_completion_only, sft_last_answer_only, sft_trust_messages, add_bos, add_eos.

With use_dpo=true the lines are pairs of answers, a prompt with chosen and rejected; max_prompt_length counts, too.

  --row N      the conversations of row N, from 0
  --json FILE  text, tokens and mask of every line, and the lines of each row

Examples:
  switchyard data build data_path=~/texts tokenizer_type=huggingface tokenizer_path=tokenizer.json --out tokens
  switchyard data show chats.jsonl tokenizer_path=MODEL_FOLDER max_target_length=2048
  switchyard train configs/examples/small-moe.yml dataset_type=tokenized data_path=tokens vocab_size=128256
)";

std::int64_t total_of(const std::vector<ShardInfo>& shards, std::int64_t ShardInfo::*field) {
  std::int64_t total = 0;
  for (const ShardInfo& shard : shards) total += shard.*field;
  return total;
}

BuildOptions build_options(const Config& config, const Options& given) {
  if (!given.values.contains("--out")) fail_usage("[data] build: expected --out DIR");
  if (config.is_none("data_path")) fail_usage("[data] build: expected data_path=FILE_OR_FOLDER, got none");
  BuildOptions options;
  options.paths = config.get_string("data_path");
  options.folder = given.values.at("--out");
  auto parent = std::filesystem::absolute(options.folder).lexically_normal();
  if (!parent.has_filename()) parent = parent.parent_path();  // "tokens/" is "tokens"
  parent = parent.parent_path();
  if (std::error_code problem; !std::filesystem::is_directory(parent, problem))
    fail_usage("[data] --out {}: expected a folder that exists to make it in, got {}", options.folder,
               parent.string());
  options.tokenizer_type = config.get_string("tokenizer_type");
  options.tokenizer_path = config.get_string("tokenizer_path");
  options.text = text_options(config);
  options.shard_tokens = number_option("data", given, "--shard-tokens", options.shard_tokens, 1,
                                       std::numeric_limits<std::int64_t>::max());
  return options;
}

std::int64_t bytes_of(const std::string& paths) {
  std::int64_t bytes = 0;
  std::error_code ignored;
  for (const std::string& file : find_text_files(paths))
    bytes += static_cast<std::int64_t>(std::filesystem::file_size(file, ignored));
  return bytes;
}

int build(const Options& given) {
  std::vector<std::string> settings(given.settings.begin() + 1, given.settings.end());
  settings.push_back("dataset_type=text");  // else data_path has no meaning
  const Config config = Config::from_args(settings);
  if (config.get_bool("use_dpo"))
    fail_usage("[data] build makes tokens of texts: use_dpo=true trains on pairs as JSON lines");
  if (config.get_bool("use_sft"))
    fail_usage("[data] build makes tokens of texts: use_sft=true trains on conversations as JSON lines");
  const BuildOptions options = build_options(config, given);
  const auto begin = std::chrono::steady_clock::now();
  ThreadPool pool(usable_cores());
  Progress progress(bytes_of(options.paths) >> 20);
  catch_stop_signals();
  const BuildResult result =
      build_token_folder(options, pool,
                         {.progress = [&](std::int64_t done) { progress.update(done >> 20, "MiB of text"); },
                          .line = [&](const std::string& text) { progress.line(text); },
                          .stop = [] { return stop_signal() != 0; }});
  progress.finish();
  if (!result.complete) {
    fmt::print("stopped by {} after {:.1f} MB of text; run the same command again to resume\n",
               name_of_signal(stop_signal()), static_cast<double>(result.text_bytes) * 1e-6);
    return kStoppedBySignal;
  }
  const TokenFolderInfo& info = result.info;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  fmt::print(
      "{}: {} documents, {} tokens in {} shards; held out {} documents, {} tokens; {:.1f} MB of text, {:.1f} "
      "MB/s\n",
      options.folder, total_of(info.train, &ShardInfo::documents), total_of(info.train, &ShardInfo::tokens),
      info.train.size() + info.eval.size(), total_of(info.eval, &ShardInfo::documents),
      total_of(info.eval, &ShardInfo::tokens), static_cast<double>(result.text_bytes) * 1e-6,
      static_cast<double>(result.text_bytes - result.bytes_before) * 1e-6 / seconds);
  fmt::print("next: switchyard train CONFIG.yml dataset_type=tokenized data_path={} vocab_size={}\n",
             options.folder, info.vocabulary);
  return 0;
}

// The fault of a shard; "" when the shard matches dataset.json.
std::string fault_of(const std::string& folder, const ShardInfo& info) {
  try {
    const auto shard = TokenShard::open(folder + "/" + info.file);
    shard->prove();
    const bool same = shard->hash() == info.hash && shard->tokens() == info.tokens &&
                      shard->documents() == info.documents && shard->bytes() == info.bytes;
    return same ? "" : fmt::format("[data] {}/{}: not the shard of dataset.json", folder, info.file);
  } catch (const Error& error) {
    return error.what();
  }
}

int show(const std::string& folder, const std::string& json_file) {
  const TokenFolderInfo info = read_token_folder(folder);
  nlohmann::json report = to_json(info);
  std::vector<std::string> faults;
  fmt::print("{}: vocabulary of {}, tokenizer {} ({:016x}), held out {:g} of the text\n", folder,
             info.vocabulary, info.tokenizer_type, info.tokenizer_hash, info.eval_fraction);
  for (const auto& [side, shards] : {std::pair("train", &info.train), std::pair("eval", &info.eval)}) {
    fmt::print("{}: {} documents, {} tokens, {} shards\n", side, total_of(*shards, &ShardInfo::documents),
               total_of(*shards, &ShardInfo::tokens), shards->size());
    for (std::size_t i = 0; i < shards->size(); ++i) {
      const ShardInfo& shard = (*shards)[i];
      const std::string fault = fault_of(folder, shard);
      report[side]["shards"][i]["proved"] = fault.empty();
      fmt::print("  {}  {} documents  {} tokens  {} bytes  {:016x}  {}\n", shard.file, shard.documents,
                 shard.tokens, shard.bytes, shard.hash, fault.empty() ? "ok" : "CORRUPT");
      if (!fault.empty()) faults.push_back(fault);
    }
  }
  if (!json_file.empty()) write_file_atomic(json_file, report.dump(1) + "\n");
  std::fflush(stdout);
  if (!faults.empty())
    fail_runtime("{}{}", faults[0],
                 faults.size() > 1 ? fmt::format(" (and {} more)", faults.size() - 1) : "");
  return 0;
}

bool asks_for_pairs(const std::vector<std::string>& settings) {
  return std::ranges::any_of(settings, [](const std::string& setting) {
    return setting == "use_dpo=true" || setting == "use_dpo=True" || setting == "use_dpo=1";
  });
}

Config config_of_conversations(const Options& given) {
  std::vector<std::string> settings(given.settings.begin() + 2, given.settings.end());
  for (const std::string& setting : settings) {
    if (setting.find('=') == std::string::npos)
      fail_usage("[data] show: expected one FILE, got {} too", setting);
  }
  if (!asks_for_pairs(settings)) settings.push_back("use_sft=true");
  settings.push_back("data_path=" + given.settings[1]);
  settings.push_back("dataset_type=text");
  Config config = Config::from_args(settings);
  if (config.is_none("tokenizer_path") && config.get_string("tokenizer_type") != "byte")
    fail_usage("[data] show {}: expected tokenizer_path=FOLDER of the model", given.settings[1]);
  if (!config.is_set_by_user("tokenizer_type"))
    config.set("tokenizer_type", tokenizer_type_of(config.get_string("tokenizer_path")), "tokenizer_path");
  return config;
}

// The text with its targets between marks.
std::string marked_text(const Conversation& conversation, const Tokenizer& tokenizer) {
  std::string text;
  std::size_t begin = 0;  // in the conversation's text, where places are known
  for (std::size_t i = 0; i < conversation.tokens.size();) {
    std::size_t end = i;
    while (end < conversation.tokens.size() && conversation.mask[end] == conversation.mask[i]) ++end;
    std::string part;
    if (conversation.ends.empty()) {
      part = tokenizer.decode_all(std::span(conversation.tokens).subspan(i, end - i));
    } else {
      part = conversation.text.substr(begin, conversation.ends[end - 1] - begin);
      begin = conversation.ends[end - 1];
    }
    text += conversation.mask[i] != 0 ? "⟦" + part + "⟧" : part;
    i = end;
  }
  return terminal_text(text);
}

nlohmann::ordered_json json_of(const std::vector<Conversation>& all,
                               const std::vector<std::vector<std::int64_t>>& rows, std::int64_t sequence) {
  nlohmann::ordered_json documents = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < all.size(); ++i) {
    documents.push_back({{"line", i},
                         {"place", all[i].place},
                         {"text", all[i].text},
                         {"tokens", all[i].tokens},
                         {"mask", all[i].mask},
                         {"kept", kept_inputs(all[i], sequence)},
                         {"dropped", is_dropped(all[i], sequence)}});
  }
  return {{"max_target_length", sequence}, {"documents", std::move(documents)}, {"packed", rows}};
}

void print_side(const Conversation& side, const Tokenizer& tokenizer) {
  fmt::print("{}: {} tokens\n{}\n", side.place, side.tokens.size(), marked_text(side, tokenizer));
}

nlohmann::ordered_json json_of(const PairRows& of, const Config& config) {
  const auto side = [](const Conversation& c) {
    return nlohmann::ordered_json{{"text", c.text}, {"tokens", c.tokens}, {"mask", c.mask}};
  };
  nlohmann::ordered_json pairs = nlohmann::ordered_json::array();
  for (const PreferencePair& pair : of.pairs)
    pairs.push_back({{"chosen", side(pair.chosen)}, {"rejected", side(pair.rejected)}});
  return {{"max_target_length", config.get_int("max_target_length")},
          {"dpo_beta", config.get_float("dpo_beta")},
          {"dpo_label_smoothing", config.get_float("dpo_label_smoothing")},
          {"orpo_lambda", config.get_float("orpo_lambda")},
          {"pairs", std::move(pairs)},
          {"packed", of.rows}};
}

// Shows the first pair, or those of a row.
int show_pairs(const Options& given, const Config& config, const Tokenizer& tokenizer,
               const SftEncoder& encoder, const PackingOptions& packing) {
  ThreadPool pool(usable_cores());
  const std::string paths = config.get_string("data_path");
  const PairRows of =
      pair_rows(pairs_of_run(config, paths, encoder, pool), paths, packing, max_prompt_of(config));
  std::vector<std::int64_t> shown{0};
  if (given.values.contains("--row"))
    shown = of.rows[static_cast<std::size_t>(
        number_option("data", given, "--row", 0, 0, std::ssize(of.rows) - 1))];
  fmt::print("{}\n", of.report);
  for (const std::int64_t p : shown) {
    const PreferencePair& pair = of.pairs[static_cast<std::size_t>(p)];
    print_side(pair.chosen, tokenizer);
    print_side(pair.rejected, tokenizer);
  }
  if (!given.json_file.empty()) write_file_atomic(given.json_file, json_of(of, config).dump(1) + "\n");
  return 0;
}

int show_conversations(const Options& given) {
  if (given.values.contains("--out") || given.values.contains("--shard-tokens"))
    fail_usage("[data] show writes no tokens: expected --out and --shard-tokens with build");
  const Config config = config_of_conversations(given);
  const auto tokenizer =
      make_tokenizer(config.get_string("tokenizer_type"), config.get_string("tokenizer_path"));
  const SftEncoder encoder(config, *tokenizer, INT64_MAX, true);
  const PackingOptions packing{.sequence = config.get_int("max_target_length"),
                               .pack = config.get_bool("packing"),
                               .most_documents = config.get_int("max_segments_per_seq")};
  if (config.get_bool("use_dpo")) return show_pairs(given, config, *tokenizer, encoder, packing);
  ThreadPool pool(usable_cores());
  const auto all = read_conversations(config.get_string("data_path"), *encoder.lines, pool);
  const auto rows = conversation_rows(all, packing);
  if (rows.empty())
    fail_usage("[data] {}: no conversation has an answer that counts within max_target_length={} tokens",
               config.get_string("data_path"), packing.sequence);
  std::vector<std::int64_t> shown{0};
  if (given.values.contains("--row"))
    shown = rows[static_cast<std::size_t>(number_option("data", given, "--row", 0, 0, std::ssize(rows) - 1))];
  fmt::print("{}\n", conversations_report(all, packing));
  for (const std::int64_t d : shown) {
    const Conversation& conversation = all[static_cast<std::size_t>(d)];
    fmt::print("{}: {} tokens{}\n{}\n", conversation.place, conversation.tokens.size(),
               is_dropped(conversation, packing.sequence) ? ", dropped" : "",
               marked_text(conversation, *tokenizer));
  }
  if (!given.json_file.empty())
    write_file_atomic(given.json_file, json_of(all, rows, packing.sequence).dump(1) + "\n");
  return 0;
}

}  // namespace

int data_command(std::span<const std::string> args) {
  const Options options = parse_options("data", args);
  if (options.help) {
    print_help_page(kDataHelp);
    return 0;
  }
  const std::string action = options.settings.empty() ? "" : options.settings[0];
  if (action == "build" && !options.json_file.empty())
    fail_usage("[data] build writes no JSON: expected --json with show");
  if (action == "build" && options.values.contains("--row"))
    fail_usage("[data] build shows no row: expected --row with show");
  if (action == "build") return build(options);
  if (action != "show")
    fail_usage("[data] expected build or show, got {} (switchyard data --help)",
               action.empty() ? "none" : action);
  if (std::error_code problem;
      options.settings.size() > 1 && std::filesystem::is_regular_file(options.settings[1], problem))
    return show_conversations(options);
  if (options.values.contains("--row")) fail_usage("[data] --row: expected with show FILE of conversations");
  if (options.settings.size() > 2 && !std::filesystem::exists(options.settings[1]))
    fail_usage("[data] show {}: no such file", options.settings[1]);
  if (options.settings.size() != 2)
    fail_usage("[data] show: expected one DIR, got {}", options.settings.size() - 1);
  return show(options.settings[1], options.json_file);
}

}  // namespace switchyard
