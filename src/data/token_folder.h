// A folder of tokenised text, written by `switchyard data build`: shards, dataset.json, and the tokenizer.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/token_shard.h"
#include "data/token_stream.h"

namespace switchyard {

// The contents of dataset.json.
struct TokenFolderInfo {
  std::int64_t vocabulary = 0;
  std::string tokenizer_type;
  std::uint64_t tokenizer_hash = 0;  // see tokenizer_files_hash
  double eval_fraction = 0;
  std::vector<ShardInfo> train, eval;
};

nlohmann::json to_json(const TokenFolderInfo& info);
// Convert parts of it to and from JSON. Reading throws json::exception for malformed parts.
nlohmann::json shards_json(const std::vector<ShardInfo>& shards);
std::vector<ShardInfo> read_shards(const nlohmann::json& side);
std::string hash_text(std::uint64_t hash);
std::uint64_t hash_of(const nlohmann::json& text);
// Reads dataset.json. Error(usage) naming the file when it is missing or malformed.
TokenFolderInfo read_token_folder(const std::string& folder);

// XXH3-64 of the concatenated files of a tokenizer; 0 without files.
std::uint64_t tokenizer_files_hash(const std::vector<std::string>& files);

// The tokenizer stored in the folder.
std::unique_ptr<Tokenizer> folder_tokenizer(const std::string& folder, const TokenFolderInfo& info);

// Opens the shards as one stream. Each shard's size and header are compared with dataset.json; Error(usage)
// names a shard that is missing or changed.
std::shared_ptr<const DocumentStream> open_stream(const std::string& folder,
                                                  const std::vector<ShardInfo>& shards);

// The ids that the model has, and the tokenizer that names those it lacks (may be null).
struct KnownIds {
  std::int64_t vocabulary = INT64_MAX;
  const Tokenizer* tokenizer = nullptr;
};
// Returns the words of an error: the model lacks this token. `tokenizer` gives the token's text; may be null.
std::string outside_text(const OutsideToken& found, std::int64_t vocabulary, const Tokenizer* tokenizer);

// Training and held-out rows of one or several folders separated by ':', which must have the same tokenizer.
// No token of them is held in memory. `evaluates`: the held-out part is needed. Error(usage) as above, for
// fewer tokens than a batch needs, for a needed held-out part that a folder lacks, and for a
// token that is not known.
SplitData make_tokenized(const std::string& paths, const PackingOptions& packing, bool evaluates,
                         const KnownIds& known = {});

}  // namespace switchyard
