// A folder of tokenised text, as `switchyard data build` writes it: shards, dataset.json, and the tokenizer.
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

// What dataset.json says.
struct TokenFolderInfo {
  std::int64_t vocabulary = 0;
  std::string tokenizer_type;
  std::uint64_t tokenizer_hash = 0;  // of the files, see tokenizer_files_hash
  double eval_fraction = 0;
  std::vector<ShardInfo> train, eval;
};

nlohmann::json to_json(const TokenFolderInfo& info);
// Parts of it. Reading throws json::exception for what makes no sense.
nlohmann::json shards_json(const std::vector<ShardInfo>& shards);
std::vector<ShardInfo> read_shards(const nlohmann::json& side);
std::string hash_text(std::uint64_t hash);
std::uint64_t hash_of(const nlohmann::json& text);
// Error(usage) naming the file for what is not there, or makes no sense.
TokenFolderInfo read_token_folder(const std::string& folder);

// XXH3-64 of the files of a tokenizer, one after the other; 0 without files.
std::uint64_t tokenizer_files_hash(const std::vector<std::string>& files);

// The folder's own tokenizer.
std::unique_ptr<Tokenizer> folder_tokenizer(const std::string& folder, const TokenFolderInfo& info);

// The shards as one stream. Each is opened, and its size and header compared with dataset.json; Error(usage)
// names the one that is missing or other than it was written.
std::shared_ptr<const TokenStream> open_stream(const std::string& folder,
                                               const std::vector<ShardInfo>& shards);

// Training and held-out rows of folders separated by ':', all of one tokenizer, as one: no token of them is
// held in memory. `evaluates`: the held-out part is wanted. Error(usage) as above, for fewer tokens than a
// batch needs, and for a wanted held-out part that a folder does not have.
SplitData make_tokenized(const std::string& paths, const PackingOptions& packing, bool evaluates);

}  // namespace switchyard
