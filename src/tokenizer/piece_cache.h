// Caches the ids of pieces of text: most pieces are words that occurred before.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace switchyard {

// One thread's cache, shared by all its tokenizers (`owner` tells them apart). Holds short pieces only; a new
// piece may replace another one.
class PieceCache {
 public:
  PieceCache() : entries_(kEntries) {}

  // Appends the ids that `encode(ids)` appends for `piece`.
  template <typename Encode>
  void get(std::uint32_t owner, std::string_view piece, std::vector<std::int32_t>& ids,
           const Encode& encode) {
    if (piece.size() > kPiece) {
      encode(ids);
      return;
    }
    Entry& entry = entries_[hash(owner, piece) % kEntries];
    const bool hit = entry.owner == owner && entry.length == piece.size() &&
                     std::memcmp(entry.piece.data(), piece.data(), piece.size()) == 0;
    if (hit) {
      ids.insert(ids.end(), entry.ids.data(), entry.ids.data() + entry.count);
      return;
    }
    const std::size_t before = ids.size();
    encode(ids);
    const std::size_t count = ids.size() - before;
    if (count > kIds) return;
    entry.owner = owner;
    entry.length = static_cast<std::uint8_t>(piece.size());
    entry.count = static_cast<std::uint8_t>(count);
    std::copy(piece.begin(), piece.end(), entry.piece.begin());
    std::copy(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end(), entry.ids.begin());
  }

 private:
  static constexpr std::size_t kEntries = 1 << 14, kPiece = 26, kIds = 8;  // 1 MiB in cache lines
  struct Entry {
    std::uint32_t owner = 0;
    std::uint8_t length = 0, count = 0;
    std::array<char, kPiece> piece;
    std::array<std::int32_t, kIds> ids;
  };
  static_assert(sizeof(Entry) == 64);

  static std::size_t hash(std::uint32_t owner, std::string_view piece) {
    std::uint64_t h = owner;
    for (char c : piece) h = (h ^ static_cast<unsigned char>(c)) * 0x9e3779b97f4a7c15u;
    return h >> 32;
  }
  std::vector<Entry> entries_;
};

// Returns the calling thread's cache.
inline PieceCache& piece_cache() {
  thread_local PieceCache cache;
  return cache;
}

// Returns a different number for each tokenizer, starting at 1.
std::uint32_t next_cache_owner();

}  // namespace switchyard
