#include "data/token_folder.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/json_file.h"
#include "data/text_files.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr std::int64_t kFormat = 1;

// Concatenates shards into one stream.
class ShardStream : public DocumentStream {
 public:
  explicit ShardStream(std::vector<std::shared_ptr<const TokenShard>> shards) : shards_(std::move(shards)) {
    for (const auto& shard : shards_) {
      ends_.push_back(tokens() + shard->tokens());
      document_ends_.push_back(documents() + shard->documents());
    }
  }
  std::int64_t tokens() const override { return ends_.empty() ? 0 : ends_.back(); }
  std::int64_t documents() const override { return document_ends_.empty() ? 0 : document_ends_.back(); }
  DocumentRange document(std::int64_t index) const override {
    const auto end = std::upper_bound(document_ends_.begin(), document_ends_.end(), index);
    const auto shard = static_cast<std::size_t>(end - document_ends_.begin());
    const DocumentRange range = shards_[shard]->document(index - (*end - shards_[shard]->documents()));
    const std::int64_t first = ends_[shard] - shards_[shard]->tokens();
    return {first + range.begin, first + range.end};
  }

  void read(std::int64_t begin, std::int64_t end, std::vector<std::int32_t>& tokens,
            std::vector<std::int64_t>& starts) const override {
    tokens.clear();
    starts.clear();
    auto shard =
        static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
    for (std::int64_t at = begin; at < end; ++shard) {
      const std::int64_t first = ends_[shard] - shards_[shard]->tokens(), stop = std::min(end, ends_[shard]);
      shards_[shard]->read(at - first, stop - first, tokens);
      shards_[shard]->read_starts(std::max(at, begin + 1) - first, stop - first, begin - first, starts);
      at = stop;
    }
  }
  std::uint64_t fingerprint() const override {
    std::vector<std::uint64_t> hashes;
    for (const auto& shard : shards_) hashes.push_back(shard->hash());
    return XXH3_64bits(hashes.data(), hashes.size() * sizeof(hashes[0]));
  }

 private:
  std::vector<std::shared_ptr<const TokenShard>> shards_;
  std::vector<std::int64_t> ends_, document_ends_;  // in tokens and documents of all
};

std::vector<std::shared_ptr<const TokenShard>> open_shards(const std::string& folder,
                                                           const std::vector<ShardInfo>& infos) {
  std::vector<std::shared_ptr<const TokenShard>> shards;
  for (const ShardInfo& info : infos) {
    auto shard = TokenShard::open(folder + "/" + info.file);
    if (shard->hash() != info.hash || shard->tokens() != info.tokens ||
        shard->documents() != info.documents) {
      fail_usage("[data] {}/{}: not the shard of dataset.json: its hash is {:016x}, expected {:016x}", folder,
                 info.file, shard->hash(), info.hash);
    }
    if (shard->tokens() > 0) shards.push_back(std::move(shard));
  }
  return shards;
}

// Opens shards and adds them to `all`. Only where the tokenizer has ids that the model lacks,
// every token is looked at.
void add_shards(const std::string& folder, const std::vector<ShardInfo>& infos, const KnownIds& known,
                std::vector<std::shared_ptr<const TokenShard>>& all) {
  for (const ShardInfo& info : infos) {
    for (std::shared_ptr<const TokenShard>& shard : open_shards(folder, {info})) {
      if (shard->vocabulary() > known.vocabulary) {
        if (const auto found = first_outside(ShardStream({shard}), known.vocabulary))
          fail_usage("[data] {}/{}: document {}: {}", folder, info.file, found->document + 1,
                     outside_text(*found, known.vocabulary, known.tokenizer));
      }
      all.push_back(std::move(shard));
    }
  }
}

}  // namespace

std::string outside_text(const OutsideToken& found, std::int64_t vocabulary, const Tokenizer* tokenizer) {
  const std::string text = tokenizer == nullptr ? "" : tokenizer->decode_all(std::span(&found.id, 1));
  return fmt::format(
      "token {}{} is outside vocab_size={}: the tokenizer has ids that the model has no rows of its "
      "embedding for; leave out the texts that have them",
      found.id, text.empty() ? "" : " (" + in_quotes(text) + ")", vocabulary);
}

std::string hash_text(std::uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

json shards_json(const std::vector<ShardInfo>& shards) {
  json list = json::array();
  std::int64_t documents = 0, tokens = 0;
  for (const ShardInfo& s : shards) {
    list.push_back({{"file", s.file},
                    {"documents", s.documents},
                    {"tokens", s.tokens},
                    {"bytes", s.bytes},
                    {"xxh3", hash_text(s.hash)}});
    documents += s.documents;
    tokens += s.tokens;
  }
  return {{"documents", documents}, {"tokens", tokens}, {"shards", list}};
}

std::uint64_t hash_of(const json& value) {
  const auto text = value.get<std::string>();
  std::uint64_t hash = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (text.size() != 16 || status != std::errc() || end != text.data() + text.size())
    throw json::other_error::create(501, "a hash is not 16 hexadecimal digits", &value);
  return hash;
}

std::vector<ShardInfo> read_shards(const json& side) {
  std::vector<ShardInfo> shards;
  for (const json& s : side.at("shards")) {
    ShardInfo info{s.at("file").get<std::string>(), s.at("documents").get<std::int64_t>(),
                   s.at("tokens").get<std::int64_t>(), s.at("bytes").get<std::int64_t>(),
                   hash_of(s.at("xxh3"))};
    if (info.file.empty() || info.file.find('/') != std::string::npos || info.file.starts_with('.'))
      throw json::other_error::create(501, "a shard's file is not a plain name", &s);
    shards.push_back(std::move(info));
  }
  return shards;
}

json to_json(const TokenFolderInfo& info) {
  return {{"format", kFormat},
          {"version", SWITCHYARD_VERSION},
          {"vocab_size", info.vocabulary},
          {"tokenizer", {{"type", info.tokenizer_type}, {"xxh3", hash_text(info.tokenizer_hash)}}},
          {"eval_fraction", info.eval_fraction},
          {"train", shards_json(info.train)},
          {"eval", shards_json(info.eval)}};
}

TokenFolderInfo read_token_folder(const std::string& folder) {
  const std::string path = folder + "/dataset.json";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) {
    fail_usage(
        "[data] data_path={}: no dataset.json in it; `switchyard data build` makes such a folder, and writes "
        "that "
        "file last",
        folder);
  }
  const json file = read_json_file(path);
  TokenFolderInfo info;
  try {
    if (file.at("format") != kFormat)
      fail_usage("[data] {}: format {}, expected {}", path, file.at("format").dump(), kFormat);
    info.vocabulary = file.at("vocab_size").get<std::int64_t>();
    info.tokenizer_type = file.at("tokenizer").at("type").get<std::string>();
    info.tokenizer_hash = hash_of(file.at("tokenizer").at("xxh3"));
    info.eval_fraction = file.at("eval_fraction").get<double>();
    info.train = read_shards(file.at("train"));
    info.eval = read_shards(file.at("eval"));
  } catch (const json::exception& e) {
    fail_usage("[data] {}: broken: {}", path, e.what());
  }
  return info;
}

std::uint64_t tokenizer_files_hash(const std::vector<std::string>& files) {
  std::string all;
  for (const std::string& file : files) all += read_whole_file(file);
  return files.empty() ? 0 : XXH3_64bits(all.data(), all.size());
}

std::unique_ptr<Tokenizer> folder_tokenizer(const std::string& folder, const TokenFolderInfo& info) {
  const std::string path = tokenizer_path_in(info.tokenizer_type, folder + "/tokenizer");
  if (tokenizer_files_hash(tokenizer_files(info.tokenizer_type, path)) != info.tokenizer_hash)
    fail_usage("[data] {}/tokenizer: not the tokenizer that the data was made with", folder);
  return make_tokenizer(info.tokenizer_type, path);
}

std::shared_ptr<const DocumentStream> open_stream(const std::string& folder,
                                                  const std::vector<ShardInfo>& shards) {
  return std::make_shared<ShardStream>(open_shards(folder, shards));
}

SplitData make_tokenized(const std::string& paths, const PackingOptions& packing, bool evaluates,
                         const KnownIds& known) {
  std::vector<std::shared_ptr<const TokenShard>> train, eval;
  std::uint64_t tokenizer = 0;
  const std::vector<std::string> folders = split_paths(paths);
  for (const std::string& folder : folders) {
    const TokenFolderInfo info = read_token_folder(folder);
    if (folder != folders[0] && info.tokenizer_hash != tokenizer)
      fail_usage("[data] data_path={}: made with another tokenizer than {}", folder, folders[0]);
    tokenizer = info.tokenizer_hash;
    add_shards(folder, info.train, known, train);
    if (evaluates) add_shards(folder, info.eval, known, eval);
  }
  const auto stream = std::make_shared<ShardStream>(std::move(train));
  SplitData data;
  data.train = make_training_rows(stream, packing, ShuffleKind::computed, paths);
  if (evaluates) {
    const auto held_out = std::make_shared<ShardStream>(std::move(eval));
    if (held_out->tokens() < 2) {
      fail_usage(
          "[data] data_path={}: nothing is held out; build it with a larger eval_fraction, or set "
          "eval_interval=-1",
          paths);
    }
    data.eval = make_held_out_rows(held_out, packing);
  }
  return data;
}

}  // namespace switchyard
