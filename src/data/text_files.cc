#include "data/text_files.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "core/error.h"

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

// The text of a folder of token ids would be that of its dataset.json.
void refuse_token_folder(const std::string& folder) {
  std::error_code ignored;
  if (fs::exists(fs::path(folder) / "dataset.json", ignored) &&
      fs::exists(fs::path(folder) / "train-00001.tokens", ignored))
    fail_usage("[data] data_path={}: holds token ids, not text: set dataset_type=tokenized", folder);
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
    const std::size_t before = files.size();
    if (fs::is_directory(path, status)) {
      refuse_token_folder(path);
      add_folder(path, files);
      if (files.size() == before)
        fail_usage("[data] data_path={}: expected files with text, found none (hidden ones do not count)",
                   path);
    } else if (fs::is_regular_file(path, status)) {
      if (const std::string reason = reason_against_file(path); !reason.empty())
        fail_usage("[data] data_path={}: it {}", path, reason);
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
    TextPosition begin;
    bool continues, held_out;
  };
  std::vector<Kept> sections;
  TextNotes notes;
  for (std::size_t file = 0; file < files.size(); ++file) {
    for_sections(files[file], selection, {file}, notes, [&](const Section& s) {
      sections.push_back(
          {std::string(s.text), s.begin, s.continues, is_held_out(s.text, selection.eval_fraction)});
    });
  }
  if (sections.empty() && files.size() == 1)
    fail_usage("[data] data_path: no text in {}{}", files[0], notes.first_reason());
  notes.print(selection);
  if (sections.empty())
    fail_usage("[data] data_path: no text in {} files, the first is {}", files.size(), files[0]);
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
    if (section.continues && before->held_out == section.held_out) {
      side.back() += section.text;
    } else {
      side.push_back(section.text);
      (section.held_out ? split.eval_begins : split.train_begins).push_back(section.begin);
    }
    before = &section;
  }
  return split;
}

void for_documents(const std::vector<std::string>& files, const TextSelection& selection, std::size_t longest,
                   const TextPosition& from,
                   const std::function<void(std::string&&, bool, const TextPosition&)>& body) {
  std::string document;
  bool held_out = false;
  TextNotes notes;
  const auto finish = [&](const TextPosition& next) {
    if (!document.empty()) body(std::exchange(document, {}), held_out, next);
  };
  for (std::size_t file = from.file; file < files.size(); ++file) {
    const TextPosition begin = file == from.file ? from : TextPosition{file};
    for_sections(files[file], selection, begin, notes, [&](const Section& s) {
      const bool side = is_held_out(s.text, selection.eval_fraction);
      if (!s.continues || side != held_out || document.size() + s.text.size() > longest) finish(s.begin);
      held_out = side;
      document += s.text;
    });
  }
  finish({files.size()});
  notes.print(selection);
}

}  // namespace switchyard
