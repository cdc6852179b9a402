// A double array is a trie in one array of 32-bit units: the child of node n by byte b is at n.position ^ b,
// and exists if that unit's label is b. A node that ends a key has a leaf at its position, whose low 31 bits
// are the value.
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "core/error.h"
#include "tokenizer/normalizers.h"
#include "tokenizer/unicode.h"

namespace switchyard {
namespace {

class Charsmap {
 public:
  Charsmap(const std::string& bytes, const std::string& where) {
    std::uint32_t trie_bytes = 0;
    if (bytes.size() >= 4) std::memcpy(&trie_bytes, bytes.data(), 4);
    if (bytes.size() < 4 || trie_bytes % 4 != 0 || trie_bytes == 0 || trie_bytes > bytes.size() - 4)
      fail_usage("[tokenizer] {}: precompiled_charsmap is broken", where);
    units_.resize(trie_bytes / 4);
    std::memcpy(units_.data(), bytes.data() + 4, trie_bytes);
    replacements_ = bytes.substr(4 + trie_bytes);
  }

  std::string apply(const std::string& text) const {
    std::string out;
    std::size_t begin = 0;
    for (const std::size_t end : grapheme_ends(text)) {
      const std::string_view cluster = std::string_view(text).substr(begin, end - begin);
      begin = end;
      const auto whole = cluster.size() < 6 ? replacement(cluster) : std::nullopt;
      if (whole) {
        out += *whole;
        continue;
      }
      for_characters(cluster,
                     [&](std::string_view character) { out += replacement(character).value_or(character); });
    }
    return out;
  }

 private:
  // Returns the replacement of the shortest key that `text` begins with.
  std::optional<std::string_view> replacement(std::string_view text) const {
    std::size_t at = position(0, 0);
    for (const char c : text) {
      if (c == '\0') break;
      const auto byte = static_cast<unsigned char>(c);
      at ^= byte;
      if (at >= units_.size() || (units_[at] & 0x800000ffu) != byte) return {};
      const bool ends_key = ((units_[at] >> 8) & 1u) != 0;
      at = position(at, at);
      if (!ends_key) continue;
      if (at >= units_.size()) return {};
      const std::size_t begin = units_[at] & 0x7fffffffu;
      if (begin >= replacements_.size()) return {};
      const std::size_t end = std::min(replacements_.find('\0', begin), replacements_.size());
      return std::string_view(replacements_).substr(begin, end - begin);
    }
    return {};
  }

  std::size_t position(std::size_t from, std::size_t unit) const {
    const std::uint32_t u = units_[unit];
    return from ^ static_cast<std::size_t>((u >> 10) << ((u & (1u << 9)) >> 6));
  }

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

}  // namespace

Normalizer make_charsmap(const std::string& bytes, const std::string& where) {
  return [map = std::make_shared<const Charsmap>(bytes, where)](const std::string& text) {
    return map->apply(text);
  };
}

}  // namespace switchyard
