#include "tokenizer/tokenizer_folder.h"

#include <algorithm>
#include <utility>

#include "core/json_file.h"
#include "gguf/gguf_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

// The names of the files of a folder, and of its folder of templates.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const char* sub : {"", kMoreTemplates}) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder / sub, error)) {
      std::error_code ignored;
      if (entry.is_regular_file(ignored)) names.push_back(fs::path(sub) / entry.path().filename());
    }
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

bool is_tokenizer_setting(const std::string& name) {
  static const std::vector<std::string> names{"tokenizer_config.json", "special_tokens_map.json",
                                              "added_tokens.json", "chat_template.json"};
  if (std::ranges::find(names, name) != names.end()) return true;
  if (name.ends_with(".jinja"))
    return name.find('/') == std::string::npos || name.starts_with(kMoreTemplates);
  return name.starts_with("tokenization_") && name.ends_with(".py");
}

bool is_tokenizer_file(const std::string& name) {
  static const std::vector<std::string> names{"tokenizer.json", "vocab.json", "merges.txt", "vocab.txt",
                                              "tekken.json"};
  return is_tokenizer_setting(name) || std::ranges::find(names, name) != names.end() ||
         (name.find('/') == std::string::npos && (name.ends_with(".model") || name.ends_with(".tiktoken")));
}

std::string main_tokenizer_file(const std::vector<std::string>& names) {
  for (const char* name : {"tokenizer.json", kKimiModel, "tokenizer.model", "tokenizer.tiktoken"}) {
    if (std::ranges::find(names, name) != names.end()) return name;
  }
  const auto other = std::ranges::find_if(names, [](const std::string& name) {
    return name.find('/') == std::string::npos && (name.ends_with(".model") || name.ends_with(".tiktoken"));
  });
  return other == names.end() ? "" : *other;
}

std::string tokenizer_in(const fs::path& folder) {
  const std::string name = main_tokenizer_file(names_in(folder));
  return name.empty() ? "" : (folder / name).string();
}

std::vector<NamedFile> files_in(const fs::path& folder, bool (*chosen)(const std::string& name)) {
  std::vector<NamedFile> files;
  for (const std::string& name : names_in(folder)) {
    if (chosen(name)) files.push_back({name, read_whole_file((folder / name).string())});
  }
  return files;
}

std::vector<NamedFile> stored_tokenizer(const std::string& type, const std::string& path) {
  if (type == "byte") return {};
  const std::string main = tokenizer_files(type, path)[0];
  if (type == "gguf") {
    TokenizerFiles files = tokenizer_files_of(GgufFile::open(main));
    const bool pieces = files.json.empty();
    return {{pieces ? "tokenizer.model" : "tokenizer.json", std::move(pieces ? files.model : files.json)},
            {"tokenizer_config.json", std::move(files.config)}};
  }
  const bool whole = fs::is_directory(path);
  std::vector<NamedFile> files =
      files_in(fs::path(main).parent_path(), whole ? is_tokenizer_file : is_tokenizer_setting);
  if (!whole) files.insert(files.begin(), {tokenizer_path_in(type, "", main).substr(1), read_whole_file(main)});
  return files;
}

}  // namespace switchyard
