// Finds, reads and cuts the text of a run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/text_source.h"

namespace switchyard {

// Splits a path list at ':'. Error(usage) for an empty list.
std::vector<std::string> split_paths(const std::string& paths);

// Lists the files that `paths` (separated by ':') names, as make_text describes.
// Error(usage) for a missing path, a folder without files or with token ids, and a path to a
// file that is no text.
std::vector<std::string> find_text_files(const std::string& paths);

// Cuts a text into sections, in order and without losing a byte: a section ends after the first blank line
// beyond 4 KiB, or the first line end beyond 6 KiB, or at 8 KiB.
std::vector<std::string_view> cut_sections(std::string_view text);

// True when a section is held out: decided by a hash of its text, so that the split is stable when files are
// added or moved.
bool is_held_out(std::string_view section, double eval_fraction);

// The documents for training and the held-out ones. Every string is a document.
struct SplitText {
  std::vector<std::string> train, eval;
  std::vector<TextPosition> train_begins, eval_begins;  // where each stands
};

// Reads the files and splits them; of two sections or more at least one is held out. Error(usage) when there
// is no text at all, or none is left for training.
SplitText split_text(const std::vector<std::string>& files, const TextSelection& selection);

// Calls body(document, held_out, next) for the same documents in order from `from` on, with only one document
// in memory. `next` is the position after the document. A document of more than `longest` bytes is cut at the
// end of a section. Only the hash decides what is held out, so it may be nothing.
void for_documents(const std::vector<std::string>& files, const TextSelection& selection, std::size_t longest,
                   const TextPosition& from,
                   const std::function<void(std::string&&, bool, const TextPosition&)>& body);

}  // namespace switchyard
