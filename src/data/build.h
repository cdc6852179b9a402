// Text to a folder of tokens.
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
  std::size_t round_bytes = 8 << 20;   // of text that are tokenised at a time
  std::size_t saved_bytes = 32 << 20;  // of text, after which the build is saved
};

// How a build is watched; all are called between rounds.
struct BuildObserver {
  std::function<void(std::int64_t)> progress = [](std::int64_t) {};  // bytes of documents done
  std::function<void(const std::string&)> line = [](const std::string&) {};
  std::function<bool()> stop = [] { return false; };  // true: save and return
};

struct BuildResult {
  bool complete = true;                           // false: stopped
  TokenFolderInfo info;                           // when it is complete
  std::int64_t text_bytes = 0, bytes_before = 0;  // of documents; those of an earlier call
};

// Tokenises the text of `paths` into `folder`, which must not exist, or be empty, or hold what an interrupted
// build left. That is gone on with from where it was saved last, at most `saved_bytes` of text before it was
// killed, and the folder becomes byte for byte what it would have been; with other text or options it is
// refused. dataset.json comes last; without it the folder is no data set. Error(usage) for wrong paths, text
// or tokenizer and a folder that holds something else or that another process writes, Error(runtime) when
// writing fails.
BuildResult build_token_folder(const BuildOptions& options, ThreadPool& pool,
                               const BuildObserver& observer = {});

}  // namespace switchyard
