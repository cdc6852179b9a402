// The input is a file of routing records whose headers and hashes may be mended: reading any file either
// works or throws an Error, and what was read, written again, is the same record.
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "core/error.h"
#include "routing/routing_file.h"

namespace {

using namespace switchyard;

// The layout of a record is that of docs/run-files.md, on its own: not the reader's.
constexpr std::size_t kHeader = 64, kHash = 8;

// The model that the file is read for: one byte chooses it.
RoutedLayers model_of(std::uint8_t byte) {
  constexpr std::int64_t kExperts[] = {1, 8, 256, 300};
  RoutedLayers routed;
  routed.layers.resize(1 + byte % 3);
  std::iota(routed.layers.begin(), routed.layers.end(), byte / 128);
  routed.experts = kExperts[byte / 4 % 4];
  routed.slots = std::min<std::int64_t>(1 + byte / 16 % 4, routed.experts);
  return routed;
}

template <typename T>
T& field(std::vector<std::uint8_t>& file, std::size_t at) {
  return *reinterpret_cast<T*>(file.data() + at);
}

// Gives the records sizes that fit the model, and right hashes, as far as the bytes go.
void mend(std::vector<std::uint8_t>& file, const RoutedLayers& routed) {
  const std::size_t layers = routed.layers.size(), slots = static_cast<std::size_t>(routed.slots);
  for (std::size_t begin = 0; file.size() - begin >= kHeader + kHash;) {
    std::memcpy(file.data() + begin, "SYROUTE1", 8);
    field<std::uint32_t>(file, begin + 16) %= 3;
    field<std::uint32_t>(file, begin + 20) = static_cast<std::uint32_t>(layers);
    field<std::uint32_t>(file, begin + 24) = static_cast<std::uint32_t>(slots);
    field<std::uint32_t>(file, begin + 28) = static_cast<std::uint32_t>(routed.experts);
    auto& tokens = field<std::uint64_t>(file, begin + 32);
    tokens = 1 + tokens % 32;
    const std::size_t ids = layers * slots * tokens,
                      body = 4 * (layers + tokens) + ids * (routed.experts <= 256 ? 1 : 2),
                      bytes = kHeader + (body + 7) / 8 * 8 + kHash;
    field<std::uint64_t>(file, begin + 8) = bytes;
    if (bytes > file.size() - begin) return;
    std::memcpy(file.data() + begin + kHeader, routed.layers.data(), 4 * layers);
    std::fill(file.begin() + static_cast<std::ptrdiff_t>(begin + kHeader + body),
              file.begin() + static_cast<std::ptrdiff_t>(begin + bytes - kHash), 0);
    field<std::uint64_t>(file, begin + bytes - kHash) = XXH3_64bits(file.data() + begin, bytes - kHash);
    begin += bytes;
  }
}

void check_record(const RoutingFile& file, const RoutingFile::Record& record,
                  const std::vector<std::uint8_t>& bytes) {
  const RoutedLayers& routed = file.routed();
  std::vector<std::uint16_t> experts;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(routed.slots));
  for (std::int64_t layer = 0; layer < std::ssize(routed.layers); ++layer) {
    for (std::int64_t token = 0; token < std::ssize(record.tokens); ++token) {
      file.experts(record, layer, token, ids);
      for (const std::int32_t id : ids) {
        CHECK(id >= 0 && id < routed.experts, "expert {}", id);
        experts.push_back(static_cast<std::uint16_t>(id));
      }
    }
  }
  const std::string again = routing_record(routed, record.source, record.tokens, experts);
  const auto begin = static_cast<std::size_t>(record.begin);
  CHECK(begin + again.size() <= bytes.size(), "a record of {} bytes at {}", again.size(), begin);
  // All but the bytes that fill the record up to 8, and so the hash.
  const std::size_t width = routed.experts <= 256 ? 1 : 2,
                    body = 4 * (routed.layers.size() + record.tokens.size()) + experts.size() * width;
  CHECK(std::memcmp(again.data(), bytes.data() + begin, kHeader + body) == 0, "another record at {}", begin);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const RoutedLayers routed = model_of(data[0]);
  std::vector<std::uint8_t> bytes(data + 2, data + size);
  if (data[1] % 4 != 0) mend(bytes, routed);
  const int descriptor = ::memfd_create("routing", 0);
  CHECK(descriptor >= 0 &&
        ::write(descriptor, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  try {
    const std::int64_t before = RoutingFile::bytes_before(path, data[1]);
    CHECK(before >= 0 && before <= std::ssize(bytes), "{} of {} bytes", before, bytes.size());
    const RoutingFile file = RoutingFile::open(path, routed);
    for (const RoutingFile::Record& record : file.records()) check_record(file, record, bytes);
  } catch (const Error&) {
  }
  ::close(descriptor);
  return 0;
}
