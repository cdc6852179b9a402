// A shard: tokenised documents in a memory-mapped file, verified by hashes as it is read.
//
// Little-endian. 64 bytes of header: "SYTOKEN1", bytes per token (u32: 2 or 4), bytes per chunk (u32), tokens
// (u64), documents (u64), vocabulary size (u64), XXH3-64 of the table of hashes (u64), 0 (u64), XXH3-64 of
// the 56 bytes before (u64). Then the body: the tokens, zeros up to a multiple of 8, and for each document
// the index of its first token (u64, ascending from 0). Then the table: XXH3-64 of each chunk of the body
// (u64). So the header's hash covers the whole file; it identifies the shard in dataset.json.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace switchyard {

// A file descriptor that the destructor closes; -1: none.
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
  std::string file;  // without its folder
  std::int64_t documents = 0, tokens = 0, bytes = 0;
  std::uint64_t hash = 0;
};

// The tokens [begin, end) of a stream or shard, at least one.
struct DocumentRange {
  std::int64_t begin, end;
};

// The part of a shard being written that is safely on disk.
struct SavedShard {
  std::int64_t tokens = 0, documents = 0;
  std::uint64_t hash = 0;  // of the tokens and the document starts
};

// Writes one shard as FILE.partial beside its final name, and renames it once it is complete and on disk. All
// functions throw Error(runtime) that names the file and the reason, such as a full disk; after an error, or
// without finish(), only saved parts remain.
class ShardWriter {
 public:
  // Uses two bytes per token when `vocabulary` allows it.
  ShardWriter(const std::string& folder, const std::string& file, std::int64_t vocabulary);
  // Continues a shard after its saved part, even if more was written since, finish() included. Error(usage)
  // when the saved part is not what is on disk.
  ShardWriter(const std::string& folder, const std::string& file, std::int64_t vocabulary,
              const SavedShard& saved);
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  // Ids must be at least 0 and below the vocabulary size; at least one id.
  void add_document(std::span<const std::int32_t> ids);
  std::int64_t tokens() const { return info_.tokens; }
  // Flushes the shard to the disk. The documents' starts go to FILE.partial.starts, which remains even after
  // finish(). The folder's entries are not synced.
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
  OpenFile file_, starts_file_;  // the latter exists from the first save on
  std::vector<std::uint64_t> starts_, hashes_;
  std::size_t saved_starts_ = 0;
  std::string chunk_;        // the unfinished chunk of the body
  std::size_t written_ = 0;  // bytes of chunk_ that are already in the file
};

// Immutable, usable from several threads.
class TokenShard {
 public:
  // Error(usage) for a file that is no shard, is cut off, or whose header or table do not match their hashes.
  static std::shared_ptr<const TokenShard> open(const std::string& path);
  ~TokenShard();
  TokenShard(const TokenShard&) = delete;
  TokenShard& operator=(const TokenShard&) = delete;

  std::int64_t tokens() const { return tokens_; }
  std::int64_t documents() const { return documents_; }
  std::int64_t vocabulary() const { return vocabulary_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(size_); }
  std::uint64_t hash() const;  // the header's hash

  // Appends the tokens [begin, end), and the starts of documents among
  // them, minus `origin`. Each chunk is hashed when it is first read; on
  // a mismatch, Error(runtime) names the file, the chunk and both hashes.
  void read(std::int64_t begin, std::int64_t end, std::vector<std::int32_t>& tokens) const;
  void read_starts(std::int64_t begin, std::int64_t end, std::int64_t origin,
                   std::vector<std::int64_t>& starts) const;
  // The token range of a document; the same error, also when the documents are not in order.
  DocumentRange document(std::int64_t index) const;
  // Hashes every chunk, even those verified before. The same error.
  void prove() const;

 private:
  explicit TokenShard(const std::string& path);
  void check_header();
  void prove_bytes(std::size_t begin, std::size_t end) const;  // a range of the body
  void prove_chunk(std::size_t chunk) const;
  std::int64_t start_of(std::int64_t document) const;

  std::string path_;
  const char* bytes_ = nullptr;
  std::size_t size_ = 0, body_ = 0, chunk_ = 0;
  std::uint32_t width_ = 2;
  std::int64_t tokens_ = 0, documents_ = 0, vocabulary_ = 0;
  mutable std::vector<std::atomic<bool>> proved_;  // per chunk
};

}  // namespace switchyard
