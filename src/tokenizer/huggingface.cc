// tokenizer.json: added tokens, normalizer, pre-tokenizer, and a BPE model over bytes or characters.
//
// encode: (1) added tokens that are matched in the text as it is are cut out; (2) the rest is normalised; (3)
// added tokens that are matched in normalised text are cut out; (4) the rest is cut into pieces; (5) every
// piece is merged.
#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>
#include <utility>

#include "checkpoint/json_file.h"
#include "core/error.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/huggingface_pipeline.h"
#include "tokenizer/regex.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxId = (1 << 24) - 1;
const std::string kMetaspace = "\u2581";

// GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the others for U+0100 and on, in order.
std::array<std::uint32_t, 256> byte_alphabet() {
  std::array<std::uint32_t, 256> alphabet{};
  std::uint32_t next = 256;
  for (std::uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    alphabet[b] = printable ? b : next++;
  }
  return alphabet;
}

// Bytes a token of that alphabet stands for; nothing when it has other characters.
std::optional<std::string> alphabet_to_bytes(const std::string& token,
                                             const std::unordered_map<std::string, char>& bytes_of) {
  std::string bytes;
  for (std::size_t at = 0; at < token.size();) {
    const std::size_t length = std::max<std::size_t>(1, utf8_length(token, at));
    const auto found = bytes_of.find(token.substr(at, length));
    if (found == bytes_of.end()) return {};
    bytes += found->second;
    at += length;
  }
  return bytes;
}

class HuggingFaceTokenizer : public Tokenizer {
 public:
  HuggingFaceTokenizer(const json& file, const json& config, const std::string& name) : name_(name) {
    const JsonReader top(file, name);
    normalize_ =
        top.has("normalizer") ? make_normalizer(top.object("normalizer")) : [](std::string t) { return t; };
    pre_.split = [](std::vector<Piece> pieces) { return pieces; };
    if (top.has("pre_tokenizer")) pre_ = make_pre_tokenizer(top.object("pre_tokenizer"));
    read_model(top.object("model"));
    if (top.has("added_tokens")) read_added(top);
    if (top.has("decoder")) read_decoder(top.object("decoder"));
    read_ends(top, config);
  }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    Cache cache;
    const std::string valid = valid_utf8(text);
    const auto add_id = [&](std::int32_t id) { ids.push_back(id); };
    raw_added_.cut(
        valid,
        [&](std::size_t begin, std::size_t end) {
          const std::string normal = normalize_(valid.substr(begin, end - begin));
          const auto add_text = [&](std::size_t b, std::size_t e) {
            for (const Piece& piece : pre_.split({{normal.substr(b, e - b), begin == 0 && b == 0}})) {
              encode_piece(piece.text, cache, ids);
            }
          };
          normal_added_.cut(normal, add_text, add_id);
        },
        add_id);
    return ids;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (std::int32_t id : ids) {
      const auto found = tokens_.find(id);
      if (found == tokens_.end())
        text += "\xef\xbf\xbd";
      else if (!found->second.special)
        text += found->second.bytes;
    }
    if (strip_first_space_ && text.starts_with(' ')) text.erase(0, 1);
    return valid_utf8(text);
  }

  std::int32_t vocab_size() const override { return vocab_size_; }
  std::optional<std::int32_t> bos() const override { return bos_; }
  std::optional<std::int32_t> eos() const override { return eos_; }

 private:
  struct Token {
    std::string bytes;  // what decoding gives
    bool special = false;
  };
  using Cache = std::unordered_map<std::string, std::vector<std::int32_t>>;

  void read_model(const JsonReader& model) {
    const std::string type = model.text("type", model.has("merges") ? "BPE" : "unknown");
    if (type != "BPE") model.fail("model type " + in_quotes(type) + " is not supported, expected BPE");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!model.text(key, "").empty()) model.fail(fmt::format("\"{}\" is not supported", key));
    }
    if (model.has("dropout") && model.at("dropout") != 0) model.fail("\"dropout\" is not supported");
    byte_fallback_ = model.flag("byte_fallback", false);
    fuse_unknown_ = model.flag("fuse_unk", false);
    ignore_merges_ = model.flag("ignore_merges", false);
    read_vocab(model);
    if (const std::string unknown = model.text("unk_token", ""); !unknown.empty()) {
      unknown_ = id_of_text(unknown);
      if (!unknown_) model.fail("unk_token " + in_quotes(unknown) + " is not in the vocabulary");
    }
    read_merges(model);
  }

  void read_vocab(const JsonReader& model) {
    std::unordered_map<std::string, char> bytes_of;
    const auto alphabet = byte_alphabet();
    for (std::size_t b = 0; b < 256; ++b) bytes_of[utf8_of(alphabet[b])] = static_cast<char>(b);
    const JsonReader vocab = model.object("vocab");
    for (const auto& [text, value] : model.at("vocab").items()) {
      const auto id = static_cast<std::int32_t>(vocab.integer(text.c_str(), 0, kMaxId));
      texts_[text] = id;
      vocab_size_ = std::max(vocab_size_, id + 1);
      if (pre_.byte_level) {
        const auto bytes = alphabet_to_bytes(text, bytes_of);
        if (bytes) model_ids_[*bytes] = id;
        if (!tokens_.emplace(id, Token{bytes.value_or(text)}).second)
          model.fail(fmt::format("id {} is given twice", id));
      } else {
        model_ids_[text] = id;
        if (!tokens_.emplace(id, Token{character_bytes(text)}).second)
          model.fail(fmt::format("id {} is given twice", id));
      }
    }
  }

  // Of a token of a model over characters: <0xNN> is a byte, U+2581 a space.
  std::string character_bytes(const std::string& text) const {
    const auto digit = [&](std::size_t i) {
      const auto at = std::string_view("0123456789ABCDEF").find(text[i]);
      return at == std::string_view::npos ? -1 : static_cast<int>(at);
    };
    if (byte_fallback_ && text.size() == 6 && text.starts_with("<0x") && text[5] == '>' && digit(3) >= 0 &&
        digit(4) >= 0) {
      return {static_cast<char>(digit(3) * 16 + digit(4))};
    }
    std::string bytes;
    for (std::size_t at = 0; at < text.size();) {
      if (text.compare(at, kMetaspace.size(), kMetaspace) == 0) {
        bytes += ' ';
        at += kMetaspace.size();
      } else {
        bytes += text[at++];
      }
    }
    return bytes;
  }

  void read_merges(const JsonReader& model) {
    const json& merges = model.at("merges");
    if (!merges.is_array() || merges.size() > static_cast<std::size_t>(kMaxId))
      model.fail("\"merges\" is not a list");
    std::int32_t rank = 0;
    for (const json& merge : merges) {
      std::string left, right;
      if (merge.is_string()) {
        const auto text = merge.get<std::string>();
        const std::size_t gap = text.find(' ');
        if (gap != std::string::npos) left = text.substr(0, gap), right = text.substr(gap + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>(), right = merge[1].get<std::string>();
      }
      const auto a = texts_.find(left), b = texts_.find(right), joined = texts_.find(left + right);
      if (left.empty() || right.empty() || a == texts_.end() || b == texts_.end() || joined == texts_.end()) {
        model.fail(fmt::format("merge {} is not two tokens of the vocabulary that make a third", rank));
      }
      merges_[pair_key(a->second, b->second)] = {rank++, joined->second};
    }
  }

  void read_added(const JsonReader& top) {
    for (const JsonReader& entry : top.list("added_tokens")) {
      AddedToken token{static_cast<std::int32_t>(entry.integer("id", 0, kMaxId)), entry.text("content"),
                       entry.flag("special", false), entry.flag("lstrip", false),
                       entry.flag("rstrip", false)};
      if (token.content.empty()) entry.fail("empty content");
      if (entry.flag("single_word", false)) entry.fail("single_word is not supported");
      tokens_[token.id] = {token.content, token.special};
      texts_[token.content] = token.id;
      vocab_size_ = std::max(vocab_size_, token.id + 1);
      const bool normalized = entry.flag("normalized", !token.special);
      if (normalized) token.content = normalize_(token.content);
      if (token.content.empty()) entry.fail("content is empty once normalised");
      (normalized ? normal_added_ : raw_added_).add(std::move(token));
    }
  }

  // Only what changes the text beyond the tokens' own bytes: the space that encoding put in front.
  void read_decoder(const JsonReader& decoder) {
    const std::string type = decoder.text("type");
    if (type == "Sequence") {
      for (const JsonReader& step : decoder.list("decoders")) read_decoder(step);
    } else if (type == "Metaspace") {
      strip_first_space_ =
          decoder.text("prepend_scheme", decoder.flag("add_prefix_space", true) ? "always" : "never") !=
          "never";
    } else if (type == "Strip") {
      strip_first_space_ = decoder.text("content") == " " && decoder.integer("start", 0, kMaxId) > 0;
    } else if (type != "ByteLevel" && type != "Replace" && type != "ByteFallback" && type != "Fuse") {
      decoder.fail("decoder " + in_quotes(type) + " is not supported");
    }
  }

  std::optional<std::int32_t> id_of_text(const std::string& text) const {
    const auto found = texts_.find(text);
    return found == texts_.end() ? std::nullopt : std::optional(found->second);
  }

  // bos stands where the template puts it; eos is named by tokenizer_config.json, the template, or custom
  // (the usual names).
  void read_ends(const JsonReader& top, const json& config) {
    if (top.has("post_processor")) read_template(top.object("post_processor"));
    const JsonReader settings(config, name_ + " (tokenizer_config.json)");
    const auto named = [&](const char* key) -> std::optional<std::int32_t> {
      if (!settings.has(key)) return {};
      return id_of_text(settings.at(key).is_object() ? settings.object(key).text("content")
                                                     : settings.text(key));
    };
    if (!bos_ && settings.flag("add_bos_token", false)) bos_ = named("bos_token");
    if (const auto id = named("eos_token")) eos_ = id;
    for (const char* usual :
         {"</s>", "<|endoftext|>", "<|end_of_text|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"}) {
      if (!eos_) eos_ = id_of_text(usual);
    }
  }

  void read_template(const JsonReader& post) {
    const std::string type = post.text("type");
    if (type == "Sequence") {
      for (const JsonReader& step : post.list("processors")) read_template(step);
    } else if (type == "TemplateProcessing") {
      bool text_seen = false;
      for (const JsonReader& part : post.list("single")) {
        if (!part.has("SpecialToken")) {
          text_seen = true;
          continue;
        }
        const auto id = id_of_text(part.object("SpecialToken").text("id"));
        if (!id) post.fail("a template names a token that is not in the vocabulary");
        auto& end = text_seen ? eos_ : bos_;
        if (!end) end = id;
      }
    } else if (type != "ByteLevel") {
      post.fail("post-processor " + in_quotes(type) + " is not supported");
    }
  }

  static std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
    return (static_cast<std::uint64_t>(left) << 32) | static_cast<std::uint32_t>(right);
  }

  void encode_piece(const std::string& piece, Cache& cache, std::vector<std::int32_t>& ids) const {
    if (ignore_merges_) {
      if (const auto whole = model_ids_.find(piece); whole != model_ids_.end()) {
        ids.push_back(whole->second);
        return;
      }
    }
    constexpr std::size_t kCached = 64;  // longer pieces hardly ever come twice
    if (piece.size() > kCached) {
      merge_piece(piece, ids);
      return;
    }
    auto [entry, absent] = cache.try_emplace(piece);
    if (absent) merge_piece(piece, entry->second);
    ids.insert(ids.end(), entry->second.begin(), entry->second.end());
  }

  void merge_piece(const std::string& piece, std::vector<std::int32_t>& ids) const {
    bpe_merge(
        symbols_of(piece),
        [this](const BpeSymbol& a, const BpeSymbol& b, std::int32_t) -> std::optional<BpeMerge> {
          const auto found = merges_.find(pair_key(a.id, b.id));
          return found == merges_.end() ? std::nullopt : std::optional(found->second);
        },
        ids);
  }

  // Bytes or characters as symbols. What the vocabulary lacks becomes byte tokens, or the unknown token, or
  // nothing.
  std::vector<BpeSymbol> symbols_of(const std::string& piece) const {
    std::vector<BpeSymbol> symbols;
    bool after_unknown = false;
    for (std::size_t at = 0; at < piece.size();) {
      const std::size_t length = pre_.byte_level ? 1 : std::max<std::size_t>(1, utf8_length(piece, at));
      const std::string unit = piece.substr(at, length);
      at += length;
      const auto found = model_ids_.find(unit);
      if (found != model_ids_.end()) {
        symbols.push_back({found->second, static_cast<std::int32_t>(length)});
      } else if (!add_byte_tokens(unit, symbols) && unknown_) {
        if (after_unknown && fuse_unknown_)
          symbols.back().length += static_cast<std::int32_t>(length);
        else
          symbols.push_back({*unknown_, static_cast<std::int32_t>(length)});
        after_unknown = true;
        continue;
      }
      after_unknown = false;
    }
    return symbols;
  }

  bool add_byte_tokens(const std::string& unit, std::vector<BpeSymbol>& symbols) const {
    if (!byte_fallback_) return false;
    std::vector<BpeSymbol> bytes;
    for (char c : unit) {
      const auto found = model_ids_.find(fmt::format("<0x{:02X}>", static_cast<unsigned char>(c)));
      if (found == model_ids_.end()) return false;
      bytes.push_back({found->second, 1});
    }
    symbols.insert(symbols.end(), bytes.begin(), bytes.end());
    return true;
  }

  std::string name_;
  Normalizer normalize_;
  PreTokenizer pre_;
  AddedTokenFinder raw_added_, normal_added_;
  std::unordered_map<std::int32_t, Token> tokens_;
  std::unordered_map<std::string, std::int32_t> texts_;      // as written in the file, added tokens included
  std::unordered_map<std::string, std::int32_t> model_ids_;  // the model's, by bytes (byte level) or text
  std::unordered_map<std::uint64_t, BpeMerge> merges_;
  std::optional<std::int32_t> unknown_, bos_, eos_;
  std::int32_t vocab_size_ = 0;
  bool byte_fallback_ = false, fuse_unknown_ = false, ignore_merges_ = false, strip_first_space_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> parse_huggingface(std::string_view text, std::string_view config,
                                             const std::string& name) {
  const json settings =
      config.empty() ? json::object() : parse_json(config, name + " (tokenizer_config.json)");
  return std::make_unique<HuggingFaceTokenizer>(parse_json(text, name), settings, name);
}

}  // namespace switchyard
