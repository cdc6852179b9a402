#include "commands/options.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <limits>

#include "config/meant_keys.h"
#include "core/error.h"

namespace switchyard {

const std::map<std::string, CommandOptions>& command_options() {
  static const std::vector<std::string> sampling{
      "temperature=",        "top_p=",      "top_k=", "min_p=", "presence_penalty=", "frequency_penalty=",
      "repetition_penalty=", "max_tokens=", "seed=",  "stop="};
  static const auto with = [](std::vector<std::string> words) {
    words.insert(words.end(), sampling.begin(), sampling.end());
    return words;
  };
  static const std::map<std::string, CommandOptions> table{
      {"train", {.writes_json = false}},
      {"generate", {.words = with({"prompt="})}},
      {"serve",
       {.flags = {"--trust-request-template"},
        .with_values = {{"--host", "ADDRESS"},
                        {"--port", "N"},
                        {"--alias", "NAME"},
                        {"--api-key", "KEY"},
                        {"--api-key-file", "FILE"},
                        {"--cors", "ORIGIN"},
                        {"--host-name", "NAME"},
                        {"--adapter-folder", "FOLDER"},
                        {"--weights-folder", "FOLDER"},
                        {"--tool-format", "NAME"},
                        {"--reasoning-format", "NAME"}},
        .words = sampling}},
      {"chat",
       {.flags = {"--trust-request-template"},
        .with_values = {{"--url", "URL"},
                        {"--api-key-file", "FILE"},
                        {"--tool-format", "NAME"},
                        {"--reasoning-format", "NAME"}},
        .writes_json = false,
        .words = with({"system=", "reasoning=", "history=", "model=", "reasoning_effort="})}},
      {"eval",
       {.with_values =
            {{"--window", "N"}, {"--stride", "N"}, {"--against", "PATH"}, {"--against-key", "KEY"}}}},
      {"verify",
       {.flags = {"--all", "--native"},
        .with_values = {{"--tolerance", "T"}, {"--mesh", "KEYS"}, {"--inject-fault", "FAULT"}}}},
      {"plan",
       {.flags = {"--search", "--generate"}, .with_values = {{"--mesh", "KEYS"}}, .words = {"topology="}}},
      {"explain", {.with_values = {{"--filter", "TEXT"}}}},
      {"convert",
       {.flags = {"--verify", "--export-adapter"},
        .with_values = {{"--to", "huggingface|switchyard"},
                        {"--dtype", "float32|bfloat16"},
                        {"--weights", "int8|int4|int4a|mxfp4|bfloat16|float32"},
                        {"--save-logits", "FILE"},
                        {"--merge-adapter", "FOLDER"},
                        {"--form", "peft|per-expert"},
                        {"--file-bytes", "N"}},
        .takes_keys = false}},
      {"inspect",
       {.flags = {"--all", "--prove", "--statistics"},
        .with_values = {{"--base", "PATH"}},
        .takes_keys = false}},
      {"bench", {.with_values = {{"--seconds", "S"}}, .takes_keys = false, .takes_files = false}},
      {"selftest",
       {.flags = {"--list"},
        .with_values = {{"--bits", "FILE"}, {"--only", "NAME"}},
        .takes_keys = false,
        .takes_files = false,
        .words = {"threads=", "seed=", "device="}}},
      {"doctor",
       {.flags = {"--quick"},
        .with_values = {{"--require", "cpu|gpu|nccl|mpi|grammars|tls|libedit"}},
        .takes_keys = false,
        .takes_files = false}},
      {"data",
       {.with_values = {{"--out", "FOLDER"}, {"--shard-tokens", "N"}, {"--row", "N"}},
        .words = {"build", "show"}}},
      {"tokenize",
       {.flags = {"--decode", "--json-lines"}, .writes_json = false, .takes_keys = false, .words = {"byte"}}},
      {"config", {.flags = {"--list", "--changed", "--template"}}},
      {"completion",
       {.writes_json = false, .takes_keys = false, .takes_files = false, .words = {"bash", "zsh", "fish"}}},
  };
  return table;
}

Options parse_options(const std::string& command, std::span<const std::string> args) {
  const CommandOptions& taken = command_options().at(command);
  Options options;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--help" || args[i] == "-h") {
      options.help = true;
    } else if (args[i] == "--json" && taken.writes_json) {
      if (i + 1 == args.size()) fail_usage("[{}] --json needs the name of a file", command);
      options.json_file = args[++i];
    } else if (taken.flags.contains(args[i])) {
      options.flags.insert(args[i]);
    } else if (taken.with_values.contains(args[i])) {
      if (i + 1 == args.size()) fail_usage("[{}] {} needs a value", command, args[i]);
      options.values[args[i]] = args[i + 1];
      options.lists[args[i]].push_back(args[i + 1]);
      ++i;
    } else if (const std::string setting = args[i].starts_with("-") ? setting_meant(args, i) : "";
               !setting.empty()) {
      fail_usage("[{}] unknown option {}; write {}", command, args[i], setting);
    } else if (args[i].starts_with("-")) {
      std::string known;
      for (const std::string& flag : taken.flags) known += flag + ", ";
      for (const auto& [name, value] : taken.with_values) known += name + " " + value + ", ";
      fail_usage("[{}] unknown option {}; the options are {}{}--help", command, args[i], known,
                 taken.writes_json ? "--json FILE, " : "");
    } else {
      options.settings.push_back(args[i]);
    }
  }
  if (!options.help) require_writable(command, options.json_file);
  return options;
}

std::int64_t number_option(const std::string& command, const Options& options, const std::string& name,
                           std::int64_t without, std::int64_t least, std::int64_t most) {
  const auto given = options.values.find(name);
  if (given == options.values.end()) return without;
  const std::string& text = given->second;
  std::int64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    fail_usage("[{}] {}: expected a number of {} {}, got {}", command, name, least,
               most == std::numeric_limits<std::int64_t>::max() ? "or more" : fmt::format("to {}", most),
               text);
  }
  return value;
}

void require_writable(const std::string& command, const std::string& file) {
  if (file.empty()) return;
  std::error_code problem;
  if (std::filesystem::is_other(file, problem) && ::access(file.c_str(), W_OK) == 0)
    return;  // a pipe, a device
  const auto folder = std::filesystem::path(file).parent_path();
  const std::string name = folder.empty() ? "." : folder.string();
  if (::access(name.c_str(), W_OK) != 0)
    fail_usage("[{}] --json {}: expected a folder that can be written, got {} ({})", command, file, name,
               std::strerror(errno));
}

}  // namespace switchyard
