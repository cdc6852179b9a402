// Text to a folder of tokens.
#pragma once

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
};

// Tokenises the text of `paths` into `folder`, which must not exist, or be empty, or hold what an interrupted
// build left: that is begun anew. dataset.json comes last; without it the folder is no data set.
// `progress(bytes)`: bytes of documents done so far. Error(usage) for wrong paths, text or tokenizer and a
// folder that holds something else, Error(runtime) when writing fails.
TokenFolderInfo build_token_folder(const BuildOptions& options, ThreadPool& pool,
                                   const std::function<void(std::int64_t)>& progress);

}  // namespace switchyard
