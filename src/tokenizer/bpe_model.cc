// Byte-pair encoding as a tokenizer.json defines it, over bytes or characters. Symbols outside the vocabulary
// become byte tokens, the unknown token, or nothing.
#include <fmt/format.h>

#include <atomic>
#include <optional>
#include <utility>

#include "core/json_file.h"
#include "tokenizer/bpe.h"
#include "tokenizer/piece_cache.h"
#include "tokenizer/piece_model.h"
#include "tokenizer/unicode.h"

namespace switchyard {

std::uint32_t next_cache_owner() {
  static std::atomic<std::uint32_t> last = 0;
  return ++last;
}

namespace {

// Merges by pair of ids: open addressing, at most half full.
class MergeTable {
 public:
  explicit MergeTable(std::size_t count) {
    std::size_t size = 16;
    while (size < 2 * count) size *= 2;
    slots_.resize(size);
  }
  // The last one of a pair counts.
  void add(std::int32_t left, std::int32_t right, BpeMerge merge) {
    Slot& slot = slots_[place(key(left, right))];
    slot = {key(left, right), merge};
  }
  std::optional<BpeMerge> find(std::int32_t left, std::int32_t right) const {
    const Slot& slot = slots_[place(key(left, right))];
    return slot.key == kEmpty ? std::nullopt : std::optional(slot.merge);
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = kEmpty;
    BpeMerge merge{};
  };
  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return (static_cast<std::uint64_t>(left) << 32) | static_cast<std::uint32_t>(right);
  }
  // Returns the slot that has the key, or the empty one where the key would go.
  std::size_t place(std::uint64_t wanted) const {
    std::size_t at = (wanted * 0x9e3779b97f4a7c15u) >> 20;
    while (slots_[at &= slots_.size() - 1].key != kEmpty && slots_[at].key != wanted) ++at;
    return at;
  }
  std::vector<Slot> slots_;
};

struct BpeOptions {
  bool byte_level = false, byte_fallback = false, fuse_unknown = false, ignore_merges = false;
  std::string prefix, suffix;  // of symbols that do not begin a piece, of the one that ends it
  std::optional<std::int32_t> unknown;
};

class Bpe : public PieceModel {
 public:
  // `vocabulary`: by bytes when byte_level.
  Bpe(Vocabulary vocabulary, MergeTable merges, BpeOptions options)
      : vocabulary_(std::move(vocabulary)), merges_(std::move(merges)), options_(std::move(options)) {
    single_bytes_.fill(-1);
    for (const auto& [text, id] : vocabulary_) {
      if (text.size() == 1) single_bytes_[static_cast<unsigned char>(text[0])] = id;
    }
    if (options_.byte_fallback) bytes_ = byte_tokens(vocabulary_);
  }

  void encode(const std::string& piece, std::vector<std::int32_t>& ids) const override {
    piece_cache().get(owner_, piece, ids, [&](std::vector<std::int32_t>& out) { encode_anew(piece, out); });
  }

 private:
  void encode_anew(const std::string& piece, std::vector<std::int32_t>& ids) const {
    if (options_.ignore_merges) {
      if (const auto whole = vocabulary_.find(piece); whole != vocabulary_.end()) {
        ids.push_back(whole->second);
        return;
      }
    }
    bpe_merge(
        symbols_of(piece),
        [this](const BpeSymbol& a, const BpeSymbol& b, std::int32_t) { return merges_.find(a.id, b.id); },
        ids);
  }

  std::vector<BpeSymbol> symbols_of(const std::string& piece) const {
    std::vector<BpeSymbol> symbols;
    std::optional<BpeSymbol> unknown;  // not added yet
    const auto add_unknown = [&] {
      if (unknown) symbols.push_back(*std::exchange(unknown, std::nullopt));
    };
    for (std::size_t at = 0; at < piece.size();) {
      const std::size_t length = options_.byte_level ? 1 : std::max<std::size_t>(1, utf8_length(piece, at));
      const auto bytes = static_cast<std::int32_t>(length);
      const std::int32_t id = id_of(piece, at, length);
      if (id >= 0) {
        add_unknown();
        symbols.push_back({id, bytes});
      } else if (add_bytes(piece, at, length, symbols)) {
        // An unknown symbol before it stays behind, as in the reference.
      } else if (options_.unknown) {
        if (unknown && !options_.fuse_unknown) add_unknown();
        unknown = BpeSymbol{*options_.unknown, bytes + (unknown ? unknown->length : 0)};
      }
      at += length;
    }
    add_unknown();
    return symbols;
  }

  // -1 when the vocabulary lacks it.
  std::int32_t id_of(const std::string& piece, std::size_t at, std::size_t length) const {
    const bool plain = options_.prefix.empty() && options_.suffix.empty();
    if (length == 1 && plain) return single_bytes_[static_cast<unsigned char>(piece[at])];
    std::string unit = at > 0 ? options_.prefix : "";
    unit.append(piece, at, length);
    if (at + length == piece.size()) unit += options_.suffix;
    const auto found = vocabulary_.find(unit);
    return found == vocabulary_.end() ? -1 : found->second;
  }

  bool add_bytes(const std::string& piece, std::size_t at, std::size_t length,
                 std::vector<BpeSymbol>& symbols) const {
    if (!options_.byte_fallback) return false;
    std::string unit = at > 0 ? options_.prefix : "";
    unit.append(piece, at, length);
    if (at + length == piece.size()) unit += options_.suffix;
    for (char c : unit) {
      if (bytes_[static_cast<unsigned char>(c)] < 0) return false;
    }
    for (char c : unit) symbols.push_back({bytes_[static_cast<unsigned char>(c)], 1});
    return true;
  }

  Vocabulary vocabulary_;
  MergeTable merges_;
  BpeOptions options_;
  std::array<std::int32_t, 256> single_bytes_;  // ids of one-byte symbols, -1 where there is none
  std::vector<std::int32_t> bytes_;             // byte tokens, with byte fallback
  std::uint32_t owner_ = next_cache_owner();
};

// Both ways to write a merge: "a b", or ["a", "b"].
std::pair<std::string, std::string> parts_of(const nlohmann::json& merge) {
  if (merge.is_string()) {
    const auto text = merge.get<std::string>();
    const std::size_t gap = text.find(' ');
    if (gap != std::string::npos) return {text.substr(0, gap), text.substr(gap + 1)};
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  return {};
}

MergeTable read_merges(const JsonReader& entry, const Vocabulary& vocabulary, const std::string& prefix) {
  const nlohmann::json& list = entry.at("merges");
  if (!list.is_array() || list.size() > static_cast<std::size_t>(kMaxTokenId))
    entry.fail("\"merges\" is not a list");
  MergeTable merges(list.size());
  std::int32_t rank = 0;
  for (const nlohmann::json& merge : list) {
    const auto [left, right] = parts_of(merge);
    const auto a = vocabulary.find(left), b = vocabulary.find(right), none = vocabulary.end();
    const std::string inner = right.size() > prefix.size() ? right.substr(prefix.size()) : right;
    const auto joined = vocabulary.find(left + inner);
    if (left.empty() || right.empty() || a == none || b == none || joined == none)
      entry.fail(fmt::format("merge {} is not two tokens of the vocabulary that make a third", rank));
    merges.add(a->second, b->second, {rank++, joined->second});
  }
  return merges;
}

// Maps the bytes of byte-level tokens to ids. Drops tokens that the alphabet cannot write: no text has them.
Vocabulary by_bytes(const Vocabulary& vocabulary) {
  Vocabulary bytes;
  for (const auto& [text, id] : vocabulary) {
    if (const auto meant = alphabet_to_bytes(text)) bytes[*meant] = id;
  }
  return bytes;
}

}  // namespace

LoadedModel make_bpe(const JsonReader& entry, bool byte_level) {
  if (entry.has("dropout") && entry.at("dropout") != 0) entry.fail("\"dropout\" is not supported");
  BpeOptions options;
  options.byte_level = byte_level;
  options.byte_fallback = entry.flag("byte_fallback", false);
  options.fuse_unknown = entry.flag("fuse_unk", false);
  options.ignore_merges = entry.flag("ignore_merges", false);
  options.prefix = entry.text("continuing_subword_prefix", "");
  options.suffix = entry.text("end_of_word_suffix", "");
  if (byte_level && !(options.prefix.empty() && options.suffix.empty()))
    entry.fail(
        "continuing_subword_prefix and end_of_word_suffix with a ByteLevel pre-tokenizer are not supported");
  Vocabulary vocabulary = read_vocabulary(entry);
  if (const std::string unknown = entry.text("unk_token", ""); !unknown.empty()) {
    const auto found = vocabulary.find(unknown);
    if (found == vocabulary.end())
      entry.fail("unk_token " + in_quotes(unknown) + " is not in the vocabulary");
    options.unknown = found->second;
  }
  MergeTable merges = read_merges(entry, vocabulary, options.prefix);
  return {std::make_unique<Bpe>(byte_level ? by_bytes(vocabulary) : vocabulary, std::move(merges),
                                std::move(options)),
          vocabulary};
}

}  // namespace switchyard
