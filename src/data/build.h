// Builds a folder of tokens from text.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "data/dataset.h"
#include "data/token_folder.h"

namespace switchyard {

struct BuildOptions {
  std::string paths, folder;
  std::string tokenizer_type, tokenizer_path;
  TextOptions text;
  std::int64_t shard_tokens = std::int64_t{1} << 27;
  std::size_t round_bytes = 8 << 20;   // bytes of text that are tokenised at a time
  std::size_t saved_bytes = 32 << 20;  // the build is saved after so many bytes of text
};

// Callbacks for watching a build; all are called between rounds.
struct BuildObserver {
  std::function<void(std::int64_t)> progress = [](std::int64_t) {};  // receives the bytes of documents done
  std::function<void(const std::string&)> line = [](const std::string&) {};
  std::function<bool()> stop = [] { return false; };  // true: save and return
};

struct BuildResult {
  bool complete = true;                           // false: the build was stopped
  TokenFolderInfo info;                           // set when the build is complete
  std::int64_t text_bytes = 0, bytes_before = 0;  // bytes of documents: all; those of an earlier call
};

// Tokenises the text of `paths` into `folder`, which must be absent, empty, or left by an interrupted build.
// An interrupted build continues from its last save, which is at most `saved_bytes` of text before the
// interruption, and gives the same bytes as an uninterrupted one; it is refused if text or options differ.
// dataset.json is written last; without it the folder is no data set. Error(usage) for wrong paths, text or
// tokenizer, and for a folder that holds other files or that another process
// writes; Error(runtime) when writing fails.
BuildResult build_token_folder(const BuildOptions& options, ThreadPool& pool,
                               const BuildObserver& observer = {});

}  // namespace switchyard
