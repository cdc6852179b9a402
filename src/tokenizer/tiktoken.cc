// A .tiktoken file: lines of a base64 token and its rank, which is both its id and its merge priority.
//
// The file states neither how a text is split nor the special tokens. Published files are recognised by their
// number of ranks; all others are treated like Llama-3's, where 256 special tokens follow the ranks, the
// first of which begins a text and the second ends it.
#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "core/error.h"
#include "core/json_file.h"
#include "tokenizer/base64.h"
#include "tokenizer/bpe.h"
#include "tokenizer/piece_cache.h"
#include "tokenizer/regex.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace switchyard {
namespace {

constexpr char kGpt2[] = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr char kLlama3[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
                           R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kGpt4[] = R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+)"
                         R"(| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
constexpr char kQwen[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
                         R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kGpt4o[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Kind {
  std::size_t ranks;
  const char* pattern;
  std::int32_t ids;  // with special tokens
  std::optional<std::int32_t> bos, eos;
  bool composed = false;  // text is brought to NFC first
};

Kind kind_of(std::size_t ranks, std::int32_t highest) {
  static const Kind known[] = {
      {50256, kGpt2, 50257, {}, 50256},           // gpt2, r50k_base
      {50280, kGpt2, 50281, {}, 50256},           // p50k_base, which leaves 50256 free
      {100256, kGpt4, 100277, {}, 100257},        // cl100k_base
      {199998, kGpt4o, 200019, {}, 199999},       // o200k_base
      {151643, kQwen, 151851, {}, 151643, true},  // qwen.tiktoken
  };
  for (const Kind& kind : known) {
    if (kind.ranks == ranks && highest < kind.ids) return kind;
  }
  return {ranks, kLlama3, highest + 1 + 256, highest + 1, highest + 2};
}

class TiktokenTokenizer : public Tokenizer {
 public:
  TiktokenTokenizer(std::string_view text, const std::string& name) {
    std::int64_t line_number = 0;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      read_line(text.substr(0, end), ++line_number, name);
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    for (int b = 0; b < 256; ++b) {
      if (!ranks_.contains(std::string(1, static_cast<char>(b)))) {
        fail_usage("[tokenizer] {}: no token for byte {}; every byte must have one", name, b);
      }
    }
    kind_ = kind_of(ranks_.size(), highest_);
    pattern_.emplace(kind_.pattern, name, Regex::Anchors::text);
  }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    std::string valid = valid_utf8(text);
    if (kind_.composed) valid = normal_form(valid, NormalForm::nfc);
    for (const auto& [begin, end] : pattern_->matches(valid)) {
      const std::string_view piece = std::string_view(valid).substr(begin, end - begin);
      piece_cache().get(owner_, piece, ids,
                        [&](std::vector<std::int32_t>& out) { encode_piece(std::string(piece), out); });
    }
    return ids;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (std::int32_t id : ids) {
      const auto found = bytes_.find(id);
      if (found != bytes_.end())
        text += found->second;
      else if (id < 0 || id >= kind_.ids)
        text += "\xef\xbf\xbd";
    }
    return repaired_utf8(text);
  }

  std::int32_t vocab_size() const override { return kind_.ids; }
  std::optional<std::int32_t> bos() const override { return kind_.bos; }
  std::optional<std::int32_t> eos() const override { return kind_.eos; }

 private:
  void read_line(std::string_view line, std::int64_t number, const std::string& name) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) return;
    const std::size_t gap = line.find(' ');
    const std::string token =
        from_base64(gap == std::string_view::npos ? "" : line.substr(0, gap)).value_or("");
    const auto digits = line.substr(gap == std::string_view::npos ? 0 : gap + 1);
    std::int32_t rank = -1;
    const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (token.empty() || status != std::errc() || end != digits.data() + digits.size() || rank < 0 ||
        rank >= (1 << 24)) {
      fail_usage("[tokenizer] {}:{}: expected a base64 token, a space and a rank", name, number);
    }
    if (!ranks_.emplace(token, rank).second || !bytes_.emplace(rank, token).second) {
      fail_usage("[tokenizer] {}:{}: token or rank {} is given twice", name, number, rank);
    }
    highest_ = std::max(highest_, rank);
    longest_ = std::max(longest_, token.size());
  }

  void encode_piece(const std::string& piece, std::vector<std::int32_t>& ids) const {
    if (const auto whole = ranks_.find(piece); whole != ranks_.end()) {
      ids.push_back(whole->second);
      return;
    }
    std::vector<BpeSymbol> symbols;
    for (char c : piece) symbols.push_back({ranks_.at(std::string(1, c)), 1});
    bpe_merge(
        symbols,
        [&](const BpeSymbol& a, const BpeSymbol& b, std::int32_t begin) -> std::optional<BpeMerge> {
          const auto length = static_cast<std::size_t>(a.length + b.length);
          if (length > longest_) return {};  // spares copying most of a long piece for every join
          const auto found = ranks_.find(piece.substr(static_cast<std::size_t>(begin), length));
          return found == ranks_.end() ? std::nullopt : std::optional(BpeMerge{found->second, found->second});
        },
        ids);
  }

  Kind kind_{};
  std::optional<Regex> pattern_;
  std::unordered_map<std::string, std::int32_t> ranks_;
  std::unordered_map<std::int32_t, std::string> bytes_;
  std::size_t longest_ = 0;  // bytes of the longest token
  std::int32_t highest_ = -1;
  std::uint32_t owner_ = next_cache_owner();
};

}  // namespace

std::unique_ptr<Tokenizer> parse_tiktoken(std::string_view text, const std::string& name) {
  return std::make_unique<TiktokenTokenizer>(text, name);
}

}  // namespace switchyard
