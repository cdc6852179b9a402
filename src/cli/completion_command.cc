#include "cli/completion_command.h"

#include <fmt/ranges.h>

#include <map>
#include <sstream>

#include "bench/run.h"
#include "cli/help_page.h"
#include "commands/options.h"
#include "config/config_file.h"
#include "config/declaration.h"
#include "core/error.h"

namespace switchyard {
namespace {

constexpr const char* kCompletionHelp =
    R"(switchyard completion bash|zsh|fish
switchyard completion words WORD ...

Prints what makes a shell complete switchyard's commands, options, keys and their values. The script asks the program
that is typed, so it needs no change with a new version.

  source <(switchyard completion bash)        in ~/.bashrc
  source <(switchyard completion zsh)         in ~/.zshrc, behind compinit
  switchyard completion fish | source         in ~/.config/fish/config.fish

words: what the last WORD may become, a line each, as scripts ask it; :files and :folders stand for those that the
shell finds. Keys are offered from their first letter on.

Example:
  switchyard completion words train model_name=mix
)";

constexpr const char* kBash = R"(# switchyard completion bash
_switchyard() {
  local line="${COMP_LINE:0:COMP_POINT}" words=() files=() word candidate prefix=
  read -ra words <<< "$line"
  [[ $line == *[[:space:]] ]] && words+=("")
  word="${words[-1]}"
  # Bash breaks a word at its =, and replaces only what stands behind.
  [[ $word == *=* && $COMP_WORDBREAKS == *=* ]] && prefix="${word%%=*}="
  COMPREPLY=()
  while IFS= read -r candidate; do
    case "$candidate" in
      :files) mapfile -t files < <(compgen -f -- "${word#*=}") ;;
      :folders) mapfile -t files < <(compgen -d -- "${word#*=}") ;;
      *)
        [[ $candidate == *= ]] && compopt -o nospace
        COMPREPLY+=("${candidate#"$prefix"}") ;;
    esac
  done < <("${words[0]/#\~/$HOME}" completion words "${words[@]:1}" 2>/dev/null)
  # Names of files are quoted, as other words must not be.
  [[ ${#COMPREPLY[@]} == 0 ]] && compopt -o filenames
  COMPREPLY+=("${files[@]}")
}
complete -F _switchyard switchyard
)";

constexpr const char* kZsh = R"(#compdef switchyard
_switchyard() {
  local candidate shell_finds= program=$words[1]
  local -a whole begun
  for candidate in "${(@f)$(${~program} completion words "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    case $candidate in
      :*) shell_finds=$candidate ;;
      *=) begun+=("$candidate") ;;
      ?*) whole+=("$candidate") ;;
    esac
  done
  compadd -- "${whole[@]}"
  compadd -S '' -- "${begun[@]}"
  [[ -z $shell_finds ]] && return
  compset -P '*='
  if [[ $shell_finds == :files ]]; then _files; else _files -/; fi
}
if [[ ${funcstack[1]} == _switchyard ]]; then _switchyard "$@"; else compdef _switchyard switchyard; fi
)";

constexpr const char* kFish = R"(# switchyard completion fish
function __switchyard_words
  set -l words (commandline -opc)
  set -l word (commandline -ct)
  test (count $word) -eq 0; and set word ''
  set -l begun (string match -r '^[^=]*=' -- $word)
  for candidate in (eval $words[1] completion words (string escape -- $words[2..-1] $word) 2>/dev/null)
    switch $candidate
      case :files
        for file in (__fish_complete_path (string replace -r '^[^=]*=' '' -- $word))
          echo -- "$begun$file"
        end
      case :folders
        for folder in (__fish_complete_directories (string replace -r '^[^=]*=' '' -- $word) '')
          echo -- "$begun$folder"
        end
      case '*'
        echo -- $candidate
    end
  end
end
complete -c switchyard -f -a '(__switchyard_words)'
)";

const std::map<std::string, const char*> kScripts{{"bash", kBash}, {"zsh", kZsh}, {"fish", kFish}};

// The words that an option's value may be, by how the table describes it.
std::vector<std::string> values_of(const std::string& description) {
  if (description == "FOLDER") return {":folders"};
  if (description == "FILE" || description == "PATH") return {":files"};
  std::vector<std::string> words;
  std::istringstream list(description.find('|') == std::string::npos ? "" : description);
  for (std::string word; std::getline(list, word, '|');) words.push_back(word);
  return words;
}

std::vector<std::string> values_of_key(const std::string& name) {
  if (name == "model_name") return config_names("models");
  if (name == "topology") return config_names("topology");
  if (name == "custom_mesh_and_rule") return config_names("mesh");
  const KeyDeclaration* const key = find_key(name);
  if (key == nullptr) return {};
  if (key->type == KeyType::boolean) return {"true", "false"};
  if (!key->check.choices.empty()) return key->check.choices;
  if (key->type == KeyType::text) return {":files"};
  return {};
}

void add(std::vector<std::string>& to, const std::vector<std::string>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

// A command without keys of the config has words of its own.
std::vector<std::string> words_of_bench(std::span<const std::string> given) {
  std::vector<std::string> names;
  for (const bench::Case& one : bench::cases()) {
    if (given.empty() || given.front() != one.name) {
      names.push_back(one.name);
      continue;
    }
    names.clear();
    for (const bench::Key& key : bench::all_keys(one)) names.push_back(key.name + "=");
    return names;
  }
  return names;
}

}  // namespace

std::vector<std::string> completions(std::span<const std::string> words) {
  std::vector<std::string> found;
  const std::string word = words.empty() ? "" : words.back();
  if (words.size() < 2) {
    for (const auto& [name, options] : command_options()) found.push_back(name);
    add(found, {"--help", "--version"});
    return found;
  }
  const auto command = command_options().find(words.front());
  if (command == command_options().end()) return {};
  const CommandOptions& taken = command->second;
  std::map<std::string, std::string> with_values = taken.with_values;
  if (taken.writes_json) with_values["--json"] = "FILE";
  if (const auto before = with_values.find(words[words.size() - 2]); before != with_values.end())
    return values_of(before->second);
  if (word.starts_with("-")) {
    add(found, {taken.flags.begin(), taken.flags.end()});
    for (const auto& [name, value] : with_values) found.push_back(name);
    found.push_back("--help");
    return found;
  }
  if (const std::size_t equals = word.find('='); equals != std::string::npos) {
    const std::string name = word.substr(0, equals);
    for (const std::string& value : values_of_key(name))
      found.push_back(value.starts_with(":") ? value : fmt::format("{}={}", name, value));
    return found;
  }
  add(found, taken.words);
  if (command->first == "bench") add(found, words_of_bench(words.subspan(1, words.size() - 2)));
  if (taken.takes_keys && !word.empty()) {
    for (const KeyDeclaration& key : all_keys()) {
      if (key.status == KeyStatus::active || key.status == KeyStatus::inert) found.push_back(key.name + "=");
    }
  }
  if (taken.takes_files) found.push_back(":files");
  return found;
}

int completion_command(std::span<const std::string> args) {
  if (!args.empty() && args.front() == "words") {
    for (const std::string& word : completions(args.subspan(1))) {
      if (word.starts_with(":") || args.size() < 2 || word.starts_with(args.back())) fmt::print("{}\n", word);
    }
    return 0;
  }
  const Options options = parse_options("completion", args);
  if (options.help) {
    print_help_page(kCompletionHelp);
    return 0;
  }
  const auto script = kScripts.find(options.settings.size() == 1 ? options.settings.front() : "");
  if (script == kScripts.end())
    fail_usage("[completion] expected bash, zsh or fish, got {}",
               options.settings.empty() ? "none" : fmt::format("{}", fmt::join(options.settings, " ")));
  fmt::print("{}", script->second);
  return 0;
}

}  // namespace switchyard
