// TextSource: one file of text as sections, whatever its form: plain text, JSON lines, or JSON values.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace switchyard {

// A position at which a document may begin.
struct TextPosition {
  std::size_t file = 0, byte = 0;  // index of the file, offset in its text
  std::int64_t line = 0;           // lines before it
};

// Selects the text to read, and the held-out share.
struct TextSelection {
  std::string column = "text";  // the key of a JSON record's text
  double eval_fraction = 0;     // [0, 1)
  bool skip_records = true;     // records without a text are skipped; false: refused
};

// TextNotes: the files and records that were skipped. Each reason is one line on stderr, which names the
// first place of this reason.
class TextNotes {
 public:
  // `count` further cases of a reason, such as "skipped, it is empty".
  void add(const std::string& reason, const std::string& place);
  void add_record(const std::string& kind, const std::string& place) {
    if (records_.empty()) first_record_ = place;
    ++records_[kind];
  }
  void print(const TextSelection& selection);
  // Why the first file that was skipped was, as ": it is empty"; "" for none.
  std::string first_reason() const;

 private:
  struct Cases {
    std::string first;
    std::int64_t count = 0;
  };
  std::map<std::string, Cases> reasons_;
  std::map<std::string, std::int64_t> records_;  // records without a text, by what they hold instead
  std::string first_record_;
};

struct Section {
  std::string_view text;
  TextPosition begin;
  bool continues;  // in one document with the section before it, if both are on the same side
};
using SectionBody = std::function<void(const Section&)>;

// Calls body(section) for the sections of a file from `at` on, where one begins. A *.jsonl or *.ndjson file
// holds a JSON record a line. A *.json file holds records, a line each, one after the other, or in an array,
// if one of them has a text; else, as any other file, it is one text. A record is an object with a text under
// the column, or a text itself. UTF-16 with a byte order mark is read as UTF-8. A file that is no text is
// skipped. Error(usage) for broken JSON, for records without a text where those are refused, and for a file
// in which no record has one.
void for_sections(const std::string& path, const TextSelection& selection, TextPosition at, TextNotes& notes,
                  const SectionBody& body);

// True for a name that ends in .jsonl, .ndjson or .json.
bool has_json_name(const std::string& path);

// Why a file that begins with these bytes is no text, in words that go on after "it"; "" for text.
std::string reason_against(std::string_view beginning);
// Returns reason_against() of the beginning of a file on disk.
std::string reason_against_file(const std::string& path);

}  // namespace switchyard
