#include "data/text_files.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/error.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

bool hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

void add_folder(const fs::path& folder, std::vector<std::string>& files) {
  const std::size_t first = files.size();
  try {
    for (auto entry = fs::recursive_directory_iterator(folder); entry != fs::end(entry); ++entry) {
      const bool link = entry->is_symlink();
      if (hidden(entry->path()) && entry->is_directory() && !link) {
        entry.disable_recursion_pending();
      } else if (!hidden(entry->path()) && !link && entry->is_regular_file()) {
        files.push_back(entry->path().string());
      }
    }
  } catch (const fs::filesystem_error& e) {
    fail_usage("[data] data_path={}: {}", folder.string(), e.what());
  }
  std::sort(files.begin() + static_cast<std::ptrdiff_t>(first), files.end());
}

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_usage("[data] {}: cannot be opened: {}", path, std::strerror(errno));
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) fail_usage("[data] {}: cannot be read", path);
  return text;
}

struct Section {
  std::uint64_t hash;
  bool held_out;
};

// Hash order stands in for chance: it depends on the text alone, so the split survives new and moved files.
bool drawn(std::uint64_t hash, double fraction) {
  return static_cast<double>(hash) < fraction * 0x1p64;
}

// Joins neighbours on the same side into documents.
void add_documents(const std::vector<std::string_view>& texts, const Section* sections, SplitText& split) {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    auto& side = sections[i].held_out ? split.eval : split.train;
    if (i > 0 && sections[i].held_out == sections[i - 1].held_out) {
      side.back().append(texts[i]);
    } else {
      side.emplace_back(texts[i]);
    }
  }
}

}  // namespace

std::vector<std::string> find_text_files(const std::string& paths) {
  std::vector<std::string> files;
  for (std::size_t begin = 0; begin <= paths.size();) {
    const std::size_t end = std::min(paths.find(':', begin), paths.size());
    const fs::path path = paths.substr(begin, end - begin);
    begin = end + 1;
    std::error_code status;
    if (path.empty()) {
      fail_usage("[data] data_path={}: expected files or folders separated by ':', got an empty path", paths);
    } else if (fs::is_directory(path, status)) {
      add_folder(path, files);
    } else if (fs::is_regular_file(path, status)) {
      files.push_back(path.string());
    } else {
      fail_usage("[data] data_path={}: no such file or folder", path.string());
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

SplitText split_text(const std::vector<std::string>& files, double eval_fraction) {
  std::vector<std::string> texts;
  std::vector<std::vector<std::string_view>> cut;
  for (const std::string& path : files) {
    std::string text = read_text(path);
    if (text.find('\0') != std::string::npos) {
      fmt::print(stderr, "[data] {}: skipped, it holds NUL bytes and so is not text\n", path);
    } else if (!text.empty()) {
      texts.push_back(std::move(text));
    }
  }
  if (texts.empty()) fail_usage("[data] data_path: no text in {} files", files.size());

  std::vector<Section> sections;
  for (const std::string& text : texts) {
    for (std::string_view section : cut.emplace_back(cut_sections(text))) {
      const std::uint64_t hash = XXH64(section.data(), section.size(), 0);
      sections.push_back({hash, drawn(hash, eval_fraction)});
    }
  }
  const auto held_out = [](const Section& s) { return s.held_out; };
  if (eval_fraction > 0 && std::none_of(sections.begin(), sections.end(), held_out)) {
    const auto least =
        std::min_element(sections.begin(), sections.end(), [](const Section& a, const Section& b) {
          return a.hash < b.hash;
        })->hash;
    for (Section& s : sections) s.held_out = s.hash == least;
  }
  if (std::all_of(sections.begin(), sections.end(), held_out)) {
    fail_usage(
        "[data] data_path: all {} sections of the text are held out; give more text or a smaller eval "
        "fraction",
        sections.size());
  }
  SplitText split;
  const Section* next = sections.data();
  for (const auto& of_file : cut) {
    add_documents(of_file, next, split);
    next += of_file.size();
  }
  return split;
}

}  // namespace switchyard
