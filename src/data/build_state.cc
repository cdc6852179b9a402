#include "data/build_state.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/json_file.h"
#include "data/token_folder.h"
#include "metrics/atomic_file.h"

namespace switchyard {
namespace {

using nlohmann::json;

// Hashes names, sizes and times of the first `count` files. Later files are not read yet: they may change.
std::uint64_t files_hash(const std::vector<std::string>& files, std::size_t count) {
  std::string all;
  for (std::size_t i = 0; i < std::min(count, files.size()); ++i) {
    struct stat status {};
    if (::stat(files[i].c_str(), &status) != 0) fail_usage("[data] {}: cannot be read", files[i]);
    all += fmt::format("{}\n{} {}.{}\n", files[i], status.st_size, status.st_mtim.tv_sec,
                       status.st_mtim.tv_nsec);
  }
  return XXH3_64bits(all.data(), all.size());
}

json series_json(const SavedSeries& series) {
  json result = shards_json(series.shards);
  result["open"] = {{"tokens", series.open.tokens},
                    {"documents", series.open.documents},
                    {"xxh3", hash_text(series.open.hash)}};
  return result;
}

SavedSeries read_series(const json& side) {
  const json& open = side.at("open");
  const SavedSeries series{read_shards(side),
                           {open.at("tokens").get<std::int64_t>(), open.at("documents").get<std::int64_t>(),
                            hash_of(open.at("xxh3"))}};
  if (series.open.documents < 0 || series.open.tokens < series.open.documents)
    throw json::other_error::create(501, "an open shard makes no sense", &open);
  return series;
}

void require_same(const std::string& folder, const json& saved, const json& settings) {
  for (const auto& [name, value] : settings.items()) {
    if (saved.at(name) == value) continue;
    fail_usage(
        "[data] --out {}: holds an unfinished build with {}={}, this one has {}; give the same, or "
        "remove the folder to begin anew",
        folder, name, saved.at(name).dump(), value.dump());
  }
}

}  // namespace

std::string build_state_path(const std::string& folder) {
  return folder + "/unfinished.json";
}

json build_settings(const BuildOptions& options, std::uint64_t tokenizer_hash) {
  return {{"version", SWITCHYARD_VERSION},
          {"tokenizer_type", options.tokenizer_type},
          {"hash of the tokenizer", hash_text(tokenizer_hash)},
          {"train_data_columns", options.text.column},
          {"records_without_text", options.text.skip_records ? "skip" : "refuse"},
          {"eval_fraction", options.text.eval_fraction},
          {"add_bos", options.text.add_bos},
          {"add_eos", options.text.add_eos},
          {"--shard-tokens", options.shard_tokens}};
}

std::optional<BuildState> read_build_state(const std::string& folder, const json& settings,
                                           const std::vector<std::string>& files) {
  const std::string path = build_state_path(folder);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  const json saved = read_json_file(path);
  try {
    require_same(folder, saved.at("settings"), settings);
    const json& next = saved.at("next");
    BuildState state{{next.at("file").get<std::size_t>(), next.at("byte").get<std::size_t>(),
                      next.at("line").get<std::int64_t>()},
                     saved.at("text_bytes").get<std::int64_t>(),
                     read_series(saved.at("train")),
                     read_series(saved.at("eval"))};
    if (files_hash(files, state.next.file + 1) != hash_of(saved.at("files_xxh3"))) {
      fail_usage(
          "[data] --out {}: holds an unfinished build of other text: of the files that it has begun, one was "
          "added, removed or changed since; remove the folder to begin anew",
          folder);
    }
    return state;
  } catch (const json::exception& e) {
    fail_usage("[data] {}: broken: {}; remove {} to begin anew", path, e.what(), folder);
  }
}

void write_build_state(const std::string& folder, const json& settings, const std::vector<std::string>& files,
                       const BuildState& state) {
  const json saved = {
      {"settings", settings},
      {"files_xxh3", hash_text(files_hash(files, state.next.file + 1))},
      {"next", {{"file", state.next.file}, {"byte", state.next.byte}, {"line", state.next.line}}},
      {"text_bytes", state.text_bytes},
      {"train", series_json(state.train)},
      {"eval", series_json(state.eval)}};
  write_file_atomic(build_state_path(folder), saved.dump(1) + "\n");
}

}  // namespace switchyard
