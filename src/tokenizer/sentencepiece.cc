// SentencePiece models, encoded by SentencePiece's own library, except that unigram segmentations are chosen
// here: Debian 12's version (0.1.97) compares sums before they are rounded, later versions after it, so that
// ties are decided differently. Control tokens are found in a text before the library sees it, because the
// library does not recognise them in text.
#include <sentencepiece_processor.h>

#include <algorithm>
#include <limits>
#include <map>
#include <unordered_set>

#include "core/error.h"
#include "core/json_file.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/config_tokens.h"
#include "tokenizer/decoders.h"
#include "tokenizer/plain_ranges.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"
#include "tokenizer/unigram_path.h"

namespace switchyard {
namespace {

// Reads the fields of a serialised protobuf message that the library has accepted already.
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}
  // The next field, false at the end. `text` holds a nested message or string, `number` an integer.
  bool next() {
    if (rest_.empty()) return false;
    const std::uint64_t key = varint();
    field = key >> 3;
    text = {};
    switch (key & 7) {
      case 0:
        number = varint();
        return true;
      case 2:
        text = take(varint());
        return true;
      default:
        take((key & 7) == 1 ? 8 : 4);
        return true;
    }
  }
  std::uint64_t field = 0, number = 0;
  std::string_view text;

 private:
  std::string_view take(std::uint64_t bytes) {
    const std::string_view part = rest_.substr(0, std::min<std::uint64_t>(bytes, rest_.size()));
    rest_.remove_prefix(part.size());
    return part;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) break;
    }
    return value;
  }
  std::string_view rest_;
};

// Fields of ModelProto: pieces (1, with their type in 3) and trainer_spec (2, with the model's type in 3).
struct ModelFacts {
  static constexpr std::uint64_t kUnigram = 1, kUserDefined = 4;
  bool unigram = true;
  std::unordered_set<std::int32_t> user_defined;

  explicit ModelFacts(std::string_view bytes) {
    std::int32_t id = 0;
    for (Message model(bytes); model.next();) {
      if (model.field != 1 && model.field != 2) continue;
      for (Message part(model.text); part.next();) {
        if (part.field != 3) continue;
        if (model.field == 2) unigram = part.number == kUnigram;
        if (model.field == 1 && part.number == kUserDefined) user_defined.insert(id);
      }
      id += model.field == 1;
    }
  }
};

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string_view bytes, std::string_view config, const std::string& name) {
    load(model_, bytes, name);
    const ModelFacts facts(bytes);
    unigram_ = facts.unigram;
    if (unigram_) lay_out(facts);
    const std::string settings_name = name + " (tokenizer_config.json)";
    const nlohmann::json settings =
        config.empty() ? nlohmann::json::object() : parse_json(config, settings_name);
    const JsonReader reader(settings, settings_name);
    add_tokens(reader);
    find_markup(facts);
    read_ends(reader);
    space_once_ = begins_with_space_once(reader);
    if (space_once_ || has_markup_) {
      // ModelProto.normalizer_spec {add_dummy_prefix: false, remove_extra_whitespaces: false}, which a parser
      // merges with what is before it.
      constexpr std::string_view kNoPrefix("\x1a\x04\x18\x00\x20\x00", 6);
      load(bare_.emplace(), std::string(bytes) + std::string(kNoPrefix), name);
    }
  }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    return encode_valid(valid_utf8(text), {});
  }
  std::vector<std::int32_t> encode_with_special(std::string_view text,
                                                std::span<const TextRange> plain) const override {
    const std::string valid = valid_utf8(text);
    if (valid.size() == text.size()) return encode_valid(valid, plain);
    return encode_valid(valid, ranges_in_valid(text, plain));
  }
  std::string decode(std::span<const std::int32_t> ids) const override { return decode_behind("", ids); }
  std::string decode_all(std::span<const std::int32_t> ids) const override {
    std::string text;
    std::size_t done = 0;  // ids that gave their text
    const auto decode_to = [&](std::size_t end) {
      if (done < end)
        text += done == 0 ? decode(ids.first(end)) : decode_within(ids.subspan(done, end - done));
    };
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::string* special = special_text(ids[i]);
      if (special == nullptr) continue;
      decode_to(i);
      text += *special;
      done = i + 1;
    }
    decode_to(ids.size());
    return text;
  }
  std::optional<std::string> token_bytes(std::int32_t id) const override {
    if (special_text(id) != nullptr) return {};
    if (const auto found = contents_.find(id); found != contents_.end()) return found->second;
    if (id < 0 || id >= model_.GetPieceSize() || is_markup(id) || model_.IsUnused(id)) return {};
    if (const auto byte = byte_token(model_.IdToPiece(id)); byte && model_.IsByte(id))
      return std::string(1, *byte);
    return decode_within(std::span(&id, 1));
  }
  std::int32_t vocab_size() const override { return vocab_size_; }
  std::optional<std::int32_t> bos() const override { return bos_; }
  std::optional<std::int32_t> eos() const override { return eos_; }
  bool ends_prompts() const override { return ends_prompts_; }

 private:
  static void load(sentencepiece::SentencePieceProcessor& model, std::string_view bytes,
                   const std::string& name) {
    const auto status = model.LoadFromSerializedProto(bytes);
    if (!status.ok()) fail_usage("[tokenizer] {}: not a SentencePiece model: {}", name, status.ToString());
  }

  // A model puts a space before a text. transformers' LlamaTokenizer, where `legacy` is not true, puts none
  // behind a token that is cut out of the text; llama.cpp puts one behind each.
  static bool begins_with_space_once(const JsonReader& settings) {
    if (settings.has("legacy")) return !settings.flag("legacy", true);
    constexpr std::string_view kClasses[] = {"LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer",
                                             "CodeLlamaTokenizerFast"};
    const std::string name = settings.has("tokenizer_class") ? settings.text("tokenizer_class") : "";
    return std::ranges::find(kClasses, name) != std::end(kClasses);
  }

  static std::optional<std::int32_t> existing(int id) { return id < 0 ? std::nullopt : std::optional(id); }

  std::optional<std::int32_t> id_of(const std::string& content) const {
    if (const auto found = more_.find(content); found != more_.end()) return found->second;
    const int id = model_.PieceToId(content);
    return id >= 0 && id < model_.GetPieceSize() && model_.IdToPiece(id) == content ? std::optional(id)
                                                                                    : std::nullopt;
  }

  // The model's control tokens and its unknown one, and what tokenizer_config.json names; of that, what the
  // model lacks gets the id that is stated, or the next one.
  void add_tokens(const JsonReader& settings) {
    vocab_size_ = model_.GetPieceSize();
    std::unordered_set<std::string> named;
    for (const ConfigToken& token : tokens_of_config(settings)) {
      const auto in_model = id_of(token.content);
      const std::int32_t id = in_model.value_or(token.id.value_or(vocab_size_));
      if (token.id.value_or(id) != id ||
          (!in_model && (id < model_.GetPieceSize() || contents_.contains(id))))
        settings.fail(fmt::format("{} has id {}, which the model does not give it", in_quotes(token.content),
                                  token.id.value_or(id)));
      named.insert(token.content);
      if (!in_model) more_[token.content] = id;
      if (!in_model || !is_markup(id)) contents_[id] = token.special ? "" : token.content;
      if (token.special || is_control(id)) special_[id] = token.content;
      if (in_model && is_text(id)) add_markup(id, token.content);
      vocab_size_ = std::max(vocab_size_, id + 1);
      added_.add({id, token.content, token.left_strip, token.right_strip, token.single_word});
    }
    for (int id = 0; id < model_.GetPieceSize(); ++id) {
      const std::string& piece = model_.IdToPiece(id);
      if (is_markup(id) && !piece.empty() && !named.contains(piece))
        added_.add({id, piece, false, false, false});
      if (is_control(id)) special_.emplace(id, piece);
    }
  }

  // Pieces of the user's are found by the library in any text.
  void find_markup(const ModelFacts& facts) {
    for (const std::int32_t id : facts.user_defined) add_markup(id, model_.IdToPiece(id));
  }
  void add_markup(std::int32_t id, const std::string& piece) {
    if (piece.empty()) return;
    markup_.add({id, piece, false, false, false});
    has_markup_ = true;
  }

  // The text of a special token, also where it is not the library's.
  const std::string* special_text(std::int32_t id) const {
    const auto found = special_.find(id);
    return found == special_.end() ? nullptr : &found->second;
  }

  // The library takes a piece that it does not know, such as `before` is, as it is.
  std::string decode_behind(const std::string& before, std::span<const std::int32_t> ids) const {
    std::vector<std::string> pieces{before};
    for (const std::int32_t id : ids) {
      if (const auto found = contents_.find(id); found != contents_.end())
        pieces.push_back(found->second);
      else
        pieces.push_back(model_.IdToPiece(id >= 0 && id < model_.GetPieceSize() ? id : model_.unk_id()));
    }
    std::erase(pieces, "");
    std::string text;
    const auto status = model_.Decode(pieces, &text);
    if (!status.ok()) fail_runtime("[tokenizer] SentencePiece: {}", status.ToString());
    return text;
  }
  // The text of ids that do not begin a text: the library drops a space from a text's beginning.
  std::string decode_within(std::span<const std::int32_t> ids) const {
    const std::string before = "\x01";  // is in no vocabulary
    return decode_behind(before, ids).substr(before.size());
  }

  bool is_control(int id) const { return id < model_.GetPieceSize() && model_.IsControl(id); }
  bool is_markup(int id) const { return model_.IsControl(id) || model_.IsUnknown(id); }

  void read_ends(const JsonReader& settings) {
    const auto named = [&](const char* key, int models) {
      const auto content = named_token(settings, key);
      const auto id = content ? id_of(*content) : std::nullopt;
      return id ? id : existing(models);
    };
    if (settings.flag("add_bos_token", true)) bos_ = named("bos_token", model_.bos_id());
    eos_ = named("eos_token", model_.eos_id());
    ends_prompts_ = settings.flag("add_eos_token", false);
  }

  std::vector<std::int32_t> encode_valid(const std::string& valid, std::span<const TextRange> plain) const {
    std::vector<std::int32_t> ids;
    for (const AddedPart& part : added_.cut(valid, plain)) {
      if (part.id >= 0)
        ids.push_back(part.id);
      else
        encode_part(valid.substr(part.begin, part.end - part.begin), part.begin == 0,
                    ranges_within(plain, part.begin, part.end), ids);
    }
    return ids;
  }

  // `first`: the part begins the text.
  void encode_part(const std::string& text, bool first, std::span<const TextRange> plain,
                   std::vector<std::int32_t>& ids) const {
    const auto& model = space_once_ && !first ? *bare_ : model_;
    std::size_t done = 0;
    for (const std::size_t end : plain.empty() ? std::vector<std::size_t>() : markup_.breaks(text, plain)) {
      encode_with(done == 0 ? model : *bare_, text.substr(done, end - done), ids);
      done = end;
    }
    encode_with(done == 0 ? model : *bare_, done == 0 ? text : text.substr(done), ids);
  }

  void encode_with(const sentencepiece::SentencePieceProcessor& model, const std::string& text,
                   std::vector<std::int32_t>& ids) const {
    if (unigram_) return encode_unigram(normalized(model, text), ids);
    std::vector<int> found;
    const auto status = model.Encode(text, &found);
    if (!status.ok()) fail_runtime("[tokenizer] SentencePiece: {}", status.ToString());
    ids.insert(ids.end(), found.begin(), found.end());
  }

  bool is_text(int id) const { return !model_.IsUnknown(id) && !model_.IsControl(id) && !model_.IsByte(id); }

  // Scores as the library does: ordinary pieces alone give the lowest and highest score; a user's piece is
  // better than any other path over its text; unused pieces are skipped.
  void lay_out(const ModelFacts& facts) {
    float lowest = std::numeric_limits<float>::max(), highest = std::numeric_limits<float>::lowest();
    for (int id = 0; id < model_.GetPieceSize(); ++id) {
      if (model_.IsByte(id)) bytes_.push_back(id);
      if (!is_text(id) || model_.IsUnused(id) || facts.user_defined.contains(id)) continue;
      lowest = std::min(lowest, model_.GetScore(id));
      highest = std::max(highest, model_.GetScore(id));
    }
    for (int id = 0; id < model_.GetPieceSize(); ++id) {
      if (!is_text(id) || model_.IsUnused(id)) continue;
      const std::string& piece = model_.IdToPiece(id);
      const bool users = facts.user_defined.contains(id);
      path_.add(
          piece, id,
          users ? static_cast<float>(static_cast<float>(piece.size()) * highest - 0.1) : model_.GetScore(id));
    }
    path_.set_unknown_score(lowest - 10);
    if (bytes_.size() != 256) bytes_.clear();
  }

  // The text as the library normalises it: its pieces joined.
  std::string normalized(const sentencepiece::SentencePieceProcessor& model, const std::string& text) const {
    std::string normal;
    const auto encoded = model.EncodeAsImmutableProto(text);
    for (std::size_t i = 0; i < encoded.pieces_size(); ++i) {
      const auto piece = encoded.pieces(static_cast<int>(i));
      if (model_.IsByte(static_cast<int>(piece.id()))) {
        const auto byte = std::find(bytes_.begin(), bytes_.end(), static_cast<std::int32_t>(piece.id()));
        normal += static_cast<char>(byte - bytes_.begin());
      } else {
        normal += piece.piece();
      }
    }
    return normal;
  }

  void encode_unigram(const std::string& normal, std::vector<std::int32_t>& ids) const {
    bool after_unknown = false;
    for (const auto& part : path_.best(normal)) {
      const bool unknown = part.id < 0;
      if (!unknown) {
        ids.push_back(part.id);
      } else if (!bytes_.empty()) {
        for (std::size_t i = part.begin; i < part.end; ++i)
          ids.push_back(bytes_[static_cast<unsigned char>(normal[i])]);
      } else if (!after_unknown) {
        ids.push_back(model_.unk_id());
      }
      after_unknown = unknown;
    }
  }

  sentencepiece::SentencePieceProcessor model_;
  std::optional<sentencepiece::SentencePieceProcessor> bare_;  // the same without a space before a text
  bool space_once_ = false;                                    // it is for all but a text's first part
  bool unigram_ = true;
  UnigramPath<float> path_;
  std::vector<std::int32_t> bytes_;  // ids of <0x00> to <0xFF>, in order; empty without them
  AddedTokenFinder added_;
  AddedTokenFinder markup_;  // what the library finds by itself
  bool has_markup_ = false;
  std::map<std::int32_t, std::string> special_;   // texts of special tokens
  std::map<std::string, std::int32_t> more_;      // tokens that the model lacks
  std::map<std::int32_t, std::string> contents_;  // texts of tokens that are not the library's to decode
  std::optional<std::int32_t> bos_, eos_;
  bool ends_prompts_ = false;
  std::int32_t vocab_size_ = 0;
};

}  // namespace

std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view model, std::string_view config,
                                               const std::string& name) {
  return std::make_unique<SentencePieceTokenizer>(model, config, name);
}

}  // namespace switchyard
