#include "data/text_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/json_file.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

bool hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

// Adds each file once, even when links name it too. Links to folders are skipped, since they may loop.
void add_folder(const fs::path& folder, std::vector<std::string>& files) {
  const std::size_t first = files.size();
  std::vector<fs::path> links;
  std::set<fs::path> seen;
  try {
    for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::end(entry); ++entry) {
      if (hidden(entry->path()) && entry->is_directory() && !entry->is_symlink()) {
        entry.disable_recursion_pending();
      } else if (!hidden(entry->path()) && entry->is_regular_file()) {
        if (entry->is_symlink()) {
          links.push_back(entry->path());
          continue;
        }
        seen.insert(fs::canonical(entry->path()));
        files.push_back(entry->path().string());
      }
    }
    std::sort(links.begin(), links.end());
    for (const fs::path& link : links) {
      if (seen.insert(fs::canonical(link)).second) files.push_back(link.string());
    }
  } catch (const fs::filesystem_error& e) {
    fail_usage("[data] data_path={}: {}", folder.string(), e.what());
  }
  std::sort(files.begin() + static_cast<std::ptrdiff_t>(first), files.end());
}

// A file's bytes, read when they are looked at. Empty files are empty.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) fail_usage("[data] {}: cannot be opened: {}", path, std::strerror(errno));
    struct stat status {};
    const bool known = ::fstat(descriptor, &status) == 0;
    size_ = known ? static_cast<std::size_t>(status.st_size) : 0;
    if (size_ > 0) bytes_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    const int reason = errno;
    ::close(descriptor);
    if (!known || bytes_ == MAP_FAILED)
      fail_usage("[data] {}: cannot be read: {}", path, std::strerror(reason));
  }
  ~MappedFile() {
    if (size_ > 0) ::munmap(bytes_, size_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::string_view text() const { return {static_cast<const char*>(bytes_), size_}; }

 private:
  void* bytes_ = nullptr;
  std::size_t size_ = 0;
};

// JSON lines by its ending, or a .json file whose first line is an object by itself and not all of the file.
bool is_json_lines(const std::string& path, std::string_view content) {
  std::string ending = fs::path(path).extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  if (ending == ".jsonl" || ending == ".ndjson") return true;
  if (ending != ".json") return false;
  const std::size_t begin = content.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos || content[begin] != '{') return false;
  const std::size_t end = content.find('\n', begin);
  if (end == std::string_view::npos) return false;
  const auto first = nlohmann::json::parse(standard_json(content.substr(begin, end - begin)), nullptr, false);
  return first.is_object();
}

nlohmann::json parse_line(const std::string& path, std::int64_t number, std::string_view line) {
  using nlohmann::json;
  json value = json::parse(line, nullptr, false);
  if (value.is_discarded()) value = json::parse(standard_json(line), nullptr, false);
  if (value.is_object()) return value;
  std::string reason;
  try {
    reason = std::string("a value of type ") + json::parse(line).type_name();
  } catch (const json::exception& e) {
    reason = e.what();
  }
  fail_usage("[data] {}:{}: expected a JSON object, got {}: {}", path, number, in_quotes(line), reason);
}

struct Section {
  std::string_view text;
  TextPosition begin;
  bool continues;  // stands in one document with the section before it, if both are on the same side
};
using SectionBody = std::function<void(const Section&)>;

void for_json_lines(const std::string& path, std::string_view content, const std::string& column,
                    TextPosition at, const SectionBody& body) {
  while (at.byte < content.size()) {
    const TextPosition begin = at;
    const std::size_t end = std::min(content.find('\n', at.byte), content.size());
    const std::string_view line = content.substr(at.byte, end - at.byte);
    at.byte = end + 1;
    const std::int64_t number = ++at.line;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto value = parse_line(path, number, line);
    const auto text = value.find(column);
    if (text == value.end() || !text->is_string()) {
      fail_usage(
          "[data] {}:{}: expected a text under the key \"{}\", got {}; set train_data_columns to its name",
          path, number, column, text == value.end() ? "none" : text->type_name());
    }
    if (!text->get_ref<const std::string&>().empty())
      body({text->get_ref<const std::string&>(), begin, false});
  }
}

// The sections of a file from `at` on, where one begins.
void for_sections(const std::string& path, const std::string& column, TextPosition at,
                  const SectionBody& body) {
  const MappedFile file(path);
  if (is_json_lines(path, file.text())) {
    for_json_lines(path, file.text(), column, at, body);
  } else if (file.text().find('\0') != std::string_view::npos) {
    fmt::print(stderr, "[data] {}: skipped, it holds NUL bytes and so is not text\n", path);
  } else {
    for (std::string_view section : cut_sections(file.text().substr(std::min(at.byte, file.text().size())))) {
      body({section, at, at.byte > 0});
      at.byte += section.size();
    }
  }
}

}  // namespace

std::vector<std::string> split_paths(const std::string& paths) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= paths.size();) {
    const std::size_t end = std::min(paths.find(':', begin), paths.size());
    parts.push_back(paths.substr(begin, end - begin));
    begin = end + 1;
    if (parts.back().empty())
      fail_usage("[data] data_path={}: expected files or folders separated by ':', got an empty path", paths);
  }
  return parts;
}

std::vector<std::string> find_text_files(const std::string& paths) {
  std::vector<std::string> files;
  for (const std::string& path : split_paths(paths)) {
    std::error_code status;
    if (fs::is_directory(path, status)) {
      add_folder(path, files);
    } else if (fs::is_regular_file(path, status)) {
      files.push_back(path);
    } else {
      fail_usage("[data] data_path={}: no such file or folder", path);
    }
  }
  return files;
}

std::vector<std::string_view> cut_sections(std::string_view text) {
  constexpr std::size_t kBlankLine = 4096, kLine = 6144, kMost = 8192;
  std::vector<std::string_view> sections;
  while (!text.empty()) {
    std::size_t cut = std::min(text.size(), kMost);
    if (cut == kMost) {
      const auto within = text.substr(0, kMost);
      std::size_t end = within.find("\n\n", kBlankLine);
      std::size_t after = 2;
      if (end == std::string_view::npos) end = within.find('\n', kLine), after = 1;
      if (end != std::string_view::npos) {
        cut = end + after;
      } else {
        // Not in the middle of a UTF-8 character.
        while (cut > kMost - 4 && (static_cast<unsigned char>(text[cut]) & 0xc0u) == 0x80u &&
               cut < text.size())
          --cut;
      }
    }
    sections.push_back(text.substr(0, cut));
    text.remove_prefix(cut);
  }
  return sections;
}

bool is_held_out(std::string_view section, double eval_fraction) {
  return static_cast<double>(XXH64(section.data(), section.size(), 0)) < eval_fraction * 0x1p64;
}

SplitText split_text(const std::vector<std::string>& files, const TextSelection& selection) {
  struct Kept {
    std::string text;
    bool continues, held_out;
  };
  std::vector<Kept> sections;
  for (const std::string& path : files) {
    for_sections(path, selection.column, {}, [&](const Section& s) {
      sections.push_back({std::string(s.text), s.continues, is_held_out(s.text, selection.eval_fraction)});
    });
  }
  if (sections.empty()) fail_usage("[data] data_path: no text in {} files", files.size());
  const auto held_out = [](const Kept& s) { return s.held_out; };
  if (selection.eval_fraction > 0 && std::none_of(sections.begin(), sections.end(), held_out)) {
    const auto hash = [](const Kept& s) { return XXH64(s.text.data(), s.text.size(), 0); };
    const auto least = hash(*std::min_element(
        sections.begin(), sections.end(), [&](const Kept& a, const Kept& b) { return hash(a) < hash(b); }));
    for (Kept& s : sections) s.held_out = hash(s) == least;
  }
  if (std::all_of(sections.begin(), sections.end(), held_out)) {
    fail_usage(
        "[data] data_path: all {} sections of the text are held out; give more text or a smaller eval "
        "fraction",
        sections.size());
  }
  SplitText split;
  const Kept* before = nullptr;
  for (Kept& section : sections) {
    auto& side = section.held_out ? split.eval : split.train;
    if (section.continues && before->held_out == section.held_out)
      side.back() += section.text;
    else
      side.push_back(section.text);
    before = &section;
  }
  return split;
}

void for_documents(const std::vector<std::string>& files, const TextSelection& selection, std::size_t longest,
                   const TextPosition& from,
                   const std::function<void(std::string&&, bool, const TextPosition&)>& body) {
  std::string document;
  bool held_out = false;
  const auto finish = [&](const TextPosition& next) {
    if (!document.empty()) body(std::exchange(document, {}), held_out, next);
  };
  for (std::size_t file = from.file; file < files.size(); ++file) {
    const TextPosition begin = file == from.file ? from : TextPosition{file};
    for_sections(files[file], selection.column, begin, [&](const Section& s) {
      const bool side = is_held_out(s.text, selection.eval_fraction);
      if (!s.continues || side != held_out || document.size() + s.text.size() > longest) finish(s.begin);
      held_out = side;
      document += s.text;
    });
  }
  finish({files.size()});
}

}  // namespace switchyard
