// The shard format's constants and structures, shared by its writer and reader.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace switchyard {

static_assert(std::endian::native == std::endian::little, "shards are little-endian");

struct ShardHeader {
  char magic[8];
  std::uint32_t width, chunk;
  std::uint64_t tokens, documents, vocabulary, table_hash, reserved, hash;
};
static_assert(sizeof(ShardHeader) == 64);

constexpr char kShardMagic[] = "SYTOKEN1";
constexpr std::size_t kShardChunk = 256 << 10;
constexpr std::size_t kHashedHeader = offsetof(ShardHeader, hash);

constexpr std::size_t padded_to_8(std::size_t bytes) {
  return (bytes + 7) / 8 * 8;
}

}  // namespace switchyard
