// A file of tiktoken's: lines of a base64 token and its rank, which is both its id and its merge priority.
// tiktoken_kinds.h finds what the file does not state.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <unordered_map>

#include "core/error.h"
#include "core/json_file.h"
#include "core/messages.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/base64.h"
#include "tokenizer/bpe.h"
#include "tokenizer/piece_cache.h"
#include "tokenizer/plain_ranges.h"
#include "tokenizer/regex.h"
#include "tokenizer/tiktoken_kinds.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace switchyard {
namespace {

class TiktokenTokenizer : public Tokenizer {
 public:
  TiktokenTokenizer(std::string_view text, const JsonReader& settings, const std::string& name) {
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
    kind_ = tiktoken_kind_of(ranks_.size(), highest_, settings, name);
    refuse_gaps(name);
    if (kind_.guessed)
      say("switchyard: [tokenizer] {}: {} ranks are no published vocabulary's: texts are split as Llama "
          "3 splits them, and Llama 3's special tokens follow the ranks",
          name, ranks_.size());
    pattern_.emplace(std::string(kind_.pattern), name, Regex::Anchors::text);
    ends_prompts_ = settings.flag("add_eos_token", false);
    name_special_tokens();
  }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    if (kind_.found_in_texts) return encode_with_special(text, {});
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
    if (const auto found = bytes_.find(id); found != bytes_.end()) return found->second;
    const auto added = special_.find(id);
    return added == special_.end() || added->second.special ? std::nullopt
                                                            : std::optional(added->second.content);
  }

  std::int32_t vocab_size() const override { return kind_.ids; }
  std::optional<std::int32_t> bos() const override { return kind_.bos; }
  std::optional<std::int32_t> eos() const override { return kind_.eos; }
  bool ends_prompts() const override { return ends_prompts_; }

 private:
  void encode_part(std::string valid, std::vector<std::int32_t>& ids) const {
    if (kind_.composed) valid = normal_form(valid, NormalForm::nfc);
    for (const auto& [begin, end] : pattern_->matches(valid)) {
      if (begin == end) continue;
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
        text += all || !special->second.special ? special->second.content : "";
      else if (id < 0 || id >= kind_.ids)
        text += "\xef\xbf\xbd";
    }
    return repaired_utf8(text);
  }

  void name_special_tokens() {
    for (const ConfigToken& token : kind_.special) {
      if (bytes_.contains(*token.id)) continue;
      special_[*token.id] = token;
      finder_.add({*token.id, token.content, token.left_strip, token.right_strip, token.single_word});
    }
  }

  // The ids of special tokens follow from the number of ranks, so that none may be missing; p50k_base alone
  // has a special token among its ranks.
  void refuse_gaps(const std::string& name) const {
    if (static_cast<std::size_t>(highest_) + 1 == ranks_.size()) return;
    std::int32_t missing = 0;
    while (lines_.contains(missing) ||
           std::ranges::any_of(kind_.special, [&](const ConfigToken& token) { return token.id == missing; }))
      ++missing;
    if (missing > highest_) return;
    std::int32_t next = missing;
    while (!lines_.contains(next)) ++next;
    fail_usage("[tokenizer] {}:{}: rank {} follows, but no line has rank {}", name, lines_.at(next), next,
               missing);
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
    lines_[rank] = number;
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

  TiktokenKind kind_{};
  bool ends_prompts_ = false;
  std::optional<Regex> pattern_;
  std::unordered_map<std::string, std::int32_t> ranks_;
  std::unordered_map<std::int32_t, std::string> bytes_;
  std::unordered_map<std::int32_t, std::int64_t> lines_;  // of ranks
  std::unordered_map<std::int32_t, ConfigToken> special_;
  AddedTokenFinder finder_;  // of special tokens
  std::size_t longest_ = 0;  // bytes of the longest token
  std::int32_t highest_ = -1;
  std::uint32_t owner_ = next_cache_owner();
};

}  // namespace

std::unique_ptr<Tokenizer> parse_tiktoken(std::string_view text, std::string_view config,
                                          const std::string& name) {
  const std::string named = name + " (tokenizer_config.json)";
  const nlohmann::json settings = config.empty() ? nlohmann::json::object() : parse_json(config, named);
  return std::make_unique<TiktokenTokenizer>(text, JsonReader(settings, named), name);
}

}  // namespace switchyard
