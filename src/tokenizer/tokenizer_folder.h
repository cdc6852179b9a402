// The files of a tokenizer in a folder, and what stands beside them: settings,
// lists of tokens, chat templates.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace switchyard {

// A file by its name in a folder, "tokenizer.json" or "additional_chat_templates/rag.jinja", and its content.
struct NamedFile {
  std::string name, content;
};

// The folder beside a tokenizer with further chat templates, a file each.
inline constexpr const char* kMoreTemplates = "additional_chat_templates";

// True for a file that a tokenizer is made of, or that goes with one.
bool is_tokenizer_file(const std::string& name);
// True for those of them that say how a tokenizer is used: its settings and chat templates.
bool is_tokenizer_setting(const std::string& name);

// The file of Kimi's tokenizer: its name says how texts are split.
inline constexpr const char* kKimiModel = "tiktoken.model";

// The name of the main file among files of one folder, or "": tokenizer.json, tiktoken.model, tokenizer.model,
// tokenizer.tiktoken, else the first *.model or *.tiktoken by name.
std::string main_tokenizer_file(const std::vector<std::string>& names);
// The path of the main file of the folder's tokenizer, or "".
std::string tokenizer_in(const std::filesystem::path& folder);

// The files of a folder, and of its folder of templates, whose names `chosen` takes, sorted.
std::vector<NamedFile> files_in(const std::filesystem::path& folder, bool (*chosen)(const std::string& name));

// A tokenizer's files as a model's folder stores them, the main one under its usual name; of a GGUF file
// those that its metadata makes. A `path` that is a folder gives all files of a tokenizer in it. None for
// byte. Error(usage) as for make_tokenizer.
std::vector<NamedFile> stored_tokenizer(const std::string& type, const std::string& path);

}  // namespace switchyard
