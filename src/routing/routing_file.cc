#include "routing/routing_file.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>

#include "core/error.h"
#include "kernels/moe/route.h"

namespace switchyard {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

struct RecordHeader {
  char magic[8];
  std::uint64_t bytes;  // of the record, with this header and the hash at its end
  std::uint32_t kind, layers, slots, experts;
  std::uint64_t tokens;
  std::int64_t step, row, first;
};
static_assert(sizeof(RecordHeader) == 64);

// Version 2 has a value for a slot without an expert; it is written where there is such a slot.
constexpr char kMagic[] = "SYROUTE1", kMagicOfGaps[] = "SYROUTE2";
constexpr std::uint64_t kHashBytes = 8, kMostTokens = std::uint64_t{1} << 32;
constexpr std::uint32_t kMostLayers = 1 << 16, kMostExperts = kNoExpert;

bool has_gaps(const RecordHeader& h) {
  return std::memcmp(h.magic, kMagicOfGaps, sizeof h.magic) == 0;
}

// Returns 1 or 2. With gaps, the largest number that the bytes can hold means that a slot has no expert.
std::uint64_t bytes_of_expert(std::int64_t experts, bool has_gaps) {
  return experts <= (has_gaps ? 255 : 256) ? 1 : 2;
}

// The bytes of a record; cannot overflow, since every factor is bounded.
std::uint64_t bytes_of(const RecordHeader& h) {
  const std::uint64_t body = 4ull * h.layers + 4 * h.tokens +
                             bytes_of_expert(h.experts, has_gaps(h)) * h.layers * h.slots * h.tokens;
  return sizeof(RecordHeader) + (body + 7) / 8 * 8 + kHashBytes;
}

// The fault of a header with `left` bytes of the file from it on; nullopt: none, and the record is whole.
struct HeaderFault {
  std::string what;
  bool cut = false;  // the file ends inside the record
};
std::optional<HeaderFault> fault_of(const RecordHeader& h, std::uint64_t left) {
  if (std::memcmp(h.magic, kMagic, sizeof h.magic) != 0 && !has_gaps(h))
    return HeaderFault{"no record begins here"};
  const bool sizes = h.layers >= 1 && h.layers <= kMostLayers && h.experts >= 1 &&
                     h.experts <= kMostExperts && h.slots >= 1 && h.slots <= h.experts && h.tokens >= 1 &&
                     h.tokens <= kMostTokens;
  if (!sizes || h.kind > 2 || (h.slots > 1024 && h.tokens > (kMostTokens >> 8)))
    return HeaderFault{fmt::format("{} layers, {} of {} experts, {} tokens of kind {}", h.layers, h.slots,
                                   h.experts, h.tokens, h.kind)};
  if (h.bytes != bytes_of(h))
    return HeaderFault{fmt::format("{} bytes, expected {} for its sizes", h.bytes, bytes_of(h))};
  if (h.bytes > left) return HeaderFault{"", true};
  return std::nullopt;
}

std::string numbers(std::span<const std::int32_t> values) {
  return fmt::format("[{}]", fmt::join(values, ","));
}

}  // namespace

std::string routing_record(const RoutedLayers& routed, const RoutingSource& source,
                           std::span<const std::int32_t> tokens, std::span<const std::uint16_t> experts) {
  RecordHeader h{};
  const bool gaps = std::ranges::find(experts, kNoExpert) != experts.end();
  std::memcpy(h.magic, gaps ? kMagicOfGaps : kMagic, sizeof h.magic);
  h.kind = static_cast<std::uint32_t>(source.kind);
  h.layers = static_cast<std::uint32_t>(routed.layers.size());
  h.slots = static_cast<std::uint32_t>(routed.slots);
  h.experts = static_cast<std::uint32_t>(routed.experts);
  h.tokens = tokens.size();
  h.step = source.step, h.row = source.row, h.first = source.first;
  h.bytes = bytes_of(h);
  CHECK(experts.size() == routed.layers.size() * tokens.size() * static_cast<std::size_t>(routed.slots),
        "{} experts of {} tokens", experts.size(), tokens.size());
  std::string bytes;
  bytes.reserve(h.bytes);
  const auto add = [&](const void* data, std::size_t size) {
    bytes.append(static_cast<const char*>(data), size);
  };
  add(&h, sizeof h);
  add(routed.layers.data(), routed.layers.size() * sizeof(std::int32_t));
  add(tokens.data(), tokens.size_bytes());
  if (bytes_of_expert(h.experts, gaps) == 1) {
    for (const std::uint16_t id : experts) bytes.push_back(static_cast<char>(id));
  } else {
    add(experts.data(), experts.size_bytes());
  }
  bytes.resize(h.bytes - kHashBytes, '\0');
  const std::uint64_t hash = XXH3_64bits(bytes.data(), bytes.size());
  add(&hash, sizeof hash);
  return bytes;
}

RoutingFile RoutingFile::open(const std::string& path, const RoutedLayers& routed) {
  return read(map_file(path, "routing"), path, &routed);
}

RoutingFile RoutingFile::open(const std::string& path) {
  return read(map_file(path, "routing"), path, nullptr);
}

RoutingFile RoutingFile::of_bytes(std::string bytes, const std::string& name) {
  const auto kept = std::make_shared<const std::string>(std::move(bytes));
  return read({kept, std::as_bytes(std::span(*kept))}, name, nullptr);
}

RoutingFile RoutingFile::read(MappedFile mapped, const std::string& path, const RoutedLayers* expected) {
  RoutingFile file;
  file.path_ = path;
  file.file_ = std::move(mapped);
  if (expected != nullptr) file.routed_ = *expected;
  const char* const whose = expected != nullptr ? "the model's" : "the first record's";
  const RoutedLayers& routed = file.routed_;
  const std::span<const std::byte> bytes = file.file_.bytes;
  for (std::size_t begin = 0; begin < bytes.size();) {
    const auto fail = [&](const std::string& what) {
      fail_usage("[routing] {}: record {} at byte {}: {}", path, file.records_.size(), begin, what);
    };
    const std::size_t left = bytes.size() - begin;
    const std::byte* const at = bytes.data() + begin;
    RecordHeader h{};
    std::memcpy(&h, at, std::min(left, sizeof h));
    const bool whole_header = left >= sizeof h;
    const auto fault = whole_header ? fault_of(h, left) : HeaderFault{"", true};
    if (fault && fault->cut)
      fail(fmt::format("the file ends inside it; `truncate -s {}` keeps the whole records before", begin));
    if (fault) fail(fault->what);
    const std::size_t hashed = h.bytes - kHashBytes;
    std::uint64_t hash = 0;
    std::memcpy(&hash, at + hashed, sizeof hash);
    if (hash != XXH3_64bits(at, hashed)) fail("damaged: its hash is another");
    const std::span layers(reinterpret_cast<const std::int32_t*>(at + sizeof h), h.layers);
    if (expected == nullptr && file.records_.empty())
      file.routed_ = {{layers.begin(), layers.end()}, h.slots, h.experts};
    if (!std::ranges::equal(layers, routed.layers))
      fail(fmt::format("layers {}, expected {} {}", numbers(layers), whose, numbers(routed.layers)));
    if (h.slots != routed.slots || h.experts != routed.experts)
      fail(fmt::format("{} of {} experts a token, expected {} {} of {}", h.slots, h.experts, whose,
                       routed.slots, routed.experts));
    Record record;
    record.source = {static_cast<RoutingSource::Kind>(h.kind), h.step, h.row, h.first};
    record.tokens = {layers.data() + h.layers, static_cast<std::size_t>(h.tokens)};
    record.experts = reinterpret_cast<const std::byte*>(record.tokens.data() + h.tokens);
    record.has_gaps = has_gaps(h);
    record.begin = static_cast<std::int64_t>(begin);
    std::vector<std::int32_t> ids(h.slots);
    for (std::int64_t l = 0; l < std::ssize(layers); ++l) {
      for (std::int64_t t = 0; t < std::ssize(record.tokens); ++t) {
        file.experts(record, l, t, ids);
        for (const std::int32_t id : ids) {
          if (id >= routed.experts)
            fail(fmt::format("expert {} of token {} in layer {}, expected less than {}", id, t,
                             layers[static_cast<std::size_t>(l)], routed.experts));
        }
      }
    }
    file.records_.push_back(record);
    begin += h.bytes;
  }
  return file;
}

std::int64_t RoutingFile::bytes_before(const std::string& path, std::int64_t step) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error) || std::filesystem::file_size(path, error) == 0)
    return 0;
  const MappedFile file = map_file(path, "routing");
  std::size_t begin = 0;
  while (file.bytes.size() - begin >= sizeof(RecordHeader)) {
    RecordHeader h{};
    std::memcpy(&h, file.bytes.data() + begin, sizeof h);
    if (fault_of(h, file.bytes.size() - begin) || h.kind != 0 || h.step >= step) break;
    begin += h.bytes;
  }
  return static_cast<std::int64_t>(begin);
}

RoutedText RoutingFile::text(const Record& record) const {
  constexpr const char* kSources[] = {"train", "generate", "serve"};
  const RoutingSource& from = record.source;
  RoutedText text{.tokens = {record.tokens.begin(), record.tokens.end()},
                  .layers = routed_.layers,
                  .slots = routed_.slots,
                  .experts = routed_.experts,
                  .chosen = {},
                  .source = kSources[static_cast<std::size_t>(from.kind)],
                  .step = from.step,
                  .row = from.row,
                  .first = from.first};
  std::vector<std::int32_t> ids(static_cast<std::size_t>(routed_.slots));
  for (std::int64_t layer = 0; layer < std::ssize(routed_.layers); ++layer) {
    for (std::int64_t token = 0; token < std::ssize(record.tokens); ++token) {
      experts(record, layer, token, ids);
      for (const std::int32_t id : ids) text.chosen.push_back(id == kUnusedChoice ? -1 : id);
    }
  }
  return text;
}

std::vector<RoutedText> read_routing_record(const std::string& path) {
  const RoutingFile file = RoutingFile::open(path);
  std::vector<RoutedText> texts;
  for (const RoutingFile::Record& record : file.records()) texts.push_back(file.text(record));
  return texts;
}

void RoutingFile::experts(const Record& record, std::int64_t layer, std::int64_t token,
                          std::span<std::int32_t> ids) const {
  const auto first = static_cast<std::size_t>((layer * std::ssize(record.tokens) + token) * std::ssize(ids));
  const std::uint64_t bytes = bytes_of_expert(routed_.experts, record.has_gaps);
  const std::uint16_t none = bytes == 1 ? 0xff : kNoExpert;
  for (std::size_t k = 0; k < ids.size(); ++k) {
    std::uint16_t id = 0;
    std::memcpy(&id, record.experts + bytes * (first + k), bytes);
    ids[k] = record.has_gaps && id == none ? kUnusedChoice : id;
  }
}

}  // namespace switchyard
