// Finding, reading and cutting the text of a run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// The parts of a path list (separated by ':'). Error(usage) for an empty one.
std::vector<std::string> split_paths(const std::string& paths);

// The files that `paths` (separated by ':') stand for, as make_text describes. Error(usage) for a missing
// path.
std::vector<std::string> find_text_files(const std::string& paths);

// Cuts a text into sections, in order and without losing a byte: each ends after the first blank line beyond
// 4 KiB, or the first line end beyond 6 KiB, or at 8 KiB.
std::vector<std::string_view> cut_sections(std::string_view text);

// Which text is read, and how much of it is held out.
struct TextSelection {
  std::string column = "text";  // the key of a JSON line that holds its text
  double eval_fraction = 0;     // [0, 1)
};

// Whether a section is held out: a hash of its text stands in for chance, so the split survives new and moved
// files.
bool is_held_out(std::string_view section, double eval_fraction);

// What is to be trained on and what is held out. Every string is a document.
struct SplitText {
  std::vector<std::string> train, eval;
};

// Reads the files and splits them; with two sections or more at least one is held out. Error(usage) when
// there is no text at all, or none is left to train on.
SplitText split_text(const std::vector<std::string>& files, const TextSelection& selection);

// A place where a document may begin.
struct TextPosition {
  std::size_t file = 0, byte = 0;  // index of the file, offset in it
  std::int64_t line = 0;           // lines of JSON before it
};

// Calls body(document, held_out, next) for the same documents in order from `from` on, file by file, without
// keeping them: memory is that of one document. `next` is where to go on after it. One of more than `longest`
// bytes is cut at the end of a section. Nothing is held out that chance does not choose.
void for_documents(const std::vector<std::string>& files, const TextSelection& selection, std::size_t longest,
                   const TextPosition& from,
                   const std::function<void(std::string&&, bool, const TextPosition&)>& body);

}  // namespace switchyard
