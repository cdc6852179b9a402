#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "core/error.h"
#include "data/token_shard.h"
#include "data/token_shard_layout.h"
#include "metrics/append_file.h"

namespace switchyard {

ShardWriter::ShardWriter(const std::string& folder, const std::string& file, std::int64_t vocabulary)
    : folder_(folder),
      temporary_(folder + "/" + file + ".partial"),
      vocabulary_(vocabulary),
      width_(vocabulary <= 65536 ? 2 : 4) {
  info_.file = file;
  descriptor_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail(errno);
  const std::string room(sizeof(ShardHeader), '\0');
  if (const int reason = write_all(descriptor_, room); reason != 0) {
    ::close(descriptor_);
    ::unlink(temporary_.c_str());
    fail(reason);
  }
}

ShardWriter::~ShardWriter() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
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
  const std::size_t table = hashes_.size() * sizeof(std::uint64_t);
  const std::string_view table_bytes(reinterpret_cast<const char*>(hashes_.data()), table);
  int reason = write_all(descriptor_, table_bytes);
  ShardHeader header{};
  std::memcpy(header.magic, kShardMagic, sizeof(header.magic));
  header.width = width_;
  header.chunk = kShardChunk;
  header.tokens = static_cast<std::uint64_t>(info_.tokens);
  header.documents = static_cast<std::uint64_t>(info_.documents);
  header.vocabulary = static_cast<std::uint64_t>(vocabulary_);
  header.table_hash = XXH3_64bits(table_bytes.data(), table);
  header.hash = XXH3_64bits(&header, kHashedHeader);
  if (reason == 0 && ::lseek(descriptor_, 0, SEEK_SET) != 0) reason = errno;
  if (reason == 0) reason = write_all(descriptor_, {reinterpret_cast<const char*>(&header), sizeof(header)});
  if (reason == 0 && ::fsync(descriptor_) != 0) reason = errno;
  const std::string path = folder_ + "/" + info_.file;
  if (reason == 0 && std::rename(temporary_.c_str(), path.c_str()) != 0) reason = errno;
  if (reason != 0) fail(reason);
  ::close(descriptor_);
  descriptor_ = -1;
  info_.bytes = static_cast<std::int64_t>(sizeof(header) + padded_to_8(tokens) + starts_.size() * 8 + table);
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
  hashes_.push_back(XXH3_64bits(chunk_.data(), chunk_.size()));
  if (const int reason = write_all(descriptor_, chunk_); reason != 0) fail(reason);
  chunk_.clear();
}

void ShardWriter::fail(int reason) const {
  fail_runtime("[data] cannot write {}/{}: {}", folder_, info_.file, std::strerror(reason));
}

}  // namespace switchyard
