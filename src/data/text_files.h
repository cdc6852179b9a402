// Finding, reading and cutting the text of a run.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// The files that `paths` (separated by ':') stand for, as make_text describes. Error(usage) for a missing
// path.
std::vector<std::string> find_text_files(const std::string& paths);

// Cuts a text into sections, in order and without losing a byte: each ends after the first blank line beyond
// 4 KiB, or the first line end beyond 6 KiB, or at 8 KiB.
std::vector<std::string_view> cut_sections(std::string_view text);

// What is to be trained on and what is held out. Every string is a document.
struct SplitText {
  std::vector<std::string> train, eval;
};

// Reads the files and splits them. Error(usage) when there is no text at all, or none is left to train on.
SplitText split_text(const std::vector<std::string>& files, double eval_fraction);

}  // namespace switchyard
