#include "data/build.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/file_lock.h"
#include "core/json_file.h"
#include "data/build_state.h"
#include "data/encode.h"
#include "data/text_files.h"
#include "metrics/atomic_file.h"
#include "tokenizer/tokenizer_folder.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestDocument = 16 << 20;  // bytes of text

std::string shard_name(const std::string& side, std::size_t number) {
  return fmt::format("{}-{:05}.tokens", side, number);
}

// The shards of one side: train-00001.tokens, train-00002.tokens, ...
class ShardSeries {
 public:
  ShardSeries(const BuildOptions& options, std::string side, std::int64_t vocabulary,
              const SavedSeries& saved)
      : options_(options), side_(std::move(side)), vocabulary_(vocabulary), shards_(saved.shards) {
    if (saved.open.tokens > 0) writer_.emplace(options_.folder, next_name(), vocabulary_, saved.open);
  }

  void add(const std::vector<std::int32_t>& ids) {
    if (ids.empty()) return;
    if (!writer_) writer_.emplace(options_.folder, next_name(), vocabulary_);
    writer_->add_document(ids);
    if (writer_->tokens() >= options_.shard_tokens) finish();
  }
  void finish() {
    if (writer_) shards_.push_back(writer_->finish());
    writer_.reset();
  }
  SavedSeries save() { return {shards_, writer_ ? writer_->save() : SavedShard{}}; }
  const std::vector<ShardInfo>& shards() const { return shards_; }

 private:
  std::string next_name() const { return shard_name(side_, shards_.size() + 1); }

  const BuildOptions& options_;
  std::string side_;
  std::int64_t vocabulary_;
  std::optional<ShardWriter> writer_;
  std::vector<ShardInfo> shards_;
};

bool is_ours(const std::string& name) {
  const bool shard = name.starts_with("train-") || name.starts_with("eval-");
  return name == "tokenizer" || name.starts_with("dataset.json.") || name.starts_with("unfinished.json") ||
         (shard && (name.ends_with(".tokens") || name.ends_with(".tokens.partial") ||
                    name.ends_with(".tokens.partial.starts")));
}

// Creates the folder. While the result lives, no other build may write to the folder.
void lock_folder(const std::string& folder, OpenFile& lock) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail_usage("[data] --out {}: cannot be created: {}", folder, error.message());
  lock.reset(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock.get() < 0) fail_usage("[data] --out {}: {}", folder, std::strerror(errno));
  if (const std::string holder = lock_file(lock.get(), folder); !holder.empty())
    fail_usage("[data] --out {}: is being written by {}", folder, holder);
}

std::vector<fs::path> entries_of(const std::string& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) entries.push_back(entry.path());
  if (error) fail_usage("[data] --out {}: {}", folder, error.message());
  return entries;
}

void require_ours(const std::string& folder) {
  for (const fs::path& path : entries_of(folder)) {
    const std::string name = path.filename().string();
    if (name == "dataset.json")
      fail_usage("[data] --out {}: holds a data set already; remove it, or name another folder", folder);
    if (!is_ours(name)) fail_usage("[data] --out {}: holds {}, expected an empty folder", folder, name);
  }
}

// Removes what was written after the state was saved. A shard that was finished since stays: it begins with
// what was saved.
void remove_unsaved(const std::string& folder, const BuildState* state) {
  std::set<std::string> kept;
  const auto keep = [&](const std::string& side, const SavedSeries& series) {
    for (const ShardInfo& shard : series.shards) kept.insert(shard.file);
    const std::string open = shard_name(side, series.shards.size() + 1);
    if (series.open.tokens > 0) kept.insert({open, open + ".partial", open + ".partial.starts"});
  };
  if (state != nullptr) {
    kept.insert("unfinished.json");
    keep("train", state->train);
    keep("eval", state->eval);
    open_stream(folder, state->train.shards);  // refuses what is missing or was changed
    open_stream(folder, state->eval.shards);
  }
  std::error_code ignored;
  for (const fs::path& path : entries_of(folder)) {
    if (!kept.contains(path.filename().string())) fs::remove_all(path, ignored);
  }
}

// Removes a complete build's work files. The state goes last: once it is gone, so are the others.
void remove_leftovers(const std::string& folder) {
  std::error_code ignored;
  for (const fs::path& path : entries_of(folder)) {
    const std::string name = path.filename().string();
    if (name.ends_with(".starts") || name.starts_with("dataset.json.")) fs::remove(path, ignored);
  }
  fs::remove(build_state_path(folder), ignored);
}

void carry_tokenizer(const BuildOptions& options) {
  const std::vector<std::string> files = tokenizer_files(options.tokenizer_type, options.tokenizer_path);
  if (files.empty()) return;
  const std::string target = options.folder + "/tokenizer";
  std::error_code error;
  fs::create_directory(target, error);
  if (error) fail_runtime("[data] cannot create {}: {}", target, error.message());
  const std::string main_file = tokenizer_path_in(options.tokenizer_type, target, files[0]);
  for (const std::string& file : files) {
    const std::string name = file == files[0] ? main_file : target + "/" + fs::path(file).filename().string();
    write_file_atomic(name, read_whole_file(file));
  }
  if (options.tokenizer_type == "gguf") return;  // which has its template itself
  // Other settings and the chat templates are no part of the tokenizer; checkpoints made
  // from this data carry them.
  for (const NamedFile& file : files_in(fs::path(files[0]).parent_path(), is_tokenizer_setting)) {
    const fs::path path = fs::path(target) / file.name;
    fs::create_directory(path.parent_path(), error);
    write_file_atomic(path.string(), file.content);
  }
}

// A build, new or resumed.
class Build {
 public:
  Build(const BuildOptions& options, ThreadPool& pool, const BuildObserver& observer,
        std::vector<std::string> files, const Tokenizer& tokenizer, const nlohmann::json& settings,
        const BuildState& state)
      : options_(options),
        pool_(pool),
        observer_(observer),
        files_(std::move(files)),
        tokenizer_(tokenizer),
        settings_(settings),
        next_(state.next),
        done_(state.text_bytes),
        train_(options, "train", tokenizer.vocab_size(), state.train),
        eval_(options, "eval", tokenizer.vocab_size(), state.eval) {}

  // Returns false if the build was stopped.
  bool run() {
    struct Stopped {};
    const TextSelection selection{options_.text.column, options_.text.eval_fraction,
                                  options_.text.skip_records};
    try {
      for_documents(files_, selection, kLongestDocument, next_,
                    [&](std::string&& document, bool held_out, const TextPosition& next) {
                      pending_ += document.size();
                      texts_.push_back(std::move(document));
                      sides_.push_back(held_out);
                      next_ = next;
                      if (pending_ < options_.round_bytes) return;
                      flush();
                      const bool stop = observer_.stop();
                      if (stop || unsaved_ >= options_.saved_bytes) save();
                      if (stop) throw Stopped();
                    });
    } catch (const Stopped&) {
      return false;
    }
    flush();
    train_.finish();
    eval_.finish();
    return true;
  }

  const std::vector<ShardInfo>& train() const { return train_.shards(); }
  const std::vector<ShardInfo>& eval() const { return eval_.shards(); }
  std::size_t files() const { return files_.size(); }
  std::int64_t text_bytes() const { return done_; }

 private:
  void flush() {
    const std::size_t shards = train_.shards().size() + eval_.shards().size();
    const DocumentEnds ends{options_.text.add_bos, options_.text.add_eos};
    const auto ids = encode_documents(texts_, tokenizer_, ends, pool_);
    for (std::size_t i = 0; i < ids.size(); ++i) (sides_[i] ? eval_ : train_).add(ids[i]);
    done_ += static_cast<std::int64_t>(pending_);
    unsaved_ += pending_;
    // A finished shard is not to be written twice.
    if (train_.shards().size() + eval_.shards().size() > shards) unsaved_ = options_.saved_bytes;
    observer_.progress(done_);
    texts_.clear();
    sides_.clear();
    pending_ = 0;
  }

  // Saves the rows that the state counts before the state itself.
  void save() {
    BuildState state{next_, done_, train_.save(), eval_.save()};
    sync_folder(options_.folder);
    write_build_state(options_.folder, settings_, files_, state);
    unsaved_ = 0;
  }

  const BuildOptions& options_;
  ThreadPool& pool_;
  const BuildObserver& observer_;
  const std::vector<std::string> files_;
  const Tokenizer& tokenizer_;
  const nlohmann::json& settings_;
  TextPosition next_;
  std::int64_t done_;  // bytes of text
  ShardSeries train_, eval_;
  std::vector<std::string> texts_;  // of a round
  std::vector<bool> sides_;
  std::size_t pending_ = 0, unsaved_ = 0;
};

}  // namespace

BuildResult build_token_folder(const BuildOptions& options, ThreadPool& pool, const BuildObserver& observer) {
  const std::vector<std::string> files = find_text_files(options.paths);
  if (files.empty())
    fail_usage("[data] data_path={}: expected files with text, found none (hidden ones do not count)",
               options.paths);
  const auto tokenizer = make_tokenizer(options.tokenizer_type, options.tokenizer_path);
  BuildResult result;
  result.info.vocabulary = tokenizer->vocab_size();
  result.info.tokenizer_type = options.tokenizer_type;
  result.info.tokenizer_hash =
      tokenizer_files_hash(tokenizer_files(options.tokenizer_type, options.tokenizer_path));
  result.info.eval_fraction = options.text.eval_fraction;
  const nlohmann::json settings = build_settings(options, result.info.tokenizer_hash);

  OpenFile lock;
  lock_folder(options.folder, lock);
  const auto saved = read_build_state(options.folder, settings, files);
  if (saved && fs::exists(options.folder + "/dataset.json")) {  // the build was killed after its last write
    remove_leftovers(options.folder);
    return {true, read_token_folder(options.folder), saved->text_bytes, saved->text_bytes};
  }
  require_ours(options.folder);
  remove_unsaved(options.folder, saved ? &*saved : nullptr);
  if (saved)
    observer.line(
        fmt::format("going on after {:.1f} MB of text", 1e-6 * static_cast<double>(saved->text_bytes)));
  Build build(options, pool, observer, files, *tokenizer, settings, saved.value_or(BuildState{}));
  result.bytes_before = build.text_bytes();
  result.complete = build.run();
  result.text_bytes = build.text_bytes();
  if (!result.complete) return result;
  if (build.train().empty())
    fail_usage("[data] data_path={}: no text to train on in {} files", options.paths, build.files());
  result.info.train = build.train();
  result.info.eval = build.eval();
  carry_tokenizer(options);
  write_file_atomic(options.folder + "/dataset.json", to_json(result.info).dump(1) + "\n");
  remove_leftovers(options.folder);
  return result;
}

}  // namespace switchyard
