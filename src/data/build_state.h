// What an interrupted build goes on from: unfinished.json in its folder.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/build.h"
#include "data/text_files.h"
#include "data/token_shard.h"

namespace switchyard {

// One side's shards: those that are whole, and the one after them.
struct SavedSeries {
  std::vector<ShardInfo> shards;
  SavedShard open;  // without tokens: not begun
};

struct BuildState {
  TextPosition next;            // where the text goes on
  std::int64_t text_bytes = 0;  // of documents done
  SavedSeries train, eval;
};

// What the result depends on besides the text, by the names that users give.
nlohmann::json build_settings(const BuildOptions& options, std::uint64_t tokenizer_hash);

// What was saved in `folder`; nothing when there is no unfinished.json. Error(usage) when it is broken, when
// its settings are others, and when a file that it had begun to read has another name, size or time since.
std::optional<BuildState> read_build_state(const std::string& folder, const nlohmann::json& settings,
                                           const std::vector<std::string>& files);
// All it speaks of must be on disk. Error(runtime).
void write_build_state(const std::string& folder, const nlohmann::json& settings,
                       const std::vector<std::string>& files, const BuildState& state);

std::string build_state_path(const std::string& folder);

}  // namespace switchyard
