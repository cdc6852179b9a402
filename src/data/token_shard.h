// A shard: tokenised documents in a file that is read through memory mapping, and proved as it is read.
//
// Little-endian. 64 bytes of header: "SYTOKEN1", bytes a token (u32: 2 or 4), bytes a chunk (u32), tokens
// (u64), documents (u64), vocabulary size (u64), XXH3-64 of the table of hashes (u64), 0 (u64), XXH3-64 of
// the 56 bytes before (u64). Then the body: the tokens, zeros up to a multiple of 8, and for each document
// the index of its first token (u64, ascending from 0). Then the table: XXH3-64 of each chunk of the body
// (u64). So the header's hash speaks for the whole file: it is the shard's name in dataset.json.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace switchyard {

// A file descriptor that is closed at the end; -1 is none.
class OpenFile {
 public:
  explicit OpenFile(int descriptor = -1) : descriptor_(descriptor) {}
  ~OpenFile() { close(); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  void reset(int descriptor) { close(), descriptor_ = descriptor; }
  void close();
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

struct ShardInfo {
  std::string file;  // without folder
  std::int64_t documents = 0, tokens = 0, bytes = 0;
  std::uint64_t hash = 0;
};

// The tokens [begin, end) of a stream or shard, at least one.
struct DocumentRange {
  std::int64_t begin, end;
};

// How much of a shard that is being written is on disk.
struct SavedShard {
  std::int64_t tokens = 0, documents = 0;
  std::uint64_t hash = 0;  // of both
};

// Writes one shard beside its final name, as FILE.partial, and moves it there once it is whole and on disk.
// All throw Error(runtime) that names the file and the reason, such as a full disk; then, and without
// finish(), nothing stays but what was saved.
class ShardWriter {
 public:
  // Two bytes a token when `vocabulary` allows it.
  ShardWriter(const std::string& folder, const std::string& file, std::int64_t vocabulary);
  // Goes on with a shard after what was saved of it, whatever was done to it since, finish() included.
  // Error(usage) when that is not what is on disk.
  ShardWriter(const std::string& folder, const std::string& file, std::int64_t vocabulary,
              const SavedShard& saved);
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  // Ids from 0 to below the vocabulary, at least one.
  void add_document(std::span<const std::int32_t> ids);
  std::int64_t tokens() const { return info_.tokens; }
  // Brings all of it to the disk. Where documents start goes to FILE.partial.starts, which stays there even
  // after finish(). The folder's entries are not synced.
  SavedShard save();
  ShardInfo finish();

 private:
  void append(const void* data, std::size_t bytes);
  void flush();
  void write_chunk();
  void read_saved(const SavedShard& saved);
  SavedShard saved_state() const;
  std::string starts_path() const { return temporary_ + ".starts"; }
  [[noreturn]] void fail(int reason) const;

  std::string folder_, temporary_;
  ShardInfo info_;
  std::int64_t vocabulary_;
  std::uint32_t width_;
  OpenFile file_, starts_file_;  // the latter from the first save on
  std::vector<std::uint64_t> starts_, hashes_;
  std::size_t saved_starts_ = 0;
  std::string chunk_;        // of the body, not whole yet
  std::size_t written_ = 0;  // bytes of it that are in the file
};

// Immutable, usable from several threads.
class TokenShard {
 public:
  // Error(usage) for what is no shard, is cut off, or whose header or table are not what their hashes say.
  static std::shared_ptr<const TokenShard> open(const std::string& path);
  ~TokenShard();
  TokenShard(const TokenShard&) = delete;
  TokenShard& operator=(const TokenShard&) = delete;

  std::int64_t tokens() const { return tokens_; }
  std::int64_t documents() const { return documents_; }
  std::int64_t vocabulary() const { return vocabulary_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(size_); }
  std::uint64_t hash() const;  // of the header

  // Appends the tokens [begin, end), and the starts of documents among them, less `origin`. Every chunk is
  // hashed the first time it is read; Error(runtime) that names file, chunk and hashes when it is not what
  // was written.
  void read(std::int64_t begin, std::int64_t end, std::vector<std::int32_t>& tokens) const;
  void read_starts(std::int64_t begin, std::int64_t end, std::int64_t origin,
                   std::vector<std::int64_t>& starts) const;
  // The tokens of a document; the same error, also when documents are not in order.
  DocumentRange document(std::int64_t index) const;
  // Hashes everything, whether it was read before or not. The same error.
  void prove() const;

 private:
  explicit TokenShard(const std::string& path);
  void check_header();
  void prove_bytes(std::size_t begin, std::size_t end) const;  // of the body
  void prove_chunk(std::size_t chunk) const;
  std::int64_t start_of(std::int64_t document) const;

  std::string path_;
  const char* bytes_ = nullptr;
  std::size_t size_ = 0, body_ = 0, chunk_ = 0;
  std::uint32_t width_ = 2;
  std::int64_t tokens_ = 0, documents_ = 0, vocabulary_ = 0;
  mutable std::vector<std::atomic<bool>> proved_;  // by chunk
};

}  // namespace switchyard
