#include "data/build.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "checkpoint/json_file.h"
#include "core/error.h"
#include "data/encode.h"
#include "data/text_files.h"
#include "metrics/atomic_file.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestDocument = 16 << 20, kRound = 8 << 20;  // bytes of text

// One side's shards: train-00001.tokens, train-00002.tokens, ...
class ShardSeries {
 public:
  ShardSeries(std::string folder, std::string name, std::int64_t vocabulary, std::int64_t shard_tokens)
      : folder_(std::move(folder)),
        name_(std::move(name)),
        vocabulary_(vocabulary),
        shard_tokens_(shard_tokens) {}

  void add(const std::vector<std::int32_t>& ids) {
    if (ids.empty()) return;
    if (!writer_)
      writer_.emplace(folder_, fmt::format("{}-{:05}.tokens", name_, shards_.size() + 1), vocabulary_);
    writer_->add_document(ids);
    if (writer_->tokens() >= shard_tokens_) finish();
  }
  void finish() {
    if (writer_) shards_.push_back(writer_->finish());
    writer_.reset();
  }
  const std::vector<ShardInfo>& shards() const { return shards_; }

 private:
  std::string folder_, name_;
  std::int64_t vocabulary_, shard_tokens_;
  std::optional<ShardWriter> writer_;
  std::vector<ShardInfo> shards_;
};

bool is_ours(const fs::path& path) {
  const std::string name = path.filename().string();
  const bool shard = name.starts_with("train-") || name.starts_with("eval-");
  return name == "tokenizer" || name.starts_with("dataset.json.") ||
         (shard && (name.ends_with(".tokens") || name.ends_with(".tokens.partial")));
}

void prepare_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail_usage("[data] --out {}: cannot be created: {}", folder, error.message());
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename() == "dataset.json")
      fail_usage("[data] --out {}: holds a data set already; remove it, or name another folder", folder);
    if (!is_ours(entry.path()))
      fail_usage("[data] --out {}: holds {}, expected an empty folder", folder,
                 entry.path().filename().string());
    left.push_back(entry.path());
  }
  if (error) fail_usage("[data] --out {}: {}", folder, error.message());
  for (const fs::path& path : left) fs::remove_all(path, error);
}

void carry_tokenizer(const BuildOptions& options) {
  const std::vector<std::string> files = tokenizer_files(options.tokenizer_type, options.tokenizer_path);
  if (files.empty()) return;
  const std::string target = options.folder + "/tokenizer";
  std::error_code error;
  fs::create_directory(target, error);
  if (error) fail_runtime("[data] cannot create {}: {}", target, error.message());
  const std::string main_file = tokenizer_path_in(options.tokenizer_type, target);
  for (const std::string& file : files) {
    const std::string name = file == files[0] ? main_file : target + "/" + fs::path(file).filename().string();
    write_file_atomic(name, read_whole_file(file));
  }
}

}  // namespace

TokenFolderInfo build_token_folder(const BuildOptions& options, ThreadPool& pool,
                                   const std::function<void(std::int64_t)>& progress) {
  const std::vector<std::string> files = find_text_files(options.paths);
  if (files.empty())
    fail_usage("[data] data_path={}: expected files with text, found none (hidden ones do not count)",
               options.paths);
  const auto tokenizer = make_tokenizer(options.tokenizer_type, options.tokenizer_path);
  prepare_folder(options.folder);
  TokenFolderInfo info;
  info.vocabulary = tokenizer->vocab_size();
  info.tokenizer_type = options.tokenizer_type;
  info.tokenizer_hash = tokenizer_files_hash(tokenizer_files(options.tokenizer_type, options.tokenizer_path));
  info.eval_fraction = options.text.eval_fraction;
  ShardSeries train(options.folder, "train", info.vocabulary, options.shard_tokens),
      eval(options.folder, "eval", info.vocabulary, options.shard_tokens);

  std::vector<std::string> texts;
  std::vector<bool> sides;
  std::size_t pending = 0;
  std::int64_t done = 0;
  const auto flush = [&] {
    const auto ids = encode_documents(texts, *tokenizer, {options.text.add_bos, options.text.add_eos}, pool);
    for (std::size_t i = 0; i < ids.size(); ++i) (sides[i] ? eval : train).add(ids[i]);
    done += static_cast<std::int64_t>(pending);
    progress(done);
    texts.clear();
    sides.clear();
    pending = 0;
  };
  const TextSelection selection{options.text.column, options.text.eval_fraction};
  for_documents(files, selection, kLongestDocument, [&](std::string&& document, bool held_out) {
    pending += document.size();
    texts.push_back(std::move(document));
    sides.push_back(held_out);
    if (pending >= kRound) flush();
  });
  flush();
  train.finish();
  eval.finish();
  if (train.shards().empty())
    fail_usage("[data] data_path={}: no text to train on in {} files", options.paths, files.size());
  info.train = train.shards();
  info.eval = eval.shards();
  carry_tokenizer(options);
  write_file_atomic(options.folder + "/dataset.json", to_json(info).dump(1) + "\n");
  return info;
}

}  // namespace switchyard
