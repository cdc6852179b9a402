#include "data/token_shard.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "data/token_shard_layout.h"

namespace switchyard {
namespace {

template <typename T>
T value_at(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void append_tokens(const char* from, std::int64_t count, std::vector<std::int32_t>& tokens) {
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<std::int32_t>(value_at<T>(from + static_cast<std::size_t>(i) * sizeof(T))));
  }
}

}  // namespace

std::shared_ptr<const TokenShard> TokenShard::open(const std::string& path) {
  return std::shared_ptr<const TokenShard>(new TokenShard(path));
}

TokenShard::TokenShard(const std::string& path) : path_(path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail_usage("[data] {}: cannot be opened: {}", path, std::strerror(errno));
  struct stat status {};
  const bool known = ::fstat(descriptor, &status) == 0;
  size_ = known ? static_cast<std::size_t>(status.st_size) : 0;
  void* bytes = size_ > 0 ? ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor, 0) : nullptr;
  const int reason = errno;
  ::close(descriptor);
  if (!known || bytes == MAP_FAILED) fail_usage("[data] {}: cannot be read: {}", path, std::strerror(reason));
  bytes_ = static_cast<const char*>(bytes);
  try {
    check_header();
  } catch (...) {
    if (size_ > 0) ::munmap(bytes, size_);
    throw;
  }
}

TokenShard::~TokenShard() {
  ::munmap(const_cast<char*>(bytes_), size_);
}

void TokenShard::check_header() {
  if (size_ < sizeof(ShardHeader) || std::memcmp(bytes_, kShardMagic, 8) != 0)
    fail_usage("[data] {}: not a shard of tokens", path_);
  const auto header = value_at<ShardHeader>(bytes_);
  if (const std::uint64_t hash = XXH3_64bits(&header, kHashedHeader); hash != header.hash) {
    fail_usage("[data] {}: the header is corrupt: its hash is {:016x}, expected {:016x}", path_, hash,
               header.hash);
  }
  // With these bounds no product below overflows.
  const bool sane = (header.width == 2 || header.width == 4) && header.chunk >= 8 && header.chunk % 8 == 0 &&
                    header.tokens <= size_ && header.documents <= header.tokens && header.vocabulary >= 1 &&
                    header.vocabulary <= INT32_MAX;
  if (!sane) fail_usage("[data] {}: the header makes no sense", path_);
  body_ = padded_to_8(header.tokens * header.width) + header.documents * 8;
  chunk_ = header.chunk;
  const std::size_t chunks = (body_ + chunk_ - 1) / chunk_;
  const std::size_t expected = sizeof(ShardHeader) + body_ + chunks * 8;
  if (size_ != expected) fail_usage("[data] {}: {} bytes, expected {}", path_, size_, expected);
  const std::uint64_t table = XXH3_64bits(bytes_ + sizeof(ShardHeader) + body_, chunks * 8);
  if (table != header.table_hash) {
    fail_usage("[data] {}: the table of hashes is corrupt: its hash is {:016x}, expected {:016x}", path_,
               table, header.table_hash);
  }
  width_ = header.width;
  tokens_ = static_cast<std::int64_t>(header.tokens);
  documents_ = static_cast<std::int64_t>(header.documents);
  vocabulary_ = static_cast<std::int64_t>(header.vocabulary);
  proved_ = std::vector<std::atomic<bool>>(chunks);
}

std::uint64_t TokenShard::hash() const {
  return value_at<ShardHeader>(bytes_).hash;
}

void TokenShard::prove_chunk(std::size_t chunk) const {
  const char* body = bytes_ + sizeof(ShardHeader);
  const std::size_t begin = chunk * chunk_, length = std::min(chunk_, body_ - begin);
  const std::uint64_t hash = XXH3_64bits(body + begin, length),
                      written = value_at<std::uint64_t>(body + body_ + chunk * 8);
  if (hash != written) {
    fail_runtime("[data] {}: chunk {} is corrupt: its hash is {:016x}, expected {:016x}", path_, chunk, hash,
                 written);
  }
  proved_[chunk].store(true, std::memory_order_relaxed);
}

void TokenShard::prove_bytes(std::size_t begin, std::size_t end) const {
  for (std::size_t chunk = begin / chunk_; chunk * chunk_ < end; ++chunk) {
    if (!proved_[chunk].load(std::memory_order_relaxed)) prove_chunk(chunk);
  }
}

void TokenShard::prove() const {
  for (std::size_t chunk = 0; chunk < proved_.size(); ++chunk) prove_chunk(chunk);
}

void TokenShard::read(std::int64_t begin, std::int64_t end, std::vector<std::int32_t>& tokens) const {
  CHECK(0 <= begin && begin <= end && end <= tokens_, "[{}, {}) of {}", begin, end, tokens_);
  const std::size_t first = static_cast<std::size_t>(begin) * width_,
                    last = static_cast<std::size_t>(end) * width_;
  prove_bytes(first, last);
  const char* from = bytes_ + sizeof(ShardHeader) + first;
  const std::size_t old = tokens.size();
  if (width_ == 2)
    append_tokens<std::uint16_t>(from, end - begin, tokens);
  else
    append_tokens<std::uint32_t>(from, end - begin, tokens);
  for (std::size_t i = old; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocabulary_)
      fail_runtime("[data] {}: token {} where the vocabulary has {}", path_, tokens[i], vocabulary_);
  }
}

std::int64_t TokenShard::start_of(std::int64_t document) const {
  const std::size_t place =
      padded_to_8(static_cast<std::size_t>(tokens_) * width_) + static_cast<std::size_t>(document) * 8;
  prove_bytes(place, place + 8);
  return static_cast<std::int64_t>(value_at<std::uint64_t>(bytes_ + sizeof(ShardHeader) + place));
}

DocumentRange TokenShard::document(std::int64_t index) const {
  CHECK(0 <= index && index < documents_, "document {} of {}", index, documents_);
  const DocumentRange range{start_of(index), index + 1 < documents_ ? start_of(index + 1) : tokens_};
  if (range.begin < 0 || range.begin >= range.end || range.end > tokens_)
    fail_runtime("[data] {}: documents do not start in order", path_);
  return range;
}

void TokenShard::read_starts(std::int64_t begin, std::int64_t end, std::int64_t origin,
                             std::vector<std::int64_t>& starts) const {
  std::int64_t low = 0, high = documents_;  // the first document that starts at `begin` or later
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (start_of(middle) < begin)
      low = middle + 1;
    else
      high = middle;
  }
  std::int64_t before = begin - 1;
  for (; low < documents_; ++low) {
    const std::int64_t start = start_of(low);
    if (start >= end) break;
    if (start <= before) fail_runtime("[data] {}: documents do not start in order", path_);
    starts.push_back(start - origin);
    before = start;
  }
}

}  // namespace switchyard
