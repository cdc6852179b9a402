// tokenizer.json: added tokens, normalizer, pre-tokenizer, model, and decoder.
//
// encode: (1) added tokens that match the text as it is are cut out; (2) the rest is normalised; (3) added
// tokens that match normalised text are cut out; (4) the rest is cut into pieces; (5) the model maps every
// piece to ids.
#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/error.h"
#include "core/json_file.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/config_tokens.h"
#include "tokenizer/decoders.h"
#include "tokenizer/normalizers.h"
#include "tokenizer/piece_model.h"
#include "tokenizer/plain_ranges.h"
#include "tokenizer/pre_tokenizers.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace switchyard {
namespace {

using nlohmann::json;

// Tokens stand with spaces between them.
std::vector<std::string> spaced(std::vector<std::string> tokens) {
  for (std::size_t i = 1; i < tokens.size(); ++i) tokens[i].insert(0, 1, ' ');
  return tokens;
}

class HuggingFaceTokenizer : public Tokenizer {
 public:
  HuggingFaceTokenizer(const json& file, const json& config, const std::string& name) : name_(name) {
    const JsonReader top(file, name);
    normalize_ =
        top.has("normalizer") ? make_normalizer(top.object("normalizer")) : [](std::string t) { return t; };
    pre_.split = [](std::vector<TextPiece> pieces) { return pieces; };
    if (top.has("pre_tokenizer")) pre_ = make_pre_tokenizer(top.object("pre_tokenizer"));
    LoadedModel loaded = make_piece_model(top.object("model"), pre_.byte_level);
    model_ = std::move(loaded.model);
    ids_ = std::move(loaded.vocabulary);
    for (const auto& [text, id] : ids_) add_token(id, text);
    if (top.has("added_tokens")) read_added(top);
    const JsonReader settings(config, name_ + " (tokenizer_config.json)");
    add_missing(settings);
    decode_ = top.has("decoder") ? make_decoder(top.object("decoder")) : spaced;
    token_bytes_ =
        top.has("decoder") ? make_token_decoder(top.object("decoder"), decode_) : make_token_decoder(decode_);
    read_ends(top, settings);
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

  std::string decode(std::span<const std::int32_t> ids) const override {
    return decoded(ids, [this](std::int32_t id) { return special_.contains(id); });
  }
  std::string decode_all(std::span<const std::int32_t> ids) const override {
    return decoded(ids, [](std::int32_t) { return false; });
  }
  std::optional<std::string> token_bytes(std::int32_t id) const override {
    const auto found = tokens_.find(id);
    if (found == tokens_.end() || special_.contains(id)) return {};
    return token_bytes_(found->second);
  }

  std::int32_t vocab_size() const override { return vocab_size_; }
  std::optional<std::int32_t> bos() const override { return bos_; }
  std::optional<std::int32_t> eos() const override { return eos_; }
  bool ends_prompts() const override { return ends_prompts_; }

 private:
  void add_token(std::int32_t id, const std::string& text) {
    tokens_[id] = text;
    vocab_size_ = std::max(vocab_size_, id + 1);
  }

  template <typename Leave>
  std::string decoded(std::span<const std::int32_t> ids, const Leave& leave_out) const {
    std::vector<std::string> tokens;
    for (std::int32_t id : ids) {
      const auto found = tokens_.find(id);
      if (found != tokens_.end() && !leave_out(id)) tokens.push_back(found->second);
    }
    std::string text;
    for (const std::string& part : decode_(std::move(tokens))) text += part;
    return valid_utf8(text);
  }

  std::vector<std::int32_t> encode_valid(const std::string& valid, std::span<const TextRange> plain) const {
    std::vector<std::int32_t> ids;
    for (const AddedPart& part : raw_added_.cut(valid, plain)) {
      if (part.id >= 0)
        ids.push_back(part.id);
      else
        encode_part(valid.substr(part.begin, part.end - part.begin), part.begin == 0,
                    ranges_within(plain, part.begin, part.end), ids);
    }
    return ids;
  }

  // `first`: the part begins the text.
  void encode_part(std::string text, bool first, std::span<const TextRange> plain,
                   std::vector<std::int32_t>& ids) const {
    if (plain.empty()) return encode_normal(normalize_(std::move(text)), first, {}, false, ids);
    const std::string normal = normalize_(text);
    if (const auto moved = ranges_in_normal(text, plain, normal, normalize_))
      return encode_normal(normal, first, *moved, true, ids);
    // No part of the text is taken for markup where no place is known.
    encode_normal(normal, first, std::vector<TextRange>{{0, normal.size()}}, true, ids);
  }

  void encode_normal(const std::string& normal, bool first, std::span<const TextRange> plain, bool guarded,
                     std::vector<std::int32_t>& ids) const {
    for (const AddedPart& part : normal_added_.cut(normal, plain)) {
      if (part.id >= 0) {
        ids.push_back(part.id);
        continue;
      }
      for (const TextPiece& piece :
           pre_.split({{normal.substr(part.begin, part.end - part.begin), first && part.begin == 0}})) {
        if (piece.text.empty()) continue;
        const std::size_t before = ids.size();
        model_->encode(piece.text, ids);
        if (guarded) break_markup(piece.text, before, ids);
      }
    }
  }

  // The ids from `before` on are those of a piece that is plain at least in part. A model whose vocabulary
  // has an added token may have given its id; then the token's text is encoded in two parts.
  void break_markup(const std::string& piece, std::size_t before, std::vector<std::int32_t>& ids) const {
    const auto found = std::span(ids).subspan(before);
    if (std::ranges::none_of(found, [this](std::int32_t id) { return markup_.contains(id); })) return;
    const TextRange all[] = {{0, piece.size()}};
    const std::vector<std::size_t> places = markup_texts_.breaks(piece, all);
    if (places.empty()) return;
    ids.resize(before);
    std::size_t done = 0;
    for (const std::size_t end : places) {
      model_->encode(piece.substr(done, end - done), ids);
      done = end;
    }
    model_->encode(piece.substr(done), ids);
  }

  void read_added(const JsonReader& top) {
    for (const JsonReader& entry : top.list("added_tokens")) {
      AddedToken token{static_cast<std::int32_t>(entry.integer("id", 0, kMaxTokenId)), entry.text("content"),
                       entry.flag("lstrip", false), entry.flag("rstrip", false),
                       entry.flag("single_word", false)};
      if (token.content.empty()) entry.fail("empty content");
      const bool special = entry.flag("special", false);
      add_whole(std::move(token), special, entry.flag("normalized", !special), entry);
    }
  }

  void add_whole(AddedToken token, bool special, bool normalized, const JsonReader& from) {
    ids_[token.content] = token.id;
    added_.insert(token.content);
    if (special) special_.insert(token.id);
    if (normalized) token.content = normalize_(token.content);
    if (token.content.empty()) from.fail("content is empty once normalised");
    add_token(token.id, token.content);
    markup_.insert(token.id);
    markup_texts_.add(token);
    (normalized ? normal_added_ : raw_added_).add(std::move(token));
  }

  // Tokens that tokenizer_config.json names and added_tokens lacks: with their id in the vocabulary, the one
  // that it states, or the next one.
  void add_missing(const JsonReader& settings) {
    for (const ConfigToken& token : tokens_of_config(settings)) {
      if (added_.contains(token.content)) continue;
      const std::int32_t id = id_of_text(token.content).value_or(token.id.value_or(vocab_size_));
      if (token.id.value_or(id) != id || (!ids_.contains(token.content) && tokens_.contains(id)))
        settings.fail(fmt::format("{} has id {}, which {} does not give it", in_quotes(token.content),
                                  token.id.value_or(id), name_));
      add_whole({id, token.content, token.left_strip, token.right_strip, token.single_word}, token.special,
                token.normalized, settings);
    }
  }

  std::optional<std::int32_t> id_of_text(const std::string& text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

  // bos stands where the template puts it, unless add_bos_token is false; eos is named by
  // tokenizer_config.json, the template, or custom (the usual names).
  void read_ends(const JsonReader& top, const JsonReader& settings) {
    if (top.has("post_processor")) read_template(top.object("post_processor"));
    const auto named = [&](const char* key) -> std::optional<std::int32_t> {
      const auto content = named_token(settings, key);
      return content ? id_of_text(*content) : std::nullopt;
    };
    if (!bos_ && settings.flag("add_bos_token", false)) bos_ = named("bos_token");
    if (!settings.flag("add_bos_token", true)) bos_.reset();
    ends_prompts_ = settings.flag("add_eos_token", false);
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
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      if (!bos_) bos_ = end_of(post, "cls");
      if (!eos_) eos_ = end_of(post, "sep");
    } else if (type != "ByteLevel") {
      post.fail("post-processor " + in_quotes(type) + " is not supported");
    }
  }

  // "cls": ["[CLS]", 101]
  std::optional<std::int32_t> end_of(const JsonReader& post, const char* key) const {
    const json& pair = post.at(key);
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() ||
        !id_of_text(pair[0].get<std::string>()))
      post.fail(fmt::format("\"{}\" is not a token of the vocabulary and its id", key));
    return id_of_text(pair[0].get<std::string>());
  }

  std::string name_;
  Normalizer normalize_;
  PreTokenizer pre_;
  std::unique_ptr<PieceModel> model_;
  Decoder decode_;
  TokenDecoder token_bytes_;
  AddedTokenFinder raw_added_, normal_added_;
  AddedTokenFinder markup_texts_;            // of all added tokens
  std::unordered_set<std::int32_t> markup_;  // their ids
  Vocabulary ids_;                           // as written in the file, added tokens included
  std::unordered_map<std::int32_t, std::string> tokens_;
  std::unordered_set<std::int32_t> special_;
  std::unordered_set<std::string> added_;  // contents of added tokens
  std::optional<std::int32_t> bos_, eos_;
  bool ends_prompts_ = false;
  std::int32_t vocab_size_ = 0;
};

}  // namespace

std::unique_ptr<Tokenizer> parse_huggingface(std::string_view text, std::string_view config,
                                             const std::string& name) {
  const json settings =
      config.empty() ? json::object() : parse_json(config, name + " (tokenizer_config.json)");
  return std::make_unique<HuggingFaceTokenizer>(parse_json(text, name), settings, name);
}

}  // namespace switchyard
