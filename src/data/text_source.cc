#include "data/text_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/json_file.h"
#include "core/messages.h"
#include "data/json_records.h"
#include "data/text_files.h"
#include "tokenizer/unicode.h"

namespace switchyard {
namespace {

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

constexpr std::string_view kUtf8Mark = "\xef\xbb\xbf", kLittleMark = "\xff\xfe", kBigMark = "\xfe\xff";

std::string utf8_of_utf16(std::string_view bytes, bool big) {
  const auto unit = [&](std::size_t i) {
    const auto a = static_cast<unsigned char>(bytes[i]), b = static_cast<unsigned char>(bytes[i + 1]);
    return static_cast<std::uint32_t>(big ? a << 8 | b : b << 8 | a);
  };
  constexpr std::uint32_t kReplacement = 0xfffd;
  std::string text;
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) {
    std::uint32_t point = unit(i);
    const bool high = point >= 0xd800 && point < 0xdc00, pair = high && i + 3 < bytes.size();
    if (const std::uint32_t low = pair ? unit(i + 2) : 0; low >= 0xdc00 && low < 0xe000) {
      point = 0x10000 + ((point - 0xd800) << 10 | (low - 0xdc00));
      i += 2;
    } else if (point >= 0xd800 && point < 0xe000) {
      point = kReplacement;
    }
    text += utf8_of(point);
  }
  if (bytes.size() % 2 != 0) text += utf8_of(kReplacement);
  return text;
}

// A file as UTF-8 without a byte order mark.
class FileText {
 public:
  explicit FileText(const std::string& path) : file_(path), text_(file_.text()) {
    if (text_.starts_with(kUtf8Mark)) {
      text_.remove_prefix(kUtf8Mark.size());
    } else if (reason_against(text_).empty() &&
               (text_.starts_with(kLittleMark) || text_.starts_with(kBigMark))) {
      decoded_ = utf8_of_utf16(text_.substr(2), text_.starts_with(kBigMark));
      text_ = decoded_;
    }
  }
  std::string_view text() const { return text_; }

 private:
  MappedFile file_;
  std::string decoded_;
  std::string_view text_;
};

std::string lower_ending(const std::string& path) {
  std::string ending = std::filesystem::path(path).extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending;
}

bool names_lines(const std::string& ending) {
  return ending == ".jsonl" || ending == ".ndjson";
}

void for_records(const std::string& path, std::string_view content, RecordForm form,
                 const TextSelection& selection, TextPosition at, TextNotes& notes, const SectionBody& body) {
  const bool whole = at.byte == 0;
  std::int64_t found = 0;
  std::string first_lacking;
  RecordReader reader(path, content, form, at);
  while (const std::optional<JsonRecord> record = reader.next()) {
    const RecordText text = text_of_record(record->value, selection.column);
    if (text.found != nullptr && !text.found->empty()) {
      ++found;
      body({*text.found, {at.file, record->begin.byte, record->begin.line}, false});
      continue;
    }
    const std::string place = fmt::format("{}:{}", path, record->line);
    const std::string refusal = fmt::format("[data] {}: expected a text under the key \"{}\", got {}", place,
                                            selection.column, text.kind);
    if (!selection.skip_records)
      fail_usage("{}; set {}", refusal,
                 text.kind == "none" ? "train_data_columns to its name"
                                     : "records_without_text=skip to leave it out");
    if (first_lacking.empty()) first_lacking = refusal;
    notes.add_record(text.kind, place);
  }
  if (whole && found == 0 && !first_lacking.empty())
    fail_usage("{}; no record of the file has one: train_data_columns names the key", first_lacking);
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = static_cast<unsigned char>(text[at]) < 0x80 ? 1 : utf8_length(text, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

void for_plain_text(std::string_view content, TextPosition at, const SectionBody& body) {
  for (std::string_view section : cut_sections(content.substr(std::min(at.byte, content.size())))) {
    body({section, at, at.byte > 0});
    at.byte += section.size();
    at.line += std::ranges::count(section, '\n');
  }
}

}  // namespace

bool has_json_name(const std::string& path) {
  const std::string ending = lower_ending(path);
  return names_lines(ending) || ending == ".json";
}

std::string reason_against(std::string_view beginning) {
  using namespace std::string_view_literals;
  constexpr std::pair<std::string_view, std::string_view> kKinds[] = {
      {"\x1f\x8b"sv, "is compressed by gzip; unpack it"},
      {"\x28\xb5\x2f\xfd"sv, "is compressed by zstd; unpack it"},
      {"\xfd\x37zXZ\0"sv, "is compressed by xz; unpack it"},
      {"PK\x03\x04"sv, "is a zip archive; unpack it"},
      {"\x93NUMPY"sv, "is an array of NumPy; give the text that it was made of"},
      {"%PDF-"sv, "is a PDF; give its text"},
      {"\x89PNG"sv, "is an image"},
      {"\xff\xd8\xff"sv, "is an image"},
      {"\xff\xfe\0\0"sv, "is UTF-32; write it as UTF-8"},
      {"\0\0\xfe\xff"sv, "is UTF-32; write it as UTF-8"}};
  // A text may begin with these words.
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"PAR1"sv,
       "is a Parquet file; write its rows as JSON lines: "
       "datasets.Dataset.from_parquet(FILE).to_json(\"FILE.jsonl\") in Python"},
      {"ARROW1"sv, "is an Arrow file; write its texts as JSON lines"},
      {"MMIDIDX"sv, "is an index of token ids; give the text that they were made of"},
      {"SYTOKEN1"sv, "is a shard of token ids: its folder is read with dataset_type=tokenized"},
      {"GGUF"sv, "is a GGUF file, which holds a model"},
      {"GIF8"sv, "is an image"}};
  for (const auto& [magic, reason] : kKinds) {
    if (beginning.starts_with(magic)) return std::string(reason);
  }
  if (beginning.starts_with("BZh") && beginning.substr(4).starts_with("1AY&SY"))
    return "is compressed by bzip2; unpack it";
  if (beginning.starts_with(kLittleMark) || beginning.starts_with(kBigMark)) return "";
  if (beginning.find('\0') == std::string_view::npos) return "";
  for (const auto& [word, reason] : kWords) {
    if (beginning.starts_with(word)) return std::string(reason);
  }
  return "holds NUL bytes and so is not text";
}

std::string reason_against_file(const std::string& path) {
  std::string beginning(std::size_t{1} << 16, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(beginning.data(), static_cast<std::streamsize>(beginning.size()));
  beginning.resize(static_cast<std::size_t>(std::max<std::streamsize>(0, file.gcount())));
  return reason_against(beginning);
}

void TextNotes::add(const std::string& reason, const std::string& place) {
  Cases& cases = reasons_[reason];
  if (cases.count++ == 0) cases.first = place;
}

std::string TextNotes::first_reason() const {
  constexpr std::string_view kSkipped = "skipped, ";
  if (reasons_.empty()) return "";
  const std::string& reason = reasons_.begin()->first;
  return ": " + (reason.starts_with(kSkipped) ? reason.substr(kSkipped.size()) : reason);
}

void TextNotes::print(const TextSelection& selection) {
  for (const auto& [reason, cases] : reasons_) {
    say("[data] {}: {}{}", cases.first, reason,
        cases.count == 1 ? "" : fmt::format("; so are {} more files", cases.count - 1));
  }
  if (!records_.empty()) {
    std::int64_t all = 0;
    std::string kinds;
    for (const auto& [kind, count] : records_) {
      all += count;
      kinds += fmt::format("{}{}: {}", kinds.empty() ? "" : ", ", kind, count);
    }
    say("[data] skipped {} records without a text under the key \"{}\" ({}); the first is {}; "
        "records_without_text=refuse stops there",
        all, selection.column, kinds, first_record_);
  }
  reasons_.clear();
  records_.clear();
}

void for_sections(const std::string& path, const TextSelection& selection, TextPosition at, TextNotes& notes,
                  const SectionBody& body) {
  const FileText file(path);
  const std::string_view text = file.text();
  const std::string ending = lower_ending(path);
  const bool named_lines = names_lines(ending);
  if (text.empty()) return notes.add("skipped, it is empty", path);
  // JSON is checked by its first bytes alone: its parser names the line of an error.
  const std::string reason = reason_against(named_lines ? text.substr(0, 16) : text);
  if (!reason.empty()) return notes.add("skipped, it " + reason, path);
  const std::optional<RecordForm> form =
      named_lines || ending == ".json" ? record_form(text, selection.column, named_lines) : std::nullopt;
  if (form) return for_records(path, text, *form, selection, at, notes, body);
  if (ending == ".json")
    notes.add(
        fmt::format("read as one text as it stands, for no record of it has a text under the key \"{}\"",
                    selection.column),
        path);
  else if (selection.column != TextSelection().column)
    notes.add(
        fmt::format("read as one text as it stands; train_data_columns={} counts for *.jsonl, *.ndjson and "
                    "*.json",
                    selection.column),
        path);
  if (!is_utf8(text))
    notes.add("holds bytes that are not UTF-8; every tokenizer but byte reads each of them as U+FFFD", path);
  for_plain_text(text, at, body);
}

}  // namespace switchyard
