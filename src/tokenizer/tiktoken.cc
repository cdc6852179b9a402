// A .tiktoken file: lines of a base64 token and its rank, which is both its id and its merge priority. The
// file has no special tokens; as in Llama-3's own reader 256 follow the ranks, the first of them begins a
// text and the second ends it. (In cl100k_base the second is <|endoftext|>, too.)
#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "checkpoint/json_file.h"
#include "core/error.h"
#include "tokenizer/bpe.h"
#include "tokenizer/regex.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {
namespace {

constexpr std::int32_t kSpecialTokens = 256;
constexpr char kPattern[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
                            R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Standard base64 with padding; an empty result stands for an error.
std::string from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return {};
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (char c : text) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) return {};
    bits = (bits << 6) | static_cast<std::uint32_t>(digit);
    if ((count += 6) >= 8) bytes += static_cast<char>((bits >> (count -= 8)) & 0xffu);
  }
  return bytes;
}

class TiktokenTokenizer : public Tokenizer {
 public:
  TiktokenTokenizer(std::string_view text, const std::string& name) : pattern_(kPattern, name) {
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
  }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    const std::string valid = valid_utf8(text);
    for (const auto& [begin, end] : pattern_.matches(valid)) {
      const std::string piece = valid.substr(begin, end - begin);
      const auto whole = ranks_.find(piece);
      if (whole != ranks_.end())
        ids.push_back(whole->second);
      else
        merge(piece, ids);
    }
    return ids;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (std::int32_t id : ids) {
      const auto found = bytes_.find(id);
      if (found != bytes_.end())
        text += found->second;
      else if (id < count_ || id >= vocab_size())
        text += "\xef\xbf\xbd";
    }
    return valid_utf8(text);
  }

  std::int32_t vocab_size() const override { return count_ + kSpecialTokens; }
  std::optional<std::int32_t> bos() const override { return count_; }
  std::optional<std::int32_t> eos() const override { return count_ + 1; }

 private:
  void read_line(std::string_view line, std::int64_t number, const std::string& name) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) return;
    const std::size_t gap = line.find(' ');
    const std::string token = gap == std::string_view::npos ? "" : from_base64(line.substr(0, gap));
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
    count_ = std::max(count_, rank + 1);
    longest_ = std::max(longest_, token.size());
  }

  void merge(const std::string& piece, std::vector<std::int32_t>& ids) const {
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

  Regex pattern_;
  std::unordered_map<std::string, std::int32_t> ranks_;
  std::unordered_map<std::int32_t, std::string> bytes_;
  std::size_t longest_ = 0;  // bytes of the longest token
  std::int32_t count_ = 0;   // one more than the highest rank
};

}  // namespace

std::unique_ptr<Tokenizer> parse_tiktoken(std::string_view text, const std::string& name) {
  return std::make_unique<TiktokenTokenizer>(text, name);
}

}  // namespace switchyard
