#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "core/error.h"
#include "data/token_shard.h"
#include "data/token_shard_layout.h"
#include "metrics/append_file.h"

namespace switchyard {

namespace {

// Returns 0 or an errno: EIO when the file ends early.
int read_all(int descriptor, void* target, std::size_t bytes) {
  char* to = static_cast<char*>(target);
  while (bytes > 0) {
    const ssize_t got = ::read(descriptor, to, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 ? errno : EIO;
    to += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return 0;
}

std::string_view bytes_of(const std::vector<std::uint64_t>& values, std::size_t first = 0) {
  return {reinterpret_cast<const char*>(values.data() + first), (values.size() - first) * 8};
}

}  // namespace

void OpenFile::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

ShardWriter::ShardWriter(const std::string& folder, const std::string& file, std::int64_t vocabulary)
    : folder_(folder),
      temporary_(folder + "/" + file + ".partial"),
      vocabulary_(vocabulary),
      width_(vocabulary <= 65536 ? 2 : 4) {
  info_.file = file;
  file_.reset(::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file_.get() < 0) fail(errno);
  const std::string room(sizeof(ShardHeader), '\0');
  if (const int reason = write_all(file_.get(), room); reason != 0) {
    ::unlink(temporary_.c_str());
    fail(reason);
  }
}

ShardWriter::ShardWriter(const std::string& folder, const std::string& file, std::int64_t vocabulary,
                         const SavedShard& saved)
    : folder_(folder),
      temporary_(folder + "/" + file + ".partial"),
      vocabulary_(vocabulary),
      width_(vocabulary <= 65536 ? 2 : 4) {
  info_.file = file;
  // One that was finished since begins with what was saved.
  if (::access(temporary_.c_str(), F_OK) != 0) std::rename((folder + "/" + file).c_str(), temporary_.c_str());
  file_.reset(::open(temporary_.c_str(), O_RDWR | O_CLOEXEC));
  starts_file_.reset(::open(starts_path().c_str(), O_RDWR | O_CLOEXEC));
  read_saved(saved);
}

void ShardWriter::read_saved(const SavedShard& saved) {
  const auto broken = [&] {
    fail_usage("[data] {}: not what an interrupted build saved; remove {} to begin anew", temporary_,
               folder_);
  };
  const std::size_t body = static_cast<std::size_t>(saved.tokens) * width_,
                    starts = static_cast<std::size_t>(saved.documents) * 8;
  struct stat file {
  }, index{};
  if (::fstat(file_.get(), &file) != 0 || ::fstat(starts_file_.get(), &index) != 0 ||
      saved.tokens > file.st_size || saved.documents > index.st_size ||
      sizeof(ShardHeader) + body > static_cast<std::size_t>(file.st_size) ||
      starts > static_cast<std::size_t>(index.st_size))
    broken();
  int reason = 0;
  if (::ftruncate(file_.get(), static_cast<off_t>(sizeof(ShardHeader) + body)) != 0 ||
      ::ftruncate(starts_file_.get(), static_cast<off_t>(starts)) != 0 ||
      ::lseek(file_.get(), sizeof(ShardHeader), SEEK_SET) < 0)
    reason = errno;
  for (std::size_t at = 0; at < body && reason == 0; at += kShardChunk) {
    chunk_.resize(std::min(kShardChunk, body - at));
    reason = read_all(file_.get(), chunk_.data(), chunk_.size());
    if (chunk_.size() < kShardChunk) break;
    hashes_.push_back(XXH3_64bits(chunk_.data(), chunk_.size()));
    chunk_.clear();
  }
  written_ = chunk_.size();
  starts_.resize(static_cast<std::size_t>(saved.documents));
  if (reason == 0) reason = read_all(starts_file_.get(), starts_.data(), starts);
  if (reason != 0) fail(reason);
  saved_starts_ = starts_.size();
  info_.tokens = saved.tokens;
  info_.documents = saved.documents;
  if (saved_state().hash != saved.hash) broken();
}

ShardWriter::~ShardWriter() {
  if (file_.get() >= 0 && starts_file_.get() < 0) ::unlink(temporary_.c_str());
}

void ShardWriter::add_document(std::span<const std::int32_t> ids) {
  CHECK(!ids.empty(), "a document without tokens");
  starts_.push_back(static_cast<std::uint64_t>(info_.tokens));
  for (const std::int32_t id : ids) {
    CHECK(id >= 0 && id < vocabulary_, "id {} of {}", id, vocabulary_);
    append(&id, width_);
  }
  info_.tokens += static_cast<std::int64_t>(ids.size());
  ++info_.documents;
}

ShardInfo ShardWriter::finish() {
  const std::size_t tokens = static_cast<std::size_t>(info_.tokens) * width_;
  const std::string padding(padded_to_8(tokens) - tokens, '\0');
  append(padding.data(), padding.size());
  for (const std::uint64_t start : starts_) append(&start, sizeof(start));
  flush();
  const std::string_view table = bytes_of(hashes_);
  int reason = write_all(file_.get(), table);
  ShardHeader header{};
  std::memcpy(header.magic, kShardMagic, sizeof(header.magic));
  header.width = width_;
  header.chunk = kShardChunk;
  header.tokens = static_cast<std::uint64_t>(info_.tokens);
  header.documents = static_cast<std::uint64_t>(info_.documents);
  header.vocabulary = static_cast<std::uint64_t>(vocabulary_);
  header.table_hash = XXH3_64bits(table.data(), table.size());
  header.hash = XXH3_64bits(&header, kHashedHeader);
  if (reason == 0 && ::lseek(file_.get(), 0, SEEK_SET) != 0) reason = errno;
  if (reason == 0) reason = write_all(file_.get(), {reinterpret_cast<const char*>(&header), sizeof(header)});
  if (reason == 0 && ::fsync(file_.get()) != 0) reason = errno;
  const std::string path = folder_ + "/" + info_.file;
  if (reason == 0 && std::rename(temporary_.c_str(), path.c_str()) != 0) reason = errno;
  if (reason != 0) fail(reason);
  file_.close();
  info_.bytes =
      static_cast<std::int64_t>(sizeof(header) + padded_to_8(tokens) + starts_.size() * 8 + table.size());
  info_.hash = header.hash;
  return info_;
}

void ShardWriter::append(const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const std::size_t part = std::min(bytes, kShardChunk - chunk_.size());
    chunk_.append(from, part);
    from += part;
    bytes -= part;
    if (chunk_.size() == kShardChunk) flush();
  }
}

void ShardWriter::flush() {
  if (chunk_.empty()) return;
  write_chunk();
  hashes_.push_back(XXH3_64bits(chunk_.data(), chunk_.size()));
  chunk_.clear();
  written_ = 0;
}

void ShardWriter::write_chunk() {
  const int reason = write_all(file_.get(), std::string_view(chunk_).substr(written_));
  if (reason != 0) fail(reason);
  written_ = chunk_.size();
}

SavedShard ShardWriter::save() {
  if (starts_file_.get() < 0)
    starts_file_.reset(::open(starts_path().c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (starts_file_.get() < 0) fail(errno);
  write_chunk();
  int reason = write_all(starts_file_.get(), bytes_of(starts_, saved_starts_));
  if (reason == 0 && (::fsync(file_.get()) != 0 || ::fsync(starts_file_.get()) != 0)) reason = errno;
  if (reason != 0) fail(reason);
  saved_starts_ = starts_.size();
  return saved_state();
}

SavedShard ShardWriter::saved_state() const {
  const std::uint64_t parts[] = {XXH3_64bits(hashes_.data(), hashes_.size() * 8),
                                 XXH3_64bits(chunk_.data(), chunk_.size()),
                                 XXH3_64bits(starts_.data(), starts_.size() * 8)};
  return {info_.tokens, info_.documents, XXH3_64bits(parts, sizeof(parts))};
}

void ShardWriter::fail(int reason) const {
  fail_runtime("[data] cannot write {}/{}: {}", folder_, info_.file, std::strerror(reason));
}

}  // namespace switchyard
