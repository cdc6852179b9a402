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
#include "tokenizer/added_tokens.h"
#include "tokenizer/base64.h"
#include "tokenizer/bpe.h"
#include "tokenizer/piece_cache.h"
#include "tokenizer/plain_ranges.h"
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

struct Kind;
using SpecialTokens = std::vector<std::pair<std::int32_t, std::string>>;

struct Kind {
  std::size_t ranks;
  const char* pattern;
  std::int32_t ids;  // with special tokens
  std::optional<std::int32_t> bos, eos;
  SpecialTokens (*special)(const Kind&);  // their ids and texts, as the published tokenizers have them
  bool composed = false;                  // text is brought to NFC first
};

SpecialTokens end_only(const Kind& kind) {
  return {{*kind.eos, "<|endoftext|>"}};
}

SpecialTokens of_cl100k(const Kind&) {
  return {{100257, "<|endoftext|>"},
          {100258, "<|fim_prefix|>"},
          {100259, "<|fim_middle|>"},
          {100260, "<|fim_suffix|>"},
          {100276, "<|endofprompt|>"}};
}

SpecialTokens of_o200k(const Kind&) {
  return {{199999, "<|endoftext|>"}, {200018, "<|endofprompt|>"}};
}

SpecialTokens of_qwen(const Kind& kind) {
  SpecialTokens tokens{
      {*kind.eos, "<|endoftext|>"}, {*kind.eos + 1, "<|im_start|>"}, {*kind.eos + 2, "<|im_end|>"}};
  for (std::int32_t id = *kind.eos + 3; id < kind.ids; ++id)
    tokens.emplace_back(id, fmt::format("<|extra_{}|>", id - *kind.eos - 3));
  return tokens;
}

// The special tokens of Llama 3.1, which has names for some that Llama 3 reserved.
SpecialTokens of_llama3(const Kind& kind) {
  const std::unordered_map<std::int32_t, std::string> named{
      {0, "<|begin_of_text|>"},   {1, "<|end_of_text|>"},   {4, "<|finetune_right_pad_id|>"},
      {6, "<|start_header_id|>"}, {7, "<|end_header_id|>"}, {8, "<|eom_id|>"},
      {9, "<|eot_id|>"},          {10, "<|python_tag|>"}};
  SpecialTokens tokens;
  int reserved = 0;
  for (std::int32_t id = *kind.bos; id < kind.ids; ++id) {
    const auto name = named.find(id - *kind.bos);
    tokens.emplace_back(
        id, name != named.end() ? name->second : fmt::format("<|reserved_special_token_{}|>", reserved++));
  }
  return tokens;
}

Kind kind_of(std::size_t ranks, std::int32_t highest) {
  static const Kind known[] = {
      {50256, kGpt2, 50257, {}, 50256, end_only},          // gpt2, r50k_base
      {50280, kGpt2, 50281, {}, 50256, end_only},          // p50k_base, which leaves 50256 free
      {100256, kGpt4, 100277, {}, 100257, of_cl100k},      // cl100k_base
      {199998, kGpt4o, 200019, {}, 199999, of_o200k},      // o200k_base
      {151643, kQwen, 151851, {}, 151643, of_qwen, true},  // qwen.tiktoken
  };
  for (const Kind& kind : known) {
    if (kind.ranks == ranks && highest < kind.ids) return kind;
  }
  return {ranks, kLlama3, highest + 1 + 256, highest + 1, highest + 2, of_llama3};
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
    name_special_tokens();
  }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    encode_part(valid_utf8(text), ids);
    return ids;
  }

  std::vector<std::int32_t> encode_with_special(std::string_view text,
                                                std::span<const TextRange> plain) const override {
    const std::string valid = valid_utf8(text);
    const std::vector<TextRange> moved = ranges_in_valid(text, plain);
    std::vector<std::int32_t> ids;
    for (const AddedPart& part : finder_.cut(valid, moved)) {
      if (part.id >= 0)
        ids.push_back(part.id);
      else
        encode_part(valid.substr(part.begin, part.end - part.begin), ids);
    }
    return ids;
  }

  std::string decode(std::span<const std::int32_t> ids) const override { return decoded(ids, false); }
  std::string decode_all(std::span<const std::int32_t> ids) const override { return decoded(ids, true); }

  std::optional<std::string> token_bytes(std::int32_t id) const override {
    const auto found = bytes_.find(id);
    return found == bytes_.end() ? std::nullopt : std::optional(found->second);
  }

  std::int32_t vocab_size() const override { return kind_.ids; }
  std::optional<std::int32_t> bos() const override { return kind_.bos; }
  std::optional<std::int32_t> eos() const override { return kind_.eos; }

 private:
  void encode_part(std::string valid, std::vector<std::int32_t>& ids) const {
    if (kind_.composed) valid = normal_form(valid, NormalForm::nfc);
    for (const auto& [begin, end] : pattern_->matches(valid)) {
      const std::string_view piece = std::string_view(valid).substr(begin, end - begin);
      piece_cache().get(owner_, piece, ids,
                        [&](std::vector<std::int32_t>& out) { encode_piece(std::string(piece), out); });
    }
  }

  std::string decoded(std::span<const std::int32_t> ids, bool all) const {
    std::string text;
    for (std::int32_t id : ids) {
      if (const auto found = bytes_.find(id); found != bytes_.end())
        text += found->second;
      else if (const auto special = special_.find(id); special != special_.end())
        text += all ? special->second : "";
      else if (id < 0 || id >= kind_.ids)
        text += "\xef\xbf\xbd";
    }
    return repaired_utf8(text);
  }

  void name_special_tokens() {
    for (const auto& [id, text] : kind_.special(kind_)) {
      if (bytes_.contains(id)) continue;
      special_[id] = text;
      finder_.add({id, text, false, false, false});
    }
  }

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
  std::unordered_map<std::int32_t, std::string> special_;  // texts of special tokens
  AddedTokenFinder finder_;                                // of those
  std::size_t longest_ = 0;                                // bytes of the longest token
  std::int32_t highest_ = -1;
  std::uint32_t owner_ = next_cache_owner();
};

}  // namespace

std::unique_ptr<Tokenizer> parse_tiktoken(std::string_view text, const std::string& name) {
  return std::make_unique<TiktokenTokenizer>(text, name);
}

}  // namespace switchyard
