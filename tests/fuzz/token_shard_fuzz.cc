// The input is a shard of tokens with hashes to be mended: reading any file either works or throws an Error,
// and with right hashes too.
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"
#include "data/token_shard.h"
#include "data/token_shard_layout.h"

namespace {

// Makes the hashes of header, table and body right where their sizes are.
void mend(std::vector<std::uint8_t>& file) {
  switchyard::ShardHeader header;
  if (file.size() < sizeof(header)) return;
  std::memcpy(&header, file.data(), sizeof(header));
  std::memcpy(header.magic, switchyard::kShardMagic, sizeof(header.magic));
  header.width = header.width % 2 == 0 ? 2 : 4;
  header.chunk = header.chunk % 64 * 8;
  header.tokens %= file.size();
  header.documents %= file.size();
  const std::size_t body = switchyard::padded_to_8(header.tokens * header.width) + header.documents * 8;
  const std::size_t chunks = header.chunk == 0 ? 0 : (body + header.chunk - 1) / header.chunk;
  file.resize(sizeof(header) + body + chunks * 8);
  std::uint8_t* table = file.data() + sizeof(header) + body;
  for (std::size_t c = 0; c < chunks; ++c) {
    const std::size_t begin = c * header.chunk, length = std::min<std::size_t>(header.chunk, body - begin);
    const std::uint64_t hash = XXH3_64bits(file.data() + sizeof(header) + begin, length);
    std::memcpy(table + c * 8, &hash, 8);
  }
  header.table_hash = XXH3_64bits(table, chunks * 8);
  header.hash = XXH3_64bits(&header, switchyard::kHashedHeader);
  std::memcpy(file.data(), &header, sizeof(header));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::vector<std::uint8_t> file(data + 1, data + size);
  if (data[0] % 4 != 0) mend(file);
  const int descriptor = ::memfd_create("shard", 0);
  CHECK(descriptor >= 0 &&
        ::write(descriptor, file.data(), file.size()) == static_cast<ssize_t>(file.size()));
  try {
    const auto shard = switchyard::TokenShard::open("/proc/self/fd/" + std::to_string(descriptor));
    std::vector<std::int32_t> tokens;
    std::vector<std::int64_t> starts;
    shard->read(0, shard->tokens(), tokens);
    for (std::int32_t id : tokens) CHECK(id >= 0 && id < shard->vocabulary(), "id {}", id);
    shard->read_starts(0, shard->tokens(), 0, starts);
    for (std::int64_t start : starts) CHECK(start >= 0 && start < shard->tokens(), "start {}", start);
    for (std::int64_t d = 0; d < shard->documents(); ++d) {
      const auto [begin, end] = shard->document(d);
      CHECK(begin >= 0 && begin < end && end <= shard->tokens(), "document [{}, {})", begin, end);
    }
    shard->prove();
  } catch (const switchyard::Error&) {
  }
  ::close(descriptor);
  return 0;
}
