// The saved state of an interrupted build: unfinished.json in its folder.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/build.h"
#include "data/text_files.h"
#include "data/token_shard.h"

namespace switchyard {

// The shards of one side (training or held-out): the complete ones, and the one in progress.
struct SavedSeries {
  std::vector<ShardInfo> shards;
  SavedShard open;  // without tokens: not begun
};

struct BuildState {
  TextPosition next;            // the position where the text continues
  std::int64_t text_bytes = 0;  // bytes of documents done
  SavedSeries train, eval;
};

// The settings that the result depends on besides the text, under the names of the options.
nlohmann::json build_settings(const BuildOptions& options, std::uint64_t tokenizer_hash);

// The state saved in `folder`; empty without unfinished.json. Error(usage) when the file is broken, its
// settings differ, or the name, size or time of a text file that was already opened has changed.
std::optional<BuildState> read_build_state(const std::string& folder, const nlohmann::json& settings,
                                           const std::vector<std::string>& files);
// Every file that the state refers to must already be on disk. Error(runtime).
void write_build_state(const std::string& folder, const nlohmann::json& settings,
                       const std::vector<std::string>& files, const BuildState& state);

std::string build_state_path(const std::string& folder);

}  // namespace switchyard
